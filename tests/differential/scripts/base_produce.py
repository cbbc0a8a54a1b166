"""Produce: valid batches, allowed senders, and the responses."""

from __future__ import annotations

import struct
from uuid import UUID

from crc32c import crc32c

from kbroker.formats.batches import CRC_START, HEADER, ProducerInfo, Record, build_batch
from kbroker.formats.compression import Codec
from tests.differential.script import Entity, Session, Topic, Value, script

STAMP = 1_700_000_000_000
PAST = {"retention_ms": "-1"}


def batch_of(
    *values: str,
    stamp: int = STAMP,
    producer: tuple[int, int, int] | None = None,
    codec: Codec = Codec.NONE,
    bits: int = 0,
) -> bytes:
    rows = [Record(0, stamp, None, value.encode(), ()) for value in values]
    if producer is None:
        return build_batch(rows, codec=codec, attributes=bits)
    return build_batch(rows, codec=codec, attributes=bits, producer=ProducerInfo(*producer))


def altered(batch: bytes, **fields: int) -> bytes:
    """The batch with other values in its header, and the right CRC unless that is one of them."""
    header = HEADER.unpack_from(batch)
    names = (
        "base_offset", "batch_length", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta",
        "base_timestamp", "max_timestamp",
        "producer_id", "producer_epoch", "base_sequence", "record_count",
    )  # fmt: skip
    changed = bytearray(batch)
    HEADER.pack_into(
        changed, 0, *({**dict(zip(names, header, strict=True)), **fields}[name] for name in names)
    )
    if "crc" not in fields:
        struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[CRC_START:]))
    return bytes(changed)


def produce(
    s: Session, topic: Topic, *batches: bytes | None, acks: int = -1, partition: int = 0, on: str = "a"
) -> Entity:
    """One request with a row for each of `batches`, all for one partition."""
    rows = [
        {"name": topic.name, "partition_data": [{"index": partition, "records": batch} for batch in batches]}
    ]
    return s.call("produce", 9, on=on, transactional_id=None, acks=acks, timeout=30_000, topic_data=rows)


def has_offsets_topic(s: Session) -> None:
    """A fresh Kafka creates it on the first request for a coordinator."""

    def found() -> bool:
        answer = s.prepare("find_coordinator", 4, key_type=0, coordinator_keys=["x"])
        return not answer.coordinators[0].error_code.value

    s.until(found, "there is an offsets topic")


def end_of(s: Session, topic: Topic, on: str = "a") -> Entity:
    return s.call("list_offsets", 6, on=on, **_latest(topic))


def latest(s: Session, topic: Topic) -> int:
    """The high watermark; not a step."""
    offset: int = s.prepare("list_offsets", 6, **_latest(topic)).topics[0].partitions[0].offset
    return offset


