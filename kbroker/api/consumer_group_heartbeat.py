"""ConsumerGroupHeartbeat (68), v0-1 (KIP-848): joining, staying in and leaving a consumer group.
From v1 members create their own ids and may subscribe by a regular expression.

Better than Kafka: the answer to the first heartbeat with a regular expression already has the
matching topics.

With an authorizer the group needs READ (30), and each topic that the member names DESCRIBE (29 for
the request, whether or not it exists). A regular expression matches only topics with DESCRIBE.
"""

from __future__ import annotations

from typing import Any

from kbroker.api.request import Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.groups.consumer.messages import ConsumerGroupHeartbeatRequest, Partitions
from kbroker.groups.share.messages import GroupHeartbeatReply
from kbroker.protocol.messages import milliseconds
from kbroker.security.acls import Operation, ResourceType
from kbroker.security.rights import Rights


async def handle(request: Request) -> GroupHeartbeatReply:
    rights = request.connection.rights
    if rights is not None and (error := refused(rights, request.body)) is not None:
        return GroupHeartbeatReply(error)
    wanted = _wanted(request)
    groups = request.broker.consumer_group_service
    if names := wanted.subscribed_topic_names:
        missing = request.broker.missing_topics
        missing.subscribed(names, wanted.group_id, wanted.client_id, request.connection.client_host)
    await groups.expressions.prepare(wanted.group_id, wanted.subscribed_topic_regex, wanted.rights)
    try:
        return await groups.ask(lambda _, now_ms: groups.groups.consumer.heartbeat(wanted, now_ms=now_ms))
    except KafkaError as error:
        return GroupHeartbeatReply.refusal(error)


def refused(rights: Rights, body: Any) -> ErrorCode | None:
    """The error of a heartbeat, of a consumer or a share group, if a right is missing."""
    if not rights.allows(Operation.READ, ResourceType.GROUP, body.group_id):
        return ErrorCode.group_authorization_failed
    names = dict.fromkeys(body.subscribed_topic_names or ())
    if not all([rights.allows(Operation.DESCRIBE, ResourceType.TOPIC, name) for name in names]):
        return ErrorCode.topic_authorization_failed
    return None


def _wanted(request: Request) -> ConsumerGroupHeartbeatRequest:
    body = request.body
    names = body.subscribed_topic_names
    return ConsumerGroupHeartbeatRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        member_epoch=body.member_epoch,
        instance_id=body.instance_id,
        rack_id=body.rack_id,
        rebalance_timeout_ms=milliseconds(body.rebalance_timeout),
        subscribed_topic_names=None if names is None else tuple(names),
        subscribed_topic_regex=getattr(body, "subscribed_topic_regex", None),
        server_assignor=body.server_assignor,
        owned=_owned(body.topic_partitions),
        client_id=request.client_id or "",
        client_host=f"/{request.connection.client_host}",
        version=request.version,
        rights=request.connection.rights,
    )


def _owned(rows: Any) -> Partitions | None:
    return None if rows is None else {row.topic_id: tuple(row.partitions) for row in rows}
