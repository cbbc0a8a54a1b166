"""Heartbeat (12), v0-4: a member of a group of the classic protocol stays in it. The answer says
whether the group rebalances."""

from __future__ import annotations

from kbroker.api.request import Request
from kbroker.errors import KafkaError
from kbroker.groups.classic.messages import HeartbeatReply, HeartbeatRequest


async def handle(request: Request) -> HeartbeatReply:
    body = request.body
    wanted = HeartbeatRequest(
        body.group_id, body.member_id, getattr(body, "group_instance_id", None), body.generation_id
    )
    groups = request.broker.consumer_group_service
    try:
        return await groups.ask(lambda _, now_ms: groups.groups.classic_heartbeat(wanted, now_ms=now_ms))
    except KafkaError as error:
        return HeartbeatReply(error.code)
