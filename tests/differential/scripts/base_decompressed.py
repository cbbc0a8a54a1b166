"""Produce to topics with max.decompressed.message.bytes: the bound of one record of a compressed
batch."""

from __future__ import annotations

from kbroker.formats.batches import Record, build_batch
from kbroker.formats.compression import Codec
from tests.differential.script import Session, Topic, script
from tests.differential.scripts.base_produce import PAST, STAMP, end_of, produce

MOST = 1000
_BESIDES = 8
"""Bytes of a record without key and headers, beside its value: attributes, deltas, and lengths, of
which that of the value has two bytes."""
CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)


def values(*sizes: int) -> list[Record]:
    return [Record(number, STAMP, None, b"v" * size, ()) for number, size in enumerate(sizes)]


def limited(s: Session, most: int = MOST, **more: str) -> Topic:
    return s.topic(**PAST, max_decompressed_message_bytes=str(most), **more)


def sent(s: Session, topic: Topic, *sizes: int, codec: Codec) -> None:
    s.note("records", [codec.name, *sizes])
    produce(s, topic, build_batch(values(*sizes), codec=codec))


@script("BASE-71")
def records_of_each_codec(s: Session) -> None:
    topic = limited(s)
    for codec in CODECS:
        for sizes in ((100,) * 50, (2000,), (100, 2000, 100), (2000, 2000)):
            sent(s, topic, *sizes, codec=codec)
    end_of(s, topic)


@script("BASE-71")
def where_the_bound_is(s: Session) -> None:
    topic = limited(s)
    for codec in (Codec.ZSTD, Codec.GZIP):
        for size in range(MOST - _BESIDES - 2, MOST + 3):
            sent(s, topic, size, codec=codec)
    end_of(s, topic)


@script("BASE-71")
def keys_and_headers_count(s: Session) -> None:
    topic = limited(s)
    for key, value, headers in (
        (b"k" * 600, b"v" * 600, ()), (b"k" * 2000, None, ()), (None, None, (("h", b"h" * 2000),)),
        (None, b"v", (("h" * 2000, b""),)), (b"k" * 300, b"v" * 300, (("h", b"h" * 300),)),
    ):  # fmt: skip
        produce(s, topic, build_batch([Record(0, STAMP, key, value, headers)], codec=Codec.ZSTD))
    end_of(s, topic)


@script()
def beside_other_rows(s: Session) -> None:
    """Of a topic with a bound, a bound of one byte, and none."""
    for topic in (limited(s), limited(s, 1), s.topic(**PAST)):
        sent(s, topic, 1, codec=Codec.ZSTD)
        sent(s, topic, 2000, codec=Codec.ZSTD)
        end_of(s, topic)


@script()
def topics_that_recompress_or_compact(s: Session) -> None:
    for more in (
        {"compression_type": "gzip"}, {"compression_type": "uncompressed"}, {"cleanup_policy": "compact"},
        {"message_timestamp_type": "LogAppendTime"},
    ):  # fmt: skip
        topic = limited(s, **more)
        for codec in (Codec.NONE, Codec.ZSTD):
            sent(s, topic, 2000, codec=codec)
            sent(s, topic, 10, codec=codec)
        end_of(s, topic)


@script()
def bounds_that_are_refused(s: Session) -> None:
    for value in ("0", "-1", "1", "2147483639", "2147483640", "2147483648", "x", ""):
        answer = s.prepare(
            "create_topics", 7, timeout=10_000, validate_only=True,
            topics=[{
                "name": f"{s.name}-x", "num_partitions": 1, "replication_factor": 1, "assignments": (),
                "configs": [{"name": "max.decompressed.message.bytes", "value": value}],
            }],
        )  # fmt: skip
        s.note(value, answer.topics[0].error_code.name)
    topic = limited(s)
    s.call(
        "describe_configs", 4, include_synonyms=True, include_documentation=False,
        resources=[{"resource_type": 2, "resource_name": topic.name,
                    "configuration_keys": ["max.decompressed.message.bytes"]}],
    )  # fmt: skip
    s.call(
        "describe_configs", 4, include_synonyms=True, include_documentation=False,
        resources=[{"resource_type": 4, "resource_name": "1",
                    "configuration_keys": ["max.decompressed.message.bytes"]}],
    )  # fmt: skip
