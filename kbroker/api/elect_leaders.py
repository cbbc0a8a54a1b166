"""ElectLeaders (43), v0-2 (KIP-183, KIP-460). Every partition has one replica, which leads it: a
partition that is named needs no election (84), or does not exist (3).

All partitions (null) are a row for each topic without partitions, since Kafka leaves out those that
need no election. An unknown type of election is 42 in every row, and a timeout of 0 or less is 7.

With an authorizer it needs ALTER on the cluster (31 in every row).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from kbroker.api.controller_requests import refused
from kbroker.api.request import Message, Request
from kbroker.api.transactions import find_partition
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.acls import Operation

_PREFERRED, _UNCLEAN = 0, 1
_NOT_NEEDED: Final = KafkaError(
    ErrorCode.election_not_needed, "Leader election not needed for topic partition."
)
_UNKNOWN: Final = KafkaError(ErrorCode.unknown_topic_or_partition, "There is no such partition.")


def handle(request: Request) -> Message:
    asked = request.body.topic_partitions
    error = refused(request, Operation.ALTER) or _wrong_type(request.body)
    results: Iterable[Message] = ()
    if asked is not None:
        results = (_result(request, each, error) for each in asked)
    elif error is None:
        results = (_row(name, ()) for name in [topic.name for topic in request.broker.topics])
    return {
        "error_code": ErrorCode.none if error is None else error.code,
        "replica_election_results": results,
    }


def _wrong_type(body: Any) -> KafkaError | None:
    kind = getattr(body, "election_type", _PREFERRED)
    if kind in (_PREFERRED, _UNCLEAN):
        return None
    return KafkaError(ErrorCode.invalid_request, f"Unknown election type {kind}")


def _result(request: Request, topic: Any, error: KafkaError | None) -> Message:
    return _row(topic.topic, _partitions(request, topic, error))


def _row(name: str, partitions: Iterable[Message]) -> Message:
    return {"topic": name, "partition_result": partitions}


def _partitions(request: Request, topic: Any, error: KafkaError | None) -> Iterator[Message]:
    for index in topic.partitions:
        exists = find_partition(request.broker, topic.topic, index) is not None
        its = error or (_NOT_NEEDED if exists else _UNKNOWN)
        yield {"partition_id": index, "error_code": its.code, "error_message": its.message}
