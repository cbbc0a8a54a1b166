"""Batches whose payload contradicts their header, with the right CRC, as a broken or hostile
producer may send them."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from crc32c import crc32c

from kbroker.formats.batches import (
    CRC_START,
    HEADER_SIZE,
    LENGTH_END,
    NO_PRODUCER,
    ProducerInfo,
    Record,
    build_batch,
)
from kbroker.formats.compression import Codec, compress

CLAIMED = 3
"""How many records, and so offsets, each of `ODD_BATCHES` claims to have."""
_BOMB_BYTES = 80 << 20
_FIELDS = {
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "record_count": (57, ">i"),
}


def with_header(batch: bytes, **fields: int) -> bytes:
    """`batch` with other values in its header, and a matching CRC."""
    changed = bytearray(batch)
    struct.pack_into(">i", changed, 8, len(changed) - LENGTH_END)
    for name, value in fields.items():
        at, layout = _FIELDS[name]
        struct.pack_into(layout, changed, at, value)
    struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[CRC_START:]))
    return bytes(changed)


def with_payload(
    payload: bytes,
    *,
    codec: Codec = Codec.NONE,
    claimed: int = CLAIMED,
    time_ms: int = 1000,
    producer: ProducerInfo = NO_PRODUCER,
) -> bytes:
    """A batch that claims so many records, all with that time, and has `payload` instead."""
    header = build_batch([Record(0, time_ms, None, None)], codec=codec, producer=producer)[:HEADER_SIZE]
    return with_header(header + payload, record_count=claimed, last_offset_delta=claimed - 1)


def payload_of(*values: bytes, deltas: tuple[int, ...] | None = None, time_delta: int = 0) -> bytes:
    """Records as a batch contains them; `deltas`: their offset deltas, if not 0, 1, 2 and so on."""
    pieces = []
    for delta, value in zip(deltas or range(len(values)), values, strict=True):
        body = b"\0" + varint(time_delta) + varint(delta) + varint(-1) + varint(len(value)) + value + b"\0"
        pieces.append(varint(len(body)) + body)
    return b"".join(pieces)


def varint(number: int) -> bytes:
    zigzag = number << 1 if number >= 0 else (-number << 1) - 1
    encoded = bytearray()
    while zigzag >= 0x80:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


_THREE = payload_of(b"0", b"1", b"2")
_PAYLOADS: Mapping[str, tuple[bytes, Codec]] = {
    "too few records": (payload_of(b"0"), Codec.NONE),
    "too many records": (payload_of(b"0", b"1", b"2", b"3"), Codec.NONE),
    "no records": (b"", Codec.NONE),
    "a record that is cut off": (_THREE[:-2], Codec.NONE),
    "bytes behind the records": (_THREE + b"\0", Codec.NONE),
    "no structure": (bytes(range(256)), Codec.NONE),
    "zeros": (bytes(60), Codec.NONE),
    "a value longer than its record": (
        b"\x10\0\0\0\x01\x80\x01\0\0" + payload_of(b"1", b"2", deltas=(1, 2)),
        Codec.NONE,
    ),
    "a header longer than its record": (
        b"\x0e\0\0\0\x01\x01\x02\x7e" + payload_of(b"1", b"2", deltas=(1, 2)),
        Codec.NONE,
    ),
    "an offset twice": (payload_of(b"0", b"1", b"2", deltas=(0, 0, 1)), Codec.NONE),
    "offsets out of order": (payload_of(b"0", b"1", b"2", deltas=(2, 1, 0)), Codec.NONE),
    "an offset before the batch": (payload_of(b"0", b"1", b"2", deltas=(-1, 1, 2)), Codec.NONE),
    "an offset behind the batch": (payload_of(b"0", b"1", b"2", deltas=(0, 1, 1_000_000)), Codec.NONE),
    "a time beyond 64 bits": (payload_of(b"0", b"1", b"2", time_delta=(1 << 63) - 1), Codec.NONE),
    "no gzip": (_THREE, Codec.GZIP),
    "no snappy": (_THREE, Codec.SNAPPY),
    "no lz4": (_THREE, Codec.LZ4),
    "no zstd": (_THREE, Codec.ZSTD),
    "gzip that is cut off": (compress(Codec.GZIP, _THREE)[:-9], Codec.GZIP),
    "lz4 with too many records": (compress(Codec.LZ4, _THREE + _THREE), Codec.LZ4),
    "zstd of nothing": (compress(Codec.ZSTD, b""), Codec.ZSTD),
    "zstd with too few records": (compress(Codec.ZSTD, payload_of(b"0")), Codec.ZSTD),
    "snappy of no structure": (compress(Codec.SNAPPY, bytes(range(256))), Codec.SNAPPY),
    "a bomb": (compress(Codec.ZSTD, bytes(_BOMB_BYTES)), Codec.ZSTD),
}


def odd_batch(kind: str, *, time_ms: int = 1000, producer: ProducerInfo = NO_PRODUCER) -> bytes:
    payload, codec = _PAYLOADS[kind]
    return with_payload(payload, codec=codec, time_ms=time_ms, producer=producer)


ODD_BATCHES = tuple(_PAYLOADS)
"""Their names."""
