"""The stream reader, called as Spark calls it: starts, limits, restarts and crashes, and changes of
topics meanwhile."""

from __future__ import annotations

import builtins
import importlib
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from kbroker.client import admin
from kbroker.testing.broker import RunningBroker
from kbroker_spark.errors import DataLoss, SourceError
from kbroker_spark.stream_reader import StreamReader
from spark.tests.filling import Record, delete_before, produce
from spark.tests.stored_topics import StoredTopics, stored_topics, time_of
from spark.tests.stream_steps import ALL, Checkpoint, Run
from tests.brokers import DURABLE_ENGINES


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[StoredTopics]:
    """Topic t with 10 records in its only partition."""
    with stored_topics(tmp_path / "data", {"t": 1}) as stored:
        stored.append("t", 10)
        yield stored


@pytest.fixture
def checkpoint() -> Checkpoint:
    return Checkpoint()


def run(checkpoint: Checkpoint, stored: StoredTopics, **options: Any) -> Run:
    """Topic t from the earliest, by default."""
    selected = {} if {"assign", "subscribePattern"} & options.keys() else {"subscribe": "t"}
    return Run(checkpoint, stored.path, **{**selected, "startingOffsets": "earliest", **options})


# --- where a query begins ---


def test_from_the_earliest_all_is_read_and_then_what_comes(
    checkpoint: Checkpoint, stored: StoredTopics
) -> None:
    query = run(checkpoint, stored)
    assert query.batch()
    assert not query.batch()
    stored.append("t", 5)
    assert query.batch()
    assert checkpoint.seen("t") == [*range(15)]
    assert checkpoint.end["t"] == {"0": 15}


