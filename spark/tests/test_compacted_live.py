"""Compacted topics beside a live broker of each engine, and on the directory that it leaves: the
rows of a consumer, whatever is missing. Without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.testing.broker import RunningBroker, open_test_broker
from kbroker_spark.batch_reader import BatchReader
from kbroker_spark.schema import full_schema
from spark.tests.filling import KEPT, Row, consume, consume_committed
from spark.tests.stream_steps import Checkpoint, Run
from spark.tests.test_batch_live import by_time, rows
from spark.tests.test_batch_scan import rows as table_rows
from tests.brokers import DURABLE_ENGINES, require_engine
from tests.clients.compacted_topic import CLEANER, CompactedTopic, compacted_topic

LEVELS = ("read_uncommitted", "read_committed")
ENDINGS = (pytest.param("stop", marks=pytest.mark.full), "kill")


@pytest.fixture(
    scope="module",
    params=["segment", *(pytest.param(each, marks=pytest.mark.full) for each in DURABLE_ENGINES[1:])],
)
def broker(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    with open_test_broker(storage=require_engine(request.param), config={**KEPT, **CLEANER}) as broker:
        yield broker


@pytest.fixture(scope="module")
def topic(broker: RunningBroker) -> CompactedTopic:
    return compacted_topic(broker, "compacted")


def read(path: Path, topic: str, **options: Any) -> list[Row]:
    given = {"path": path, "subscribe": topic, "includeHeaders": "true", **options}
    texts = {name: str(value) for name, value in given.items()}
    return rows(BatchReader(texts, full_schema(include_headers=True)))


def isolation(level: str) -> dict[str, str]:
    return {"kafka.isolation.level": level}


def consumed(topic: CompactedTopic, level: str) -> list[Row]:
    read = consume if level == "read_uncommitted" else consume_committed
    found = read(topic.broker.bootstrap, topic.name)
    assert [row.offset for row in found] == list(topic.records)
    return found


@pytest.mark.parametrize("level", LEVELS)
def test_the_rows_of_a_consumer(topic: CompactedTopic, level: str) -> None:
    expected, path, more = consumed(topic, level), topic.broker.data_dir, isolation(level)
    for decoder in ("numpy", "c"):
        assert read(path, topic.name, decoder=decoder, **more) == expected
    for parts in (2, 7, 100):
        assert read(path, topic.name, minPartitions=parts, **more) == expected
        assert read(path, topic.name, maxRecordsPerPartition=parts, **more) == expected
    for first in range(0, topic.end, 4):
        for end in (first + 1, (first + topic.end + 1) // 2, topic.end):
            edges = {
                "startingOffsets": f'{{"{topic.name}":{{"0":{first}}}}}',
                "endingOffsets": f'{{"{topic.name}":{{"0":{end}}}}}',
            }
            wanted = [row for row in expected if first <= row.offset < end]
            assert read(path, topic.name, **edges, **more) == wanted


@pytest.mark.parametrize("level", LEVELS)
def test_times_are_those_of_records(topic: CompactedTopic, level: str) -> None:
    """Whichever record the header's time belonged to, and also where it is a delete horizon."""
    expected = consumed(topic, level)
    for time_ms in {row.timestamp_ms + shift for row in expected[::3] for shift in (0, 1)}:
        first = by_time(topic.broker, topic.name, time_ms, partitions=1)[0]
        options = {"startingTimestamp": time_ms, "startingOffsetsByTimestampStrategy": "latest"}
        found = read(topic.broker.data_dir, topic.name, **options, **isolation(level))
        assert found == [row for row in expected if row.offset >= first]
    begin = min(row.timestamp_ms for row in expected)
    last = max(row.timestamp_ms for row in expected)
    for each in table_rows(topic.broker.data_dir, topics=topic.name):
        assert each["problem"] is None
        assert each["first_timestamp"] is None or each["first_timestamp"] <= last * 1000
        assert each["delete_horizon"] is None or each["delete_horizon"] > begin * 1000


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("limit", [1, 4, 1000])
def test_a_stream_over_holes(topic: CompactedTopic, level: str, limit: int) -> None:
    """Its batches begin and end in holes, and one of them is repeated."""
    nulls = frozenset(offset for offset, each in topic.records.items() if each.is_tombstone)
    for start in (0, topic.end - 17):
        checkpoint = Checkpoint()
        options = {
            "subscribe": topic.name,
            "startingOffsets": f'{{"{topic.name}":{{"0":{start}}}}}',
            "maxOffsetsPerTrigger": limit,
            **isolation(level),
        }
        Run(checkpoint, topic.broker.data_dir, nulls=nulls, **options).batch(crash=True)
        Run(checkpoint, topic.broker.data_dir, nulls=nulls, **options).all_batches()
        assert checkpoint.seen(topic.name) == [offset for offset in topic.records if offset >= start]
        assert checkpoint.end[topic.name] == {"0": topic.end}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_the_directory_without_its_broker(engine: str, ending: str) -> None:
    """A stream continues in it while the log is compacted, and when the broker has ended."""
    with open_test_broker(storage=require_engine(engine), config={**KEPT, **CLEANER}) as broker:
        topic = CompactedTopic(broker, "t")
        topic.fill()
        before = set(topic.offsets())
        checkpoint = Checkpoint()
        options = {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 7}
        nulls = frozenset(offset for offset, each in topic.records.items() if each.is_tombstone)
        query = Run(checkpoint, broker.data_dir, nulls=nulls, **options, **isolation("read_committed"))
        assert query.batch()
        first = checkpoint.seen("t")
        topic.compact()
        assert query.batch()
        topic.forget_tombstones()
        query.all_batches()
        expected = {level: consumed(topic, level) for level in LEVELS}
        getattr(broker, ending)()
        for level in LEVELS:
            assert read(broker.data_dir, "t", **isolation(level)) == expected[level]
            assert read(broker.data_dir, "t", maxRecordsPerPartition=3, **isolation(level)) == expected[level]
        query.all_batches()
        assert first == [0, 1, 2, 3]
        seen = checkpoint.seen("t")
        assert seen == sorted(set(seen))
        assert set(topic.records) - set(range(7)) <= set(seen) <= before | set(topic.records)
        broker.start()
