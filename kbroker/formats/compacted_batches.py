"""Record batches after compaction: some or all of their records are gone.

Base offset, last offset, producer, sequence and leader epoch stay as they were, and so do the
offset deltas of the records that stay. The record count is the number that stays, so it says
nothing of offsets.

A batch with a *delete horizon* (attribute bit 6, KIP-534) has in the field of its base timestamp
the time at which its tombstones, or its marker, may go. The records' time deltas refer to that
field.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from kio.serial.errors import BufferUnderflow

from kbroker.formats.batches import (
    CODEC_MASK,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_END,
    NO_TIMESTAMP,
    SIGNED,
    BatchHeader,
    Buffer,
    encoded_varint,
    long_varint,
    varlong,
)
from kbroker.formats.compression import Codec, CorruptPayload, compress
from kbroker.formats.crc import crc32c

DELETE_HORIZON = 0x40
"""The attribute of batches whose base timestamp is a delete horizon."""


ARRAYS_FROM: Final = 128
"""Records from which on arrays are faster."""
_AT_ONCE = 8192
"""Records. More would take memory without being faster."""
_LATEST_MS: Final = (1 << 63) - 1


class StoredRecords(NamedTuple):
    """The records of a batch, by field: an object for each would take most of a pass. Record `at`
    lies at `bounds[at]` to `bounds[at + 1]` of the uncompressed payload, its length included.
    `tombstones`: which of them have no value."""

    payload: bytes
    bounds: Sequence[int]
    timestamp_deltas: Sequence[int]
    offset_deltas: Sequence[int]
    keys: Sequence[bytes | None]
    tombstones: Sequence[int]


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """When the tombstones of the batch, or its marker, may go; None if that is not decided yet."""
    return header.base_timestamp_ms if header.attributes & DELETE_HORIZON else None


def read_stored(payload: bytes, header: BatchHeader) -> StoredRecords:
    """The records of a batch, given its uncompressed payload. Raises CorruptPayload unless that is
    as many records as the header says, at rising offsets within the batch."""
    if header.record_count >= ARRAYS_FROM:
        with suppress(ValueError, IndexError):  # The walk names the record that is wrong.
            return _read_with_arrays(payload, header)
    return _walk(payload, header)


def _read_with_arrays(payload: bytes, header: BatchHeader) -> StoredRecords:
    """Raises ValueError or IndexError where _walk() would raise."""
    from kbroker.formats.record_arrays import read_fields

    base_ms, last_delta, count = header.base_timestamp_ms, header.last_offset_delta, header.record_count
    bounds, least = [0], 0
    times, deltas, tombstones = list[int](), list[int](), list[int]()
    keys: list[bytes | None] = []
    while len(keys) < count:
        found = read_fields(payload, bounds[-1], min(_AT_ONCE, count - len(keys)))
        if base_ms + int(found.timestamp_deltas.min()) < -_LATEST_MS:
            raise ValueError
        if base_ms + int(found.timestamp_deltas.max()) > _LATEST_MS:
            raise ValueError
        offset_deltas = found.offset_deltas.tolist()
        if not least <= offset_deltas[0] or not (found.offset_deltas[1:] > found.offset_deltas[:-1]).all():
            raise ValueError
        if offset_deltas[-1] > last_delta:
            raise ValueError
        least = offset_deltas[-1] + 1
        tombstones += (len(keys) + (found.value_sizes < 0).nonzero()[0]).tolist()
        pairs = zip(found.key_starts.tolist(), found.key_sizes.tolist(), strict=True)
        keys += [payload[start : start + size] if size >= 0 else None for start, size in pairs]
        bounds += found.ends.tolist()
        times += found.timestamp_deltas.tolist()
        deltas += offset_deltas
    if bounds[-1] != len(payload):
        raise ValueError
    return StoredRecords(payload, bounds, times, deltas, keys, tombstones)


def _walk(payload: bytes, header: BatchHeader) -> StoredRecords:
    """Record by record. A varint of one byte is read in place: a call would cost as much as the
    rest of the record."""
    base_ms, last_delta, size = header.base_timestamp_ms, header.last_offset_delta, len(payload)
    bounds, times, deltas, tombstones = [0], list[int](), list[int](), list[int]()
    keys: list[bytes | None] = []
    start = least = 0
    try:
        for number in range(header.record_count):
            length, at = (
                (SIGNED[byte], start + 1) if (byte := payload[start]) < 0x80 else _varint(payload, start)
            )
            end = at + length
            if length <= 0 or end > size:
                raise ValueError("record length beyond the batch")
            at += 1  # attributes
            time, at = (SIGNED[byte], at + 1) if (byte := payload[at]) < 0x80 else varlong(payload, at)
            if not -_LATEST_MS <= base_ms + time <= _LATEST_MS:
                raise ValueError("a time beyond 64 bits")
            delta, at = (SIGNED[byte], at + 1) if (byte := payload[at]) < 0x80 else _varint(payload, at)
            if not least <= delta <= last_delta:
                raise ValueError(f"offset delta {delta}")
            key_size, at = (SIGNED[byte], at + 1) if (byte := payload[at]) < 0x80 else _varint(payload, at)
            if key_size >= 0:
                keys.append(payload[at : at + key_size])
                at += key_size
            else:
                keys.append(None)
            value_size, at = (SIGNED[byte], at + 1) if (byte := payload[at]) < 0x80 else _varint(payload, at)
            if value_size < 0:
                tombstones.append(number)
            if at + max(0, value_size) > end:
                raise ValueError("key or value beyond the record")
            times.append(time)
            deltas.append(delta)
            bounds.append(end)
            start, least = end, delta + 1
        if start != size:
            raise ValueError(f"{size - start} bytes after the last record")
    except (ValueError, IndexError, BufferUnderflow) as error:
        raise CorruptPayload(
            f"the batch at offset {header.base_offset}, byte {start} of its records: {error}"
        ) from error
    return StoredRecords(payload, bounds, times, deltas, keys, tombstones)


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    """A varint of two bytes or more, and the position after it."""
    second = payload[at + 1]
    if second >= 0x80:
        return long_varint(payload, at)
    number = payload[at] & 0x7F | second << 7
    return number >> 1 ^ -(number & 1), at + 2


def rebuilt(
    header: BatchHeader, records: StoredRecords, staying: Sequence[int], *, horizon_ms: int | None = None
) -> bytes:
    """The batch with only those of its records (at least one) whose numbers are in `staying`, in
    the codec that it has.

    `horizon_ms`: the delete horizon to set; None keeps the base timestamp as it is. The records
    then stay byte by byte."""
    base_ms = header.base_timestamp_ms if horizon_ms is None else horizon_ms
    shift_ms = header.base_timestamp_ms - base_ms
    if header.is_log_append_time:
        max_ms = header.max_timestamp_ms
    else:
        max_ms = header.base_timestamp_ms + max(map(records.timestamp_deltas.__getitem__, staying))
    pieces: Sequence[Buffer] = (
        [_shifted(records, at, shift_ms) for at in staying] if shift_ms else _runs(records, staying)
    )
    attributes = header.attributes | (0 if horizon_ms is None else DELETE_HORIZON)
    changed = header._replace(
        attributes=attributes,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=max_ms,
        record_count=len(staying),
    )
    codec = Codec(header.codec_id)
    if codec is not Codec.NONE:
        pieces = [compress(codec, b"".join(pieces))]
    return with_payload(changed, *pieces)


def _runs(records: StoredRecords, staying: Sequence[int]) -> list[Buffer]:
    """The bytes of these records, in one piece where none between them is gone."""
    after_gaps = [at for at, before in zip(staying[1:], staying, strict=False) if at != before + 1]
    befores = [before for at, before in zip(staying[1:], staying, strict=False) if at != before + 1]
    bounds, view = records.bounds, memoryview(records.payload)
    runs = zip([staying[0], *after_gaps], [*befores, staying[-1]], strict=True)
    return [view[bounds[first] : bounds[last + 1]] for first, last in runs]


def emptied(header: BatchHeader) -> bytes:
    """The header of the batch without any record, as Kafka leaves it: 61 bytes."""
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    return with_payload(
        header._replace(attributes=attributes, base_timestamp_ms=NO_TIMESTAMP, record_count=0)
    )


def _shifted(records: StoredRecords, number: int, shift_ms: int) -> bytes:
    """The record with its time delta raised by `shift_ms`."""
    payload, start, end = records.payload, records.bounds[number], records.bounds[number + 1]
    _, at = long_varint(payload, start)
    time, after_time = varlong(payload, at + 1)
    rest = payload[after_time:end]
    delta = encoded_varint(time + shift_ms)
    return b"".join((encoded_varint(1 + len(delta) + len(rest)), b"\0", delta, rest))


def with_payload(header: BatchHeader, *payload: Buffer) -> bytes:
    """A batch of this header, with the length and the CRC of the pieces of its payload (compressed
    already)."""
    length = HEADER_SIZE - LENGTH_END + sum(map(len, payload))
    packed = bytearray(HEADER.pack(*header._replace(batch_length=length, crc=0)))
    crc = crc32c(memoryview(packed)[CRC_START:])
    for piece in payload:
        crc = crc32c(piece, crc)
    packed[CRC_START - 4 : CRC_START] = crc.to_bytes(4, "big")
    return b"".join((packed, *payload))
