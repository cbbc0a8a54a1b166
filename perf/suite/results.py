"""The results of the suite: every reading of every row and candidate, with the description of each
metric, and their conversion to JSON and back.

The reports use only the JSON, which is also stored in perf/results. It describes itself (titles,
units, which direction is better). Ratios are calculated for each round, since the two readings of a
round are at most minutes apart, and their median is reported.
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
"""The values of one row, candidate and round, by metric."""
ROUND = "round"
"""The key of the round's number, from 1, in a stored reading. Runs of earlier versions lack it."""


class Metric(NamedTuple):
    """`unit`: as shown in a table's head or on an axis."""

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
    "back_ms": Metric("until it delivers a job", "ms", "lower"),
    "idle_mb": Metric("anonymous memory, idle", "MB", "lower"),
    "rss_anon_mb": Metric("anonymous memory", "MB", "lower"),
    "rss_mb": Metric("resident memory", "MB", "lower"),
    "over_empty_mb": Metric("anonymous memory over an empty queue", "MB", "lower"),
    "grew_mb": Metric("growth of anonymous memory", "MB", "lower"),
    "answer_bytes": Metric("bytes of a response", "bytes", "lower"),
    "of_ideal": Metric("share of the ideal rate", "ideal rates", "higher"),
    "released_per_s": Metric("released", "jobs/s", "higher"),
    "parked_per_s": Metric("parked", "jobs/s", "higher"),
    "commits_per_s": Metric("committed transactions", "transactions/s", "higher"),
    "uncommitted_rate": Metric("the same with read_uncommitted", "records/s", "higher"),
    "alone_p50_ms": Metric("p50 without a pass", "ms", "lower"),
    "alone_p99_ms": Metric("p99 without a pass", "ms", "lower"),
    "pass_s": Metric("length of the pass", "s", "lower"),
    "pass_mb_per_s": Metric("log cleaned", "MB/s", "higher"),
    "client_us": Metric("client CPU per record", "us", "lower"),
    "fairness": Metric("slowest consumer by the fastest", "times", "higher"),
}
"""A row may return any of these. MB is 10**6 bytes."""


@dataclass
class CandidateFacts:
    """`missing`: why there are no readings (not installed, does not start), in one line; otherwise
    None."""

    key: str
    title: str
    family: str
    engine: str
    durability: str
    version: str
    missing: str | None = None


@dataclass
class RowResult:
    """`readings`: by candidate, one for each successful round; empty for a chosen candidate without
    readings."""

    key: str
    title: str
    group: str
    note: str = ""
    readings: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def add(self, candidate: str, round_number: int, reading: Reading) -> None:
        self.readings.setdefault(candidate, []).append({ROUND: round_number, **reading})


@dataclass
class GoalResult:
    """The result of a goal. Without a limit, the ratio is for information.

    - `ratio`: the median of the ratios of `candidate` to `against` (in `against_row`, and of
      `against_metric`, if given).
    - `low`, `high`: the lowest and highest ratio of a round.
    - `met`: None if there is no limit, or no reading.
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
    against_metric: str | None = None


class Ratio(NamedTuple):
    median: float
    low: float
    high: float


@dataclass
class Results:
    """A run. `engines`: ratios of the other engines to the segment engine, by row and overall.
    `notes`: failures, one line each."""

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
        """One value for each round; empty if there are no readings."""
        return [reading[metric] for reading in self._readings(row, candidate, metric)]

    def median(self, row: str, candidate: str, metric: str) -> float | None:
        values = self.values(row, candidate, metric)
        return statistics.median(values) if values else None

    def ratio(
        self,
        row: str,
        metric: str,
        candidate: str,
        against: str,
        against_row: str | None = None,
        against_metric: str | None = None,
    ) -> Ratio | None:
        """The ratio of `candidate` to `against` (in `against_row`, and of `against_metric`, if
        given). None if they have no round in common."""
        other = against_metric or metric
        above, below = (
            self._readings(row, candidate, metric),
            self._readings(against_row or row, against, other),
        )
        if all(ROUND in reading for reading in (*above, *below)):
            common = {reading[ROUND] for reading in above} & {reading[ROUND] for reading in below}
            above, below = (
                [reading for reading in each if reading[ROUND] in common] for each in (above, below)
            )
        return ratio_of([reading[metric] for reading in above], [reading[other] for reading in below])

    def _readings(self, row: str, candidate: str, metric: str) -> list[dict[str, float]]:
        found = self.row(row)
        readings = found.readings.get(candidate, []) if found is not None else []
        return [reading for reading in readings if metric in reading]


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Ratio | None:
    """The median of the ratios of readings at the same position.

    If one side has fewer readings, they cannot be paired. The result is then the ratio of the
    medians, with the extreme ratios.
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
    """The inverse of `to_json`. Raises KeyError or TypeError for anything else."""
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
