"""A run of the suite as its JSON has it, with what both reports need: medians, spreads, ratios, and
how numbers are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any, NamedTuple

from perf.suite.results import (
    METRICS,
    ROUND,
    CandidateFacts,
    GoalResult,
    Metric,
    Ratio,
    Results,
    RowResult,
    from_json,
)

OURS, THEIRS = "segment-os", "kafka"
"""The pair of the headlines and of the main picture: the default engine and Kafka's default,
neither syncs."""

COUNTERPART = {"os": "kafka", "disk": "kafka-sync"}
"""Whom a candidate of ours is compared with, by durability."""

QUEUE_RIVALS = frozenset({"redis", "nats", "rabbitmq"})
QUEUE_GROUPS = ("queue", "waiting")
"""Those are in rows of these groups only."""

GROUPS: Mapping[str, tuple[str, str]] = {
    "produce": (
        "Produce",
        "Unmodified clients in processes of their own; counted is what the broker has acknowledged.",
    ),
    "fetch": ("Fetch", "Ordinary consumers reading what was written before."),
    "share": (
        "Share groups",
        "Many consumers of one topic, every record acknowledged. Small batches are of 1 to 3 records.",
    ),
    "queue": ("One record at a time", "A work queue: take one record, acknowledge it, take the next one."),
    "latency": (
        "Latency",
        "Less is better. End to end counts from the moment a record was due: a broker that stalls is not "
        "flattered.",
    ),
    "footprint": ("Footprint", "What it costs to start and to stay. Less is better."),
    "scale": ("Scale", "What becomes of the rates as there is more of everything."),
    "jobs": (
        "Jobs one at a time",
        "Work queues, each worker holds one job, taken from batches of one or cut out of large ones.",
    ),
    "waiting": (
        "Jobs that wait",
        "Redelivery after a delay, and jobs for later. Of times and memory less is better.",
    ),
}

ABOUT_RATES = ("produce", "fetch", "share", "queue")
"""Groups in which clients do as much as they can."""
NOT_IN_MEAN = frozenset({"one-8-backlog", "produce-100b-1p-acks1", "produce-1kb-6p-16kb-acks1"})
"""What Kafka is known to be weak at, and what is nearly the same as another row: neither should
weigh in one number for everything."""
_SAID_WITH_GROUP = ("produce", "fetch", "share")
_SHORT = {
    "rate": "records/s",
    "per_cpu_s": "records per broker CPU s",
    "cpu_s": "broker CPU",
    "idle_mb": "memory, idle",
    "rss_anon_mb": "memory",
}

TIMES = "\N{MULTIPLICATION SIGN}"
PERCENTILES = ("p50_ms", "p99_ms", "p999_ms")


class Spread(NamedTuple):
    median: float
    low: float
    high: float

    @property
    def percent(self) -> float:
        """Half of the way from the lowest to the highest, of the median."""
        return 50 * (self.high - self.low) / self.median if self.median else 0.0


@dataclass(frozen=True, slots=True)
class Report:
    results: Results
    metrics: Mapping[str, Metric]

    def metric(self, name: str) -> Metric:
        """One that nobody describes is shown under its own name, its unit is what the name ends
        with."""
        if name in self.metrics:
            return self.metrics[name]
        title, _, last = name.rpartition("_")
        unit = {"ms": "ms", "mb": "MB", "s": "s"}.get(last, "")
        return Metric((title if unit else name).replace("_", " "), unit, "lower" if unit else "higher")

    @property
    def goals(self) -> list[GoalResult]:
        """Those against others, then those of the engines against the segment engine."""
        return [*self.results.goals, *self.results.engines]

    def title(self, row_key: str) -> str:
        """With its group, where rows of other groups may be called the same."""
        row = self.results.row(row_key)
        if row is None:
            return row_key
        return f"{row.group}: {row.title}" if row.group in _SAID_WITH_GROUP else row.title

    def groups(self) -> list[str]:
        found = dict.fromkeys(row.group for row in self.results.rows)
        return [group for group in GROUPS if group in found] + [
            group for group in found if group not in GROUPS
        ]

    def rows_of(self, group: str) -> list[RowResult]:
        return [row for row in self.results.rows if row.group == group]

    def spread(self, row: RowResult, candidate: str, metric: str) -> Spread | None:
        values = self.results.values(row.key, candidate, metric)
        return Spread(median(values), min(values), max(values)) if values else None

    def metrics_of(self, row: RowResult) -> list[str]:
        """Those that are described, in that order, then others."""
        found = dict.fromkeys(
            metric
            for rounds in row.readings.values()
            for each in rounds
            for metric in each
            if metric != ROUND
        )
        return [metric for metric in self.metrics if metric in found] + [
            metric for metric in found if metric not in self.metrics
        ]

    def against_kafka(self, row: RowResult, candidate: CandidateFacts, metric: str) -> Ratio | None:
        """How a candidate of ours stands to Kafka of the same durability, or to Kafka's default
        where only that was run."""
        if candidate.family != "kbroker":
            return None
        counterpart = COUNTERPART.get(candidate.durability, THEIRS)
        return self.results.ratio(
            row.key, metric, candidate.key, counterpart if counterpart in row.readings else THEIRS
        )

    def shown_in(self, rows: Iterable[RowResult]) -> list[CandidateFacts]:
        """Who was to run one of the rows, and who would have run one if it were installed."""
        rows = list(rows)
        return [
            each
            for each in self.results.candidates
            if any(each.key in row.readings or would_have(each, row) for row in rows)
        ]

    def rounds(self) -> int:
        return max((len(rounds) for row in self.results.rows for rounds in row.readings.values()), default=0)

    def counts(self, goals: Iterable[GoalResult] | None = None) -> tuple[int, int, int]:
        """Goals that are met, missed, not measured. A ratio without a limit is none, unless it
        could not be measured."""
        verdicts = [
            goal.met
            for goal in (self.goals if goals is None else goals)
            if has_limit(goal) or goal.ratio is None
        ]
        return verdicts.count(True), verdicts.count(False), verdicts.count(None)

    def mean_ratio(self, metric: str) -> tuple[float, int] | None:
        """Of the main pair: geometric mean over the rows about rates that both have, but for
        `NOT_IN_MEAN`, and how many these are."""
        rows = [row for row in self.results.rows if row.group in ABOUT_RATES and row.key not in NOT_IN_MEAN]
        found = [self.results.ratio(row.key, metric, OURS, THEIRS) for row in rows]
        ratios = [ratio.median for ratio in found if ratio is not None and ratio.median > 0]
        return (geometric_mean(ratios), len(ratios)) if ratios else None

    def facts(self) -> list[tuple[str, str]]:
        """The run and the machine, as pairs of a name and a text."""
        results = self.results
        run = [
            ("began", results.began),
            ("took", duration(results.took_s)),
            ("mode", results.mode),
            ("rounds", str(self.rounds())),
        ]
        return run + [_fact(name, value) for name, value in results.machine.items()]


def parse(data: Mapping[str, Any]) -> Report:
    """From the suite's JSON; KeyError or TypeError for anything else."""
    described = {name: Metric(**each) for name, each in data.get("metrics", {}).items()}
    return Report(from_json(data), {**METRICS, **described})