def _latest(topic: Topic) -> dict[str, Value]:
    rows = [{"name": topic.name, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    return {"replica_id": -1, "isolation_level": 0, "topics": rows}


@script("BASE-21")
def damaged_batches(s: Session) -> None:
    topic, good = s.topic(**PAST), batch_of("one")
    produce(s, topic, altered(good, crc=1))
    produce(s, topic, altered(good, batch_length=10))
    produce(s, topic, altered(good, batch_length=48))
    produce(s, topic, altered(good, batch_length=-1))
    for magic in (3, -1, 127):
        produce(s, topic, altered(good, magic=magic))
    end_of(s, topic)


@script("BASE-22")
def batches_that_are_not_one(s: Session) -> None:
    topic, good = s.topic(**PAST), batch_of("one")
    for magic in (0, 1):
        produce(s, topic, altered(good, magic=magic))
    for data in (b"", good[:-1], good[:60], good[:3], good + good):
        produce(s, topic, data)
    end_of(s, topic)


@script("BASE-22")
def counts_and_offsets(s: Session) -> None:
    topic, good = s.topic(**PAST), batch_of("one", "two")
    produce(s, topic, altered(good, record_count=1))
    produce(s, topic, altered(good, record_count=3))
    produce(s, topic, altered(good, last_offset_delta=0))
    produce(s, topic, altered(good, base_offset=7))
    produce(s, topic, altered(good, record_count=0, last_offset_delta=-1))
    produce(s, topic, altered(good, leader_epoch=99))
    end_of(s, topic)


@script("BASE-22", "BASE-25")
def control_and_transactional_batches(s: Session) -> None:
    topic = s.topic(**PAST)
    produce(s, topic, batch_of("one", bits=0x20))
    produce(s, topic, batch_of("one", bits=0x10))
    produce(s, topic, batch_of("one", producer=(5, 0, -1)))
    produce(s, topic, batch_of("one", producer=(5, -1, 0)))
    produce(s, topic, batch_of("one", bits=0x10, producer=(5, 0, 0)))
    end_of(s, topic)


@script("BASE-23")
def codecs(s: Session) -> None:
    topic = s.topic(**PAST)
    for codec in Codec:
        produce(s, topic, batch_of("one", "two", codec=codec))
    produce(s, topic, altered(batch_of("one"), attributes=5))
    produce(s, topic, altered(batch_of("one"), attributes=7))
    end_of(s, topic)


@script("BASE-26")
def bytes_behind_a_batch(s: Session) -> None:
    topic = s.topic(**PAST)
    produce(s, topic, batch_of("one") + b"behind")
    produce(s, topic, batch_of("two") + bytes(20))
    end_of(s, topic)


@script("BASE-28")
def acks(s: Session) -> None:
    topic = s.topic(**PAST)
    for wanted in (1, -1, 2, -2, 32767):
        produce(s, topic, batch_of("one"), acks=wanted)
    end_of(s, topic)


@script("BASE-29")
def acks_0(s: Session) -> None:
    """Good records, and then an error: the broker closes the connection, as the next request on it
    shows."""
    topic = s.topic(**PAST)
    for batch in (batch_of("one"), altered(batch_of("two"), crc=1)):
        rows = [{"name": topic.name, "partition_data": [{"index": 0, "records": batch}]}]
        values = {"transactional_id": None, "acks": 0, "timeout": 30_000, "topic_data": rows}
        connection = s.connection("silent")
        connection.send_raw(connection.encode("produce", 9, values))
        s.call(
            "metadata", 12, on="silent", topics=[{"topic_id": None, "name": topic.name}],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )  # fmt: skip
    s.until(lambda: latest(s, topic) == 1, "the first one counts")
    end_of(s, topic)


@script("BASE-31")
def a_partition_twice(s: Session) -> None:
    topic = s.topic(**PAST)
    produce(s, topic, batch_of("one"), batch_of("two"))
    end_of(s, topic)


@script("BASE-32")
def sizes(s: Session) -> None:
    topic = s.topic(**PAST, max_message_bytes="1000")
    produce(s, topic, batch_of("x" * 900))
    produce(s, topic, batch_of("x" * 1001))
    produce(s, topic, batch_of("x" * 5000, codec=Codec.GZIP))
    produce(s, topic, batch_of(*["x" * 100] * 9))
    size = len(batch_of("x" * 900))
    for more in (1000 - size, 1001 - size):
        produce(s, topic, batch_of("x" * (900 + more)))
    end_of(s, topic)


@script("BASE-33")
def timestamps_out_of_bounds(s: Session) -> None:
    topic = s.topic(**PAST, message_timestamp_after_max_ms="1000", message_timestamp_before_max_ms="1000")
    produce(s, topic, batch_of("one"))
    produce(s, topic, batch_of("one", stamp=4_000_000_000_000))
    produce(s, topic, batch_of("one", stamp=-1))
    end_of(s, topic)


@script("BASE-33")
def odd_timestamps(s: Session) -> None:
    topic = s.topic(**PAST)
    produce(s, topic, batch_of("one", stamp=-1))
    produce(s, topic, batch_of("one", stamp=0))
    produce(s, topic, batch_of("one", stamp=-2))
    produce(s, topic, altered(batch_of("one"), max_timestamp=5))
    end_of(s, topic)


@script("BASE-35", "BASE-36")
def log_append_time(s: Session) -> None:
    topic = s.topic(**PAST, message_timestamp_type="LogAppendTime")
    produce(s, topic, batch_of("one", stamp=5))
    produce(s, topic, batch_of("two", producer=(7_000_001, 0, 0)))
    produce(s, topic, batch_of("two", producer=(7_000_001, 0, 0)))
    end_of(s, topic)


@script("BASE-35", "BASE-37", "BASE-39")
def sequences(s: Session) -> None:
    topic = s.topic(**PAST)
    for sequence in (5, 6, 7, 8, 9, 10):
        produce(s, topic, batch_of("one", producer=(7_000_002, 0, sequence)))
    for sequence in (10, 6, 5, 13, 11):
        produce(s, topic, batch_of("one", producer=(7_000_002, 0, sequence)))
    produce(s, topic, batch_of("one", "two", producer=(7_000_002, 0, 11)))
    produce(s, topic, batch_of("one", "two", producer=(7_000_002, 0, 12)))
    produce(s, topic, batch_of("one", producer=(7_000_002, 0, 12)))
    end_of(s, topic)


@script("BASE-37", "BASE-38")
def producer_epochs(s: Session) -> None:
    topic = s.topic(**PAST)
    for epoch, sequence in ((3, 0), (4, 1), (4, 0), (3, 1), (4, 1), (4, 0)):
        produce(s, topic, batch_of("one", producer=(7_000_003, epoch, sequence)))
    end_of(s, topic)


@script("BASE-40", "BASE-39")
def sequences_wrap(s: Session) -> None:
    topic = s.topic(**PAST)
    for sequence, values in (
        (2147483646, ("one",)),
        (2147483647, ("two", "three")),
        (1, ("four",)),
        (2147483647, ("two", "three")),
    ):
        produce(s, topic, batch_of(*values, producer=(7_000_004, 0, sequence)))
    end_of(s, topic)


@script("BASE-30")
def where_nothing_can_be_produced(s: Session) -> None:
    topic = s.topic(**PAST)
    produce(s, topic, batch_of("one"), partition=3)
    produce(s, topic, batch_of("one"), partition=-1)
    produce(s, Topic(f"{s.name}-missing", topic.topic_id), batch_of("one"))
    has_offsets_topic(s)
    produce(s, Topic("__consumer_offsets", topic.topic_id), batch_of("one"))
    end_of(s, topic)


@script("BASE-4", "BASE-1")
def versions(s: Session) -> None:
    topic = s.topic(**PAST)
    for version in (3, 7, 8, 12):
        rows = [{"name": topic.name, "partition_data": [{"index": 0, "records": batch_of("one")}]}]
        s.call("produce", version, transactional_id=None, acks=-1, timeout=30_000, topic_data=rows)
    by_id = [{"topic_id": topic.topic_id, "partition_data": [{"index": 0, "records": batch_of("one")}]}]
    s.call("produce", 13, transactional_id=None, acks=-1, timeout=30_000, topic_data=by_id)
    s.call(
        "produce",
        13,
        transactional_id=None,
        acks=-1,
        timeout=30_000,
        topic_data=[{**by_id[0], "topic_id": UUID(int=9)}],
    )
    s.call("produce", 13, transactional_id=None, acks=-1, timeout=30_000, topic_data=())
