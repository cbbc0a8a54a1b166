"""Whether the records of a produced batch are what its header says (topic setting
kbroker.payload.check). Pure.

Asked are: that the payload can be decompressed, and then that it is exactly as many records as the
header says, each of them as long as it claims, at offset deltas 0, 1, 2 and so on, with a time that
64 bits can hold. Codes are Kafka's, whose LogValidator opens payloads as well: -1 for what cannot
be decompressed (also lz4 with linked blocks, which Java consumers cannot read), else 87.

A record costs 0.7 us in Python. From `ARRAYS_FROM` records on only their lengths are walked
through, as each tells where the next one begins, and the rest is done with arrays
(payload_arrays.py): 0.2 us.

What would be more than 64 MiB decompressed is refused with 10, on which Java producers send it
again in halves: nobody could say what is in it, and to take it unseen would leave the way open that
the setting closes.
"""

from __future__ import annotations

import sys
from typing import Final

from kio._kio_native import read_signed_varint, read_signed_varlong
from kio.serial.errors import BufferUnderflow

from kbroker.broker.logs.validation import BadBatch
from kbroker.errors import ErrorCode
from kbroker.formats.batches import HEADER_SIZE, BatchHeader, Buffer, records_payload
from kbroker.formats.compression import DEFAULT_MAX_BYTES, Codec, CorruptPayload, TooLarge

ARRAYS_FROM: Final = 128
INT_BYTES: Final = 5
LONG_BYTES: Final = 10
INT_TOP: Final = 0x0F
LONG_TOP: Final = 0x01
"""The greatest last byte of a varint of so many bytes: what is above does not fit."""
_QUICK_RECORDS = 1024
"""0.25 ms: longer than that one batch must not keep all others waiting."""
_QUICK_BYTES = 4 << 10
_QUICK_PLAIN_BYTES = 64 << 10
_ARRAYS = "kbroker.broker.logs.payload_arrays"
_LEAST_RECORD_BYTES = 7
_LATEST_MS = (1 << 63) - 1
_SAFE_MS = 1 << 62
_LZ4_FLAGS_AT = 4
_LZ4_INDEPENDENT_BLOCKS = 0x20


def is_quick(header: BatchHeader) -> bool:
    """Whether it may be tried without a thread. To load numpy takes one, too."""
    if header.record_count >= ARRAYS_FROM and _ARRAYS not in sys.modules:
        return False
    return header.batch_length <= _QUICK_BYTES or (
        header.codec_id == Codec.NONE and header.record_count <= _QUICK_RECORDS
    )


def check_quickly(batch: Buffer, header: BatchHeader) -> bool:
    """False: it takes longer to tell. Raises BadBatch."""
    if header.codec_id == Codec.NONE:
        check(batch, header)
        return True
    try:
        plain = _plain(batch, header, _QUICK_PLAIN_BYTES)
    except TooLarge:
        return False
    if header.record_count > _QUICK_RECORDS:
        return False
    _check_records(plain, header)
    return True


def refusal_of(batch: Buffer, header: BatchHeader) -> BadBatch | None:
    """What check() raises, for callers in another thread: without the frames that it came through,
    which hold what was decompressed until the next collection of garbage."""
    try:
        check(batch, header)
    except BadBatch as error:
        return BadBatch(error.code, error.reason, by_log=error.by_log)
    return None


def check(batch: Buffer, header: BatchHeader) -> None:
    """Raises BadBatch. Takes up to twice 64 MiB for what it decompresses, and a second or so in the
    worst case."""
    try:
        plain = _plain(batch, header, DEFAULT_MAX_BYTES)
    except TooLarge as error:
        raise BadBatch(ErrorCode.message_too_large, str(error), by_log=False) from error
    _check_records(plain, header)


