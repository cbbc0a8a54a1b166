"""The sums and checks of the pipeline as DataFrame functions, on invented state, letters and
batches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions

from kbroker.share.dead_letter import HEADER_NAMES, MESSAGES
from kbroker_pipeline import checks, health, letters, parked
from kbroker_pipeline.frames import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATE = (
    "group string, topic string, topic_id string, partition int, state_epoch int, start_offset bigint, "
    "delivery_complete_count int, "
    "first_offset bigint, last_offset bigint, state string, delivery_count int, created timestamp, problem "
    "string"
)
LETTERS = (
    "group string, source_topic string, source_topic_id string, source_partition int, source_offset "
    "bigint, delivery_count int, "
    "timestamp timestamp"
)
EARLY, LATE = datetime(2026, 3, 1, 12, tzinfo=UTC), datetime(2026, 3, 1, 13, tzinfo=UTC)


def state_row(
    partition: int,
    start: int,
    *batch: Any,
    done: int = 0,
    group: str = "g",
    topic: str | None = "t",
    problem: str | None = None,
) -> Any:
    first, last, name, count = batch or (None, None, None, None)
    return (group, topic, "id", partition, 1, start, done, first, last, name, count, EARLY, problem)


@pytest.fixture(scope="module")
def state(spark: SparkSession) -> DataFrame:
    """Partition 0: finished records begin at the start; 1: the head was released, others are
    finished; 2: nothing stored; 3: unreadable."""
    rows = [
        state_row(0, 100, 100, 104, "acknowledged", 1, done=8),
        state_row(0, 100, 105, 107, "archived", 5, done=8),
        state_row(0, 100, 110, 110, "available", 3, done=8),
        state_row(1, 50, 50, 50, "available", 4, done=3),
        state_row(1, 50, 51, 53, "acknowledged", 2, done=3),
        state_row(1, 50, 54, 55, "archiving", 5, done=3),
        state_row(2, 7),
        state_row(3, 0, problem="it cannot be read"),
    ]
    return spark.createDataFrame(rows, STATE).withColumn("is_parked", functions.lit(False))


def letters_of(spark: SparkSession, *places: tuple[int, int], at: datetime = LATE) -> DataFrame:
    return spark.createDataFrame(
        [("g", "t", "id", partition, offset, 5, at) for partition, offset in places], LETTERS
    )


def by_partition(frame: DataFrame, *columns: str) -> dict[int, tuple[Any, ...]]:
    return {row["partition"]: tuple(row[column] for column in columns) for row in rows_of(frame)}


def test_windows(state: DataFrame) -> None:
    windows = health.windows(state)
    counts = by_partition(
        windows,
        "finished_ahead",
        "waiting_again",
        "archiving",
        "delivered",
        "redelivered",
        "deliveries",
        "max_deliveries",
    )
    assert counts == {
        0: (8, 1, 0, 9, 4, 5 + 15 + 3, 5),
        1: (3, 1, 2, 6, 6, 4 + 6 + 10, 5),
        2: (0, 0, 0, 0, 0, 0, 0),
    }
    heads = by_partition(windows, "head_state", "head_deliveries")
    assert heads == {0: ("acknowledged", 1), 1: ("available", 4), 2: ("not delivered", 0)}


PARTS = (
    "group string, topic_id string, partition int, log_start_offset bigint, log_end_offset bigint, "
    "lag bigint, given_up bigint"
)


def parts_of(spark: SparkSession, *bounds: tuple[int, int, int, int]) -> DataFrame:
    """(partition, log start, log end, lag)"""
    return spark.createDataFrame([("g", "id", *each, None) for each in bounds], PARTS)


@pytest.mark.parametrize(
    ("log_starts", "oldest"),
    [
        ((0, 20, 0), (108, 50, 7)),
        ((106, 51, 9), (108, 54, 9)),
        ((109, 52, 7), (109, 54, 7)),
        ((120, 60, 0), (120, 60, 7)),
    ],
)
def test_oldest_unfinished_passes_what_is_finished_at_the_head(
    spark: SparkSession, state: DataFrame, log_starts: tuple[int, ...], oldest: tuple[int, ...]
) -> None:
    """The head is at the log's start, if retention has passed the start offset."""
    parts = parts_of(spark, *((partition, start, 200, 1) for partition, start in enumerate(log_starts)))
    found = by_partition(health.oldest_unfinished(state, parts), "oldest_offset")
    assert found == {partition: (offset,) for partition, offset in enumerate(oldest)}


