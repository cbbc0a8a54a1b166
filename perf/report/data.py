"""A run of the suite, parsed from its JSON, with the functions that both reports need: medians,
spreads, ratios, and the formatting of numbers."""

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
"""The pair of the headlines and of the main picture: the default engine and Kafka's default.
Neither syncs."""

COUNTERPART = {"os": "kafka", "disk": "kafka-sync"}
"""The candidate with which one of kbroker is compared, by durability."""

QUEUE_RIVALS = frozenset({"redis", "nats", "rabbitmq"})
QUEUE_GROUPS = ("queue", "waiting")
"""The groups of the rows that have the rivals."""

GROUPS: Mapping[str, tuple[str, str]] = {
    "produce": (
        "Produce",
        "Unmodified clients in separate processes; only acknowledged records are counted.",
    ),
    "fetch": ("Fetch", "Ordinary consumers reading records that were written before."),
    "share": (
        "Share groups",
        "Many consumers of one topic, every record acknowledged. Small batches are of 1 to 3 records.",
    ),
    "queue": ("One record at a time", "A work queue: take one record, acknowledge it, take the next one."),
    "latency": (
        "Latency",
        "Less is better. End-to-end latency counts from the moment a record was due, so a broker that stalls "
        "does not look better.",
    ),
    "footprint": ("Footprint", "The cost of starting and of running idle. Less is better."),
    "scale": ("Scale", "How the rates change as numbers grow."),
    "jobs": (
        "Jobs one at a time",
        "Work queues: each worker holds one job, taken from batches of one or from large batches.",
    ),
    "waiting": (
        "Jobs that wait",
        "Redelivery after a delay, and scheduled jobs. For times and memory, less is better.",
    ),
    "transactions": (
        "Transactions",
        "Records of committed transactions, each of them ended before the next one begins.",
    ),
    "compaction": ("Compaction", "The work of the cleaner, and other clients during it. Less is better."),
}

ABOUT_RATES = ("produce", "fetch", "share", "queue", "transactions")
"""Groups in which clients work as fast as they can."""
NOT_IN_MEAN = frozenset({"one-8-backlog", "produce-100b-1p-acks1", "produce-1kb-6p-16kb-acks1"})
"""A known weakness of Kafka; and rows of older runs, with acks=1, which are nearly the same as
others. Neither should affect the overall mean."""
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
        """Half the range from the lowest to the highest value, in percent of the median."""
        return 50 * (self.high - self.low) / self.median if self.median else 0.0


@dataclass(frozen=True, slots=True)
class Report:
    results: Results
    metrics: Mapping[str, Metric]

    def metric(self, name: str) -> Metric:
        """The metric's description. An undescribed one gets a title and a unit from its name."""
        if name in self.metrics:
            return self.metrics[name]
        title, _, last = name.rpartition("_")
        unit = {"ms": "ms", "mb": "MB", "s": "s"}.get(last, "")
        return Metric((title if unit else name).replace("_", " "), unit, "lower" if unit else "higher")

    @property
    def goals(self) -> list[GoalResult]:
        """Goals against other brokers, then those of the engines against the segment engine."""
        return [*self.results.goals, *self.results.engines]

    def title(self, row_key: str) -> str:
        """The row's title, with its group if rows of other groups may have the same title."""
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
        """The described metrics, in their order, then others."""
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
        """The ratio of a kbroker candidate to Kafka of the same durability, or to Kafka's default
        if only that was run."""
        if candidate.family != "kbroker":
            return None
        counterpart = COUNTERPART.get(candidate.durability, THEIRS)
        return self.results.ratio(
            row.key, metric, candidate.key, counterpart if counterpart in row.readings else THEIRS
        )

    def shown_in(self, rows: Iterable[RowResult]) -> list[CandidateFacts]:
        """The candidates chosen for one of the rows, including those that are not installed."""
        rows = list(rows)
        return [
            each
            for each in self.results.candidates
            if any(each.key in row.readings or would_have(each, row) for row in rows)
        ]

    def rounds(self) -> int:
        return max((len(rounds) for row in self.results.rows for rounds in row.readings.values()), default=0)

    def counts(self, goals: Iterable[GoalResult] | None = None) -> tuple[int, int, int]:
        """The numbers of goals met, missed and not measured. A ratio without a limit is counted
        only if it could not be measured."""
        verdicts = [
            goal.met
            for goal in (self.goals if goals is None else goals)
            if has_limit(goal) or goal.ratio is None
        ]
        return verdicts.count(True), verdicts.count(False), verdicts.count(None)

    def mean_ratio(self, metric: str) -> tuple[float, int] | None:
        """The geometric mean of the main pair's ratios, over the rows about rates that both have,
        except `NOT_IN_MEAN`; and the number of these rows."""
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
    """Parses the suite's JSON. Raises KeyError or TypeError for anything else."""
    described = {name: Metric(**each) for name, each in data.get("metrics", {}).items()}
    return Report(from_json(data), {**METRICS, **described})


