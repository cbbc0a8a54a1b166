"""ShareAcknowledge (79), v1-2 (KIP-932; v2 with RENEW and the lock timeout, KIP-1222).

The session is checked first (epoch 0 is refused, -1 closes it afterwards), then each partition's list on its own. The answer is
sent when what was taken is saved. Rows without acknowledgement batches say NONE, and are left out when no row has any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from kbroker.broker.connection import Raw, Request
from kbroker.broker.topics import Topic
from kbroker.errors import ErrorCode, KafkaError
from kbroker.metrics import TopicMetrics
from kbroker.protocol.hot import ShareAcknowledgeRow, share_acknowledge_response
from kbroker.share.ack_validation import check_ack_batches, pack_types
from kbroker.share.effects import AckBatch
from kbroker.share.persister import TopicPartition

MAX_MEMBER_ID_LENGTH = 36
NO_TOPIC_ID = UUID(int=0)


async def handle(request: Request) -> Raw:
    body = request.body
    share_groups = request.broker.share_groups
    try:
        check_identity(body)
        acknowledged = listed_partitions(body.topics)
        plan = share_groups.sessions.acknowledge(body.group_id, body.member_id, body.share_session_epoch, acknowledged=acknowledged)
    except KafkaError as error:
        packed = share_acknowledge_response(request.version, (), lock_timeout_ms=0, error_code=error.code, error_message=error.message)
        return Raw((packed,), (error.code,))
    results = await acknowledge(request, body.topics, is_renew_ack=getattr(body, "is_renew_ack", False))
    if plan.is_final:
        share_groups.close_session(plan.session)
    rows: dict[UUID, list[ShareAcknowledgeRow]] = {}
    if any(row.acknowledgement_batches for topic in body.topics for row in topic.partitions):
        for partition, refused in results.items():
            code, message = (0, None) if refused is None else (int(refused.code), refused.message)
            rows.setdefault(partition.topic_id, []).append(ShareAcknowledgeRow(partition.partition, code, message))
    lock_ms = share_groups.settings(body.group_id).lock_duration_ms
    packed = share_acknowledge_response(request.version, list(rows.items()), lock_timeout_ms=lock_ms)
    return Raw((packed,), [refused.code for refused in results.values() if refused is not None])


def listed_partitions(topics: Sequence[Any]) -> list[TopicPartition]:
    """The partitions of a request's Topics, each once: librdkafka may list one more than once."""
    listed = [TopicPartition(topic.topic_id or NO_TOPIC_ID, row.partition_index) for topic in topics for row in topic.partitions]
    return listed if len(listed) < 2 else list(dict.fromkeys(listed))


def check_identity(body: Any) -> None:
    """Group id and member id as every share request has them; membership in the group is not asked for."""
    if body.group_id is None:
        raise KafkaError(ErrorCode.invalid_request)
    if not body.member_id or len(body.member_id) > MAX_MEMBER_ID_LENGTH:
        raise KafkaError(ErrorCode.invalid_request)


async def acknowledge(request: Request, topics: Sequence[Any], *, is_renew_ack: bool) -> dict[TopicPartition, KafkaError | None]:
    """One result per partition that is listed, saved where it is None. Rows that a client lists twice are taken together."""
    body = request.body
    results: dict[TopicPartition, KafkaError | None] = {}
    valid: list[tuple[TopicPartition, Sequence[AckBatch]]] = []
    asked: list[tuple[TopicMetrics, TopicPartition]] = []
    for partition, batches in _listed_batches(topics).items():
        topic = request.broker.topics.by_id(partition.topic_id)
        results[partition] = error = _check(request.version, topic, partition, batches, is_renew_ack=is_renew_ack)
        if batches:
            if error is None:
                valid.append((partition, batches))
            if topic is not None:
                asked.append((topic.metrics, partition))
    if valid:
        results.update(await request.broker.share_groups.acknowledge(body.group_id, body.member_id, valid))
    _count(asked, results)
    return results


def _listed_batches(topics: Sequence[Any]) -> dict[TopicPartition, list[AckBatch]]:
    listed: dict[TopicPartition, list[AckBatch]] = {}
    for topic in topics:
        for row in topic.partitions:
            lists = row.acknowledgement_batches
            batches = [AckBatch(each.first_offset, each.last_offset, pack_types(each.acknowledge_types)) for each in lists]
            before = listed.setdefault(TopicPartition(topic.topic_id or NO_TOPIC_ID, row.partition_index), batches)
            if before is not batches:
                before += batches
    return listed


def _count(asked: Sequence[tuple[TopicMetrics, TopicPartition]], results: Mapping[TopicPartition, KafkaError | None]) -> None:
    """Each topic counts once for a request, as in Kafka, if there was something to acknowledge."""
    failed: dict[TopicMetrics, bool] = {}
    for metrics, partition in asked:
        failed[metrics] = failed.get(metrics, False) or results[partition] is not None
    for metrics, has_failed in failed.items():
        metrics.share_acknowledge_requests += 1
        metrics.failed_share_acknowledge_requests += has_failed


def _check(
    version: int, topic: Topic | None, partition: TopicPartition, batches: Sequence[AckBatch], *, is_renew_ack: bool
) -> KafkaError | None:
    try:
        check_ack_batches(batches, version=version, is_renew_ack=is_renew_ack)
    except KafkaError as error:
        return error
    if topic is None:
        return KafkaError(ErrorCode.unknown_topic_id)
    if not 0 <= partition.partition < len(topic.partitions):
        return KafkaError(ErrorCode.unknown_topic_or_partition)
    return None
