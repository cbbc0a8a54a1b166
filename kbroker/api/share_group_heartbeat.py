"""ShareGroupHeartbeat (76), v1 (KIP-932): joining, staying in and leaving a share group.

Better than Kafka: the answer to a joining member's first heartbeat has its assignment, with the
share-partitions already initialised.

With an authorizer the group needs READ (30), and each topic that the member names DESCRIBE (29 for
the request, whether or not it exists). A member without an id is refused before that (42).
"""

from __future__ import annotations

from kbroker.api.consumer_group_heartbeat import refused
from kbroker.api.request import Request
from kbroker.errors import ErrorCode
from kbroker.groups.share.messages import GroupHeartbeatReply, ShareGroupHeartbeatRequest


async def handle(request: Request) -> GroupHeartbeatReply:
    body, rights = request.body, request.connection.rights
    if rights is not None and (error := refused(rights, body)) is not None:
        has_no_id = error is ErrorCode.topic_authorization_failed and not body.member_id.strip()
        return GroupHeartbeatReply(ErrorCode.invalid_request if has_no_id else error)
    names = body.subscribed_topic_names
    if names:
        missing = request.broker.missing_topics
        missing.subscribed(names, body.group_id, request.client_id or "", request.connection.client_host)
    return await request.broker.share_group_service.heartbeat(
        ShareGroupHeartbeatRequest(
            group_id=body.group_id,
            member_id=body.member_id,
            member_epoch=body.member_epoch,
            rack_id=body.rack_id,
            subscribed_topic_names=None if names is None else tuple(names),
            client_id=request.client_id or "",
            client_host=f"/{request.connection.client_host}",
        )
    )
