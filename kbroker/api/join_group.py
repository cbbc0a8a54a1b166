"""JoinGroup (11), v0-9: a member joins a group of the classic protocol and waits for the others.

- From v4 a member without an id first gets one, and joins again with it (KIP-394).
- From v5 static members are known by their instance id (KIP-345).
- From v9 the answer may tell a leader that rejoins to keep the assignment as it is (KIP-814).

With an authorizer the group needs READ (30).
"""

from __future__ import annotations

from kbroker.api.request import Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.groups.classic.messages import JoinReply, JoinRequest, Protocol
from kbroker.protocol.messages import milliseconds
from kbroker.security.acls import Operation, ResourceType

_TAKES_MEMBER_ID_FROM = 4
_NULL_PROTOCOL_FROM = 7
_CAN_SKIP_ASSIGNMENT_FROM = 9


async def handle(request: Request) -> JoinReply:
    if (rights := request.connection.rights) is not None and not rights.allows(
        Operation.READ, ResourceType.GROUP, request.body.group_id
    ):
        return _in_version(request.version, JoinReply(ErrorCode.group_authorization_failed))
    wanted = _wanted(request)
    groups = request.broker.consumer_group_service
    try:
        reply = await groups.ask(
            lambda ticket, now_ms: groups.groups.join(wanted, ticket, now_ms=now_ms), request.connection
        )
    except KafkaError as error:
        reply = JoinReply(error.code, member_id=wanted.member_id)
    return _in_version(request.version, reply)


def _in_version(version: int, reply: JoinReply) -> JoinReply:
    if version < _NULL_PROTOCOL_FROM and reply.protocol_name is None:
        return reply._replace(protocol_name="")
    return reply


def _wanted(request: Request) -> JoinRequest:
    body = request.body
    session_timeout_ms = milliseconds(body.session_timeout)
    return JoinRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=milliseconds(body.rebalance_timeout)
        if hasattr(body, "rebalance_timeout")
        else session_timeout_ms,
        protocol_type=body.protocol_type,
        protocols=tuple(Protocol(each.name, each.metadata) for each in body.protocols),
        client_id=request.client_id or "",
        client_host=f"/{request.connection.client_host}",
        reason=getattr(body, "reason", None),
        takes_member_id=request.version >= _TAKES_MEMBER_ID_FROM,
        can_skip_assignment=request.version >= _CAN_SKIP_ASSIGNMENT_FROM,
    )
