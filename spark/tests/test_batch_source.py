"""The source "kbroker" in Spark: every value equals the one that a Kafka consumer reads from the
broker, on every engine, live and offline.

Tests that need no Spark are in test_batch_reader.py.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import AnalysisException, PySparkException

from kbroker.testing.broker import RunningBroker, open_test_broker
from spark.tests.filling import (
    KEPT,
    PATIENCE_S,
    consume,
    delete_before,
    numbered,
    produce,
    rows_of,
    without_headers,
)
from spark.tests.stored import batch, records, writing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
OTHER_ENGINES = ("lmdb", "rocksdb", "sqlite")
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def frame(spark: SparkSession, path: Path, topic: str, **options: Any) -> DataFrame:
    return spark.read.format("kbroker").options(subscribe=topic, **options).load(str(path))


def produce_in_all_codecs(broker: RunningBroker, topic: str, number_of_records: int, partitions: int) -> None:
    for number, codec in enumerate(CODECS):
        share = number_of_records // len(CODECS)
        sent = numbered(share, partitions=partitions, first=number * share, value_bytes=60)
        produce(broker.bootstrap, topic, sent, codec=codec, queue_buffering_max_messages=number_of_records)


def consumed(broker: RunningBroker, topic: str, partitions: int) -> pa.Table:
    """As columns, in the order of partitions and offsets: a million records are too many for an
    object each."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "unused", "enable.auto.commit": False}
    )
    places = [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)]
    messages: list[Message] = []
    try:
        wanted = sum(
            high - low
            for low, high in (consumer.get_watermark_offsets(place, timeout=60) for place in places)
        )
        consumer.assign(places)
        deadline = time.monotonic() + PATIENCE_S
        while len(messages) < wanted:
            assert time.monotonic() < deadline, f"{len(messages)} of {wanted} records came"
            if more := consumer.consume(20_000, timeout=0.2):
                deadline = time.monotonic() + PATIENCE_S
            assert not any(message.error() for message in more)
            messages += more
    finally:
        consumer.close()
    times = [message.timestamp() for message in messages]
    headers = [
        [{"key": key, "value": value} for key, value in message.headers() or ()] or None
        for message in messages
    ]
    columns = [
        [message.key() for message in messages], [message.value() for message in messages],
        [topic] * len(messages),
        [message.partition() for message in messages], [message.offset() for message in messages],
        [ms * 1000 for _, ms in times], [kind - 1 for kind, _ in times], headers,
    ]  # fmt: skip
    return in_order(
        pa.table(
            [pa.array(column, kind) for column, kind in zip(columns, kinds(), strict=True)], names=COLUMNS
        )
    )


def kinds() -> Iterator[pa.DataType]:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    yield from (
        pa.binary(),
        pa.binary(),
        pa.string(),
        pa.int32(),
        pa.int64(),
        pa.timestamp("us", tz="UTC"),
        pa.int32(),
        pa.list_(header),
    )


def read(wanted: DataFrame) -> pa.Table:
    table = wanted.toArrow()
    return in_order(
        pa.table([table[name].cast(kind) for name, kind in zip(COLUMNS, kinds(), strict=True)], names=COLUMNS)
    )


def in_order(table: pa.Table) -> pa.Table:
    return table.take(
        pc.sort_indices(table, [("partition", "ascending"), ("offset", "ascending")])
    ).combine_chunks()


@contextmanager
def being_written(broker: RunningBroker, topic: str, partitions: int) -> Iterator[None]:
    """Another client keeps appending small batches."""
    done = threading.Event()

    def write() -> None:
        for round_number in count(1):
            produce(
                broker.bootstrap,
                topic,
                numbered(200, partitions=partitions, first=round_number * 1000),
                codec="lz4",
            )
            if done.wait(0.1):
                return

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            yield
        finally:
            done.set()
        writing.result()


def cut(table: pa.Table, like: pa.Table) -> pa.Table:
    """Of each partition the records before the last offset that the other one has."""
    last = dict(zip(like["partition"].to_pylist(), like["offset"].to_pylist(), strict=True))
    ends = pa.array([last[partition] for partition in table["partition"].to_pylist()], pa.int64())
    return table.filter(pc.less_equal(table["offset"], ends)).combine_chunks()


@pytest.mark.parametrize(
    "storage", ["segment", *(pytest.param(each, marks=pytest.mark.full) for each in OTHER_ENGINES)]
)
def test_a_million_records_live_and_offline(spark: SparkSession, storage: str) -> None:
    with open_test_broker(storage=storage, config=KEPT) as broker:
        broker.create_topic("million", partitions=4, config={"segment.bytes": str(8 << 20)})
        produce_in_all_codecs(broker, "million", 1_000_000, 4)
        expected = consumed(broker, "million", 4)
        assert expected.num_rows == 1_000_000
        assert read(frame(spark, broker.data_dir, "million", includeHeaders=True)).equals(expected)
        broker.stop()
        assert read(frame(spark, broker.data_dir, "million", includeHeaders=True, minPartitions=9)).equals(
            expected
        )