def test_given_up_once_however_it_is_known(spark: SparkSession, state: DataFrame) -> None:
    now = health.given_up_now(state, letters_of(spark, (0, 106), (1, 54), (2, 3))).cache()
    found = {(row["partition"], row["offset"]): row["dead_letter"] for row in rows_of(now)}
    assert found == {(0, 105): False, (0, 106): True, (0, 107): False, (1, 54): True, (2, 3): True}
    new = health.newly_given_up(now, now.where("partition = 0"))
    assert sorted((row["partition"], row["offset"]) for row in rows_of(new)) == [(1, 54), (2, 3)]


def test_shares(spark: SparkSession, state: DataFrame) -> None:
    parts = parts_of(spark, (0, 0, 120, 12), (1, 20, 60, 7), (2, 0, 7, 0))
    given_up = health.given_up_now(state, letters_of(spark, (0, 20)))
    shares = health.shares(health.windows(state), parts, health.oldest_unfinished(state, parts), given_up)
    found = by_partition(
        shares,
        "finished",
        "archived",
        "acknowledged",
        "dead_lettered",
        "backlog",
        "oldest_offset",
        "produced",
    )
    assert found == {
        0: (108, 4, 104, 1, 12, 108, 120),
        1: (53, 0, 53, 0, 7, 50, 60),
        2: (7, 0, 7, 0, 0, None, 7),
    }


WAITING = (
    "group string, topic_id string, partition int, offset bigint, waits_for string, delivery_count int, "
    "kept boolean"
)


def waiting_of(spark: SparkSession, *records: tuple[int, int, str, int]) -> DataFrame:
    """(partition, offset, what it waits for, delivery count)"""
    return spark.createDataFrame([("g", "id", *each, False) for each in records], WAITING)


def test_parked_records_are_not_given_up(spark: SparkSession) -> None:
    """In partition 0, which parks: 10 to 29 have archived places. 3 waits below the start offset,
    and 1 below the log's start; 10 and 11 wait, 12 waits for its dead letter, 13 and 4 have one.
    Partition 1 does not park."""
    rows = [
        state_row(0, 10, 10, 29, "archived", 1, done=20),
        state_row(0, 10, 30, 34, "available", 2, done=20),
        state_row(1, 0, 0, 2, "archived", 5, done=3),
    ]
    state = spark.createDataFrame(rows, STATE)
    parts = parts_of(spark, (0, 2, 40, 14), (1, 0, 3, 0)).withColumn("parks", functions.expr("partition = 0"))
    waiting = waiting_of(
        spark, (0, 1, "redelivery", 2), (0, 3, "redelivery", 4), (0, 10, "schedule", 0),
        (0, 11, "redelivery", 3), (0, 12, "dead letter", 5),
    )  # fmt: skip
    stored = health.given_up_now(state, letters_of(spark, (0, 13), (0, 4)))
    given_up = parked.really_given_up(stored, parts).cache()
    assert sorted((row["partition"], row["offset"]) for row in rows_of(given_up)) == [
        (0, 4), (0, 13), (1, 0), (1, 1), (1, 2),
    ]  # fmt: skip
    known = given_up.withColumn("dead_letter", functions.lit(False))  # As an earlier version stored it.
    assert [row["partition"] for row in rows_of(parked.really_given_up(known, parts))] == [1, 1, 1]
    found = parked.resolved(state, parts, waiting, given_up)
    shares = health.shares(health.windows(found), parts, health.oldest_unfinished(found, parts), given_up)
    names = ("finished", "archived", "dead_lettered", "acknowledged", "backlog", "waiting_again", "archiving")
    assert by_partition(shares, *names) == {0: (26, 2, 2, 24, 14, 7, 1), 1: (3, 3, 0, 0, 0, 0, 0)}
    names = ("finished_ahead", "max_deliveries", "oldest_offset", "head_state", "head_deliveries")
    assert by_partition(shares, *names) == {
        0: (17, 5, 3, "parked", 0), 1: (3, 5, None, "archived", 5),
    }  # fmt: skip
    worst = [(row["offset"], row["state"], row["delivery_count"]) for row in rows_of(
        health.worst(found, given_up, 30)) if row["partition"] == 0]  # fmt: skip
    assert sorted(worst) == [
        (3, "parked", 4), (4, "archived", 5), (11, "parked", 3), (12, "archiving", 5), (13, "archived", 5),
        *((offset, "available", 2) for offset in range(30, 35)),
    ]  # fmt: skip
    counts = {row["delivery_count"]: row["records"] for row in rows_of(
        health.delivery_counts(found, given_up)) if row["partition"] == 0}  # fmt: skip
    assert counts == {1: 16, 2: 5, 3: 1, 4: 1, 5: 3}


