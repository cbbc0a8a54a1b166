"""Batch queries beside a live broker of each engine, without Spark: the same records, offsets and
times as the broker returns to a consumer."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from kbroker.testing.broker import RunningBroker, open_test_broker
from kbroker_spark.batch_reader import BatchReader, RangePartition
from kbroker_spark.errors import DataLoss
from kbroker_spark.schema import full_schema
from spark.tests.filling import KEPT, Row, consume, delete_before, numbered, produce
from spark.tests.share_work import CONTROL_RECORDS, mixed, prepare, work
from tests.brokers import DURABLE_ENGINES

every_engine = pytest.mark.parametrize("engine", DURABLE_ENGINES)


def reader(broker: RunningBroker, topic: str, options: Mapping[str, str] | None = None) -> BatchReader:
    given = {"path": str(broker.data_dir), "subscribe": topic, "includeHeaders": "true", **(options or {})}
    return BatchReader(given, full_schema(include_headers=True))


def rows(found: BatchReader) -> list[Row]:
    return rows_of_batches(each for partition in found.partitions() for each in found.read(partition))


def rows_of_batches(found: Iterable[pa.RecordBatch]) -> list[Row]:
    batches = list(found)
    if not batches:
        return []
    table = pa.Table.from_batches(batches)
    headers = [
        None if each is None else tuple((one["key"], one["value"]) for one in each)
        for each in table["headers"].to_pylist()
    ]
    names = ("topic", "partition", "offset", "key", "value")
    ms = [each // 1000 for each in table["timestamp"].cast(pa.int64()).to_pylist()]
    return sorted(
        map(
            Row, *(table[name].to_pylist() for name in names), ms, table["timestampType"].to_pylist(), headers
        )
    )


def by_time(broker: RunningBroker, topic: str, ms: int, *, partitions: int) -> dict[int, int]:
    """ListOffsets; -1: no record is that new."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    try:
        found = consumer.offsets_for_times(
            [TopicPartition(topic, number, ms) for number in range(partitions)], timeout=60
        )
        ends = {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=60)[1]
            for number in range(partitions)
        }
    finally:
        consumer.close()
    return {each.partition: each.offset if each.offset >= 0 else ends[each.partition] for each in found}


@every_engine
def test_records_of_all_codecs_below_and_above_a_log_start(broker: RunningBroker, name: str) -> None:
    broker.create_topic(name, partitions=2)
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        produce(
            broker.bootstrap,
            name,
            numbered(400, partitions=2, first=400 * number),
            codec=codec,
            batch_num_messages=37,
        )
    assert rows(reader(broker, name)) == consume(broker.bootstrap, name, partitions=2)
    delete_before(broker.bootstrap, name, 333, partition=1)
    left = consume(broker.bootstrap, name, partitions=2)
    assert len(left) == 2000 - 333
    assert rows(reader(broker, name)) == left
    assert rows(reader(broker, name, {"minPartitions": "17"})) == left


@every_engine
def test_times_mean_the_offsets_that_the_broker_tells(broker: RunningBroker, name: str) -> None:
    broker.create_topic(name, partitions=2)
    randomly = random.Random(7)
    sent = [
        each._replace(timestamp_ms=1_700_000_000_000 + randomly.randrange(5000))
        for each in numbered(1000, partitions=2)
    ]
    produce(broker.bootstrap, name, sent, codec="zstd", batch_num_messages=23)
    delete_before(broker.bootstrap, name, 100)
    times = sorted(randomly.sample(range(1_700_000_000_000 - 10, 1_700_000_005_010), 25))
    for ms in times:
        expected = by_time(broker, name, ms, partitions=2)
        strategy = {"startingOffsetsByTimestampStrategy": "latest"}
        starts = reader(
            broker, name, {"startingTimestamp": str(ms), "minPartitions": "1", **strategy}
        ).partitions()
        found = {
            each.range.partition: each.range.first for each in starts if isinstance(each, RangePartition)
        }
        assert found == {number: offset for number, offset in expected.items() if offset < 500}, ms
        ends = reader(broker, name, {"endingTimestamp": str(ms)}).partitions()
        found = {each.range.partition: each.range.end for each in ends if isinstance(each, RangePartition)}
        assert found == {
            number: offset for number, offset in expected.items() if offset > (100, 0)[number]
        }, ms


@every_engine
def test_a_random_range_of_random_batches(broker: RunningBroker, name: str) -> None:
    broker.create_topic(name)
    randomly = random.Random(3)
    for number in range(5):
        codec = randomly.choice(("none", "lz4"))
        produce(
            broker.bootstrap,
            name,
            numbered(200, first=200 * number),
            codec=codec,
            batch_num_messages=randomly.randint(1, 90),
        )
    everything = consume(broker.bootstrap, name)
    for _ in range(20):
        first, end = sorted(randomly.sample(range(1001), 2))
        options = {
            "startingOffsets": f'{{"{name}":{{"0":{first}}}}}',
            "endingOffsets": f'{{"{name}":{{"0":{end}}}}}',
        }
        assert rows(reader(broker, name, options)) == everything[first:end]


def test_the_brokers_time(broker: RunningBroker, name: str) -> None:
    broker.create_topic(name, config={"message.timestamp.type": "LogAppendTime"})
    produce(broker.bootstrap, name, numbered(100))
    found = rows(reader(broker, name))
    assert found == consume(broker.bootstrap, name)
    assert {row.timestamp_type for row in found} == {1}


def test_share_state_among_the_records_is_left_out() -> None:
    with open_test_broker(config={**KEPT, **CONTROL_RECORDS}) as broker:
        prepare(broker, "t", count=200)
        work(broker, "t", mixed, count=200)
        produce(broker.bootstrap, "t", numbered(50))
        expected = consume(broker.bootstrap, "t")
        assert len(expected) == 250
        assert expected[-1].offset > 249
        assert rows(reader(broker, "t")) == expected
        assert rows(reader(broker, "t", {"minPartitions": "9"})) == expected
        broker.stop()
        assert rows(reader(broker, "t")) == expected


@every_engine
def test_retention_goes_on_under_queries(engine: str) -> None:
    """Values are offsets here, so that each row shows whether it is the right one; retention runs
    between plan and reading."""
    limits = {"internal.segment.bytes": str(100_000), "retention.bytes": str(300_000), "retention.ms": "-1"}
    with open_test_broker(storage=engine, config={"log.retention.check.interval.ms": "20"}) as broker:
        broker.create_topic("t", config=limits)
        produce(broker.bootstrap, "t", numbered(900, value_bytes=400), batch_num_messages=50)
        losses = 0
        for sent in range(900, 9900, 900):
            strict, lenient = (reader(broker, "t", {"failOnDataLoss": fail}) for fail in ("true", "false"))
            ((planned,), _) = strict.partitions(), lenient.partitions()
            produce(broker.bootstrap, "t", numbered(900, first=sent, value_bytes=400), batch_num_messages=50)
            kept = rows_of_batches(lenient.read(planned))
            right = [row.offset for row in kept if (row.value or b"").startswith(b"%d " % row.offset)]
            assert right == list(range(planned.range.end - len(kept), planned.range.end))
            try:
                assert rows_of_batches(strict.read(planned)) == kept
                assert len(kept) == planned.range.size
            except DataLoss:
                losses += 1
        assert losses
