"""Metadata (3), v0-13: one broker that leads everything. Unknown topics are created when the client allows it and
auto.create.topics.enable is on: unlike Kafka, the first answer has the new topic already. One request creates no more partitions
in this way than by CreateTopics; one that would is answered POLICY_VIOLATION for all that is unknown.

By id from v12 (v10 and v11 have the field and may not use it): an unknown id is UNKNOWN_TOPIC_ID with a null name. An empty list
means all topics in v0, none from v1; null means all from v1. Authorized operations are not computed (there is no authorizer):
the field says "not requested".
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kbroker.api.replica_assignments import check_batch_size
from kbroker.broker.connection import Message, Request
from kbroker.broker.topics import INTERNAL_TOPICS, Topic, check_name
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed

NOT_REQUESTED = -(1 << 31)
_BY_ID = 12


async def handle(request: Request) -> Message:
    broker = request.broker
    asked = request.body.topics
    if asked is None or (request.version == 0 and not asked):
        rows = [topic_row(request, topic) for topic in broker.topics]
    else:
        new_topics = len({topic.name for topic in asked if topic.name is not None and broker.topics.by_name(topic.name) is None})
        rows = [await _row(request, topic, new_topics) for topic in asked]
    return {
        "brokers": [{"node_id": broker.node_id, "host": broker.host, "port": broker.port, "rack": None}],
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node_id,
        "topics": rows,
        "cluster_authorized_operations": NOT_REQUESTED,
        "error_code": ErrorCode.none,
    }


async def _row(request: Request, asked: Any, new_topics: int) -> Message:
    """`new_topics`: how many the request may create in all."""
    topic_id: UUID | None = getattr(asked, "topic_id", None)
    if request.version < _BY_ID and (asked.name is None or topic_id is not None):
        return _error_row(asked.name or "", None, ErrorCode.invalid_request)
    if asked.name is None:
        if topic_id is None:
            return _error_row(None, None, ErrorCode.invalid_request)
        by_id = request.broker.topics.by_id(topic_id)
        return _error_row(None, topic_id, ErrorCode.unknown_topic_id) if by_id is None else topic_row(request, by_id)
    topic = request.broker.topics.by_name(asked.name)
    if topic is not None:
        return topic_row(request, topic)
    try:
        check_name(asked.name)
        if not _may_create(request) or asked.name in INTERNAL_TOPICS:
            return _error_row(asked.name, None, ErrorCode.unknown_topic_or_partition)
        partitions: int = request.broker.config["num.partitions"]
        check_batch_size(partitions * new_topics)
        return topic_row(request, await request.broker.topics.create(asked.name, partitions, {}))
    except KafkaError as error:
        if error.code is ErrorCode.topic_already_exists:  # Another connection is creating it: the client asks again.
            return _error_row(asked.name, None, ErrorCode.leader_not_available)
        return _error_row(asked.name, None, error.code)
    except (NoSpace, StoreFailed):
        return _error_row(asked.name, None, ErrorCode.kafka_storage_error)


def _may_create(request: Request) -> bool:
    allowed: bool = getattr(request.body, "allow_auto_topic_creation", True)
    return allowed and bool(request.broker.config["auto.create.topics.enable"])


def topic_row(request: Request, topic: Topic) -> Message:
    node = request.broker.node_id
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": [
            {
                "error_code": ErrorCode.none,
                "partition_index": index,
                "leader_id": node,
                "leader_epoch": partition.leader_epoch,
                "replica_nodes": (node,),
                "isr_nodes": (node,),
                "offline_replicas": (),
            }
            for index, partition in enumerate(topic.partitions)
        ],
        "topic_authorized_operations": NOT_REQUESTED,
    }


def _error_row(name: str | None, topic_id: UUID | None, code: ErrorCode) -> Message:
    return {
        "error_code": code,
        "name": name,
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": (),
        "topic_authorized_operations": NOT_REQUESTED,
    }
