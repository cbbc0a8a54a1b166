"""ShareAcknowledge (79), v1-2 (KIP-932; v2 with RENEW and the lock timeout, KIP-1222).

The session is checked first (epoch 0 is refused, -1 closes it afterwards), then each partition's
list on its own. The answer is sent when all valid acknowledgements are saved. Rows without
acknowledgement batches have NONE, and are left out if no row has any.

Of kbroker's own: a request may give reasons for what it rejects (protocol/reject_reasons.py). Those
of other offsets are ignored.

With an authorizer the group needs READ (30 for the request), and each topic READ (29 in its rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias
from uuid import UUID

from kbroker.api.authorization import refusal
from kbroker.api.request import Raw, Request
from kbroker.broker.logs.topics import Topic
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.makers import maker
from kbroker.metrics import TopicMetrics
from kbroker.protocol.reject_reasons import ReasonedAcknowledge
from kbroker.protocol.responses import ShareAcknowledgeRow, share_acknowledge_response
from kbroker.security.acls import Operation, ResourceType
from kbroker.security.rights import Rights
from kbroker.share.ack_validation import check_ack_batches, pack_types
from kbroker.share.effects import AckBatch
from kbroker.share.persister import TopicPartition
from kbroker.share.reasons import Reason, shortened

MAX_MEMBER_ID_LENGTH = 36
NO_TOPIC_ID = UUID(int=0)

_ack_batch = maker(AckBatch, tuple[int, int, bytes])
as_partition = maker(TopicPartition, tuple[UUID, int])
"""Needs to be fast: clients may acknowledge each record by itself, and list partitions again and
again."""


async def handle(request: Request) -> Raw:
    body = request.body
    share_partitions = request.broker.share_partitions
    try:
        check_identity(request)
        acknowledged = listed_partitions(body.topics)
        plan = share_partitions.sessions.acknowledge(
            body.group_id, body.member_id, body.share_session_epoch, acknowledged=acknowledged
        )
    except KafkaError as error:
        packed = share_acknowledge_response(
            request.version, (), lock_timeout_ms=0, error_code=error.code, error_message=error.message
        )
        return Raw((packed,), (error.code,))
    results = await acknowledge(request, body.topics, is_renew_ack=getattr(body, "is_renew_ack", False))
    if plan.is_final:
        share_partitions.close_session(plan.session)
    topics: dict[int, tuple[UUID, list[ShareAcknowledgeRow]]] = {}
    if has_batches(body.topics):
        for (topic_id, index), refused in results:
            row = (
                ShareAcknowledgeRow(index)
                if refused is None
                else ShareAcknowledgeRow(index, int(refused.code), refused.message)
            )
            topics.setdefault(topic_id.int, (topic_id, []))[1].append(row)
    lock_ms = share_partitions.settings(body.group_id).lock_duration_ms
    packed = share_acknowledge_response(request.version, list(topics.values()), lock_timeout_ms=lock_ms)
    return Raw((packed,), [refused.code for _, refused in results if refused is not None])


def listed_partitions(topics: Sequence[Any]) -> list[TopicPartition]:
    """The partitions of a request's Topics, each once: librdkafka may list one more than once."""
    listed = [
        as_partition((topic.topic_id or NO_TOPIC_ID, row.partition_index))
        for topic in topics
        for row in topic.partitions
    ]
    return listed if len(listed) < 2 else list(dict.fromkeys(listed))


def has_batches(topics: Sequence[Any]) -> bool:
    """Whether a row has something to acknowledge."""
    for topic in topics:
        for row in topic.partitions:
            if row.acknowledgement_batches:
                return True
    return False


def check_identity(request: Request) -> None:
    """Check group id and member id of a share request, and the right to read in the group. The
    member need not be in the group."""
    body, rights = request.body, request.connection.rights
    if body.group_id is None:
        raise KafkaError(ErrorCode.invalid_request)
    if rights is not None and not rights.allows(Operation.READ, ResourceType.GROUP, body.group_id):
        raise refusal(ResourceType.GROUP)
    if not body.member_id or len(body.member_id) > MAX_MEMBER_ID_LENGTH:
        raise KafkaError(ErrorCode.invalid_request)


