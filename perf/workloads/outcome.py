"""The results of a workload in its window."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Percentiles:
    """Computed from single readings, not from averages: the readings of all processes are merged
    first."""

    p50: float
    p95: float
    p99: float
    p999: float
    max: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Percentiles | None:
        """None if there are no values. A percentile is one of the values (nearest rank), not
        interpolated."""
        ordered = sorted(values)
        if not ordered:
            return None

        def at(share: float) -> float:
            return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]

        return cls(at(0.5), at(0.95), at(0.99), at(0.999), ordered[-1], len(ordered))


@dataclass(frozen=True)
class WorkloadOutcome:
    """Counts within the window, excluding everything before and after it.

    records: each workload defines which are counted. bytes: of their values. requests: polls that
    returned records, or as the workload defines. latencies_ms: None if the workload measures no
    latency. first_record_ms: of the slowest client; None if it is meaningless. ran_dry: the records
    were used up too soon; the rate is meaningless.
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
        """In units of 10**6 bytes."""
        return self.bytes / 1e6 / self.seconds if self.seconds else 0.0
