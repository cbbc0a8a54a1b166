"""Produce: how much of a compressed payload the broker reads. Several frames behind each other, and
bytes behind the last one, which are no frame.

The topics are compacted, so that both brokers open the payloads. Every batch has six keyed records,
in one or in three frames.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial

from kbroker.formats.batches import HEADER_SIZE, NO_HEADERS, Record, build_batch
from kbroker.formats.compression import Codec, compress
from tests.differential.compaction import compacted
from tests.differential.script import Session, script
from tests.differential.scripts.base_batches import attributes_of
from tests.differential.scripts.base_produce import PAST, STAMP, end_of, produce
from tests.differential.scripts.base_produce import batch_of as plain_batch
from tests.odd_batches import with_payload

RECORDS = 6
FRAMES = 3
_GZIP_HEAD = 10
_XERIAL_HEADER_SIZE = 16


def plain_frames() -> list[bytes]:
    """The uncompressed records, a third of them in each piece."""
    records = [Record(0, STAMP, b"key", b"value %d" % number, ()) for number in range(RECORDS)]
    whole = build_batch(records)[HEADER_SIZE:]
    (size,) = {len(whole) // FRAMES}
    assert size * FRAMES == len(whole)
    assert whole.endswith(NO_HEADERS)
    return [whole[start : start + size] for start in range(0, len(whole), size)]


def frames(codec: Codec) -> list[bytes]:
    return [compress(codec, piece) for piece in plain_frames()]


def one_frame(codec: Codec) -> bytes:
    return compress(codec, b"".join(plain_frames()))


def batch_of(codec: Codec, payload: bytes) -> bytes:
    return with_payload(payload, codec=codec, claimed=RECORDS, time_ms=STAMP)


def sent(s: Session, codec: Codec, rows: Sequence[tuple[str, bytes]]) -> None:
    """Each payload in a batch of its own; the error code and the base offset are the step."""
    topic = compacted(s).topic
    for what, payload in rows:
        s.note("payload", f"{codec.name} {what}")
        produce(s, topic, batch_of(codec, payload))
    end_of(s, topic)


def framings(codec: Codec, s: Session) -> None:
    first, second, third = parts = frames(codec)
    empty, whole = compress(codec, b""), one_frame(codec)
    sent(
        s,
        codec,
        (
            ("in one frame", whole),
            ("in three frames", b"".join(parts)),
            ("with two frames missing", first),
            ("with one frame missing", first + second),
            ("with a frame too many", b"".join((*parts, third))),
            ("with an empty frame between", b"".join((first, empty, second, third))),
            ("with an empty frame before", empty + whole),
            ("with an empty frame behind", whole + empty),
            ("with the last frame cut", b"".join(parts)[:-5]),
            ("with the last frame cut after its start", first + second + third[:3]),
            ("with another frame cut behind", whole + third[: len(third) // 2]),
        ),
    )


_BEHIND = {
    "a zero": b"\0",
    "three zeros": bytes(3),
    "four zeros": bytes(4),
    "seven zeros": bytes(7),
    "eight zeros": bytes(8),
    "twenty zeros": bytes(20),
    "forty zeros": bytes(40),
    "a letter": b"x",
    "three letters": b"xxx",
    "four letters": b"xxxx",
    "eight letters": b"x" * 8,
    "twenty letters": b"x" * 20,
    "forty letters": b"x" * 40,
    "the magic of gzip": b"\x1f\x8b",
    "the head of gzip": b"\x1f\x8b\x08\0\0\0\0\0\0\x03",
    "the head of gzip and letters": b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + b"x" * 30,
    "the magic of xerial snappy": b"\x82SNAPPY\0",
    "the head of xerial snappy": b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01",
    "the magic of lz4": b"\x04\x22\x4d\x18",
    "the head of lz4": b"\x04\x22\x4d\x18\x60\x40\x82",
    "the magic of zstd": b"\x28\xb5\x2f\xfd",
    "the head of zstd": b"\x28\xb5\x2f\xfd\x20\x05",
    "a skippable frame of zstd": b"\x50\x2a\x4d\x18\x03\0\0\0abc",
    "a skippable frame of zstd that is cut": b"\x50\x2a\x4d\x18\x09\0\0\0abc",
}


def behind(codec: Codec, s: Session) -> None:
    whole = one_frame(codec)
    sent(s, codec, [(f"and behind it {name}", whole + rest) for name, rest in _BEHIND.items()])


def cut(codec: Codec, s: Session) -> None:
    """One frame, of which the end is missing."""
    whole = one_frame(codec)
    sizes = (1, 2, 3, 4, 5, 7, 8, 9, 12, len(whole) // 2, len(whole) - 3, len(whole))
    sent(s, codec, [(f"without its last {size} bytes", whole[:-size]) for size in sizes])


def _registered(run: Callable[[Codec, Session], None], name: str, codec: Codec) -> None:
    function = partial(run, codec)
    function.__module__, function.__name__ = __name__, f"{name}_{codec.name.lower()}"  # type: ignore[attr-defined]
    script("BASE-24")(function)


for _codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
    _registered(framings, "framings_of", _codec)
    _registered(behind, "bytes_behind", _codec)
    _registered(cut, "cut_frames_of", _codec)


@script("BASE-24")
def gzip_of_other_kinds(s: Session) -> None:
    plain = b"".join(plain_frames())
    whole, deflate = one_frame(Codec.GZIP), one_frame(Codec.GZIP)[_GZIP_HEAD:]
    named = b"\x1f\x8b\x08\x08\0\0\0\0\0\x03name\0" + deflate
    sent(
        s,
        Codec.GZIP,
        (
            ("of zlib's format", zlib.compress(plain)),
            ("with a name", named),
            ("with a wrong checksum", whole[:-8] + bytes(4) + whole[-4:]),
            ("with a wrong size", whole[:-4] + bytes(4)),
            ("and behind it a member with a name", whole[:0] + named + named[:15]),
            ("and behind it a member with another method", whole + b"\x1f\x8b\x07" + bytes(30)),
            ("and behind it a member with reserved flags", whole + b"\x1f\x8b\x08\xe0" + bytes(30)),
            ("and behind it eighteen bytes of a member", whole + whole[:18]),
            ("and behind it nineteen bytes of a member", whole + whole[:19]),
            ("and behind it twenty bytes of a member", whole + whole[:20]),
            ("and behind it an empty member with a wrong checksum", whole + _empty_member(1)),
        ),
    )


def _empty_member(crc: int) -> bytes:
    empty = compress(Codec.GZIP, b"")
    return empty[:-8] + crc.to_bytes(4, "little") + empty[-4:]


@script("BASE-24")
def snappy_of_other_kinds(s: Session) -> None:
    """Raw snappy without a frame, and frames of other versions."""
    raw = [frame[_XERIAL_HEADER_SIZE + 4 :] for frame in frames(Codec.SNAPPY)]
    whole = one_frame(Codec.SNAPPY)
    head, block = whole[:8], whole[_XERIAL_HEADER_SIZE:]
    sent(
        s,
        Codec.SNAPPY,
        (
            ("raw", whole[_XERIAL_HEADER_SIZE + 4 :]),
            ("raw, in three pieces", b"".join(raw)),
            ("raw, and behind it a letter", whole[_XERIAL_HEADER_SIZE + 4 :] + b"x"),
            ("a frame, and behind it a raw one", frames(Codec.SNAPPY)[0] + raw[1] + raw[2]),
            ("of version 0", head + (0).to_bytes(4, "big") + (1).to_bytes(4, "big") + block),
            ("of version 2", head + (2).to_bytes(4, "big") + (1).to_bytes(4, "big") + block),
            ("compatible with version 2", head + (2).to_bytes(4, "big") + (2).to_bytes(4, "big") + block),
            ("compatible with version 9", head + (9).to_bytes(4, "big") + (9).to_bytes(4, "big") + block),
            ("without blocks", whole[:_XERIAL_HEADER_SIZE]),
            ("with a head that is cut", whole[:12]),
            ("and behind it a head of version 9", whole + whole[:8] + b"\0\0\0\x09" * 2),
            ("and behind it a block that is cut", whole + block[:-1]),
            ("and behind it a block of a negative size", whole + b"\xff" * 4 + block),
            ("with a block of no bytes", whole[:_XERIAL_HEADER_SIZE] + bytes(4) + block),
        ),
    )


@script("BASE-24")
def bits_of_batches_that_are_compressed_again(s: Session) -> None:
    topic = s.topic(**PAST, compression_type="gzip")
    for bits in (0, 0x08, 0x40, 0x80, 0x4000):
        for codec in (Codec.NONE, Codec.ZSTD, Codec.GZIP):
            produce(s, topic, plain_batch("one", "two", codec=codec, bits=bits))
    attributes_of(s, topic)
