"""Topics filled by a Kafka producer and read by a Kafka consumer, and rows of Spark in the same
shape, so that `==` compares all values."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PATIENCE_S = 120.0
KEPT = {"log.retention.ms": "-1", "log.segment.bytes": str(1 << 20)}
"""For brokers. The timestamps of `numbered` are years ago, and retention would delete such records
after five minutes. A segment has its full length from the start: tests that copy or overwrite files
would otherwise handle gigabytes."""


class Record(NamedTuple):
    """A record to send; without a timestamp the producer's clock is used."""

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    timestamp_ms: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Row(NamedTuple):
    """A record in Spark's columns; sorts by topic, partition and offset."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    timestamp_type: int
    headers: tuple[tuple[str, bytes | None], ...] | None


def numbered(count: int, *, partitions: int = 1, first: int = 0, value_bytes: int = 20) -> Iterator[Record]:
    """`count` records with distinct values, keys on most of them, headers on some, over the
    partitions in turn."""
    for number in range(first, first + count):
        key = None if number % 7 == 0 else b"k%d" % (number % 1000)
        headers = (("n", b"%d" % number), ("none", None)) if number % 5 == 0 else ()
        yield Record(
            (b"%d " % number).ljust(value_bytes, b"."),
            key,
            number % partitions,
            1_700_000_000_000 + number,
            headers,
        )


def produce(
    bootstrap: str, topic: str, records: Iterable[Record], *, codec: str = "none", **settings: Any
) -> None:
    """Returns when all are confirmed; `settings` go to the producer, with underscores for dots."""
    errors: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "linger.ms": 5,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )

    def answered(error: Any, _: Message) -> None:
        if error is not None:
            errors.append(error.str())

    for record in records:
        more = {"partition": record.partition, "timestamp": record.timestamp_ms, "on_delivery": answered}
        while True:
            try:
                producer.produce(topic, record.value, record.key, headers=list(record.headers), **more)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(PATIENCE_S)
    assert not errors, errors[0]
    assert left == 0, f"{left} records were not answered"


def delete_before(bootstrap: str, topic: str, offset: int, *, partition: int = 0) -> None:
    """DeleteRecords: records below `offset` are gone on return."""
    place = TopicPartition(topic, partition, offset)
    # a separate client: without it the answer would not be waited for
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (answer,) = admin.delete_records([place]).values()
    assert answer.result(PATIENCE_S).low_watermark == offset


def consume(bootstrap: str, topic: str, *, partitions: int = 1) -> list[Row]:
    """All records that a consumer reads, from the first to the end at the time of the call,
    sorted."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    try:
        places = [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)]
        ends = {
            place.partition: consumer.get_watermark_offsets(place, timeout=PATIENCE_S) for place in places
        }
        consumer.assign([place for place in places if ends[place.partition][0] < ends[place.partition][1]])
        rows: list[Row] = []
        open_partitions = {partition for partition, (low, high) in ends.items() if low < high}
        deadline = time.monotonic() + PATIENCE_S
        while open_partitions:
            assert time.monotonic() < deadline, f"nothing more came of {open_partitions}"
            for message in consumer.consume(10_000, timeout=0.2):
                deadline = time.monotonic() + PATIENCE_S
                assert message.error() is None, message.error()
                if message.offset() < ends[message.partition()][1]:
                    rows.append(_consumed(message))
                if message.offset() + 1 >= ends[message.partition()][1]:
                    open_partitions.discard(message.partition())
        return sorted(rows, key=_place)
    finally:
        consumer.close()


def consume_committed(bootstrap: str, topic: str) -> list[Row]:
    """All records of partition 0 that a consumer with read_committed reads, up to the last stable
    offset."""
    settings = {"group.id": "unused", "enable.partition.eof": True, "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": bootstrap, "enable.auto.commit": False, **settings})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        rows: list[Row] = []
        while (message := consumer.poll(PATIENCE_S)) is not None:
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return rows
            assert error is None, error
            rows.append(_consumed(message))
        raise AssertionError("nothing more came, and no end")
    finally:
        consumer.close()


def rows_of(frame: DataFrame) -> list[Row]:
    """All rows of a frame with the columns of the source, headers among them or not, sorted."""
    table = frame.toArrow()
    microseconds = table["timestamp"].cast("int64").to_pylist()
    assert all(each % 1000 == 0 for each in microseconds)
    headers = table["headers"].to_pylist() if "headers" in table.column_names else [None] * table.num_rows
    columns = [table[column].to_pylist() for column in ("topic", "partition", "offset", "key", "value")]
    more = ([each // 1000 for each in microseconds], table["timestampType"].to_pylist(), map(_pairs, headers))
    return sorted(map(Row, *columns, *more), key=_place)


def without_headers(rows: Iterable[Row]) -> list[Row]:
    """As the source returns them if headers are not requested."""
    return [row._replace(headers=None) for row in rows]


def _place(row: Row) -> tuple[str, int, int]:
    return row[:3]


def _consumed(message: Message) -> Row:
    kind, timestamp_ms = message.timestamp()
    headers = message.headers()
    return Row(
        str(message.topic()),
        int(message.partition() or 0),
        int(message.offset() or 0),
        message.key(),
        message.value(),
        timestamp_ms,
        kind - 1,  # confluent-kafka: 0 none, 1 CreateTime, 2 LogAppendTime.
        tuple(headers) if headers else None,
    )


def _pairs(headers: list[Mapping[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...] | None:
    return None if headers is None else tuple((header["key"], header["value"]) for header in headers)