def test_delivery_counts_and_worst(spark: SparkSession, state: DataFrame) -> None:
    new = health.given_up_now(state, letters_of(spark, (0, 20)))
    counts = {
        (row["partition"], row["delivery_count"]): row["records"]
        for row in rows_of(health.delivery_counts(state, new))
    }
    assert counts == {(0, 1): 5, (0, 3): 1, (0, 5): 4, (1, 2): 3, (1, 4): 1, (1, 5): 2}
    worst = [
        (row["delivery_count"], row["partition"], row["offset"], row["state"])
        for row in rows_of(health.worst(state, new, 7))
    ]
    assert worst == [
        (5, 0, 20, "archived"), (5, 0, 105, "archived"), (5, 0, 106, "archived"), (5, 0, 107, "archived"),
        (5, 1, 54, "archiving"),
        (5, 1, 55, "archiving"), (4, 1, 50, "available"),
    ]  # fmt: skip


def snapshots(spark: SparkSession, rows: Sequence[tuple[int, int, int, int, int]]) -> DataFrame:
    """(partition, taken_ms, start_offset, backlog, finished_ahead)"""
    columns = (
        "group string, topic_id string, partition int, taken_ms bigint, start_offset bigint, backlog "
        "bigint, finished_ahead bigint, "
        "state_epoch int"
    )
    return spark.createDataFrame([("g", "id", *row, 1) for row in rows], columns)


def test_standing_heads(spark: SparkSession) -> None:
    """0 has not moved since the second snapshot, and others pass it; 1 had no backlog until the
    last one; 2 moves; 3 does not move, and nothing else does."""
    rows = [(0, 1, 5, 9, 0), (0, 2, 6, 9, 0), (0, 3, 6, 9, 4), (0, 4, 6, 9, 5)]
    rows += [(1, 1, 5, 3, 0), (1, 2, 5, 0, 0), (1, 3, 5, 0, 0), (1, 4, 5, 1, 0)]
    rows += [(2, taken, taken, 9, 0) for taken in range(1, 5)] + [
        (3, taken, 0, 9, 2) for taken in range(1, 5)
    ]
    history = snapshots(spark, rows)
    found = by_partition(health.standing(history, history.where("taken_ms = 4")), "since_ms", "ahead_moves")
    assert found == {0: (2, True), 1: (4, False), 2: (4, False), 3: (1, False)}


def headers(*values: object) -> list[tuple[str, bytes | None]]:
    return [(name, str(value).encode()) for name, value in zip(HEADER_NAMES, values, strict=False)]


def test_letters_are_parsed(spark: SparkSession) -> None:
    rejected, exhausted, _ = MESSAGES.values()
    twice = [*headers("t", 1, 8, "g", 5, exhausted), *headers("first", 0, 0, "g", 1, rejected)]
    rows = [
        headers("t", 0, 7, "g", 1, rejected),
        twice,
        headers("t", 0, "x", "g", 1, rejected),
        headers("t", 0, 7),
        None,
        headers("t", 0, 9, "g", 2, "!"),
        [*headers("t", 0, 9), ("__dlq.errors.group", b"\xff"), *headers("t", 0, 9, "g", 2, "!")[4:]],
    ]
    records = [("dlq", 0, number, LATE, b"k", b"v", each) for number, each in enumerate(rows)]
    columns = (
        "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary, "
        "headers array<struct<key: string, value: binary>>"
    )
    found = rows_of(letters.parse(spark.createDataFrame(records, columns)))
    assert [tuple(row) for row in found] == [letters.COLUMNS] * 3
    told = sorted(
        (row["offset"], row["source_topic"], row["source_partition"], row["source_offset"], row["cause"])
        for row in found
    )
    assert told == [(0, "t", 0, 7, "rejected"), (1, "t", 1, 8, "exhausted"), (5, "t", 0, 9, "other")]


def test_sums_of_letters_by_cause(spark: SparkSession) -> None:
    """Records that were given up for causes other than this broker's are neither rejected nor
    exhausted."""
    columns = (
        "group string, source_topic string, source_partition int, cause string, delivery_count int, "
        "timestamp timestamp"
    )
    causes = ["rejected", "rejected", "exhausted", "other", "other", "other"]
    found = spark.createDataFrame(
        [("g", "t", 0, cause, number, EARLY) for number, cause in enumerate(causes)], columns
    )
    (row,) = rows_of(letters.by_source(found))
    assert (row["letters"], row["rejected"], row["exhausted"], row["most_deliveries"]) == (6, 2, 1, 5)


BATCHES = (
    "topic string, topic_id string, partition int, base_offset bigint, last_offset bigint, "
    "record_count int, crc_ok boolean, problem string"
)
LOGS = "topic_id string, partition int, topic string, log_start bigint, log_end bigint"


