"""AlterPartitionReassignments (45), v0-1 (KIP-455): where replicas are to be. There is one broker,
so nothing ever moves.

A row that names this broker alone is done. Other replicas are 39, the end of a reassignment (null)
is 85, an unknown partition 3, and a timeout of 0 or less 7 in every row.

With an authorizer it needs ALTER on the cluster (31 in every row).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kbroker.api.controller_requests import refused
from kbroker.api.replica_assignments import check_replicas
from kbroker.api.request import Message, Request
from kbroker.api.transactions import find_partition
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.acls import Operation


def handle(request: Request) -> Message:
    error = refused(request, Operation.ALTER)
    return {
        "allow_replication_factor_change": getattr(request.body, "allow_replication_factor_change", True),
        **_outcome(error),
        "responses": (
            {"name": topic.name, "partitions": _partitions(request, topic, error)}
            for topic in request.body.topics
        ),
    }


def _partitions(request: Request, topic: Any, error: KafkaError | None) -> Iterator[Message]:
    for row in topic.partitions:
        its = error
        try:
            if its is None:
                _check(request, topic.name, row.partition_index, row.replicas)
        except KafkaError as found:
            its = found
        yield {"partition_index": row.partition_index, **_outcome(its)}


def _check(request: Request, name: str, index: int, replicas: Sequence[int] | None) -> None:
    if find_partition(request.broker, name, index) is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, "There is no such partition.")
    if replicas is None:
        raise KafkaError(ErrorCode.no_reassignment_in_progress)
    check_replicas(replicas, request.broker.node_id)


def _outcome(error: KafkaError | None) -> Message:
    return {
        "error_code": ErrorCode.none if error is None else error.code,
        "error_message": None if error is None else error.message,
    }
