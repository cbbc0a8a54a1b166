"""Divides the stored bytes of a partition into groups of batches, which a decoder processes at
once.

A group holds the uncompressed records of many batches in one piece of memory, and the headers of
those batches in one numpy array. Neither this module nor a decoder therefore creates Python objects
for each record. Uncompressed batches are not copied; compressed ones are decompressed one by one.
The size of a group is bounded by what a Spark worker should hold at once.

This module checks batch headers (lengths, magic, CRC, codec). The decoders check the records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from kbroker.formats.batches import CONTROL, CRC_START, HEADER_SIZE, LENGTH_END, MAGIC, iter_records
from kbroker.formats.compression import Codec, CorruptPayload, decompress
from kbroker_spark.aborted_batches import AbortedBatches

Integers: TypeAlias = NDArray[np.int64]
Headers: TypeAlias = NDArray[Any]


class Size(NamedTuple):
    """The upper bounds of a group or piece. Only a single batch may exceed them."""

    rows: int
    bytes: int


PIECE = Size(50_000, 3 << 20)
"""The size of a piece handed to Spark. Smaller pieces cost Spark more calls for the same rows. In
larger ones, columns of 4 MiB and more get their memory from the kernel and return it for every
piece (0.04 us per record); smaller columns reuse memory that Arrow's allocator keeps."""

_SMALL_CHUNK = 1 << 20
_HEADER = np.dtype(
    [
        ("base_offset", ">i8"), ("batch_length", ">i4"), ("leader_epoch", ">i4"), ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"), ("last_offset_delta", ">i4"), ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"), ("producer_epoch", ">i2"), ("base_sequence", ">i4"), ("record_count", ">i4"),
    ]
)  # fmt: skip
_LENGTH = struct.Struct(">i")
_LENGTH_START = 8
_LEAST_LENGTH = HEADER_SIZE - LENGTH_END
_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_MIN_RECORD_BYTES = 7
_MAX_BATCH_BYTES = 1 << 30
_MAX_OFFSET = (1 << 63) - 1 - (1 << 31)


