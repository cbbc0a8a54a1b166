"""What a produced batch must be, and the code for each way in which it is not (as Apache Kafka 4.3 answers).

The payload stays opaque: records are opened only where a topic limits how old a timestamp may be.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.compression import Codec, CorruptPayload
from kbroker.errors import ErrorCode, KafkaError
from kbroker.records import (
    CRC_START,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    crc_is_valid,
    iter_records,
    read_header,
)

_MAGIC_AT = 16
UNLIMITED_MS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class BatchRules:
    """The topic configs that decide whether a batch is taken."""

    max_message_bytes: int = 1_048_588
    log_append_time: bool = False
    timestamp_before_max_ms: int = UNLIMITED_MS
    timestamp_after_max_ms: int = 3_600_000


def validate(records: bytes | None, rules: BatchRules, now_ms: int) -> BatchHeader:
    """The header of the one batch of a Produce partition row; `records` may have bytes after it that are no batch.

    Raises KafkaError with Kafka's code for what is wrong first.
    """
    if records is None or len(records) == 0:
        raise KafkaError(ErrorCode.invalid_record, "a produce request holds exactly one record batch for a partition")
    header = _read(records)
    if header.size_bytes > rules.max_message_bytes:
        message = f"a batch of {header.size_bytes} bytes is larger than max.message.bytes={rules.max_message_bytes}"
        raise KafkaError(ErrorCode.message_too_large, message)
    if not crc_is_valid(records, 0, header):
        raise KafkaError(ErrorCode.corrupt_message, "CRC does not match")
    _check_header(header)
    if _has_second_batch(records, header.size_bytes):
        raise KafkaError(ErrorCode.invalid_record, "a produce request holds exactly one record batch for a partition")
    _check_timestamps(records, header, rules, now_ms)
    return header


def _read(records: bytes) -> BatchHeader:
    if len(records) <= _MAGIC_AT:
        raise KafkaError(ErrorCode.invalid_record, "no whole batch")
    magic = records[_MAGIC_AT]
    if magic > MAGIC:
        raise KafkaError(ErrorCode.corrupt_message, f"unknown magic {magic}")
    if magic < MAGIC:
        raise KafkaError(ErrorCode.invalid_record, f"message format {magic} is not taken any more, only record batches (magic 2)")
    length = int.from_bytes(records[8:LENGTH_END], "big", signed=True)
    if length < HEADER_SIZE - LENGTH_END:
        raise KafkaError(ErrorCode.corrupt_message, f"batch length {length} is smaller than a header")
    if LENGTH_END + length > len(records):
        raise KafkaError(ErrorCode.invalid_record, "no whole batch")
    return read_header(records)


def _check_header(header: BatchHeader) -> None:
    if header.codec_id > Codec.ZSTD:
        raise KafkaError(ErrorCode.unknown_server_error, f"unknown codec {header.codec_id}")
    if header.is_control:
        raise KafkaError(ErrorCode.invalid_record, "clients do not write control batches")
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise KafkaError(ErrorCode.invalid_record, "record count and last offset delta disagree")
    if header.base_offset != 0:
        raise KafkaError(ErrorCode.invalid_record, "the base offset of a produced batch is 0")
    if header.producer_id == NO_PRODUCER_ID:
        if header.is_transactional:
            raise KafkaError(ErrorCode.transactional_id_authorization_failed, "transactional batch without a producer id")
    elif header.base_sequence < 0 or header.producer_epoch < 0:
        raise KafkaError(ErrorCode.invalid_record, "a batch with a producer id has an epoch and a sequence")


def _has_second_batch(records: bytes, position: int) -> bool:
    rest = len(records) - position
    if rest <= HEADER_SIZE:
        return False
    length = int.from_bytes(records[position + 8 : position + LENGTH_END], "big", signed=True)
    return records[position + _MAGIC_AT] <= MAGIC and CRC_START < LENGTH_END + length <= rest


def _check_timestamps(records: bytes, header: BatchHeader, rules: BatchRules, now_ms: int) -> None:
    if rules.log_append_time:
        return
    newest = now_ms + rules.timestamp_after_max_ms
    if header.max_timestamp_ms > newest and rules.timestamp_after_max_ms != UNLIMITED_MS:
        raise KafkaError(ErrorCode.invalid_timestamp, "One or more records have been rejected due to invalid timestamp")
    if rules.timestamp_before_max_ms == UNLIMITED_MS:
        return
    oldest = now_ms - rules.timestamp_before_max_ms
    try:
        too_old = any(NO_TIMESTAMP != record.timestamp_ms < oldest for record in iter_records(records))
    except CorruptPayload as error:
        raise KafkaError(ErrorCode.invalid_record, str(error)) from error
    if too_old:
        raise KafkaError(ErrorCode.invalid_timestamp, "One or more records have been rejected due to invalid timestamp")
