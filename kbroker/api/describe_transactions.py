"""DescribeTransactions (65), v0 (KIP-664): transactional ids, each with its state and the logs of
its transaction. Logs of deleted topics are left out.

With an authorizer a transactional id needs DESCRIBE (53, whether or not it exists). Topics without
DESCRIBE are left out of its transaction.
"""

from __future__ import annotations

from collections import defaultdict

from kbroker.api.authorization import check, sees_topic
from kbroker.api.request import Message, Request
from kbroker.api.transactions import STATE_NAMES
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.transactions import TransactionRecord
from kbroker.protocol.long_responses import each_once
from kbroker.protocol.messages import moment
from kbroker.security.acls import Operation, ResourceType


def handle(request: Request) -> Message:
    ids = request.body.transactional_ids
    return {"transaction_states": each_once(ids, lambda each: _row(request, each))}


def _row(request: Request, transactional_id: str) -> Message:
    """As in Kafka, everything is empty and zero in a row with an error. An id that never had a
    transaction began at -1."""
    code, record = _find(request, transactional_id)
    row = {"error_code": code, "transactional_id": transactional_id}
    if record is None:
        zero = {"transaction_timeout": 0, "transaction_start_time": 0, "producer_id": 0, "producer_epoch": 0}
        return {**row, **zero, "transaction_state": "", "topics": ()}
    return {
        **row,
        "transaction_state": STATE_NAMES[record.state],
        "transaction_timeout": record.timeout_ms,
        "transaction_start_time": moment(record.started_ms),
        "producer_id": record.producer_id,
        "producer_epoch": record.producer_epoch,
        "topics": [
            {"topic": name, "partitions": partitions}
            for name, partitions in sorted(_topics(request, record).items())
        ],
    }


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


def _topics(request: Request, record: TransactionRecord) -> dict[str, list[int]]:
    topics = defaultdict(list)
    for log in sorted(record.partitions):
        partition = request.broker.topics.partition(*log)
        if partition is not None and not partition.deleted and sees_topic(request, partition.topic_name):
            topics[partition.topic_name].append(log.partition)
    return topics
