"""Record batches after compaction: some or all of their records are gone.

Base offset, last offset, producer, sequence and leader epoch stay as they were, and so do the
offset deltas of the records that stay. The record count is the number that stays, so it says
nothing of offsets.

A batch with a *delete horizon* (attribute bit 6, KIP-534) has in the field of its base timestamp
the time at which its tombstones, or its marker, may go. The records' time deltas refer to that
field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c
from kio.serial.errors import BufferUnderflow

from kbroker.formats.batches import (
    CODEC_MASK,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_END,
    NO_TIMESTAMP,
    BatchHeader,
    encoded_varint,
    long_varint,
    varlong,
)
from kbroker.formats.compression import Codec, CorruptPayload, compress

DELETE_HORIZON = 0x40
"""The attribute of batches whose base timestamp is a delete horizon."""


_LATEST_MS: Final = (1 << 63) - 1


class StoredRecord(NamedTuple):
    """A record as it lies in a batch's uncompressed payload: it begins at `start` with its length
    and stops before `end`; `after_time` is the place after its time delta."""

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    is_tombstone: bool
    start: int
    after_time: int
    end: int


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """When the tombstones of the batch, or its marker, may go; None if that is not decided yet."""
    return header.base_timestamp_ms if header.attributes & DELETE_HORIZON else None


def iter_stored(payload: bytes, header: BatchHeader) -> Iterator[StoredRecord]:
    """The records of a batch. Raises CorruptPayload unless the payload is as many records as the
    header says, at rising offsets within the batch."""
    start, least = 0, 0
    try:
        for _ in range(header.record_count):
            length, at = long_varint(payload, start)
            end = at + length
            if length <= 0 or end > len(payload):
                raise ValueError("record length beyond the batch")
            timestamp_delta, after_time = varlong(payload, at + 1)
            if not -_LATEST_MS <= header.base_timestamp_ms + timestamp_delta <= _LATEST_MS:
                raise ValueError("a time beyond 64 bits")
            offset_delta, at = long_varint(payload, after_time)
            if not least <= offset_delta <= header.last_offset_delta:
                raise ValueError(f"offset delta {offset_delta}")
            size, at = long_varint(payload, at)
            key = payload[at : at + size] if size >= 0 else None
            value_size, at = long_varint(payload, at + max(0, size))
            if at + max(0, value_size) > end:
                raise ValueError("key or value beyond the record")
            yield StoredRecord(offset_delta, timestamp_delta, key, value_size < 0, start, after_time, end)
            start, least = end, offset_delta + 1
        if start != len(payload):
            raise ValueError(f"{len(payload) - start} bytes after the last record")
    except (ValueError, IndexError, BufferUnderflow) as error:
        raise CorruptPayload(
            f"the batch at offset {header.base_offset}, byte {start} of its records: {error}"
        ) from error


def rebuilt(
    header: BatchHeader, payload: bytes, staying: Sequence[StoredRecord], *, horizon_ms: int | None = None
) -> bytes:
    """The batch with only the records `staying` (at least one), in the codec that it has.

    `horizon_ms`: the delete horizon to set; None keeps the base timestamp as it is. The records
    then stay byte by byte."""
    base_ms = header.base_timestamp_ms if horizon_ms is None else horizon_ms
    shift_ms = header.base_timestamp_ms - base_ms
    if header.is_log_append_time:
        max_ms = header.max_timestamp_ms
    else:
        max_ms = header.base_timestamp_ms + max(each.timestamp_delta for each in staying)
    if shift_ms:
        body = b"".join(_shifted(payload, each, shift_ms) for each in staying)
    else:
        body = b"".join(payload[each.start : each.end] for each in staying)
    attributes = header.attributes | (0 if horizon_ms is None else DELETE_HORIZON)
    changed = header._replace(
        attributes=attributes,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=max_ms,
        record_count=len(staying),
    )
    return with_payload(changed, compress(Codec(header.codec_id), body))


def emptied(header: BatchHeader) -> bytes:
    """The header of the batch without any record, as Kafka leaves it: 61 bytes."""
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    return with_payload(
        header._replace(attributes=attributes, base_timestamp_ms=NO_TIMESTAMP, record_count=0), b""
    )


def _shifted(payload: bytes, record: StoredRecord, shift_ms: int) -> bytes:
    """The record with its time delta raised by `shift_ms`."""
    rest = payload[record.after_time : record.end]
    delta = encoded_varint(record.timestamp_delta + shift_ms)
    return b"".join((encoded_varint(1 + len(delta) + len(rest)), b"\0", delta, rest))


def with_payload(header: BatchHeader, payload: bytes) -> bytes:
    """A batch of this header, with the length and the CRC of the payload (compressed already)."""
    length = HEADER_SIZE - LENGTH_END + len(payload)
    unsummed = bytearray(HEADER.pack(*header._replace(batch_length=length, crc=0))) + payload
    crc = crc32c(memoryview(unsummed)[CRC_START:])
    unsummed[CRC_START - 4 : CRC_START] = crc.to_bytes(4, "big")
    return bytes(unsummed)
