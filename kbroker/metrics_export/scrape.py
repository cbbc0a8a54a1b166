"""One scrape in the making: samples by metric, and the pace at which they are gathered.

A scrape may have a hundred thousand samples. It works for a moment and then lets the loop rest from it for as long, so that it takes at
most half of the broker's time and delays no request by more than a moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from time import perf_counter
from typing import TypeAlias

import trio
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from kbroker.metrics import Histogram
from kbroker.metrics_export.table import METRICS

Labels: TypeAlias = Mapping[str, str]
NO_LABELS: Labels = {}

_MOMENT_S = 0.002


class Pace:
    """Call `rest()` after every small piece of work; most calls return at once."""

    def __init__(self) -> None:
        self._began = perf_counter()

    async def rest(self) -> None:
        if perf_counter() - self._began >= _MOMENT_S:
            await trio.sleep(_MOMENT_S)
            self._began = perf_counter()


class Scrape:
    """`pace` is the scrape's own. Samples may share one mapping of labels; nobody changes it."""

    def __init__(self) -> None:
        self.pace = Pace()
        self._families = {name: Metric(name.removesuffix("_total"), each.meaning, each.kind) for name, each in METRICS.items()}

    def add(self, name: str, value: float, labels: Labels = NO_LABELS) -> None:
        """A counter's or a gauge's sample; `name` is one of the table, with its labels."""
        self._families[name].samples.append(Sample(name, labels, value))  # type: ignore[arg-type]  # it is not changed

    def add_histogram(self, name: str, histogram: Histogram, labels: Labels = NO_LABELS) -> None:
        samples = self._families[name].samples
        bounds = [*map(repr, histogram.bounds), "+Inf"]
        count = 0
        for bound, count in zip(bounds, accumulate(histogram.counts), strict=True):
            samples.append(Sample(f"{name}_bucket", {**labels, "le": bound}, count))
        samples.append(Sample(f"{name}_count", labels, count))  # type: ignore[arg-type]
        samples.append(Sample(f"{name}_sum", labels, histogram.total))  # type: ignore[arg-type]

    def families(self) -> list[Metric]:
        return list(self._families.values())
