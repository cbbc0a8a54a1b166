"""The goals over TLS: against Kafka's default, as for plain connections."""

from __future__ import annotations

from perf.security.rows import ROWS
from perf.suite.goals import Goal

_RATE, _PER_CPU_S = 1.0, 1.5


def all_goals() -> list[Goal]:
    """In the order of the report."""
    return [
        Goal(row.key, metric, "segment-os", "kafka", at_least=at_least)
        for row in ROWS
        for metric, at_least in (("rate", _RATE), ("per_cpu_s", _PER_CPU_S))
    ]
