"""Produce: which of several errors is answered, and for which rows."""

from __future__ import annotations

from uuid import UUID

from tests.differential.script import Session, Topic, Value, script
from tests.differential.scripts.base_offsets import delete_records
from tests.differential.scripts.base_produce import (
    PAST,
    altered,
    batch_of,
    end_of,
    has_offsets_topic,
    latest,
    produce,
)

FUTURE = 4_000_000_000_000


def produce_rows(
    s: Session, *topics: tuple[str | UUID, list[tuple[int, bytes]]], version: int = 9, acks: int = -1
) -> None:
    """Topics with their partitions' batches."""
    rows: list[Value] = [
        {
            "topic_id" if isinstance(name, UUID) else "name": name,
            "partition_data": [{"index": index, "records": batch} for index, batch in batches],
        }
        for name, batches in topics
    ]
    s.call("produce", version, transactional_id=None, acks=acks, timeout=30_000, topic_data=rows)


@script("BASE-22", "BASE-28")
def acks_beside_other_errors(s: Session) -> None:
    topic, good = s.topic(**PAST), batch_of("one")
    for batch in (
        altered(good, base_offset=7),
        altered(good, crc=1),
        altered(good, batch_length=10),
        good + good,
        b"",
        good[:-1],
    ):
        produce(s, topic, batch, acks=2)
    produce(s, topic, altered(good, magic=1), acks=2)
    produce(s, topic, good, acks=2, partition=9)
    produce(s, Topic(f"{s.name}-missing", topic.topic_id), good, acks=2)
    has_offsets_topic(s)
    produce(s, Topic("__consumer_offsets", topic.topic_id), good, acks=2)
    end_of(s, topic)


@script("BASE-21", "BASE-22", "BASE-32")
def two_errors_in_a_batch(s: Session) -> None:
    topic, good = s.topic(**PAST, max_message_bytes="1000"), batch_of("one", "two")
    large = batch_of("x" * 2000)
    batches = {
        "offset and CRC": altered(good, base_offset=7, crc=1),
        "offset and size": altered(large, base_offset=7),
        "size and CRC": altered(large, crc=1),
        "two batches and CRC": altered(good, crc=1) + good,
        "two batches and offset": altered(good, base_offset=7) + good,
        "two batches and size": large + good,
        "broken bytes behind it and CRC": altered(good, crc=1) + bytes(20),
        "broken bytes behind it and size": large + bytes(20),
        "codec and control": altered(good, attributes=0x25),
        "codec and count": altered(good, attributes=5, record_count=3),
        "codec and CRC": altered(good, attributes=5, crc=1),
        "control and count": altered(good, attributes=0x20, record_count=3),
        "control and sequence": altered(good, attributes=0x20, producer_id=5, base_sequence=-1),
        "sequence and time": altered(batch_of("x", stamp=FUTURE), producer_id=5, base_sequence=-1),
        "count and time": altered(batch_of("x", stamp=FUTURE), record_count=3),
        "magic 3 and size": altered(large, magic=3),
        "magic 1 and CRC": altered(good, magic=1, crc=1),
    }
    for what, batch in batches.items():
        s.note("next", what)
        produce(s, topic, batch)
    end_of(s, topic)


@script("BASE-37", "BASE-33", "BASE-38")
def producers_beside_other_errors(s: Session) -> None:
    topic = s.topic(**PAST)
    produce(s, topic, batch_of("one", producer=(7_000_011, 3, 0)))
    for producer in ((7_000_011, 3, 7), (7_000_011, 2, 0), (7_000_011, 3, 0)):
        batch = batch_of("one", producer=producer)
        produce(s, topic, altered(batch, base_offset=7))
        produce(s, topic, altered(batch, crc=1))
        produce(s, topic, altered(batch, record_count=3))
        produce(s, topic, batch_of("one", producer=producer, stamp=FUTURE))
    end_of(s, topic)


