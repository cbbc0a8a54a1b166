"""The goals of kbroker, as ratios within one run, and how they are judged.

The segment engine, which is the default, is compared with Apache Kafka of the same durability. The
other engines are compared with the segment engine, over all rows. Large numbers of share-partitions
and members are compared with small ones on the same broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import geometric_mean
from typing import NamedTuple

from perf.suite.results import METRICS, GoalResult, Ratio, Results, RowResult

OS, DISK = "segment-os", "segment-disk"
_STATE_SYNCED = 0.7
"""The part of the goals of `os` that is required where kbroker syncs its share state and Kafka does
not."""
ENGINE_GOALS = {"lmdb-disk": 0.7, "rocksdb-disk": 0.4}
"""The least geometric mean, over all client rows, of the ratios to the segment engine."""
ALL_CLIENT_ROWS = "client-rows"
_CLIENT_GROUPS = ("produce", "fetch", "share", "queue", "latency")
_TIMES = {"first-record": "ms"}
"""The metrics of latency rows without percentiles. The others are compared by their median."""
_LINEAR = 0.7
"""The least part of the rate that remains with a hundred times as many share-partitions or
members."""
_LIMITED = 0.7
"""The least part of the rate from batches of one record that remains when single records are taken
from batches of thousands."""
_BESIDE_COLD = 2.0
"""The most that a consumer's 99th percentile may grow while another consumer reads data outside the
page cache."""


class Goal(NamedTuple):
    """`at_least`, `at_most`: limits of the ratio of `candidate` to `against`. `against_row`,
    `against_metric`: those of `against`; None for the same."""

    row: str
    metric: str
    candidate: str
    against: str
    at_least: float | None = None
    at_most: float | None = None
    against_row: str | None = None
    against_metric: str | None = None


THROUGHPUT: Sequence[tuple[str, float, float]] = (
    ("produce-100b-1p", 1.0, 2.5),
    ("produce-1kb-6p", 1.5, 2.0),
    ("produce-1kb-6p-lz4", 1.0, 2.0),
    ("produce-1kb-6p-16kb", 4.0, 5.0),
    ("fetch-100b-1p", 1.0, 0.7),
    ("fetch-1kb-6p", 1.0, 1.2),
    ("share-implicit-1", 1.0, 3.0),
    ("share-implicit-8", 1.0, 3.0),
    ("share-mixed-8", 1.5, 2.0),
    ("share-small-explicit-8", 1.5, 2.0),
    ("one-1", 6.0, 10.0),
    ("one-8", 6.0, 10.0),
)
"""`os` against Kafka's default: row, and the least ratios of the rate and of the records per broker
CPU second."""

AT_MOST: Sequence[tuple[str, str, float]] = (
    ("ack-round-trip", "p50_ms", 0.5),
    ("ack-round-trip", "p99_ms", 0.5),
    ("e2e-1000", "p50_ms", 1.0),
    ("e2e-1000", "p99_ms", 0.5),
    ("e2e-1000", "p999_ms", 0.5),
    ("e2e-1000", "cpu_s", 0.25),
    ("first-record", "ms", 1 / 15),
    ("start-to-produce", "ms", 1 / 4),
    ("memory", "idle_mb", 1 / 7),
    ("memory", "rss_anon_mb", 1 / 10),
)
"""`os` against Kafka's default: row, metric, greatest ratio."""

DISK_PRODUCE: Sequence[tuple[str, float]] = (
    ("produce-100b-1p", 1.0),
    ("produce-1kb-1p", 1.0),
    ("produce-1kb-6p", 1.0),
    ("produce-1kb-6p-lz4", 1.0),
    ("produce-1kb-6p-16kb", 8.0),
    ("produce-100b-6p-lz4", 1.0),
)
"""`disk` against flush.messages=1: row, least ratio of the rate."""


def all_goals() -> list[Goal]:
    """The goals in the order of the report. `engine_ratios` has those between engines."""
    return [*_os_goals(), *_disk_goals(), *_own_goals()]


def _os_goals() -> Iterator[Goal]:
    for row, rate, per_cpu_s in THROUGHPUT:
        yield Goal(row, "rate", OS, "kafka", at_least=rate)
        yield Goal(row, "per_cpu_s", OS, "kafka", at_least=per_cpu_s)
    for row, metric, times in AT_MOST:
        yield Goal(row, metric, OS, "kafka", at_most=times)


