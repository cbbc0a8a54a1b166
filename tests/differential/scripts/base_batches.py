"""Produce: attribute bits, producers, timestamps, bytes after a batch, and payloads of every
codec."""

from __future__ import annotations

import random
import struct

from kbroker.clock import wall_clock_ms
from kbroker.formats.batches import Record, build_batch, read_header
from kbroker.formats.compression import Codec
from tests.differential.script import Session, Topic, script
from tests.differential.scripts.base_fetch import wanted
from tests.differential.scripts.base_produce import PAST, STAMP, altered, batch_of, end_of, produce

FUTURE = 4_000_000_000_000


def attributes_of(s: Session, topic: Topic) -> None:
    """The attributes and greatest timestamps of the stored batches, as a step."""
    rows = wanted((0, 0), limit=1 << 22)
    answer = s.prepare(
        "fetch", 12, max_wait=0, min_bytes=1, max_bytes=1 << 22, isolation_level=0, session_id=0,
        session_epoch=-1,
        topics=[{"topic": topic.name, "partitions": rows}], forgotten_topics_data=(), rack_id="",
    )  # fmt: skip
    data = bytes(answer.responses[0].partitions[0].records)
    found = []
    while data:
        header = read_header(data)
        now = abs(header.max_timestamp_ms - wall_clock_ms()) < 1_000_000
        found.append([header.base_offset, header.attributes, "now" if now else header.max_timestamp_ms])
        data = data[header.size_bytes :]
    s.note("attributes", found)


@script("BASE-22")
def bits_that_clients_do_not_set(s: Session) -> None:
    topic = s.topic(**PAST)
    for bits in (0x08, 0x40, 0x80, 0x100, 0x4000, -0x8000):
        produce(s, topic, altered(batch_of("one"), attributes=bits))
    produce(s, topic, batch_of("one", codec=Codec.GZIP, bits=0x08))
    attributes_of(s, topic)


@script("BASE-33")
def log_append_time_set_by_a_client(s: Session) -> None:
    topic = s.topic(**PAST, message_timestamp_type="LogAppendTime")
    produce(s, topic, batch_of("one", "two", bits=0x08))
    produce(s, topic, batch_of("one", "two", bits=0x08, codec=Codec.ZSTD))
    produce(s, topic, batch_of("one", stamp=FUTURE))
    produce(s, topic, batch_of("one", stamp=-1))
    produce(s, topic, batch_of("one", bits=0x40))
    attributes_of(s, topic)


@script("BASE-33")
def records_out_of_bounds(s: Session) -> None:
    """Which records of a batch are named in the error."""
    topic = s.topic(**PAST, message_timestamp_after_max_ms="1000", message_timestamp_before_max_ms="3600000")
    now = wall_clock_ms()
    times = (now, FUTURE, now, 5, -1, FUTURE)
    for codec in (Codec.NONE, Codec.GZIP, Codec.LZ4):
        produce(s, topic, build_batch([Record(0, stamp, None, b"x", ()) for stamp in times], codec=codec))
        produce(s, topic, build_batch([Record(0, stamp, None, b"x", ()) for stamp in (now, -1)], codec=codec))
    produce(s, topic, batch_of("x", stamp=FUTURE, producer=(7_000_021, 0, 0)))
    produce(s, topic, batch_of("x", stamp=now, producer=(7_000_021, 0, 0)))
    end_of(s, topic)


@script("BASE-33")
def records_from_far_ahead(s: Session) -> None:
    topic = s.topic(**PAST)
    produce(s, topic, build_batch([Record(0, stamp, None, b"x", ()) for stamp in (STAMP, FUTURE, FUTURE)]))
    produce(s, topic, altered(batch_of("x"), max_timestamp=FUTURE))
    produce(s, topic, altered(batch_of("x", stamp=FUTURE), max_timestamp=STAMP))
    end_of(s, topic)


@script("BASE-22", "BASE-39")
def producers_that_are_none(s: Session) -> None:
    topic = s.topic(**PAST)
    produce(s, topic, batch_of("one", producer=(-5, 0, -1)))
    produce(s, topic, batch_of("one", producer=(-1, 3, 7)))
    produce(s, topic, batch_of("one", producer=(-1, 3, 7)))
    produce(s, topic, batch_of("one", producer=(7_000_022, -1, -1)))
    produce(s, topic, batch_of("one", producer=(7_000_022, -2, 0)))
    produce(s, topic, batch_of("one", producer=(7_000_022, -2, 5)))
    produce(s, topic, batch_of("one", producer=(0, 0, 0)))
    end_of(s, topic)


