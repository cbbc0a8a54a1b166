"""The definition of a metric: one row of the tables."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


class MetricDef(NamedTuple):
    """`kafka`: the MBean's type and attribute, empty where Kafka has none."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    kafka: str
    meaning: str


class Section(NamedTuple):
    title: str
    metrics: tuple[MetricDef, ...]


def counter(name: str, labels: str, kafka: str, meaning: str) -> MetricDef:
    return MetricDef(f"kbroker_{name}_total", "counter", tuple(labels.split()), kafka, meaning)


def gauge(name: str, labels: str, kafka: str, meaning: str) -> MetricDef:
    return MetricDef(f"kbroker_{name}", "gauge", tuple(labels.split()), kafka, meaning)


def histogram(name: str, labels: str, kafka: str, meaning: str) -> MetricDef:
    return MetricDef(f"kbroker_{name}", "histogram", tuple(labels.split()), kafka, meaning)


PARTITION = "group topic partition"
"""The labels of a share-partition, and of a partition that a consumer group has committed."""
