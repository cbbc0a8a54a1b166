"""Checks whether the records of a produced batch match its header (topic setting
kbroker.payload.check), and whether each has a key if the topic is compacted. Pure.

A payload passes if it can be decompressed and is exactly as many records as the header says. Each
record must have the length that it claims, offset deltas must be 0, 1, 2 and so on, and timestamps
must fit in 64 bits. No record of a compressed batch is larger than the topic's
max.decompressed.message.bytes.

Error codes are those of Kafka's LogValidator: -1 for a payload that cannot be decompressed (also
lz4 with linked blocks, which Java consumers cannot read), otherwise 87. A payload of more than
64 MiB decompressed is refused with 10, on which Java producers split the batch and retry: accepting
it unchecked would defeat the setting.

A batch that is not one frame is accepted, and stored as one (recompression.py), because not all
consumers read the others.

The loop in Python takes 0.7 us a record. From `ARRAYS_FROM` records on, only the lengths are read
one by one and payload_arrays.py checks the rest with numpy: 0.2 us a record.
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

from kio.serial.errors import BufferUnderflow

from kbroker.broker.logs.payload_fields import RecordTooLarge, after_time, check_base, check_headers, varint
from kbroker.broker.logs.validation import MAX_RECORD_ERRORS, BadBatch, RecordError
from kbroker.errors import ErrorCode
from kbroker.formats.batches import HEADER_SIZE, BatchHeader, Buffer, inflated_records
from kbroker.formats.compacted_batches import read_stored
from kbroker.formats.compression import DEFAULT_MAX_BYTES, Codec, CorruptPayload, Inflated, TooLarge
from kbroker.formats.turns import Turn
from kbroker.settings.definition import ARRAY_MAX

ARRAYS_FROM: Final = 128
"""Records from which on the array check is faster."""
_ARRAYS = "kbroker.broker.logs.payload_arrays"
_LEAST_RECORD_BYTES = 7
_LZ4_FLAGS_AT = 4
_LZ4_INDEPENDENT_BLOCKS = 0x20


class RecordRules(NamedTuple):
    """- `keys_of`: the name of a compacted partition, all of whose records have keys; else empty
    - `max_bytes`: of one record of a compressed batch, without its length"""

    keys_of: str = ""
    max_bytes: int = ARRAY_MAX


ANY_RECORDS: Final = RecordRules()


def check_quickly(batch: Buffer, header: BatchHeader, turn: Turn, rules: RecordRules = ANY_RECORDS) -> bool:
    """False: the check takes too long for this turn of the loop, or the batch is not to be stored
    as it is; call check() in a thread. Raises BadBatch."""
    if header.record_count >= ARRAYS_FROM and _ARRAYS not in sys.modules:  # Loading numpy takes long.
        return False
    if not turn.allows(header):
        return False
    try:
        plain, is_one_frame = _plain(batch, header, turn.bytes_left)
    except TooLarge:
        turn.end()
        return False
    except BadBatch:
        turn.end()
        raise
    turn.spend(header, len(plain), header.record_count)
    if not is_one_frame:
        return False
    _check_records(plain, header, rules)
    return True


def check(batch: Buffer, header: BatchHeader, rules: RecordRules = ANY_RECORDS) -> Inflated:
    """The uncompressed records. Raises BadBatch. Decompressing takes up to twice 64 MiB of memory
    and, in the worst case, about a second."""
    try:
        inflated = _plain(batch, header, DEFAULT_MAX_BYTES)
    except TooLarge as error:
        raise BadBatch(ErrorCode.message_too_large, str(error), by_log=False) from error
    _check_records(inflated.plain, header, rules)
    return inflated


def _plain(batch: Buffer, header: BatchHeader, max_bytes: int) -> Inflated:
    """Raises TooLarge and BadBatch."""
    try:
        if header.codec_id == Codec.LZ4:
            _check_lz4(batch)
        return inflated_records(batch, header, max_bytes=max_bytes)
    except TooLarge:
        raise
    except CorruptPayload as error:
        raise BadBatch(ErrorCode.unknown_server_error, str(error)) from error


def _check_lz4(batch: Buffer) -> None:
    at = HEADER_SIZE + _LZ4_FLAGS_AT
    if at < len(batch) and not batch[at] & _LZ4_INDEPENDENT_BLOCKS:
        raise CorruptPayload("lz4 payload has blocks that depend on each other")


def _check_records(payload: bytes, header: BatchHeader, rules: RecordRules) -> None:
    count, base_ms = header.record_count, header.base_timestamp_ms
    max_bytes = rules.max_bytes if header.codec_id else ARRAY_MAX
    try:
        if count * _LEAST_RECORD_BYTES > len(payload):  # Never loop over millions of claimed records.
            raise ValueError(f"{count} records cannot be in {len(payload)} bytes")
        if count >= ARRAYS_FROM:
            from kbroker.broker.logs.payload_arrays import check_with_arrays

            check_with_arrays(payload, count, base_ms, max_bytes)
        else:
            _walk(payload, count, base_ms, max_bytes)
    except RecordTooLarge as error:
        raise BadBatch(ErrorCode.invalid_record, str(error)) from error
    except (ValueError, IndexError, BufferUnderflow) as error:
        raise BadBatch(
            ErrorCode.invalid_record, f"the records are not what the header says: {error}"
        ) from error
    if rules.keys_of:
        _check_keys(payload, header, rules.keys_of)


def _check_keys(payload: bytes, header: BatchHeader, keys_of: str) -> None:
    message = f"Compacted topic cannot accept message without key in topic partition {keys_of}."
    records = read_stored(payload, header)
    pairs = zip(records.offset_deltas, records.keys, strict=True)
    errors = [RecordError(delta, message) for delta, key in pairs if key is None]
    if errors:
        shown = ", ".join(f"RecordError(batchIndex={each.place}, message='{message}')" for each in errors[:3])
        raise BadBatch(
            ErrorCode.invalid_record,
            f"One or more records have been rejected due to {len(errors)} record errors in total, and only "
            f"showing the first three errors at most: [{shown}]",
            told=True,
            record_errors=errors[:MAX_RECORD_ERRORS],
        )


def _walk(payload: bytes, count: int, base_ms: int, max_bytes: int = ARRAY_MAX) -> None:
    """Check record by record. A varint of one byte is read in place: a call would cost as much as
    the rest of the record."""
    size, start = len(payload), 0
    check_base(base_ms)
    for number in range(count):
        byte = payload[start]
        length, at = (byte >> 1, start + 1) if byte < 0x80 else varint(payload, start)
        end = at + length
        if length <= 0 or end > size:
            raise ValueError(f"record {number} is longer than the batch")
        if length > max_bytes:
            raise RecordTooLarge(number, length, max_bytes)
        at += 1  # attributes
        at = at + 1 if payload[at] < 0x80 else after_time(payload, at, base_ms)
        byte = payload[at]
        delta, at = (byte >> 1, at + 1) if byte < 0x80 and not byte & 1 else varint(payload, at)
        if delta != number:
            raise ValueError(f"record {number} has offset delta {delta}")
        for _ in ("key", "value"):
            byte = payload[at]
            length, at = (byte >> 1 if not byte & 1 else -1, at + 1) if byte < 0x80 else varint(payload, at)
            if length > 0:
                at += length
        if at != end - 1 or payload[at]:
            check_headers(payload, at, end)
        start = end
    if start != size:
        raise ValueError(f"{size - start} bytes follow the {count} records")