def would_have(candidate: CandidateFacts, row: RowResult) -> bool:
    """Whether it is missing in this row because it is not installed."""
    return candidate.missing is not None and (
        candidate.family not in QUEUE_RIVALS or row.group in QUEUE_GROUPS
    )


def kind(candidate: CandidateFacts) -> str:
    """What gives it its colour: the engine of ours, the family of the others."""
    return (
        (candidate.engine or candidate.key.partition("-")[0])
        if candidate.family == "kbroker"
        else candidate.family
    )


def has_limit(goal: GoalResult) -> bool:
    return goal.at_least is not None or goal.at_most is not None


def limit_text(goal: GoalResult) -> str:
    """At least or at most so many times."""
    limits = (("≥", goal.at_least), ("≤", goal.at_most))
    return " ".join(f"{relation} {_short(limit)} {TIMES}" for relation, limit in limits if limit is not None)


def goal_title(report: Report, goal: GoalResult) -> str:
    """What was measured, without the metric. A goal over many rows is its own title."""
    row = report.results.row(goal.row)
    if row is None:
        return goal.title or goal.row
    other = f", of {report.title(goal.against_row)}" if goal.against_row not in (None, goal.row) else ""
    return report.title(goal.row) + other


def short_name(report: Report, metric: str) -> str:
    """For narrow columns."""
    return _SHORT.get(metric, report.metric(metric).title)


def with_unit(report: Report, metric: str) -> str:
    """A short name that says its unit, too."""
    name, unit = short_name(report, metric), report.metric(metric).unit
    return f"{name}, {unit}" if unit and "records" not in name else name


def by_pair(goals: Iterable[GoalResult]) -> dict[str, list[GoalResult]]:
    """Goals of the same two: `segment-os against kafka`; all in the order in which they come."""
    found: dict[str, list[GoalResult]] = {}
    for goal in goals:
        found.setdefault(_pair(goal), []).append(goal)
    return found


def _pair(goal: GoalResult) -> str:
    return f"{goal.candidate} against {'itself' if goal.against == goal.candidate else goal.against}"


def sign(goal: GoalResult) -> str:
    return {True: "✓", False: "✗", None: "○" if has_limit(goal) or goal.ratio is None else "·"}[goal.met]


def _fact(name: str, value: object) -> tuple[str, str]:
    """A name that ends with a unit lends it to its value: `sync_ms` is `sync`, `0.2 ms`."""
    words, _, unit = name.rpartition("_")
    if words and unit in ("gb", "ms"):
        return words.replace("_", " "), f"{value} {unit.upper() if unit == 'gb' else unit}"
    return name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def number(value: float) -> str:
    """Three digits that count: `1.42 M`, `69.3 k`, `4 500`, `543`, `0.41`."""
    size = abs(value)
    for limit, divisor, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if size >= limit * 0.9995:
            return f"{_whole_or_digits(value / divisor)} {letter}"
    return f"{value:,.0f}".replace(",", "\u202f") if size >= 999.5 else _whole_or_digits(value)


def times(ratio: float) -> str:
    """A ratio, with three digits that count."""
    return f"{_digits(ratio)} {TIMES}"


def between(low: float, high: float) -> str:
    """Of the ratios of all rounds."""
    return f"{_digits(low)} to {_digits(high)}" if high > low else ""


def _digits(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    power = math.floor(math.log10(float(f"{abs(value):.2e}")))
    return f"{value:.{min(3, max(0, 2 - power))}f}"


def _whole_or_digits(value: float) -> str:
    return f"{value:g}" if value == round(value) else _digits(value)


def _short(value: float) -> str:
    """Without zeros at the end."""
    text = _digits(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `1 h 2 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
