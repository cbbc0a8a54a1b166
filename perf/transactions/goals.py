"""The goals of transactions and compaction."""

from __future__ import annotations

from collections.abc import Iterator

from perf.suite.candidates import KINDS
from perf.suite.goals import Goal
from perf.transactions import cleaning, committing, pipeline, reading

_THEIRS = {"os": "kafka", "disk": "kafka-sync"}
_COMMITTED = 0.9
"""The least rate of read_committed, as a part of read_uncommitted on the same log."""
_BESIDE = 2.0
"""The most that a share consumer's 99th percentile may grow during a pass."""


def all_goals() -> list[Goal]:
    """In the order of the report. The segment engine is compared with Kafka with a limit, and the
    other engines without one."""
    return [*_goals()]


def _goals() -> Iterator[Goal]:
    ours = [kind for kind in KINDS.values() if kind.family == "kbroker"]
    for kind in ours:
        limit = 1.0 if kind.engine == "segment" else None
        for row in (*committing.ROWS, *pipeline.ROWS):
            if row.suits(kind.key):
                for metric in ("commits_per_s", "rate"):
                    at_least = limit if row in committing.ROWS else None
                    yield Goal(row.key, metric, kind.key, _THEIRS[kind.durability], at_least=at_least)
    for kind in ours:
        for row in reading.ROWS:
            if row.suits(kind.key):
                yield Goal(
                    row.key, "rate", kind.key, kind.key, at_least=_COMMITTED,
                    against_metric="uncommitted_rate",
                )  # fmt: skip
    for row in cleaning.ROWS:
        for kind in ours:
            if row.suits(kind.key) and row.key == "share-beside-pass":
                yield Goal(
                    row.key, "p99_ms", kind.key, kind.key, at_most=_BESIDE, against_metric="alone_p99_ms"
                )
