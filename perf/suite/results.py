"""What the suite has read: every reading of every row and candidate, with what each metric means,
to JSON and back.

The JSON is all that the reports know, and what is kept in perf/results: it describes itself
(titles, units, which way is better). Ratios are taken round by round, since the two readings of one
round were taken minutes apart at most, and their median is reported.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

Better: TypeAlias = Literal["higher", "lower"]
Reading: TypeAlias = Mapping[str, float]
"""Of one row, candidate and round: value by metric."""
ROUND = "round"
"""Beside the metrics of a kept reading: which round it is of, from 1. Runs of earlier versions do
not have it."""


class Metric(NamedTuple):
    """`unit` is what a table's head or an axis says."""

    title: str
    unit: str
    better: Better


METRICS: Mapping[str, Metric] = {
    "rate": Metric("throughput", "records/s", "higher"),
    "per_cpu_s": Metric("records per broker CPU second", "records/CPU s", "higher"),
    "cpu_s": Metric("broker CPU in the window", "CPU s", "lower"),
    "cpu_share": Metric("broker CPU per second", "CPU s/s", "lower"),
    "p50_ms": Metric("p50", "ms", "lower"),
    "p99_ms": Metric("p99", "ms", "lower"),
    "p999_ms": Metric("p99.9", "ms", "lower"),
    "ms": Metric("time", "ms", "lower"),
    "ready_ms": Metric("until it listens", "ms", "lower"),
    "back_ms": Metric("until it hands out a job", "ms", "lower"),
    "idle_mb": Metric("anonymous memory, idle", "MB", "lower"),
    "rss_anon_mb": Metric("anonymous memory", "MB", "lower"),
    "rss_mb": Metric("resident memory", "MB", "lower"),
    "over_empty_mb": Metric("anonymous memory over an empty queue", "MB", "lower"),
    "grew_mb": Metric("growth of anonymous memory", "MB", "lower"),
    "answer_bytes": Metric("bytes of an answer", "bytes", "lower"),
    "of_ideal": Metric("share of the ideal rate", "ideal rates", "higher"),
    "released_per_s": Metric("given back", "jobs/s", "higher"),
    "parked_per_s": Metric("put aside", "jobs/s", "higher"),
    "fairness": Metric("slowest consumer by the fastest", "times", "higher"),
}
"""A row may give any of these. MB is 10**6 bytes."""


@dataclass
class CandidateFacts:
    """`missing`: why there are no readings (not installed, does not start), in one line; None where
    there are."""

    key: str
    title: str
    family: str
    engine: str
    durability: str
    version: str
    missing: str | None = None


@dataclass
class RowResult:
    """`readings`: by candidate, one for each round that gave one; empty for who was chosen for the
    row and gave none."""

    key: str
    title: str
    group: str
    note: str = ""
    readings: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def add(self, candidate: str, round_number: int, reading: Reading) -> None:
        self.readings.setdefault(candidate, []).append({ROUND: round_number, **reading})


@dataclass
class GoalResult:
    """`ratio`: the median of candidate by `against` (in `against_row`, where that is another row);
    `low` and `high` are of the rounds.

    No limit: the ratio is for information. `met` None: no limit, or no readings to judge.
    """

    row: str
    metric: str
    candidate: str
    against: str
    at_least: float | None
    at_most: float | None
    against_row: str | None = None
    title: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    met: bool | None = None


class Ratio(NamedTuple):
    median: float
    low: float
    high: float


@dataclass
class Results:
    """`engines`: the other engines by the segment engine, row by row and together. `notes`: what
    went wrong, a line each."""

    machine: dict[str, Any]
    began: str
    mode: str
    took_s: float = 0.0
    candidates: list[CandidateFacts] = field(default_factory=list)
    rows: list[RowResult] = field(default_factory=list)
    goals: list[GoalResult] = field(default_factory=list)
    engines: list[GoalResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def row(self, key: str) -> RowResult | None:
        return next((row for row in self.rows if row.key == key), None)

    def values(self, row: str, candidate: str, metric: str) -> list[float]:
        """One for each round; empty where nothing was read."""
        return [reading[metric] for reading in self._readings(row, candidate, metric)]

    def median(self, row: str, candidate: str, metric: str) -> float | None:
        values = self.values(row, candidate, metric)
        return statistics.median(values) if values else None

    def ratio(
        self, row: str, metric: str, candidate: str, against: str, against_row: str | None = None
    ) -> Ratio | None:
        """Of candidate by `against` (in `against_row`, if it is another row). None where they have
        no round in common."""
        above, below = (
            self._readings(row, candidate, metric),
            self._readings(against_row or row, against, metric),
        )
        if all(ROUND in reading for reading in (*above, *below)):
            common = {reading[ROUND] for reading in above} & {reading[ROUND] for reading in below}
            above, below = (
                [reading for reading in each if reading[ROUND] in common] for each in (above, below)
            )
        return ratio_of([reading[metric] for reading in above], [reading[metric] for reading in below])

    def _readings(self, row: str, candidate: str, metric: str) -> list[dict[str, float]]:
        found = self.row(row)
        readings = found.readings.get(candidate, []) if found is not None else []
        return [reading for reading in readings if metric in reading]


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Ratio | None:
    """The median of the ratios round by round, by position.

    Where one side has fewer readings, nothing says which of them belong together: then the medians'
    ratio, between the extremes.
    """
    if not above or not below or not all(below):
        return None
    if len(above) == len(below):
        ratios = [a / b for a, b in zip(above, below, strict=True)]
        return Ratio(statistics.median(ratios), min(ratios), max(ratios))
    return Ratio(
        statistics.median(above) / statistics.median(below), min(above) / max(below), max(above) / min(below)
    )


def to_json(results: Results) -> dict[str, Any]:
    return {**asdict(results), "metrics": {name: metric._asdict() for name, metric in METRICS.items()}}


def from_json(data: Mapping[str, Any]) -> Results:
    """Of `to_json`. Raises KeyError or TypeError for anything else."""
    return Results(
        machine=dict(data["machine"]),
        began=data["began"],
        mode=data["mode"],
        took_s=data["took_s"],
        candidates=[CandidateFacts(**row) for row in data["candidates"]],
        rows=[RowResult(**row) for row in data["rows"]],
        goals=[GoalResult(**row) for row in data["goals"]],
        engines=[GoalResult(**row) for row in data["engines"]],
        notes=list(data["notes"]),
    )


def write_json(results: Results, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_json(results), indent=1) + "\n")