def _disk_goals() -> Iterator[Goal]:
    for row, rate in DISK_PRODUCE:
        yield Goal(row, "rate", DISK, "kafka-sync", at_least=rate)
    for row, rate, per_cpu_s in THROUGHPUT:
        if row.startswith(("share-", "one-")):
            yield Goal(row, "rate", DISK, "kafka", at_least=round(_STATE_SYNCED * rate, 3))
            yield Goal(row, "per_cpu_s", DISK, "kafka", at_least=round(_STATE_SYNCED * per_cpu_s, 3))
    for metric in ("p50_ms", "p99_ms"):
        yield Goal("ack-round-trip", metric, DISK, "kafka", at_most=0.8)
        yield Goal("e2e-1000", metric, DISK, "kafka-sync", at_most=0.2)


def _own_goals() -> Iterator[Goal]:
    for key in (OS, DISK):
        yield Goal(
            "share-partitions-1000", "rate", key, key, at_least=_LINEAR, against_row="share-partitions-10"
        )
        yield Goal("members-500", "rate", key, key, at_least=_LINEAR, against_row="members-8")
        yield Goal("one-limit", "rate", key, key, at_least=_LIMITED, against_row="one-limit-singles")
    for key in (DISK, *ENGINE_GOALS):
        yield Goal("cold-beside-live", "p99_ms", key, key, at_most=_BESIDE_COLD, against_row="live-alone")


def judge(results: Results, goals: Iterable[Goal]) -> list[GoalResult]:
    """The results of the goals whose row and candidates were chosen. A goal without readings is
    undecided."""
    return [_judged(results, goal) for goal in goals if _was_chosen(results, goal)]


def _was_chosen(results: Results, goal: Goal) -> bool:
    above, below = results.row(goal.row), results.row(goal.against_row or goal.row)
    return (
        above is not None
        and below is not None
        and goal.candidate in above.readings
        and goal.against in below.readings
    )


def _judged(results: Results, goal: Goal) -> GoalResult:
    row = results.row(goal.row)
    title = f"{row.title if row else goal.row}: {METRICS[goal.metric].title}"
    judged = GoalResult(
        goal.row,
        goal.metric,
        goal.candidate,
        goal.against,
        goal.at_least,
        goal.at_most,
        goal.against_row,
        title,
        against_metric=goal.against_metric,
    )
    return _with(
        judged,
        results.ratio(
            goal.row, goal.metric, goal.candidate, goal.against, goal.against_row, goal.against_metric
        ),
    )


def _with(goal: GoalResult, ratio: Ratio | None) -> GoalResult:
    if ratio is not None:
        goal.ratio, goal.low, goal.high = ratio
        if goal.at_least is not None:
            goal.met = ratio.median >= goal.at_least
        elif goal.at_most is not None:
            goal.met = ratio.median <= goal.at_most
    return goal


def engine_ratios(results: Results) -> list[GoalResult]:
    """The ratios of each engine to the segment engine in every client row with `disk`, without
    limits, and their geometric mean, with a limit. The mean's `low` and `high` are the means of all
    rows' lowest and highest.

    The ratios of latency rows are inverted, so that more is better everywhere. A row without
    readings is included without a ratio, and makes the mean undecided.
    """
    found = []
    for engine, at_least in ENGINE_GOALS.items():
        chosen = [
            row
            for row in results.rows
            if row.group in _CLIENT_GROUPS and {engine, DISK} <= row.readings.keys()
        ]
        if chosen:
            rows = [_of_engine(results, row, engine) for row in chosen]
            found += [*rows, _mean(rows, engine, at_least)]
    return found


def _of_engine(results: Results, row: RowResult, engine: str) -> GoalResult:
    if row.group == "latency":
        metric = _TIMES.get(row.key, "p50_ms")
        ratio = results.ratio(row.key, metric, DISK, engine)
    else:
        metric = "rate"
        ratio = results.ratio(row.key, metric, engine, DISK)
    return _with(GoalResult(row.key, metric, engine, DISK, None, None, title=row.title), ratio)


def _mean(rows: Sequence[GoalResult], engine: str, at_least: float) -> GoalResult:
    ratios = [Ratio(row.ratio, row.low, row.high) for row in rows if row.ratio and row.low and row.high]
    is_whole = len(ratios) == len(rows)
    of = "all rows" if is_whole else f"{len(ratios)} of {len(rows)} rows"
    mean = GoalResult(
        ALL_CLIENT_ROWS, "rate", engine, DISK, at_least, None, title=f"geometric mean over {of} of clients"
    )
    if ratios:
        _with(mean, Ratio(*map(geometric_mean, zip(*ratios, strict=True))))
    if not is_whole:
        mean.met = None
    return mean