def test_the_latest_is_where_a_query_begins_by_default(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    query = Run(checkpoint, stored.path, subscribe="t")
    query.batch()
    stored.append("t", 5)
    query.batch()
    assert checkpoint.seen("t") == [*range(10, 15)]


@pytest.mark.parametrize("when", ["before it is written down", "in the empty batch", "in the second batch"])
def test_a_crash_at_the_start_loses_nothing_behind_the_latest(
    checkpoint: Checkpoint, stored: StoredTopics, when: str
) -> None:
    options: dict[str, Any] = {"startingOffsets": "latest"}
    first = run(checkpoint, stored, **options)
    if when == "before it is written down":
        stored.append("t", 5)
        expected = range(15, 20)
    else:
        first.batch(crash=when == "in the empty batch")
        stored.append("t", 5)
        expected = range(10, 20)
    if when == "in the second batch":
        first.batch(crash=True)
    second = run(checkpoint, stored, **options)
    second.batch()
    stored.append("t", 5)
    second.all_batches()
    assert checkpoint.seen("t") == [*expected]


def test_a_crash_in_the_first_batch_from_the_earliest(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    run(checkpoint, stored, maxOffsetsPerTrigger=4).batch(crash=True)
    stored.append("t", 5)
    query = run(checkpoint, stored, available_now=True)
    assert query.all_batches() == 1
    assert checkpoint.seen("t") == [*range(15)]


@pytest.mark.parametrize("crash", [False, True])
def test_a_start_by_time_is_fixed_before_anything_is_read(
    checkpoint: Checkpoint, stored: StoredTopics, crash: bool
) -> None:
    options = {"startingTimestamp": time_of(100), "startingOffsetsByTimestampStrategy": "latest"}
    run(checkpoint, stored, **options).batch(crash=crash)
    assert checkpoint.rows == []
    stored.append("t", 5)
    stored.append("t", 200)
    run(checkpoint, stored, **options).all_batches()
    assert checkpoint.seen("t") == [*range(10, 215)]


def test_a_time_that_has_records_needs_no_empty_batch(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    assert run(checkpoint, stored, startingTimestamp=time_of(7)).batch()
    assert checkpoint.seen("t") == [7, 8, 9]


def test_offsets_of_ones_own(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    stored.create("t", 3)
    stored.append("t", 4, partition=1)
    stored.append("t", 4, partition=2)
    query = run(checkpoint, stored, startingOffsets='{"t": {"0": 8, "1": -1, "2": -2}}')
    query.batch()
    assert checkpoint.rows == []
    query.batch()
    assert [checkpoint.seen("t", partition) for partition in range(3)] == [[8, 9], [], [0, 1, 2, 3]]


def test_a_restart_ignores_where_to_start(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    run(checkpoint, stored).batch()
    stored.append("t", 5)
    query = run(checkpoint, stored, startingOffsets="latest")
    assert query.batch()
    assert checkpoint.seen("t") == [*range(15)]


def test_a_checkpoint_of_sparks_kafka_source_goes_on(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    checkpoint.offsets = ['{"t":{"0":4}}']
    checkpoint.committed = 1
    run(checkpoint, stored).all_batches()
    assert checkpoint.seen("t") == [*range(4, 10)]


def test_a_subscribed_topic_that_is_not_there(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    with pytest.raises(SourceError, match="there is no topic u"):
        run(checkpoint, stored, subscribe="t,u").batch()


# --- limits ---


def test_batches_keep_to_the_limit(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    stored.create("t", 2)
    stored.append("t", 30, partition=1)
    query = run(checkpoint, stored, available_now=True, maxOffsetsPerTrigger=8)
    assert query.all_batches() == 5
    assert [len(rows) for rows in checkpoint.sink.values()] == [8] * 5
    assert (checkpoint.seen("t"), checkpoint.seen("t", 1)) == ([*range(10)], [*range(30)])


def test_all_available_means_all(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    run(checkpoint, stored, maxOffsetsPerTrigger=3, minOffsetsPerTrigger=2).batch(ALL)
    assert checkpoint.seen("t") == [*range(10)]


def test_the_limit_that_spark_is_told() -> None:
    def told(**options: int) -> object:
        texts = {name: str(value) for name, value in options.items()}
        return StreamReader(
            {"path": "/nowhere", "subscribe": "t", **texts}, StructType([StructField("offset", LongType())])
        ).getDefaultReadLimit()

    assert told() == ReadAllAvailable()
    assert told(maxOffsetsPerTrigger=5) == ReadMaxRows(5)
    assert told(maxOffsetsPerTrigger=5, minOffsetsPerTrigger=2) == ReadMinRows(2)


def test_a_small_batch_waits(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    query = run(checkpoint, stored, minOffsetsPerTrigger=5, maxOffsetsPerTrigger=6, maxTriggerDelay="10s")
    query.batch()
    assert checkpoint.seen("t") == [*range(6)]
    assert not query.batch()  # 4 are left
    stored.append("t", 1)
    assert query.batch()
    stored.append("t", 1)
    assert not query.batch()
    query.clock.seconds += 10
    assert query.batch()
    assert checkpoint.seen("t") == [*range(12)]


def test_what_is_left_at_the_end_of_available_now_does_not_wait(
    checkpoint: Checkpoint, stored: StoredTopics
) -> None:
    run(checkpoint, stored, available_now=True, minOffsetsPerTrigger=7, maxOffsetsPerTrigger=7).all_batches()
    assert checkpoint.seen("t") == [*range(10)]


def test_available_now_takes_what_was_there_at_its_start(
    checkpoint: Checkpoint, stored: StoredTopics
) -> None:
    query = run(checkpoint, stored, available_now=True, subscribePattern="t|u", maxOffsetsPerTrigger=4)
    query.batch()
    stored.append("t", 5)
    stored.create("t", 2)
    stored.append("t", 3, partition=1)
    stored.create("u")
    query.all_batches()
    assert checkpoint.seen("t") == [*range(10)]
    assert checkpoint.end["t"] == {"0": 10}
    run(checkpoint, stored, available_now=True, subscribePattern="t|u").all_batches()
    assert (checkpoint.seen("t"), checkpoint.seen("t", 1)) == ([*range(15)], [0, 1, 2])


def test_available_now_from_the_latest(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    for _ in range(2):
        query = run(checkpoint, stored, available_now=True, startingOffsets="latest")
        stored.append("t", 5)
        query.all_batches()
    assert checkpoint.seen("t") == [*range(10, 15)]


# --- partitions of Spark ---


def test_a_batch_is_split_for_spark(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    for options, sizes in (({"minPartitions": 5}, [2] * 5), ({"maxRecordsPerPartition": 4}, [3, 3, 4])):
        reader = run(Checkpoint(), stored, **options).reader
        planned = reader.partitions(reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ALL))
        assert [each.range.size for each in planned] == sizes


def test_a_schema_of_ones_own_chooses_columns(stored: StoredTopics) -> None:
    schema = StructType([StructField("value", BinaryType()), StructField("offset", LongType())])
    reader = StreamReader({"path": str(stored.path), "subscribe": "t", "startingOffsets": "earliest"}, schema)
    (partition,) = reader.partitions({}, reader.latestOffset(reader.initialOffset(), ALL))
    (batch,) = reader.read(partition)
    assert batch.schema.names == ["value", "offset"]
    assert batch.column("offset").to_pylist() == [*range(10)]


def test_progress_says_what_there_is(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    query = run(checkpoint, stored, maxOffsetsPerTrigger=4)
    assert query.reader.reportLatestOffset() is None
    query.batch()
    assert query.reader.reportLatestOffset() == {"t": {"0": 10}}


def test_between_looks_there_is_rest(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    query = run(checkpoint, stored)
    query.batch()
    query.clock.step = 0.05
    for _ in range(20):
        assert not query.batch()
    assert query.clock.slept > 0.6 * query.clock.seconds  # readings of the clock take some as well
    stored.append("t", 5)
    assert query.batch(), "records that exist when Spark asks are found"


def test_available_now_does_not_rest(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    query = run(checkpoint, stored, available_now=True, maxOffsetsPerTrigger=1)
    query.clock.step = 0.05
    assert query.all_batches() == 10
    assert query.clock.slept == 0


# --- topics and partitions that are added and deleted ---


def test_new_partitions_and_new_topics_are_read_from_their_beginning(
    checkpoint: Checkpoint, stored: StoredTopics
) -> None:
    query = run(checkpoint, stored, subscribePattern="t|new.*", startingOffsets="latest")
    query.batch()
    stored.create("t", 2)
    stored.append("t", 4, partition=1)
    stored.create("new.topic")
    stored.append("new.topic", 3)
    stored.create("other")
    stored.append("other", 3)
    query.batch()
    assert checkpoint.rows == [
        *(("new.topic", 0, offset) for offset in range(3)),
        *(("t", 1, offset) for offset in range(4)),
    ]


def test_a_pattern_without_topics_waits_for_some(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    query = run(checkpoint, stored, subscribePattern="later", startingOffsets="latest")
    query.batch()
    assert not query.batch()
    stored.create("later")
    stored.append("later", 3)
    query.batch()
    assert checkpoint.seen("later") == [0, 1, 2]


def test_assigned_partitions_only(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    stored.create("t", 3)
    stored.append("t", 3, partition=1)
    stored.append("t", 3, partition=2)
    run(checkpoint, stored, assign='{"t": [0, 2]}').all_batches()
    assert checkpoint.end["t"] == {"0": 10, "2": 3}
    assert checkpoint.seen("t", 1) == []


def test_holes_are_no_loss(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    query = run(checkpoint, stored, maxOffsetsPerTrigger=15)
    query.batch()
    stored.append("t", 5, behind_hole_of=100)
    assert query.all_batches() == 7
    assert checkpoint.seen("t") == [*range(10), *range(110, 115)]


def lose_the_beginning(stored: StoredTopics) -> list[int]:
    stored.append("t", 10)
    stored.append("t", 10)
    stored.trim("t", 20)
    return [*range(20, 30)]


def delete_records(stored: StoredTopics) -> list[int]:
    stored.append("t", 10)
    stored.delete_records("t", 13)
    return [*range(13, 20)]


def lose_the_end(stored: StoredTopics) -> list[int]:
    stored.truncate("t", 0)
    stored.append("t", 5)
    return []


def recreate(stored: StoredTopics) -> list[int]:
    stored.delete("t")
    stored.create("t")
    stored.append("t", 30)
    return [*range(30)]


def delete(stored: StoredTopics) -> list[int]:
    stored.delete("t")
    return []


LOSSES = {
    lose_the_beginning: "offsets 10 to 19 of t-0 are gone",
    delete_records: "offsets 10 to 12 of t-0 are gone",
    lose_the_end: "offset 10 of t-0 was to be read next, but its log ends at 5",
    recreate: "topic t was deleted and recreated",
    delete: "topic t is gone",
}


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("lose", LOSSES)
def test_lost_data_stops_a_query_with_its_checkpoint_as_it_was(
    checkpoint: Checkpoint, stored: StoredTopics, lose: Any, restart: bool
) -> None:
    query = run(checkpoint, stored)
    query.batch()
    before = list(checkpoint.offsets)
    lose(stored)
    with pytest.raises(DataLoss, match=LOSSES[lose]) as raised:
        (run(checkpoint, stored) if restart else query).batch()
    assert "failOnDataLoss" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert checkpoint.offsets == before


@pytest.mark.parametrize("lose", LOSSES)
def test_without_fail_on_data_loss_a_query_goes_on_with_what_is_left(
    checkpoint: Checkpoint, stored: StoredTopics, caplog: pytest.LogCaptureFixture, lose: Any
) -> None:
    query = run(checkpoint, stored, failOnDataLoss=False)
    query.batch()
    left = lose(stored)
    with caplog.at_level(logging.WARNING, "kbroker_spark"):
        query.all_batches()
        assert not query.batch()
    assert [LOSSES[lose] in record.getMessage() for record in caplog.records] == [True]
    assert [row.offset for number, rows in checkpoint.sink.items() if number for row in rows] == left


def test_after_its_end_was_lost_a_query_reads_what_is_written_anew(
    checkpoint: Checkpoint, stored: StoredTopics
) -> None:
    query = run(checkpoint, stored, failOnDataLoss=False)
    query.batch()
    lose_the_end(stored)
    query.batch()
    stored.append("t", 3)
    query.batch()
    assert [row.offset for row in checkpoint.sink[2]] == [5, 6, 7]


def test_a_batch_that_lost_its_data_before_it_could_be_repeated(
    checkpoint: Checkpoint, stored: StoredTopics
) -> None:
    options = {"startingOffsets": '{"t": {"0": 2}}'}
    run(checkpoint, stored, **options).batch(crash=True)
    stored.append("t", 5)
    stored.trim("t", 10)
    with pytest.raises(DataLoss, match="offsets 2 to 9 of t-0 are gone"):
        run(checkpoint, stored, **options)
    run(checkpoint, stored, failOnDataLoss=False, **options).all_batches()
    assert checkpoint.seen("t") == [*range(10, 15)]


@pytest.mark.parametrize("fail", [True, False])
def test_segments_that_are_deleted_between_the_plan_and_the_reading(stored: StoredTopics, fail: bool) -> None:
    stored.append("t", 5)
    options = {
        "path": str(stored.path),
        "subscribe": "t",
        "startingOffsets": "earliest",
        "failOnDataLoss": str(fail),
    }
    reader = StreamReader(options, StructType([StructField("offset", LongType())]))
    planned = reader.partitions(reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ALL))
    stored.trim("t", 10)

    def rows() -> list[int]:
        return [
            offset
            for each in planned
            for batch in reader.read(each)
            for offset in batch.column("offset").to_pylist()
        ]

    if fail:
        with pytest.raises(DataLoss, match="offsets 0 to 9 of t-0 are gone"):
            rows()
    else:
        assert rows() == [*range(10, 15)]


# --- engines ---


@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_beside_a_live_broker(checkpoint: Checkpoint, broker: RunningBroker, engine: str, name: str) -> None:
    broker.create_topic(name)
    query = Run(
        checkpoint, broker.data_dir, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger=70
    )
    for first in (0, 100, 200):
        produce(
            broker.bootstrap,
            name,
            [Record(b"%d" % number) for number in range(first, first + 100)],
            batch_num_messages=9,
        )
        assert query.all_batches() == 2
    assert checkpoint.seen(name) == [*range(300)]


@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_a_broker_that_deletes_under_a_query(
    checkpoint: Checkpoint, broker: RunningBroker, engine: str, name: str
) -> None:
    broker.create_topic(name, partitions=2)
    query = Run(checkpoint, broker.data_dir, subscribe=name, startingOffsets="earliest", failOnDataLoss=False)
    produce(broker.bootstrap, name, [Record(b"%d" % number) for number in range(50)], batch_num_messages=10)
    query.batch()
    produce(
        broker.bootstrap, name, [Record(b"%d" % number) for number in range(50, 100)], batch_num_messages=10
    )
    delete_before(broker.bootstrap, name, 75)
    query.batch()
    assert checkpoint.seen(name) == [*range(50), *range(75, 100)]
    with broker.connect() as connection:
        admin.delete_topic(connection, name)
    with pytest.raises(DataLoss, match=f"topic {name} is gone"):
        Run(checkpoint, broker.data_dir, subscribe=name).batch()


def test_offsets_survive_json(checkpoint: Checkpoint, stored: StoredTopics) -> None:
    reader = run(checkpoint, stored).reader
    offset = reader.latestOffset(reader.initialOffset(), ALL)
    assert json.loads(json.dumps(offset)) == offset
    assert offset["t"] == {"0": 10}
    assert all(isinstance(partitions, dict) for partitions in offset.values())


def test_older_pyspark_says_what_it_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_admission_control(name: str, *args: Any, **kwargs: Any) -> ModuleType:
        if name == "pyspark.sql.streaming.datasource":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "kbroker_spark.stream_reader")
    monkeypatch.setattr(builtins, "__import__", without_admission_control)
    with pytest.raises(SourceError, match=r"needs pyspark 4\.2 or later"):
        importlib.import_module("kbroker_spark.stream_reader")