def _plain(batch: Buffer, header: BatchHeader, max_bytes: int) -> bytes:
    """Raises TooLarge and BadBatch."""
    try:
        if header.codec_id == Codec.LZ4:
            _check_lz4(batch)
        return bytes(records_payload(batch, header, max_bytes=max_bytes))
    except TooLarge:
        raise
    except CorruptPayload as error:
        raise BadBatch(ErrorCode.unknown_server_error, str(error)) from error


def _check_lz4(batch: Buffer) -> None:
    at = HEADER_SIZE + _LZ4_FLAGS_AT
    if at < len(batch) and not batch[at] & _LZ4_INDEPENDENT_BLOCKS:
        raise CorruptPayload("lz4 payload has blocks that depend on each other")


def _check_records(payload: bytes, header: BatchHeader) -> None:
    count, base_ms = header.record_count, header.base_timestamp_ms
    try:
        if count * _LEAST_RECORD_BYTES > len(payload):  # A claim of millions must not be walked through.
            raise ValueError(f"{count} records cannot be in {len(payload)} bytes")
        if count >= ARRAYS_FROM:
            from kbroker.broker.logs.payload_arrays import check_with_arrays

            check_with_arrays(payload, count, base_ms)
        else:
            _walk(payload, count, base_ms)
    except (ValueError, IndexError, BufferUnderflow) as error:
        raise BadBatch(
            ErrorCode.invalid_record, f"the records are not what the header says: {error}"
        ) from error


def _walk(payload: bytes, count: int, base_ms: int) -> None:
    """From record to record. A varint of one byte is looked at in place: a call costs as much as
    the rest of the record."""
    size, start = len(payload), 0
    check_base(base_ms)
    for number in range(count):
        byte = payload[start]
        length, at = (byte >> 1, start + 1) if byte < 0x80 else _varint(payload, start)
        end = at + length
        if length <= 0 or end > size:
            raise ValueError(f"record {number} is longer than the batch")
        at += 1  # attributes
        at = at + 1 if payload[at] < 0x80 else _after_time(payload, at, base_ms)
        byte = payload[at]
        delta, at = (byte >> 1, at + 1) if byte < 0x80 and not byte & 1 else _varint(payload, at)
        if delta != number:
            raise ValueError(f"record {number} has offset delta {delta}")
        for _ in ("key", "value"):
            byte = payload[at]
            length, at = (byte >> 1 if not byte & 1 else -1, at + 1) if byte < 0x80 else _varint(payload, at)
            if length > 0:
                at += length
        if at != end - 1 or payload[at]:
            check_headers(payload, at, end)
        start = end
    if start != size:
        raise ValueError(f"{size - start} bytes are left behind {count} records")


def check_base(base_ms: int) -> None:
    """So that a time delta of one byte cannot leave 64 bits."""
    if not -_SAFE_MS <= base_ms <= _SAFE_MS:
        raise ValueError(f"the base timestamp is {base_ms}")


def check_headers(payload: bytes, at: int, end: int) -> None:
    """The headers of a record, which ends at `end`. Raises ValueError, IndexError,
    BufferUnderflow."""
    count, at = _varint(payload, at)
    if count < 0:
        raise ValueError(f"a record has {count} headers")
    for _ in range(count):
        length, at = _varint(payload, at)
        if length < 0:
            raise ValueError("a record's header has no name")
        at += length
        length, at = _varint(payload, at)
        at += max(0, length)
        if at > end:
            break
    if at != end:
        raise ValueError("a record is not as long as what is in it")


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    number, size = read_signed_varint(payload, at)
    if size == INT_BYTES and payload[at + size - 1] > INT_TOP:
        raise ValueError("a varint is too long")
    return number, at + size


def _after_time(payload: bytes, at: int, base_ms: int) -> int:
    delta_ms, size = read_signed_varlong(payload, at)
    if size == LONG_BYTES and payload[at + size - 1] > LONG_TOP:
        raise ValueError("a varint is too long")
    if not -_LATEST_MS - 1 <= base_ms + delta_ms <= _LATEST_MS:
        raise ValueError("a record's time is beyond 64 bits")
    return at + int(size)