@script("BASE-31")
def topics_listed_twice(s: Session) -> None:
    topic, other = s.topic(2, **PAST), s.topic(**PAST)
    produce_rows(s, (topic.name, [(0, batch_of("one"))]), (topic.name, [(1, batch_of("two"))]))
    produce_rows(
        s,
        (topic.name, [(0, batch_of("one"))]),
        (other.name, [(0, batch_of("x"))]),
        (topic.name, [(0, batch_of("two", "three"))]),
    )
    by_id = (topic.topic_id, [(0, batch_of("four"))])
    produce_rows(s, by_id, (other.topic_id, [(0, batch_of("x"))]), by_id, version=13)
    produce_rows(s, (topic.name, []), (other.name, [(0, batch_of("x"))]))
    produce_rows(s, (topic.name, []))
    produce_rows(s, (f"{s.name}-missing", [(0, b""), (0, batch_of("x"))]), (f"{s.name}-missing", [(1, b"")]))
    end_of(s, topic)
    end_of(s, other)


@script("BASE-21", "BASE-25")
def one_row_spoils_the_request(s: Session) -> None:
    topic, good = s.topic(4, **PAST), batch_of("one")
    for bad in (
        altered(good, batch_length=10),
        altered(good, magic=9),
        altered(good, attributes=0x10),
        good + bytes(20),
    ):
        produce_rows(s, (topic.name, [(0, good), (1, bad), (9, good)]), (f"{s.name}-missing", [(0, good)]))
        produce_rows(s, (topic.name, [(1, bad), (0, good)]))
    end_of(s, topic)


@script("BASE-21", "BASE-22")
def one_row_spoils_itself(s: Session) -> None:
    topic, good = s.topic(4, **PAST), batch_of("one")
    for bad in (
        altered(good, crc=1),
        good + good,
        good[:-1],
        altered(good, attributes=0x20),
        altered(good, base_offset=7),
    ):
        produce_rows(s, (topic.name, [(0, good), (1, bad), (9, good)]))
    end_of(s, topic)


@script("BASE-1", "BASE-33")
def errors_by_version(s: Session) -> None:
    topic = s.topic(**PAST)
    rows = [(0, batch_of("one", "two", stamp=FUTURE)), (9, batch_of("one"))]
    for version in (3, 4, 5, 7, 8, 9, 12):
        produce_rows(s, (topic.name, rows), version=version)
    produce_rows(s, (topic.topic_id, rows), version=13)
    for acks in (1, -1):
        produce_rows(s, (topic.name, [(0, altered(batch_of("one"), record_count=3))]), acks=acks)


@script("BASE-22", "BASE-37")
def refused_by_a_log_that_begins_later(s: Session) -> None:
    """Rows that the log refuses have its start offset."""
    topic, good = s.topic(**PAST), batch_of("one", producer=(7_000_012, 0, 0))
    produce(s, topic, good)
    produce(s, topic, batch_of("two", "three"))
    delete_records(s, topic, (0, 2))
    for bad in (
        altered(good, record_count=3),
        altered(good, crc=1),
        altered(good, base_sequence=9),
        good,
        good + good,
    ):
        produce(s, topic, bad)


@script("BASE-29")
def errors_with_acks_0(s: Session) -> None:
    """Each closes the connection, as the next request on it shows."""
    topic, good = s.topic(2, **PAST), batch_of("one")
    bad = {
        "no such partition": [(9, good)],
        "no batch": [(0, b"")],
        "CRC": [(0, altered(good, crc=1))],
        "length": [(0, altered(good, batch_length=10))],
        "transactional": [(0, altered(good, attributes=0x10))],
        "time": [(0, batch_of("x", stamp=FUTURE))],
        "beside a good one": [(0, good), (1, altered(good, record_count=3))],
        "no error": [(0, good)],
    }
    for what, rows in bad.items():
        connection = s.connection(what)
        topics = [
            {
                "name": topic.name,
                "partition_data": [{"index": index, "records": batch} for index, batch in rows],
            }
        ]
        values = {"transactional_id": None, "acks": 0, "timeout": 30_000, "topic_data": topics}
        connection.send_raw(connection.encode("produce", 9, values))
        s.call("metadata", 1, on=what, topics=())
    s.until(lambda: latest(s, topic) == 2, "both good ones count")
    end_of(s, topic)
