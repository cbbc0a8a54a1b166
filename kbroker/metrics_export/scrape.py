"""One scrape: its values by metric, and the pace at which they are gathered and written.

A scrape may have a hundred thousand samples. It works for a moment, then yields the loop for as
long, and simultaneous scrapes take turns. So all scrapes together use at most half of the broker's
time and delay no request by more than a moment. Until they are written, values are kept in arrays
beside their labels: as objects of their own they would prolong garbage collections, which block the
loop.
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
"""Samples may share it; it never changes."""
NO_LABELS: Labels = {}

SAMPLES_AT_ONCE = 200
_MOMENT_S = 0.002


class ScrapeTurns:
    """The pace of all scrapes of a broker: each works for a moment, and after each such moment none
    of them works for as long."""

    def __init__(self) -> None:
        self._free = 0.0

    def take(self, now: float) -> float:
        """When a scrape that has worked until `now` (seconds) may continue."""
        begin = max(now + _MOMENT_S, self._free)
        self._free = begin + 2 * _MOMENT_S
        return begin


class Pace:
    """The pace of one scrape. Call `rest()` after every small piece of work; most calls return at
    once."""

    def __init__(self, turns: ScrapeTurns) -> None:
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
    """`pace`: that of this scrape."""

    def __init__(self, turns: ScrapeTurns) -> None:
        self.pace = Pace(turns)
        self._values = {name: _Values() for name, each in METRICS.items() if each.kind != "histogram"}
        self._histograms: dict[str, list[Sample]] = {
            name: [] for name, each in METRICS.items() if each.kind == "histogram"
        }

    def add(self, name: str, value: float, labels: Labels = NO_LABELS) -> None:
        """Add a sample of a counter or gauge; `name` and labels as in the table."""
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
        """Every metric of the table in its order, in pieces of up to this many samples. True for
        the first piece of a metric, which may be empty."""
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