@pytest.mark.parametrize("storage", OTHER_ENGINES)
def test_other_engines_live_and_offline(spark: SparkSession, storage: str) -> None:
    with open_test_broker(storage=storage, config=KEPT) as broker:
        broker.create_topic("t", partitions=2, config={"segment.bytes": str(1 << 20)})
        produce_in_all_codecs(broker, "t", 50_000, 2)
        with being_written(broker, "t", 2):
            live = read(frame(spark, broker.data_dir, "t", includeHeaders=True, minPartitions=6))
        expected = consumed(broker, "t", 2)
        assert live.num_rows >= 50_000
        assert live.equals(cut(expected, live))
        broker.stop()
        assert read(frame(spark, broker.data_dir, "t", includeHeaders=True)).equals(expected)


def test_a_choice_of_columns_and_sql(spark: SparkSession, broker: RunningBroker, name: str) -> None:
    broker.create_topic(name)
    produce(broker.bootstrap, name, numbered(100))
    expected = consume(broker.bootstrap, name)
    source = spark.read.format("kbroker").option("SUBSCRIBE", name)
    chosen = source.schema(
        "Value binary, offset bigint, headers array<struct<key: string, value: binary>>"
    ).load(str(broker.data_dir))
    assert chosen.columns == ["Value", "offset", "headers"]
    found = [
        (row.offset, bytes(row.Value), row.headers and tuple(tuple(each) for each in row.headers))
        for row in chosen.collect()
    ]
    assert found == [(row.offset, row.value, row.headers) for row in expected]
    options = f"path '{broker.data_dir}', subscribe '{name}', endingTimestamp '1700000000050'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW records USING kbroker OPTIONS ({options})")
    assert rows_of(spark.table("records")) == without_headers(expected[:50])
    assert spark.sql("SELECT count(*), max(offset) FROM records").first() == (50, 49)


def test_a_frame_is_a_picture_and_what_it_lost_is_told(
    spark: SparkSession, broker: RunningBroker, name: str
) -> None:
    broker.create_topic(name, config={"segment.bytes": str(1 << 20)})
    produce(broker.bootstrap, name, numbered(20_000, value_bytes=200))
    strict, lenient = (frame(spark, broker.data_dir, name, failOnDataLoss=fail) for fail in (True, False))
    assert strict.count() == lenient.count() == 20_000
    produce(broker.bootstrap, name, numbered(100, first=20_000))
    assert strict.count() == 20_000
    delete_before(broker.bootstrap, name, 19_990)
    with pytest.raises(PySparkException) as caught:
        strict.count()
    said = (
        rf"Some data may have been lost: offsets 0 to \d+ of {name}-0 are gone, its log begins at \d+ "
        r".*failOnDataLoss"
    )
    assert re.search(said, str(caught.value))
    left = [row.offset for row in lenient.select("offset").collect()]
    assert 0 < len(left) < 20_000
    assert left == list(range(left[0], 20_000))
    assert rows_of(frame(spark, broker.data_dir, name)) == without_headers(consume(broker.bootstrap, name))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"path": "/no/such"}, "there is no directory /no/such: give the --data-dir of a broker"),
        ({"subscribe": "nobody"}, "there is no topic nobody in "),
        ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries"),
        ({"kafka.auto.offset.reset": "latest"}, "Kafka option 'auto.offset.reset' is not supported"),
        (
            {"startingOffsets": '{"NAME":{"0":90}}', "endingOffsets": '{"NAME":{"0":120}}'},
            "are not there, its log ends at 100",
        ),
    ],
)
def test_errors_are_a_line_in_what_spark_says(
    spark: SparkSession, broker: RunningBroker, name: str, options: dict[str, str], line: str
) -> None:
    topic = "errors"
    if topic not in AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=60).topics:
        broker.create_topic(topic)
        produce(broker.bootstrap, topic, numbered(100))
    given = {
        "path": str(broker.data_dir),
        "subscribe": topic,
        **{key: value.replace("NAME", topic) for key, value in options.items()},
    }
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("kbroker").options(**given).load().count()
    assert line in str(caught.value)


def test_a_schema_that_cannot_be_met(spark: SparkSession, broker: RunningBroker) -> None:
    wanted = spark.read.format("kbroker").option("subscribe", "t").schema("offset int")
    with pytest.raises(AnalysisException) as caught:
        wanted.load(str(broker.data_dir)).count()
    assert "Column offset is bigint, not int: read it as that and cast it" in str(caught.value)


def test_damage_is_an_error_and_never_rows(spark: SparkSession, tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        topic_id = data.topic("t")
        data.append(topic_id, 0, *(batch(records(100), offset) for offset in range(0, 1000, 100)))
    first = tmp_path / "log-segment" / f"{topic_id}-0" / f"{0:020}" / "data.ninja"
    content = bytearray(first.read_bytes())
    content[500] ^= 1
    first.write_bytes(content)
    with pytest.raises(PySparkException) as caught:
        frame(spark, tmp_path, "t").count()
    assert "t-0 is damaged: the record batch at offset 0 is damaged" in str(caught.value)
