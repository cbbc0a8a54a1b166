"""One scrape in the making: values by metric, and the pace at which they are gathered and written.

A scrape may have a hundred thousand samples. It works for a moment and then lets the loop rest from
it for as long, and scrapes at the same time take turns, so that all of them take at most half of
the broker's time and delay no request by more than a moment. Until they are written values are kept
in arrays beside their labels: as objects of their own they would make a garbage collection, which
lets nobody else have a turn, take ever longer.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import accumulate
from time import perf_counter
from typing import TypeAlias

import trio
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from kbroker.metrics import Histogram
from kbroker.metrics_export.definition import MetricDef
from kbroker.metrics_export.table import METRICS

Labels: TypeAlias = dict[str, str]
"""Samples may share one; nobody changes it."""
NO_LABELS: Labels = {}

SAMPLES_AT_ONCE = 200
_MOMENT_S = 0.002


class Turns:
    """Of all scrapes of a broker: each works for a moment, and behind each moment is one in which
    none of them does."""

    def __init__(self) -> None:
        self._free = 0.0

    def take(self, now: float) -> float:
        """When who worked until `now` (seconds) may work again."""
        begin = max(now + _MOMENT_S, self._free)
        self._free = begin + 2 * _MOMENT_S
        return begin


class Pace:
    """One scrape's. Call `rest()` after every small piece of work; most calls return at once."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._began = perf_counter()

    async def rest(self) -> None:
        now = perf_counter()
        if now - self._began >= _MOMENT_S:
            await trio.sleep(self._turns.take(now) - now)
            self._began = perf_counter()


class _Values:
    __slots__ = ("labels", "values")

    def __init__(self) -> None:
        self.labels: list[Labels] = []
        self.values = array("d")


class Scrape:
    """`pace` is the scrape's own."""

    def __init__(self, turns: Turns) -> None:
        self.pace = Pace(turns)
        self._values = {name: _Values() for name, each in METRICS.items() if each.kind != "histogram"}
        self._histograms: dict[str, list[Sample]] = {
            name: [] for name, each in METRICS.items() if each.kind == "histogram"
        }

    def add(self, name: str, value: float, labels: Labels = NO_LABELS) -> None:
        """A counter's or a gauge's sample; `name` is one of the table, with its labels."""
        found = self._values[name]
        found.labels.append(labels)
        found.values.append(value)

    def add_histogram(self, name: str, histogram: Histogram, labels: Labels = NO_LABELS) -> None:
        samples = self._histograms[name]
        bounds = [*map(repr, histogram.bounds), "+Inf"]
        count = 0
        for bound, count in zip(bounds, accumulate(histogram.counts), strict=True):
            samples.append(Sample(f"{name}_bucket", {**labels, "le": bound}, count))
        samples += (Sample(f"{name}_count", labels, count), Sample(f"{name}_sum", labels, histogram.total))

    def pieces(self) -> Iterator[tuple[Metric, bool]]:
        """Every metric of the table in its order, in pieces of so many samples; true for the first
        piece, without samples where there are none."""
        for definition in METRICS.values():
            is_first = True
            for samples in self._samples(definition):
                metric = Metric(definition.name.removesuffix("_total"), definition.meaning, definition.kind)
                metric.samples = samples
                yield metric, is_first
                is_first = False

    def _samples(self, definition: MetricDef) -> Iterator[list[Sample]]:
        name = definition.name
        if definition.kind == "histogram":
            samples = self._histograms[name]
            yield from (samples[some] for some in _slices(len(samples)))
        else:
            found = self._values[name]
            for some in _slices(len(found.values)):
                yield [
                    Sample(name, labels, value)
                    for labels, value in zip(found.labels[some], found.values[some], strict=True)
                ]


def _slices(count: int) -> Iterator[slice]:
    """At least one."""
    return (slice(first, first + SAMPLES_AT_ONCE) for first in range(0, max(1, count), SAMPLES_AT_ONCE))
