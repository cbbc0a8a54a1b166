"""What a workload did in its window."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Percentiles:
    """Of single readings, not of averages: what several processes measured is put together before
    it is counted."""

    p50: float
    p95: float
    p99: float
    p999: float
    max: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Percentiles | None:
        """None where there is no value. A percentile is a value that was read (nearest rank), never
        one in between."""
        ordered = sorted(values)
        if not ordered:
            return None

        def at(share: float) -> float:
            return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]

        return cls(at(0.5), at(0.95), at(0.99), at(0.999), ordered[-1], len(ordered))


@dataclass(frozen=True)
class Outcome:
    """Counts of the window, and nothing from before or after it.

    records: see the workload for what counts.
    bytes: of their values.
    requests: polls that had records, where there are polls; see the workload.
    latencies_ms: None where the workload measures no latency.
    first_record_ms: of the slowest client; None where it means nothing.
    ran_dry: the topic came to its end before the window had a meaning; the rate is worthless.
    """

    records: int
    bytes: int
    seconds: float
    requests: int = 0
    latencies_ms: Percentiles | None = None
    first_record_ms: float | None = None
    ran_dry: bool = False
    details: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def megabytes_per_s(self) -> float:
        """Units of 10**6 bytes."""
        return self.bytes / 1e6 / self.seconds if self.seconds else 0.0
