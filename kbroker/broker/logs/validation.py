"""Validates a produced batch. Each error has the code of Apache Kafka 4.4, in its order of checks.

The payload stays opaque. Records are opened only if the topic limits timestamps, or to name the
records for which a batch is refused. A batch that is too large for the loop (formats/turns.py) is
opened by check_times() in a thread (append_queues.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import (
    CRC_START,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    Record,
    iter_records,
    read_header,
    records_payload,
)
from kbroker.formats.compression import DEFAULT_MAX_BYTES, Codec, CorruptPayload, TooLarge
from kbroker.formats.crc import crc32c
from kbroker.formats.turns import Turn
from kbroker.settings.definition import ARRAY_MAX

_MAGIC_AT = 16
_LEAST_LENGTH = 14
"""Every record format needs at least this much after its length field: a lower length is damage,
not a truncated batch."""
MAX_RECORD_ERRORS = 1000
_MAX_RECORDS_LOOKED_AT = 100_000
_LAST_CODEC = int(Codec.ZSTD)
UNLIMITED_MS = (1 << 63) - 1


class BatchRules(NamedTuple):
    """The topic configs that decide whether a batch is accepted."""

    max_message_bytes: int = 1_048_588
    segment_bytes: int = 1 << 30
    log_append_time: bool = False
    timestamp_before_max_ms: int = UNLIMITED_MS
    timestamp_after_max_ms: int = 3_600_000
    check_payload: bool = False
    """Whether the records are checked as well (payload_check.py)."""
    max_record_bytes: int = ARRAY_MAX
    """Of one record of a compressed batch. If it is lower, their payloads are checked."""
    needs_keys: bool = False
    """Whether each record must have a key, as in a compacted topic; then the payload is checked."""
    codec: Codec | None = None
    """Of stored batches, and its level; None: as the producer sent them. If it is set, the payload
    is checked, and compressed again where it has another codec (recompression.py)."""
    codec_level: int | None = None


class RecordError(NamedTuple):
    """An error of one record, by its place in the batch."""

    place: int
    message: str


class BadBatch(KafkaError):
    """A produced batch is refused.

    - `reason`: for the log; the client gets it only with `told`
    - `by_log`: the log refused it, so the answer has the log start offset
    """

    def __init__(
        self,
        code: ErrorCode,
        reason: str,
        *,
        by_log: bool = True,
        told: bool = False,
        record_errors: Sequence[RecordError] = (),
    ) -> None:
        super().__init__(code, reason if told else None)
        self.reason = reason
        self.by_log = by_log
        self.record_errors = record_errors

    def __str__(self) -> str:
        return f"{self.code.name}: {self.reason}"

    def bare(self) -> BadBatch:
        """The same error without a traceback, whose frames would keep a decompressed payload alive
        until the next garbage collection."""
        return BadBatch(
            self.code,
            self.reason,
            by_log=self.by_log,
            told=self.message is not None,
            record_errors=self.record_errors,
        )


class MustOpen(Exception):
    """The batch is valid as far as its header tells. Whether the timestamps of its records are must
    be found out by check_times(), in a thread."""

    def __init__(self, header: BatchHeader) -> None:
        super().__init__()
        self.header = header


def read_batch(records: bytes | memoryview | None, *, transactional: bool = False) -> BatchHeader:
    """The header of the single batch of a Produce partition row; `records` may have bytes after it
    that are no batch.

    Raises BadBatch unless it is exactly one batch of format 2, and for a transactional one unless
    `transactional`.
    """
    if records is None or len(records) < HEADER_SIZE or records[_MAGIC_AT] != MAGIC:
        header = _read_whole(records or b"", 0)
        if header is None or header.magic < MAGIC:
            raise BadBatch(
                ErrorCode.invalid_record,
                "exactly one record batch of format 2 is taken for a partition",
                by_log=False,
            )
        raise BadBatch(ErrorCode.corrupt_message, "a batch is shorter than its header", by_log=False)
    header = read_header(records)
    end = header.batch_length + LENGTH_END
    is_refused = header.is_transactional and not transactional
    if end == len(records) and not is_refused:
        return header
    if _read_whole(records, 0) is None:
        raise BadBatch(ErrorCode.invalid_record, "the batch is cut off", by_log=False)
    if is_refused:
        raise BadBatch(
            ErrorCode.transactional_id_authorization_failed, "transactions are not supported", by_log=False
        )
    if _read_whole(records, end) is not None:
        raise BadBatch(
            ErrorCode.invalid_record, "exactly one record batch is taken for a partition", by_log=False
        )
    return header


def _read_whole(records: bytes | memoryview, position: int) -> BatchHeader | None:
    """The header of the batch at `position`; None if it is truncated. Raises BadBatch if the bytes
    cannot begin a batch.

    A batch may claim to be shorter than its header: the missing bytes are read as zeros.
    """
    rest = records[position:]
    if len(rest) < LENGTH_END:
        return None
    length = int.from_bytes(rest[8:LENGTH_END], "big", signed=True)
    if length < _LEAST_LENGTH:
        raise BadBatch(
            ErrorCode.corrupt_message, f"batch length {length} is too small", by_log=False, told=not position
        )
    if len(rest) <= _MAGIC_AT:
        return None
    if rest[_MAGIC_AT] > MAGIC:
        raise BadBatch(
            ErrorCode.corrupt_message, f"unknown magic {rest[_MAGIC_AT]}", by_log=False, told=not position
        )
    return (
        None
        if LENGTH_END + length > len(rest)
        else read_header(bytes(rest[:HEADER_SIZE]).ljust(HEADER_SIZE, b"\0"))
    )


def validate(
    records: bytes | memoryview | None,
    rules: BatchRules,
    now_ms: int,
    *,
    transactional: bool = False,
    turn: Turn | None = None,
) -> BatchHeader:
    """The header of the single batch of a Produce partition row. Raises BadBatch with Kafka's code
    for the first error, and MustOpen.

    - `transactional`: such a batch is accepted
    - `turn`: what may be opened here; None: nothing"""
    header = read_batch(records, transactional=transactional)
    assert records is not None
    if header.base_offset != 0:
        raise BadBatch(ErrorCode.invalid_record, "the base offset of a produced batch is 0")
    size_bytes = header.size_bytes
    check_size(size_bytes, rules)
    if size_bytes < HEADER_SIZE or crc32c(memoryview(records)[CRC_START:size_bytes]) != header.crc:
        raise BadBatch(ErrorCode.corrupt_message, "CRC does not match", by_log=False)
    is_ordinary = (
        0 <= header.attributes <= _LAST_CODEC and 0 < header.record_count == header.last_offset_delta + 1
    )
    if not is_ordinary or header.base_sequence < 0 <= header.producer_id:
        _check_header(header)
    if (
        rules.log_append_time
        or rules.timestamp_before_max_ms != UNLIMITED_MS
        or header.max_timestamp_ms > now_ms
    ):
        _check_times_in(turn, memoryview(records)[:size_bytes], header, rules, now_ms)
    if size_bytes > rules.segment_bytes:
        _refuse_large(size_bytes, rules)
    return header


def check_times(batch: memoryview, header: BatchHeader, rules: BatchRules, now_ms: int) -> None:
    """The rest of validate() after MustOpen. Raises BadBatch. In a thread: it inflates up to 64
    MiB. `now_ms`: when the batch arrived."""
    _check_timestamps(batch, header, rules, now_ms, _plain(batch, header, DEFAULT_MAX_BYTES))
    if len(batch) > rules.segment_bytes:
        _refuse_large(len(batch), rules)


def _refuse_large(size_bytes: int, rules: BatchRules) -> None:
    reason = f"a batch of {size_bytes} bytes is larger than segment.bytes={rules.segment_bytes}"
    raise BadBatch(ErrorCode.record_list_too_large, reason, by_log=False)


def check_size(size_bytes: int, rules: BatchRules) -> None:
    """Raises BadBatch for a batch that is larger than max.message.bytes."""
    if size_bytes > rules.max_message_bytes:
        reason = f"a batch of {size_bytes} bytes is larger than max.message.bytes={rules.max_message_bytes}"
        raise BadBatch(ErrorCode.message_too_large, reason, by_log=False)


def _check_header(header: BatchHeader) -> None:
    if header.codec_id > Codec.ZSTD:
        raise BadBatch(ErrorCode.unknown_server_error, f"unknown codec {header.codec_id}")
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise BadBatch(ErrorCode.invalid_record, "record count and last offset delta disagree")
    if header.is_control:
        raise BadBatch(ErrorCode.invalid_record, "clients do not write control batches")
    if header.base_sequence < 0 and header.has_producer:
        raise BadBatch(ErrorCode.invalid_record, "a batch with a producer id has a sequence")


def _check_times_in(
    turn: Turn | None, batch: memoryview, header: BatchHeader, rules: BatchRules, now_ms: int
) -> None:
    """Raises BadBatch, and MustOpen if the records must be looked at and are too many for the
    turn."""
    if rules.log_append_time:
        if header.is_log_append_time:
            what = "Producer should not set timestamp type to LogAppendTime."
            named = min(header.record_count, MAX_RECORD_ERRORS)
            _refuse_timestamps([RecordError(place, what) for place in range(named)])
        return
    if (
        rules.timestamp_before_max_ms == UNLIMITED_MS
        and header.max_timestamp_ms <= now_ms + rules.timestamp_after_max_ms
    ):
        return
    if turn is None or rules.needs_keys or not turn.allows(header):
        raise MustOpen(header)
    try:
        payload = _plain(batch, header, turn.bytes_left)
    except TooLarge:
        turn.end()
        raise MustOpen(header) from None
    except BadBatch:
        turn.end()
        raise
    turn.spend(header, len(payload), header.record_count)
    _check_timestamps(batch, header, rules, now_ms, payload)


def _plain(batch: memoryview, header: BatchHeader, max_bytes: int) -> bytes:
    """The uncompressed records. Raises BadBatch, and TooLarge where that is below the limit of a
    batch."""
    try:
        return bytes(records_payload(batch, header, max_bytes=max_bytes))
    except CorruptPayload as error:
        if isinstance(error, TooLarge) and max_bytes < DEFAULT_MAX_BYTES:
            raise
        raise BadBatch(ErrorCode.unknown_server_error, str(error)) from error


def _check_timestamps(
    batch: memoryview, header: BatchHeader, rules: BatchRules, now_ms: int, payload: bytes
) -> None:
    """Takes the greatest timestamp from the header."""

    def records() -> Iterator[tuple[int, Record]]:
        return _records(batch, header, payload)

    newest = min(now_ms + rules.timestamp_after_max_ms, UNLIMITED_MS)
    oldest = now_ms - rules.timestamp_before_max_ms
    if header.max_timestamp_ms > newest:
        # Limited: a refused batch must not cost more than an accepted one.
        if rules.needs_keys and _lack_keys(islice(records(), _MAX_RECORDS_LOOKED_AT), oldest, newest):
            return
        _refuse_timestamps(_out_of_bounds(islice(records(), _MAX_RECORDS_LOOKED_AT), oldest, newest))
    if rules.timestamp_before_max_ms != UNLIMITED_MS and (
        errors := _out_of_bounds(records(), oldest, newest)
    ):
        if rules.needs_keys and _lack_keys(records(), oldest, newest):
            return
        _refuse_timestamps(errors)


def _out_of_bounds(records: Iterator[tuple[int, Record]], oldest: int, newest: int) -> list[RecordError]:
    wrong = (
        RecordError(
            place,
            f"Timestamp {record.timestamp_ms} of message with offset {place} is out of range [{oldest}, "
            f"{newest}].",
        )
        for place, record in records
        if _is_out(record, oldest, newest)
    )
    return list(islice(wrong, MAX_RECORD_ERRORS))


def _is_out(record: Record, oldest: int, newest: int) -> bool:
    return record.timestamp_ms != NO_TIMESTAMP and not oldest <= record.timestamp_ms <= newest


def _lack_keys(records: Iterator[tuple[int, Record]], oldest: int, newest: int) -> bool:
    """Whether some records are out of bounds, and all of these lack the key that they need. Then
    the check of the payload refuses them: Kafka, too, names only the first error of a record."""
    keys = [record.key for _, record in records if _is_out(record, oldest, newest)]
    return bool(keys) and all(key is None for key in keys)


def _refuse_timestamps(errors: Sequence[RecordError]) -> None:
    what = "One or more records have been rejected due to invalid timestamp"
    raise BadBatch(ErrorCode.invalid_timestamp, what, told=True, record_errors=errors)


def _records(batch: memoryview, header: BatchHeader, payload: bytes) -> Iterator[tuple[int, Record]]:
    try:
        yield from enumerate(iter_records(batch, payload=payload))
    except CorruptPayload as error:
        code = ErrorCode.invalid_record if header.codec_id == Codec.NONE else ErrorCode.unknown_server_error
        raise BadBatch(code, str(error)) from error
