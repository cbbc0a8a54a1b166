"""What kbroker has to reach, as ratios inside one run: one table, and how it is judged.

The segment engine, which is the default, is held against Apache Kafka at the same durability. The
other engines are held against the segment engine, all rows together, and large numbers of
share-partitions and members against small ones on the same broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import geometric_mean
from typing import NamedTuple

from perf.suite.results import METRICS, GoalResult, Ratio, Results, RowResult

OS, DISK = "segment-os", "segment-disk"
_STATE_SYNCED = 0.7
"""Of the goals of `os`, where kbroker's share state is synced and Kafka's is not."""
ENGINE_GOALS = {"lmdb-disk": 0.7, "rocksdb-disk": 0.4}
"""By geometric mean over all rows of clients, of the segment engine's."""
ALL_CLIENT_ROWS = "client-rows"
_CLIENT_GROUPS = ("produce", "fetch", "share", "queue", "latency")
_TIMES = {"first-record": "ms"}
"""Of rows of latency without percentiles; the others count by their median."""
_LINEAR = 0.7
"""Of the rate with few share-partitions or members, where there are a hundred times as many."""
_LIMITED = 0.7
"""Of the rate from batches of one record, where single records are taken from batches of
thousands."""
_BESIDE_COLD = 2.0
"""Times the 99th percentile that a consumer sees while nobody else reads what the page cache has
not."""


class Goal(NamedTuple):
    """`at_least` and `at_most`: of candidate by `against`; `against_row` None: in the same row."""

    row: str
    metric: str
    candidate: str
    against: str
    at_least: float | None = None
    at_most: float | None = None
    against_row: str | None = None


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
"""Of `os` against Kafka's default: row, at least so many times the rate, and the records per broker
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
"""Of `os` against Kafka's default: row, metric, at most so many times."""

DISK_PRODUCE: Sequence[tuple[str, float]] = (
    ("produce-100b-1p", 1.0),
    ("produce-1kb-1p", 1.0),
    ("produce-1kb-6p", 1.0),
    ("produce-1kb-6p-lz4", 1.0),
    ("produce-1kb-6p-16kb", 8.0),
    ("produce-100b-6p-lz4", 1.0),
)
"""Of `disk` against flush.messages=1."""

DISK_ACKS_1: Sequence[tuple[str, float]] = (
    ("produce-100b-1p-acks1", 1.0),
    ("produce-1kb-6p-16kb-acks1", 1.0),
)
"""Of `disk` against Kafka's default: kbroker answers acks=1 before the sync, so neither waits for
one. With flush.messages=1 Kafka would sync in its append, whatever acks is."""


def all_goals() -> list[Goal]:
    """In the order of the report; those of engines against one another are `engine_ratios`."""
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
    for row, rate in DISK_ACKS_1:
        yield Goal(row, "rate", DISK, "kafka", at_least=rate)
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
    """Of every goal whose row was chosen, and both whom it compares; others are left out. What gave
    no reading is undecided."""
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
    )
    return _with(judged, results.ratio(goal.row, goal.metric, goal.candidate, goal.against, goal.against_row))


def _with(goal: GoalResult, ratio: Ratio | None) -> GoalResult:
    if ratio is not None:
        goal.ratio, goal.low, goal.high = ratio
        if goal.at_least is not None:
            goal.met = ratio.median >= goal.at_least
        elif goal.at_most is not None:
            goal.met = ratio.median <= goal.at_most
    return goal


def engine_ratios(results: Results) -> list[GoalResult]:
    """Each engine by the segment engine in every row of clients with `disk`, without limits, and
    their geometric mean, with one. Its `low` and `high` are the means of all rows' lowest and
    highest.

    Rows of latency count by their time, the other way round, so that more is better everywhere. A
    row that gave no reading is among them without a ratio, and their mean is undecided then.
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