Results: TypeAlias = list[tuple[TopicPartition, KafkaError | None]]


async def acknowledge(request: Request, topics: Sequence[Any], *, is_renew_ack: bool) -> Results:
    """One result per listed partition; None: the acknowledgements are saved. If a client lists a
    partition twice, its rows are merged."""
    body, rights = request.body, request.connection.rights
    results: Results = []
    valid: list[tuple[TopicPartition, Sequence[AckBatch]]] = []
    places: list[int] = []
    asked: list[tuple[TopicMetrics, int]] = []
    for place, (partition, batches) in enumerate(_listed_batches(topics)):
        topic = request.broker.topics.by_id(partition.topic_id)
        error = _check(request.version, topic, partition, batches, rights, is_renew_ack=is_renew_ack)
        results.append((partition, error))
        if batches:
            if error is None:
                valid.append((partition, batches))
                places.append(place)
            if topic is not None:
                asked.append((topic.metrics, place))
    if valid:
        for place, error in zip(
            places,
            await request.broker.share_partitions.acknowledge(
                body.group_id,
                body.member_id,
                valid,
                _reasons_of(body) if body.__class__ is ReasonedAcknowledge else None,
            ),
            strict=True,
        ):
            if error is not None:
                results[place] = results[place][0], error
    _count(asked, results)
    return results


def _reasons_of(body: ReasonedAcknowledge) -> dict[TopicPartition, dict[int, Reason]]:
    found: dict[TopicPartition, dict[int, Reason]] = {}
    for topic_id, partition, offset, reason in body.reasons:
        found.setdefault(as_partition((topic_id, partition)), {})[offset] = shortened(reason)
    return found


def _listed_batches(topics: Sequence[Any]) -> list[tuple[TopicPartition, list[AckBatch]]]:
    listed: list[tuple[TopicPartition, list[AckBatch]]] = []
    for topic in topics:
        topic_id = topic.topic_id or NO_TOPIC_ID
        for row in topic.partitions:
            batches = [
                _ack_batch((each.first_offset, each.last_offset, pack_types(each.acknowledge_types)))
                for each in row.acknowledgement_batches
            ]
            listed.append((as_partition((topic_id, row.partition_index)), batches))
    if len(listed) < 2:
        return listed
    joined: dict[TopicPartition, list[AckBatch]] = {}
    for partition, batches in listed:
        before = joined.setdefault(partition, batches)
        if before is not batches:
            before += batches
    return list(joined.items())


def _count(asked: Sequence[tuple[TopicMetrics, int]], results: Results) -> None:
    """Count each topic once for a request, as in Kafka, if it had something to acknowledge.
    `asked`: the places of its results."""
    failed: dict[TopicMetrics, bool] = {}
    for metrics, place in asked:
        failed[metrics] = results[place][1] is not None or failed.get(metrics, False)
    for metrics, has_failed in failed.items():
        metrics.share_acknowledge_requests += 1
        metrics.failed_share_acknowledge_requests += has_failed


def _check(
    version: int,
    topic: Topic | None,
    partition: TopicPartition,
    batches: Sequence[AckBatch],
    rights: Rights | None,
    *,
    is_renew_ack: bool,
) -> KafkaError | None:
    try:
        check_ack_batches(batches, version=version, is_renew_ack=is_renew_ack)
    except KafkaError as error:
        return error
    if topic is None:
        return KafkaError(ErrorCode.unknown_topic_id)
    if rights is not None and not rights.allows(Operation.READ, ResourceType.TOPIC, topic.name):
        return refusal(ResourceType.TOPIC)
    if not 0 <= partition.partition < len(topic.partitions):
        return KafkaError(ErrorCode.unknown_topic_or_partition)
    return None
