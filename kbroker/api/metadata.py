"""Metadata (3), v0-13: one broker that leads everything.

Unknown topics are created if the client allows it and auto.create.topics.enable is on. Unlike in
Kafka, the first answer already has the new topic. A request may create as many partitions as
CreateTopics. With more, every unknown topic is POLICY_VIOLATION. A name that CreateTopics has
refused with its settings stays UNKNOWN_TOPIC_OR_PARTITION for a while (auto_creation.py).

By id from v12 (v10 and v11 have the field but must not use it). An unknown id is UNKNOWN_TOPIC_ID
with a null name. If any topic has an id, names are ignored. An empty list means all topics in v0,
none from v1; null means all from v1. A topic that is listed twice gets one row.

With an authorizer, topics without DESCRIBE are left out of a list of all. By name they are 29,
whether or not they exist, and by id 29 with a null name. Creating needs CREATE on the cluster or on
the topic (29).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

from kbroker.api.authorization import allows_on_topic, has_on_cluster, sees_topic
from kbroker.api.authorized_operations import NOT_REQUESTED, cluster_operations, topic_operations
from kbroker.api.replica_assignments import check_batch_size
from kbroker.api.request import Message, Request
from kbroker.api.turns import RowTurn
from kbroker.broker.logs.missing_topics import client_at
from kbroker.broker.logs.topics import INTERNAL_TOPICS, Topic, check_name
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.security.acls import Operation
from kbroker.turns import ROWS_A_TURN

_HAS_IDS, _BY_ID = 10, 12


async def handle(request: Request) -> Message:
    broker, body = request.broker, request.body
    asked = body.topics
    rows: Iterator[Message | None]
    if asked and not _may_ask(request.version, asked):
        return _refused(asked)
    if asked is None or (request.version == 0 and not asked):
        rows = _all_rows(request)
    elif ids := _ids(request.version, asked):
        rows = _rows_by_id(request, ids)
    else:
        names = dict.fromkeys([topic.name for topic in asked])
        rows = (
            iter(await _created_rows(request, names)) if _may_create(request) else _named_rows(request, names)
        )
    if getattr(body, "include_topic_authorized_operations", False):
        rows = (row and {**row, "topic_authorized_operations": _operations(request, row)} for row in rows)
    host, port = request.advertised
    with_cluster: bool = getattr(body, "include_cluster_authorized_operations", False)
    return {
        "brokers": [{"node_id": broker.node_id, "host": host, "port": port, "rack": None}],
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node_id,
        "topics": rows,
        "cluster_authorized_operations": cluster_operations(request) if with_cluster else NOT_REQUESTED,
        "error_code": ErrorCode.none,
    }


def _all_rows(request: Request) -> Iterator[Message | None]:
    """None for a topic that the client may not see, or that was deleted meanwhile."""
    topics = request.broker.topics
    for each in topics:
        topic = topics.by_name(each.name) if sees_topic(request, each.name) else None
        yield None if topic is None else topic_row(request, topic)


def _row_by_name(request: Request, name: str | None) -> Message | None:
    """None for a topic that does not exist and may be created."""
    if name is None:
        return _error_row(None, None, ErrorCode.invalid_request)
    topic = request.broker.topics.by_name(name)
    if topic is not None:
        return topic_row(request, topic)
    try:
        check_name(name)
    except KafkaError as error:
        return _error_row(name, None, error.code)
    if _may_create(request) and name not in INTERNAL_TOPICS:
        return None
    missing = request.broker.missing_topics
    missing.asked_for(name, request.client_id or "", request.connection.client_host)
    return _error_row(name, None, ErrorCode.unknown_topic_or_partition)


def _sees(request: Request, name: str | None) -> bool:
    return name is None or allows_on_topic(request, Operation.DESCRIBE, name)


def _named_rows(request: Request, names: Iterable[str | None]) -> Iterator[Message | None]:
    """The rows of a request that may not create topics."""
    for name in names:
        yield _row_by_name(request, name) if _sees(request, name) else _denied_row(name)


async def _created_rows(request: Request, names: Iterable[str | None]) -> Sequence[Message]:
    """The rows of a request that creates the topics which do not exist."""
    seen: dict[str | None, bool] = {}
    new_topics = 0
    turn = RowTurn()
    for name in names:
        await turn.row()
        seen[name] = _sees(request, name)
        if name is not None and seen[name] and request.broker.topics.by_name(name) is None:
            new_topics += 1
    rows = []
    for name in names:
        await turn.row()
        row = _row_by_name(request, name) if seen[name] else _denied_row(name)
        rows.append(await _created_row(request, str(name), new_topics) if row is None else row)
    return rows


async def _created_row(request: Request, name: str, new_topics: int) -> Message:
    """`new_topics`: how many the request may create in all."""
    try:
        if not has_on_cluster(request, Operation.CREATE) and not allows_on_topic(
            request, Operation.CREATE, name
        ):
            raise KafkaError(ErrorCode.topic_authorization_failed)
        partitions: int = request.broker.config["num.partitions"]
        check_batch_size(partitions * new_topics)
        request.broker.disk_floor.check_room()
        client = client_at(request.client_id or "", request.connection.client_host)
        return topic_row(request, await request.broker.missing_topics.creation.create(name, {}, client))
    except KafkaError as error:
        # Another connection is creating it: the client retries.
        if error.code is ErrorCode.topic_already_exists:
            return _error_row(name, None, ErrorCode.leader_not_available)
        return _error_row(name, None, error.code)
    except (NoSpace, StoreFailed):
        return _error_row(name, None, ErrorCode.kafka_storage_error)


def _operations(request: Request, row: Message) -> int:
    name = row["name"]
    is_refused = name is None or row["error_code"] is ErrorCode.topic_authorization_failed
    return NOT_REQUESTED if is_refused else topic_operations(request, name)


def _ids(version: int, asked: Sequence[Any]) -> Sequence[UUID]:
    """If there is any, names are ignored."""
    return [topic.topic_id for topic in asked if topic.topic_id is not None] if version >= _HAS_IDS else ()


def _may_ask(version: int, asked: Sequence[Any]) -> bool:
    return version >= _BY_ID or not (None in [topic.name for topic in asked] or _ids(version, asked))


def _refused(asked: Sequence[Any]) -> Message:
    """Refuse the whole request: the answer has nothing, not even the cluster."""
    return {
        "brokers": (),
        "cluster_id": None,
        "controller_id": -1,
        "topics": (
            _error_row(topic.name or "", topic.topic_id, ErrorCode.invalid_request) for topic in asked
        ),
        "cluster_authorized_operations": NOT_REQUESTED,
    }


def _rows_by_id(request: Request, ids: Iterable[UUID]) -> Iterator[Message | None]:
    """None for an id that is repeated."""
    seen: set[UUID] = set()
    for topic_id in ids:
        yield None if topic_id in seen else _row_by_id(request, topic_id)
        seen.add(topic_id)


def _row_by_id(request: Request, topic_id: UUID) -> Message:
    topic = request.broker.topics.by_id(topic_id)
    if topic is None:
        return _error_row(None, topic_id, ErrorCode.unknown_topic_id)
    if not allows_on_topic(request, Operation.DESCRIBE, topic.name):
        return _error_row(None, topic_id, ErrorCode.topic_authorization_failed)
    return topic_row(request, topic)


def _may_create(request: Request) -> bool:
    allowed: bool = getattr(request.body, "allow_auto_topic_creation", True)
    return allowed and bool(request.broker.config["auto.create.topics.enable"])


def topic_row(request: Request, topic: Topic) -> Message:
    rows = partition_rows(request, topic, 0, len(topic.partitions))
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": rows if len(topic.partitions) > ROWS_A_TURN else list(rows),
        "topic_authorized_operations": NOT_REQUESTED,
    }


def partition_rows(request: Request, topic: Topic, first: int, most: int) -> Iterator[Message]:
    node = request.broker.node_id
    replicas = (node,)
    for index, partition in enumerate(topic.partitions[first : first + most], first):
        yield {
            "error_code": ErrorCode.none,
            "partition_index": index,
            "leader_id": node,
            "leader_epoch": partition.leader_epoch,
            "replica_nodes": replicas,
            "isr_nodes": replicas,
            "offline_replicas": (),
        }


def _denied_row(name: str | None) -> Message:
    return _error_row(name, None, ErrorCode.topic_authorization_failed)


def _error_row(name: str | None, topic_id: UUID | None, code: ErrorCode) -> Message:
    return {
        "error_code": code,
        "name": name,
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": (),
        "topic_authorized_operations": NOT_REQUESTED,
    }
