"""Topics whose logs are purged, of many small segments. Client processes look here, too: it imports
little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tests.judges.producer_history import Retention

if TYPE_CHECKING:
    from kbroker.testing.broker import RunningBroker

ORDERS, AGING, SIZED = "orders", "aging", "sized"
TOPICS: Mapping[str, int] = {ORDERS: 3, AGING: 2, SIZED: 1}
"""Partitions by topic."""
RETENTION = {ORDERS: Retention.NOTHING, AGING: Retention.OLD, SIZED: Retention.ANYTHING}
_SEGMENT = {"internal.segment.bytes": "3000"}
TOPIC_CONFIGS: Mapping[str, Mapping[str, str]] = {
    ORDERS: {**_SEGMENT, "retention.ms": "-1"},
    AGING: {**_SEGMENT, "retention.ms": "3600000"},
    SIZED: {**_SEGMENT, "retention.ms": "-1", "retention.bytes": "9000"},
}
BROKER_CONFIG = {"log.retention.check.interval.ms": "100"}
OLD_MS = 7_200_000
"""How far back old records are stamped: longer than what `aging` keeps."""


def create_topics(broker: RunningBroker) -> None:
    for topic, partitions in TOPICS.items():
        broker.create_topic(topic, partitions=partitions, config=TOPIC_CONFIGS[topic])
