"""AddPartitionsToTxn (24), v0-5: logs become part of a producer's transaction (KIP-98), before it
writes to them. Clients with transaction version 2 leave this to Produce (KIP-890).

v0-3 name one transactional id. v4-5 name several, and may ask to verify only: brokers use them
among themselves. If one partition of an id does not exist, none is added, and the others are
OPERATION_NOT_ATTEMPTED.

With an authorizer v0-3 need WRITE on the transactional id (53 in every row) and on each topic (29
in its rows, whether or not it exists; others are not attempted). v4-5 need CLUSTER_ACTION (31).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from kbroker.api.authorization import allows, allows_on_cluster, allows_on_topic
from kbroker.api.request import Message, Raw, Request
from kbroker.api.transactions import find_partition, known_to
from kbroker.broker.logs.partition import Partition
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.transaction_responses import add_partitions_response
from kbroker.security.acls import Operation, ResourceType
from kbroker.transactions.coordinator import ProducerEpoch

_SEVERAL_FROM = 4
_FENCED_FROM = 2
_UNKNOWN = ErrorCode.unknown_topic_or_partition
Codes: TypeAlias = Mapping[tuple[str, int], ErrorCode]
"""By topic and partition; those that are missing are unknown."""


_Row: TypeAlias = tuple[int, ErrorCode]


async def handle(request: Request) -> Message | Raw:
    body = request.body
    if request.version < _SEVERAL_FROM:
        transactional_id = body.v3_and_below_transactional_id
        producer = ProducerEpoch(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
        topics = body.v3_and_below_topics
        denied = None if request.connection.rights is None else _denied(request, transactional_id, topics)
        rows = await _rows(request, transactional_id, producer, topics, denied, verify_only=False)
        errors = [code for _, codes in rows for _, code in codes if code]
        return Raw((add_partitions_response(request.version, rows),), errors)
    if request.connection.rights is not None and not allows_on_cluster(request, Operation.CLUSTER_ACTION):
        return {"error_code": ErrorCode.cluster_authorization_failed, "results_by_transaction": ()}
    results = []
    for each in body.transactions:
        producer = ProducerEpoch(each.producer_id, each.producer_epoch)
        rows = await _rows(
            request, each.transactional_id, producer, each.topics, None, verify_only=each.verify_only
        )
        results.append(
            {"transactional_id": each.transactional_id, "topic_results": [_message(*row) for row in rows]}
        )
    return {"error_code": ErrorCode.none, "results_by_transaction": results}


async def _rows(
    request: Request,
    transactional_id: str,
    producer: ProducerEpoch,
    topics: Sequence[Any],
    denied: Codes | None,
    *,
    verify_only: bool,
) -> list[tuple[str, list[_Row]]]:
    """`denied`: the codes of a request that is refused."""
    found = {
        (topic.name, index): find_partition(request.broker, topic.name, index)
        for topic in topics
        for index in topic.partitions
    }
    partitions = {key: each for key, each in found.items() if each is not None}
    service = request.broker.transactions
    codes: Codes
    if denied is not None:
        codes = denied
    elif len(partitions) < len(found):
        codes = dict.fromkeys(partitions, ErrorCode.operation_not_attempted)
    elif verify_only:
        codes = {key: service.verify(transactional_id, producer, each) for key, each in partitions.items()}
    else:
        code = await _added(request, transactional_id, producer, list(partitions.values()))
        codes = dict.fromkeys(partitions, code)
    return [
        (topic.name, [(index, codes.get((topic.name, index), _UNKNOWN)) for index in topic.partitions])
        for topic in topics
    ]


def _denied(request: Request, transactional_id: str, topics: Sequence[Any]) -> Codes | None:
    """The codes of a client that lacks a right."""
    places = [(topic.name, index) for topic in topics for index in topic.partitions]
    if not allows(request, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return dict.fromkeys(places, ErrorCode.transactional_id_authorization_failed)
    names = {topic.name for topic in topics if not allows_on_topic(request, Operation.WRITE, topic.name)}
    if not names:
        return None
    codes = {}
    for name, index in places:
        if name in names:
            codes[name, index] = ErrorCode.topic_authorization_failed
        elif find_partition(request.broker, name, index) is not None:
            codes[name, index] = ErrorCode.operation_not_attempted
    return codes


def _message(name: str, rows: Sequence[_Row]) -> Message:
    return {
        "name": name,
        "results_by_partition": [
            {"partition_index": index, "partition_error_code": code} for index, code in rows
        ],
    }


async def _added(
    request: Request, transactional_id: str, producer: ProducerEpoch, partitions: Sequence[Partition]
) -> ErrorCode:
    if not transactional_id:
        return ErrorCode.invalid_request
    service = request.broker.transactions
    try:
        code = await service.add(transactional_id, producer, partitions, (), version=1)
    except KafkaError as error:
        return error.code
    return known_to(request.version, code, _FENCED_FROM)