class CorruptBatch(ValueError):
    """A stored batch that no broker can have written. `offset` is its base offset, `reason` the
    defect."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"the record batch at offset {offset} is damaged: {reason}")
        self.offset = offset
        self.reason = reason

    def __reduce__(self) -> tuple[type[CorruptBatch], tuple[int, str]]:
        return CorruptBatch, (self.offset, self.reason)


@dataclass(frozen=True, slots=True)
class Group:
    """Batches with records in the requested range. The records of batch `i` are
    `data[starts[i]:ends[i]]`."""

    data: memoryview
    starts: Integers
    ends: Integers
    headers: Headers

    def field(self, name: str) -> Integers:
        """The given field of every header."""
        return self.headers[name].astype(np.int64)

    @property
    def is_log_append_time(self) -> NDArray[np.bool_]:
        result: NDArray[np.bool_] = self.field("attributes") & _LOG_APPEND_TIME != 0
        return result


def groups(
    chunks: Sequence[memoryview],
    *,
    first: int,
    end: int,
    check_crc: bool,
    most: Size = PIECE,
    aborted: AbortedBatches | None = None,
) -> Iterator[Group]:
    """The batches of `chunks` that may hold offsets in [first, end), in order, without control
    batches, empty ones, and those that are `aborted`.

    Of batches outside the range only the headers are read. The fields that decide whether a batch
    has rows are protected by its CRC, so they are used only after the CRC has been verified. Raises
    CorruptBatch for a batch that cannot be read.
    """
    for data in _coalesced(chunks, most):
        positions, headers = _walk(data)
        _check(headers)
        begins = headers["base_offset"]
        # the batch's own header and the base offset of the next batch must agree
        ends_before = (_lasts(headers) < first) & (np.append(begins[1:], end) <= first)
        positions, headers = _chosen(positions, headers, (begins < end) & ~ends_before)
        if check_crc:
            _check_crc(data, positions, headers)
        has_rows = (headers["record_count"] > 0) & ((headers["attributes"] & CONTROL) == 0)
        if aborted is not None:
            has_rows &= ~aborted.among(headers)
        positions, headers = _chosen(positions, headers, has_rows & (_lasts(headers) >= first))
        if (headers["attributes"] & _CODEC_MASK).any():
            yield from _unpacked_groups(data, positions, headers, most)
        else:
            yield from _plain_groups(data, positions, headers, most)


def walked(chunks: Sequence[memoryview]) -> Iterator[tuple[memoryview, Integers, Headers]]:
    """The bytes of all batches of `chunks`, with their positions and headers. Raises CorruptBatch
    for a batch that is damaged."""
    for data in _coalesced(chunks, PIECE):
        positions, headers = _walk(data)
        _check(headers)
        _check_crc(data, positions, headers)
        yield data, positions, headers


def _lasts(headers: Headers) -> Integers:
    lasts: Integers = headers["base_offset"] + headers["last_offset_delta"]
    return lasts


def _chosen(positions: Integers, headers: Headers, is_wanted: NDArray[np.bool_]) -> tuple[Integers, Headers]:
    """Copies nothing where all are wanted."""
    return (positions, headers) if is_wanted.all() else (positions[is_wanted], headers[is_wanted])


def find_damage(group: Group) -> CorruptBatch:
    """The defect of the first batch whose records cannot be read. A decoder calls this after it has
    read something impossible."""
    for index, header in enumerate(group.headers):
        records = group.data[group.starts[index] : group.ends[index]]
        plain = header.copy()
        plain["attributes"] &= ~_CODEC_MASK
        plain["batch_length"] = HEADER_SIZE - LENGTH_END + len(records)
        offset = int(header["base_offset"])
        try:
            for record in iter_records(plain.tobytes() + bytes(records)):
                if not 0 <= record.offset - offset <= header["last_offset_delta"]:
                    return CorruptBatch(offset, f"one of its records has offset {record.offset}")
        except CorruptPayload as error:
            return CorruptBatch(offset, str(error))
    raise RuntimeError("a decoder reported damage in batches without damage")


def _coalesced(chunks: Sequence[memoryview], most: Size) -> Iterator[memoryview]:
    """The same bytes in larger pieces, since an engine may return one small chunk for each
    write."""
    small: list[memoryview] = []
    size = 0
    for chunk in chunks:
        if size and size + len(chunk) > most.bytes:
            yield memoryview(b"".join(small))
            small, size = [], 0
        if not size and len(chunk) >= _SMALL_CHUNK:
            yield chunk
        elif len(chunk):
            small.append(chunk)
            size += len(chunk)
    if size:
        yield small[0] if len(small) == 1 else memoryview(b"".join(small))


def _walk(data: memoryview) -> tuple[Integers, Headers]:
    """The positions of the batches, and their headers. Raises CorruptBatch where a length is
    impossible."""
    positions: list[int] = []
    size, at = len(data), 0
    # this loop is most of the work for batches of one record
    append, length_at = positions.append, _LENGTH.unpack_from
    while at + HEADER_SIZE <= size:
        append(at)
        (length,) = length_at(data, at + _LENGTH_START)
        if length < _LEAST_LENGTH:
            break
        at += length + LENGTH_END
    if at != size:
        raise _leads_nowhere(data, at if at < size else positions[-1])
    where = np.array(positions, np.int64)
    if not positions:
        return where, np.empty(0, _HEADER)
    # A view in which every byte begins a header: one gather copies all of them out.
    return where, np.ndarray((size - HEADER_SIZE + 1,), _HEADER, data, strides=(1,))[where]


def _leads_nowhere(data: memoryview, at: int) -> CorruptBatch:
    offset, left = int.from_bytes(data[at : at + _LENGTH_START], "big", signed=True), len(data) - at
    if left < HEADER_SIZE:
        return CorruptBatch(offset, f"{left} bytes are too few for a batch")
    (length,) = _LENGTH.unpack_from(data, at + _LENGTH_START)
    return CorruptBatch(offset, f"its length is {length}, but only {left} bytes are left")


def _check(headers: Headers) -> None:
    """Raises CorruptBatch for the first batch with an impossible header."""
    begins, deltas, room = (
        headers["base_offset"],
        headers["last_offset_delta"],
        headers["batch_length"] + LENGTH_END - HEADER_SIZE,
    )
    is_plain = (headers["attributes"] & _CODEC_MASK) == 0
    checks = (
        (headers["magic"] != MAGIC, "magic", "kbroker stores no batches of magic {}"),
        ((begins < 0) | (begins > _MAX_OFFSET), "base_offset", "{} is not an offset"),
        (deltas < 0, "last_offset_delta", "its last offset delta is {}"),
        (
            headers["batch_length"] > _MAX_BATCH_BYTES,
            "batch_length",
            "its length {} is more than can be read at once",
        ),
        (
            is_plain & (headers["record_count"] > room // _MIN_RECORD_BYTES),
            "record_count",
            "{} records do not fit into it",
        ),
    )
    for is_wrong, field, reason in checks:
        if is_wrong.any():
            header = headers[np.argmax(is_wrong)]
            raise CorruptBatch(int(header["base_offset"]), reason.format(header[field]))


def _check_crc(data: memoryview, positions: Integers, headers: Headers) -> None:
    starts, ends = (
        (positions + CRC_START).tolist(),
        (positions + headers["batch_length"] + LENGTH_END).tolist(),
    )
    for start, end, crc, offset in zip(
        starts, ends, headers["crc"].tolist(), headers["base_offset"].tolist(), strict=True
    ):
        if crc32c(data[start:end]) != crc:
            raise CorruptBatch(offset, f"its bytes do not match its CRC {crc:#010x}")


def _plain_groups(data: memoryview, positions: Integers, headers: Headers, most: Size) -> Iterator[Group]:
    """Runs of uncompressed batches, without a copy."""
    ends = positions + headers["batch_length"] + LENGTH_END
    rows = np.cumsum(headers["record_count"], dtype=np.int64)
    index = 0
    while index < len(ends):
        rows_before = rows[index] - headers["record_count"][index]
        by_rows = int(np.searchsorted(rows, rows_before + most.rows, "right"))
        by_bytes = int(np.searchsorted(ends, positions[index] + most.bytes, "right"))
        stop = max(index + 1, min(by_rows, by_bytes))
        begin = positions[index]
        starts = positions[index:stop] + (HEADER_SIZE - begin)
        yield Group(data[begin : ends[stop - 1]], starts, ends[index:stop] - begin, headers[index:stop])
        index = stop


def _unpacked_groups(data: memoryview, positions: Integers, headers: Headers, most: Size) -> Iterator[Group]:
    """Groups of decompressed records. Uncompressed batches among them are copied too."""
    parts: list[bytes | memoryview] = []
    begin = rows = size = 0
    for index, header in enumerate(headers):
        part = _records(data, int(positions[index]), header)
        if parts and (rows + header["record_count"] > most.rows or size + len(part) > most.bytes):
            yield _joined(parts, headers[begin:index])
            parts, rows, size, begin = [], 0, 0, index
        parts.append(part)
        rows += int(header["record_count"])
        size += len(part)
    if parts:
        yield _joined(parts, headers[begin:])


def _joined(parts: list[bytes | memoryview], headers: Headers) -> Group:
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    return Group(memoryview(b"".join(parts)), starts, ends, headers)


def _records(data: memoryview, position: int, header: np.void) -> bytes | memoryview:
    """The uncompressed records of one batch."""
    payload = data[position + HEADER_SIZE : position + int(header["batch_length"]) + LENGTH_END]
    codec_id, offset, count = (
        int(header["attributes"]) & _CODEC_MASK,
        int(header["base_offset"]),
        int(header["record_count"]),
    )
    if codec_id == Codec.NONE:
        return payload
    try:
        plain = decompress(Codec(codec_id), payload)
    except CorruptPayload as error:
        raise CorruptBatch(offset, str(error)) from error
    except ValueError as error:
        raise CorruptBatch(offset, f"unknown codec {codec_id}") from error
    if count * _MIN_RECORD_BYTES > len(plain):
        raise CorruptBatch(offset, f"{count} records do not fit into it")
    return plain