def would_have(candidate: CandidateFacts, row: RowResult) -> bool:
    """Whether the candidate is missing from this row because it is not installed."""
    return candidate.missing is not None and (
        candidate.family not in QUEUE_RIVALS or row.group in QUEUE_GROUPS
    )


def kind(candidate: CandidateFacts) -> str:
    """The kind that determines the colour: kbroker's engine, or the family of other candidates."""
    return (
        (candidate.engine or candidate.key.partition("-")[0])
        if candidate.family == "kbroker"
        else candidate.family
    )


def has_limit(goal: GoalResult) -> bool:
    return goal.at_least is not None or goal.at_most is not None


def limit_text(goal: GoalResult) -> str:
    """The limit as a text: at least or at most a multiple."""
    limits = (("≥", goal.at_least), ("≤", goal.at_most))
    return " ".join(f"{relation} {_short(limit)} {TIMES}" for relation, limit in limits if limit is not None)


def goal_title(report: Report, goal: GoalResult) -> str:
    """The workload, without the metric. A goal over many rows has its own title."""
    row = report.results.row(goal.row)
    if row is None:
        return goal.title or goal.row
    other = f", of {report.title(goal.against_row)}" if goal.against_row not in (None, goal.row) else ""
    metric = f", to {report.metric(goal.against_metric).title}" if goal.against_metric else ""
    return report.title(goal.row) + other + metric


def short_name(report: Report, metric: str) -> str:
    """A metric's title for narrow columns."""
    return _SHORT.get(metric, report.metric(metric).title)


def with_unit(report: Report, metric: str) -> str:
    """A metric's short name with its unit."""
    name, unit = short_name(report, metric), report.metric(metric).unit
    return f"{name}, {unit}" if unit and "records" not in name else name


def by_pair(goals: Iterable[GoalResult]) -> dict[str, list[GoalResult]]:
    """Goals by pair, such as `segment-os against kafka`, in their original order."""
    found: dict[str, list[GoalResult]] = {}
    for goal in goals:
        found.setdefault(_pair(goal), []).append(goal)
    return found


def _pair(goal: GoalResult) -> str:
    return f"{goal.candidate} against {'itself' if goal.against == goal.candidate else goal.against}"


def sign(goal: GoalResult) -> str:
    return {True: "✓", False: "✗", None: "○" if has_limit(goal) or goal.ratio is None else "·"}[goal.met]


def _fact(name: str, value: object) -> tuple[str, str]:
    """Moves a unit from the name to the value: `sync_ms` becomes `sync`, `0.2 ms`."""
    words, _, unit = name.rpartition("_")
    if words and unit in ("gb", "ms"):
        return words.replace("_", " "), f"{value} {unit.upper() if unit == 'gb' else unit}"
    return name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def number(value: float) -> str:
    """Three significant digits: `1.42 M`, `69.3 k`, `4 500`, `543`, `0.41`."""
    size = abs(value)
    for limit, divisor, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if size >= limit * 0.9995:
            return f"{_whole_or_digits(value / divisor)} {letter}"
    return f"{value:,.0f}".replace(",", "\u202f") if size >= 999.5 else _whole_or_digits(value)


def times(ratio: float) -> str:
    """A ratio, with three significant digits."""
    return f"{_digits(ratio)} {TIMES}"


def between(low: float, high: float) -> str:
    """The range of the ratios of all rounds; empty if it is a single value."""
    return f"{_digits(low)} to {_digits(high)}" if high > low else ""


def _digits(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    power = math.floor(math.log10(float(f"{abs(value):.2e}")))
    return f"{value:.{min(3, max(0, 2 - power))}f}"


def _whole_or_digits(value: float) -> str:
    return f"{value:g}" if value == round(value) else _digits(value)


def _short(value: float) -> str:
    """Like `_digits`, without trailing zeros."""
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
