"""Hand-made record batches, valid and damaged, and a decoder's result in a comparable form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from crc32c import crc32c

from kbroker.formats.batches import HEADER, HEADER_SIZE, LENGTH_END, iter_headers, iter_records
from kbroker.formats.compression import Codec, compress
from kbroker_spark.arrow_columns import MAX_MILLISECONDS
from kbroker_spark.decode import COLUMNS, CorruptBatch, Decoder, decode

EVERYTHING = 1 << 62
"""An end beyond all offsets of these tests."""


def zigzag(number: int, size: int = 1) -> bytes:
    """A varint or varlong in at least `size` bytes: encodings may be longer than needed."""
    rest = (number << 1) ^ (number >> 63)
    found = bytearray()
    while rest >= 0x80 or len(found) + 1 < size:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*found, rest))


def field(data: bytes | None) -> bytes:
    return zigzag(-1) if data is None else zigzag(len(data)) + data


def record(
    delta: int = 0,
    key: bytes | None = b"key",
    value: bytes | None = b"value",
    *,
    time_delta: int = 0,
    headers: Sequence[tuple[bytes | None, bytes | None]] = (),
    header_count: int | None = None,
    length_size: int = 1,
) -> bytes:
    entries = b"".join(field(name) + field(content) for name, content in headers)
    count = len(headers) if header_count is None else header_count
    body = b"\x00" + zigzag(time_delta) + zigzag(delta) + field(key) + field(value) + zigzag(count) + entries
    return zigzag(len(body), length_size) + body


def batch(
    records: Sequence[bytes],
    base_offset: int = 0,
    *,
    codec: Codec = Codec.NONE,
    attributes: int = 0,
    count: int | None = None,
    last_delta: int | None = None,
    times: tuple[int, int] = (1_700_000_000_000, 1_700_000_000_999),
    magic: int = 2,
    payload: bytes | None = None,
) -> bytes:
    """With the right CRC. `payload` replaces the records in their stored form."""
    stored = compress(codec, b"".join(records)) if payload is None else payload
    header = HEADER.pack(
        base_offset, HEADER_SIZE - LENGTH_END + len(stored), 0, magic, 0, attributes | codec,
        (len(records) or 1) - 1 if last_delta is None else last_delta, *times, -1, -1, -1,
        len(records) if count is None else count,
    )  # fmt: skip
    return sealed(bytearray(header + stored))


def sealed(data: bytearray) -> bytes:
    """One batch with the CRC of its bytes."""
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


class Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    offset: int
    timestamp_us: int | None
    timestamp_type: int
    headers: list[dict[str, Any]] | None


def expected_rows(batches: Sequence[bytes], first: int = 0, end: int = EVERYTHING) -> list[Row]:
    """The records that kbroker.formats.batches reads, in the columns of Spark."""
    rows = []
    for data in batches:
        ((_, header),) = iter_headers(data)
        if header.is_control:
            continue
        for offset, timestamp, key, value, headers in iter_records(data):
            time = timestamp * 1000 if abs(timestamp) <= MAX_MILLISECONDS else None
            named = [{"key": _replaced(name), "value": content} for name, content in headers]
            if first <= offset < end:
                rows.append(Row(key, value, offset, time, int(header.is_log_append_time), named or None))
    return rows


def _replaced(name: str) -> str:
    return name.encode(errors="surrogateescape").decode(errors="replace")


def decoded(
    chunks: Sequence[bytes],
    decoder: Decoder,
    *,
    first: int = 0,
    end: int = EVERYTHING,
    columns: Sequence[str] = tuple(COLUMNS),
    check_crc: bool = True,
) -> dict[str, pa.ChunkedArray]:
    """The columns of all pieces, with exactly the types that Spark expects, and valid for Arrow."""
    views = [memoryview(chunk) for chunk in chunks]
    pieces = list(decode(views, first=first, end=end, columns=columns, decoder=decoder, check_crc=check_crc))
    for piece in pieces:
        assert set(piece.columns) == set(columns)
        for array in piece.columns.values():
            array.validate(full=True)
            assert len(array) == piece.rows > 0
    return {
        name: pa.chunked_array([piece.columns[name] for piece in pieces], COLUMNS[name]) for name in columns
    }


def rows(columns: dict[str, pa.ChunkedArray]) -> list[Row]:
    lists = {
        name: (column.cast("int64") if name == "timestamp" else column).to_pylist()
        for name, column in columns.items()
    }
    return [Row(*values) for values in zip(*(lists[name] for name in COLUMNS), strict=True)]


def outcome(
    chunks: Sequence[bytes], decoder: Decoder, **more: Any
) -> dict[str, pa.ChunkedArray] | tuple[int, str]:
    """The columns, or which batch is damaged and why."""
    try:
        return decoded(chunks, decoder, **more)
    except CorruptBatch as error:
        return error.offset, error.reason
