"""DescribeTransactions (65), v0 (KIP-664): transactional ids, each with its state and the logs of
its transaction. Logs of deleted topics are left out.

With an authorizer a transactional id needs DESCRIBE (53, whether or not it exists). Topics without
DESCRIBE are left out of its transaction.

The answer is packed by hand: an id that never had a transaction has no start time, and kio cannot
encode -1 there.
"""

from __future__ import annotations

import io
import struct
from collections import defaultdict

from kio.serial.writers import write_compact_array_length, write_compact_string, write_empty_tagged_fields

from kbroker.api.authorization import check, sees_topic
from kbroker.api.request import Raw, Request
from kbroker.api.transactions import STATE_NAMES
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.transactions import TransactionRecord
from kbroker.security.acls import Operation, ResourceType

_THROTTLE_TIME = struct.pack(">i", 0)
_CODE = struct.Struct(">h")
_NUMBERS = struct.Struct(">iqqh")
"""Timeout, start time, producer id, epoch."""
_PARTITION = struct.Struct(">i")


def handle(request: Request) -> Raw:
    ids = request.body.transactional_ids
    buffer, errors = io.BytesIO(), []
    buffer.write(_THROTTLE_TIME)
    write_compact_array_length(buffer, len(ids))
    for transactional_id in ids:
        code, record = _find(request, transactional_id)
        if code is not ErrorCode.none:
            errors.append(code)
        buffer.write(_CODE.pack(code))
        write_compact_string(buffer, transactional_id)
        _write_state(buffer, request, record)
    write_empty_tagged_fields(buffer)
    return Raw((buffer.getvalue(),), errors)


def _find(request: Request, transactional_id: str) -> tuple[ErrorCode, TransactionRecord | None]:
    broker = request.broker
    try:
        check(request, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    except KafkaError as error:
        return error.code, None
    if not transactional_id:
        return ErrorCode.invalid_request, None
    if not broker.transactions.is_ready:
        return ErrorCode.coordinator_load_in_progress, None
    record = broker.transactions.coordinator.record(transactional_id)
    return (ErrorCode.transactional_id_not_found if record is None else ErrorCode.none), record


def _write_state(buffer: io.BytesIO, request: Request, record: TransactionRecord | None) -> None:
    """As in Kafka, everything is empty and zero in a row with an error."""
    if record is None:
        write_compact_string(buffer, "")
        buffer.write(_NUMBERS.pack(0, 0, 0, 0))
        topics = {}
    else:
        write_compact_string(buffer, STATE_NAMES[record.state])
        producer = record.producer_id, record.producer_epoch
        buffer.write(_NUMBERS.pack(record.timeout_ms, record.started_ms, *producer))
        topics = _topics(request, record)
    write_compact_array_length(buffer, len(topics))
    for name, partitions in sorted(topics.items()):
        write_compact_string(buffer, name)
        write_compact_array_length(buffer, len(partitions))
        for partition in partitions:
            buffer.write(_PARTITION.pack(partition))
        write_empty_tagged_fields(buffer)
    write_empty_tagged_fields(buffer)


def _topics(request: Request, record: TransactionRecord) -> dict[str, list[int]]:
    topics = defaultdict(list)
    for log in sorted(record.partitions):
        partition = request.broker.topics.partition(*log)
        if partition is not None and not partition.deleted and sees_topic(request, partition.topic_name):
            topics[partition.topic_name].append(log.partition)
    return topics
