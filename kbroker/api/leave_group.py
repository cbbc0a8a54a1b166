"""LeaveGroup (13), v0-5: members leave a group of the classic protocol. Up to v2 a request names
one. From v3 it names any number, static members by their instance id alone, and each gets a result.

With an authorizer the group needs READ (30).
"""

from __future__ import annotations

from typing import Any

from kbroker.api.request import Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.groups.classic.messages import LeaveReply, LeaveRequest, Leaving
from kbroker.security.acls import Operation, ResourceType

_SEVERAL_FROM = 3


async def handle(request: Request) -> LeaveReply:
    if (rights := request.connection.rights) is not None and not rights.allows(
        Operation.READ, ResourceType.GROUP, request.body.group_id
    ):
        return LeaveReply(ErrorCode.group_authorization_failed)
    several = request.version >= _SEVERAL_FROM
    wanted = LeaveRequest(
        request.body.group_id, _members(request.body) if several else (Leaving(request.body.member_id),)
    )
    groups = request.broker.consumer_group_service
    try:
        reply = await groups.ask(lambda _, now_ms: groups.groups.leave(wanted, now_ms=now_ms))
    except KafkaError as error:
        reply = LeaveReply(error.code)
    if not several and reply.error_code is ErrorCode.none:
        return LeaveReply(reply.members[0].error_code)
    return reply


def _members(body: Any) -> tuple[Leaving, ...]:
    return tuple(
        Leaving(each.member_id, each.group_instance_id, getattr(each, "reason", None))
        for each in body.members
    )
