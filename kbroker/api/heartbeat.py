"""Heartbeat (12), v0-4: a member of a group of the classic protocol stays in it. The answer says
whether the group rebalances.

With an authorizer the group needs READ (30)."""

from __future__ import annotations

from kbroker.api.request import Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.groups.classic.messages import HeartbeatReply, HeartbeatRequest
from kbroker.security.acls import Operation, ResourceType


async def handle(request: Request) -> HeartbeatReply:
    if (rights := request.connection.rights) is not None and not rights.allows(
        Operation.READ, ResourceType.GROUP, request.body.group_id
    ):
        return HeartbeatReply(ErrorCode.group_authorization_failed)
    body = request.body
    wanted = HeartbeatRequest(
        body.group_id, body.member_id, getattr(body, "group_instance_id", None), body.generation_id
    )
    groups = request.broker.consumer_group_service
    try:
        return await groups.ask(lambda _, now_ms: groups.groups.classic_heartbeat(wanted, now_ms=now_ms))
    except KafkaError as error:
        return HeartbeatReply(error.code)