@script("BASE-35", "BASE-37", "BASE-39")
def an_epoch_of_none(s: Session) -> None:
    """Producer epoch -1: any sequence may follow, also that of another epoch; duplicates are still
    recognized."""
    topic = s.topic(**PAST)
    for sequence in (0, 5, 5, 1, 0):
        produce(s, topic, batch_of("one", producer=(7_000_023, -1, sequence)))
    for epoch, sequence in ((0, 9), (0, 9), (0, 11), (-1, 0)):
        produce(s, topic, batch_of("one", producer=(7_000_023, epoch, sequence)))
    end_of(s, topic)


@script("BASE-35", "BASE-36")
def repeats_after_the_time_type_changed(s: Session) -> None:
    topic = s.topic(**PAST)
    produce(s, topic, batch_of("one", "two", producer=(7_000_024, 0, 0)))
    produce(s, topic, batch_of("one", "two", producer=(7_000_024, 0, 0)))
    produce(s, topic, batch_of("one", stamp=-1, producer=(7_000_024, 0, 2)))
    produce(s, topic, batch_of("one", stamp=-1, producer=(7_000_024, 0, 2)))
    end_of(s, topic)


@script("BASE-22", "BASE-26")
def behind_a_batch(s: Session) -> None:
    topic, good = s.topic(**PAST), batch_of("one")

    def start(size: int, magic: int, length: int) -> bytes:
        return (struct.pack(">qiiB", 0, size, 0, magic) + bytes(100))[:length]

    for rest in (
        bytes(11), bytes(12), start(14, 2, 12), start(13, 2, 16), start(14, 0, 16), start(14, 9, 17),
        start(14, 2, 17), start(100, 2, 60),
        start(20, 1, 40), start(-1, 2, 40), good[:-1], good[:61], b"x" * 200,
    ):  # fmt: skip
        s.note("behind it", rest.hex())
        produce(s, topic, good + rest)
    end_of(s, topic)


@script("BASE-1")
def codecs_in_old_versions(s: Session) -> None:
    topic = s.topic(**PAST)
    for version in (3, 6, 7):
        for batch in (batch_of("one", codec=Codec.ZSTD), batch_of("one", codec=Codec.LZ4)):
            rows = [{"name": topic.name, "partition_data": [{"index": 0, "records": batch}]}]
            s.call("produce", version, transactional_id=None, acks=-1, timeout=30_000, topic_data=rows)
    end_of(s, topic)


@script("BASE-23")
def large_payloads(s: Session) -> None:
    """Kafka accepts what kbroker compresses, even if a codec works block by block."""
    topic = s.topic(**PAST, max_message_bytes="4000000")
    noise = random.Random(0)
    values = {
        "noise": "".join(chr(noise.randrange(32, 127)) for _ in range(200_000)),
        "zeros": "0" * 300_000,
        "block": "x" * (1 << 16),
        "both": "0" * 70_000 + "".join(chr(noise.randrange(32, 127)) for _ in range(70_000)),
    }
    for codec in Codec:
        for value in values.values():
            rows = [
                {
                    "name": topic.name,
                    "partition_data": [{"index": 0, "records": batch_of(value, "", codec=codec)}],
                }
            ]
            answer = s.prepare("produce", 9, transactional_id=None, acks=-1, timeout=30_000, topic_data=rows)
            row = answer.responses[0].partition_responses[0]
            s.note(codec.name, [row.error_code.name, row.base_offset])
    end_of(s, topic)


@script("BASE-24")
def payloads_that_cannot_be_read(s: Session) -> None:
    topic = s.topic(**PAST)
    good = batch_of("one", "two")
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        produce(s, topic, altered(good, attributes=int(codec)))
    produce(s, topic, altered(good, record_count=3, last_offset_delta=2))
    produce(s, topic, altered(good, record_count=1, last_offset_delta=0))
    end_of(s, topic)


@script("BASE-32")
def larger_than_a_segment(s: Session) -> None:
    topic = s.topic(**PAST, max_message_bytes="4000000", segment_bytes="1048576")
    size = len(batch_of("x" * 1_000_000)) - 1_000_000
    for length in (1048576 - size, 1048577 - size):
        rows = [{"name": topic.name, "partition_data": [{"index": 0, "records": batch_of("x" * length)}]}]
        answer = s.prepare("produce", 9, transactional_id=None, acks=-1, timeout=30_000, topic_data=rows)
        row = answer.responses[0].partition_responses[0]
        s.note(
            f"{length}",
            [row.error_code.name, row.base_offset, row.log_start_offset, row.error_message is None],
        )
    end_of(s, topic)