def found_by(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(
        (row["check"], row["severity"], row["partition"], row["first_offset"]) for row in rows_of(frame)
    )


def test_checks_of_batches(spark: SparkSession) -> None:
    good = [("t", "id", 0, 10 * number, 10 * number + 9, 10, True, None) for number in range(4)] + [
        ("t", "id", 3, 0, 9, 4, True, None)
    ]
    bad = [
        ("t", "id", 1, 0, 9, 10, False, None),
        ("t", "id", 1, 10, 30, None, None, "no batch can be found"),
        ("t", "id", 2, 0, 9, 10, True, None),
        ("t", "id", 2, 8, 12, 5, True, None),
        ("t", "id", 2, 13, 14, 7, True, None),
        ("t", "id", 2, 30, 20, 0, True, None),
        ("t", "id", 2, 40, 50, 11, True, None),
    ]
    logs = spark.createDataFrame(
        [("id", partition, "t", 0, 45 if partition == 2 else 40) for partition in range(4)], LOGS
    )
    assert found_by(checks.of_batches(spark.createDataFrame(good, BATCHES), logs)) == []
    damaged, impossible, overlapping = (check.name for check in checks.CHECKS[:3])
    assert found_by(checks.of_batches(spark.createDataFrame(good + bad, BATCHES), logs)) == [
        (damaged, "error", 1, 0), (damaged, "error", 1, 10), (impossible, "error", 2, 13),
        (impossible, "error", 2, 30),
        (impossible, "error", 2, 40), (overlapping, "error", 2, 8),
    ]  # fmt: skip


def test_findings_have_one_order(spark: SparkSession) -> None:
    """The order in which they are compared with those of the last run. Deleted topics have only
    their id."""
    columns = (
        "check string, severity string, topic string, topic_id string, partition int, group string, "
        "first_offset bigint, "
        "last_offset bigint, detail string"
    )
    rows = [
        ("state of no topic", "note", None, topic, 0, "g", 0, last, text)
        for topic in "ab"
        for last in (3, 4)
        for text in "xy"
    ]
    one, other = (
        rows_of(checks.in_order(spark.createDataFrame(each, columns))) for each in (rows, rows[::-1])
    )
    assert one == other


def test_checks_of_state(spark: SparkSession, state: DataFrame) -> None:
    logs = spark.createDataFrame([("id", partition, "t", 0, 120) for partition in range(9)], LOGS)
    unreadable, homeless, impossible, overlapping, beyond = (check.name for check in checks.CHECKS[3:8])
    assert found_by(checks.of_state(state, logs)) == [(unreadable, "error", 3, None)]
    bad = [
        state_row(4, 0, 10, 5, "available", 1),
        state_row(5, 10, 5, 20, "available", 1),
        state_row(5, 10, 20, 21, "state 9", 1),
        state_row(6, 0, 119, 120, "acknowledged", 1),
        state_row(7, 121),
        state_row(8, 0, 3, 4, "acknowledged", 1, topic=None),
    ]
    assert found_by(checks.of_state(spark.createDataFrame(bad, STATE), logs)) == [
        (impossible, "error", 4, 10), (impossible, "error", 5, 5), (impossible, "error", 5, 20),
        (overlapping, "error", 5, 20),
        (beyond, "error", 6, 119), (beyond, "error", 7, 121), (homeless, "note", 8, 3),
    ]  # fmt: skip


def test_checks_of_letters(spark: SparkSession, state: DataFrame) -> None:
    waiting = waiting_of(spark, (0, 98, "redelivery", 2), (0, 105, "dead letter", 5))
    fine = letters_of(spark, (0, 99), (0, 105), (1, 54), (3, 0))
    assert found_by(checks.of_letters(fine, state, waiting)) == []
    live, twice = checks.CHECKS[8].name, checks.CHECKS[9].name
    alive = letters_of(spark, (0, 98))
    assert found_by(checks.of_letters(alive, state, waiting)) == [(live, "error", 0, 98)]
    bad = letters_of(spark, (0, 100), (0, 110), (2, 7), (0, 99), (0, 99))
    assert found_by(checks.of_letters(bad, state, waiting)) == [
        (twice, "note", 0, 99), (live, "error", 0, 100), (live, "error", 0, 110), (live, "error", 2, 7),
    ]  # fmt: skip
    earlier = letters_of(spark, (0, 110), at=datetime(2026, 3, 1, 11, tzinfo=UTC))
    assert found_by(checks.of_letters(earlier, state, waiting)) == [(live, "note", 0, 110)]
