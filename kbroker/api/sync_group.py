"""SyncGroup (14), v0-5: the leader of a group of the classic protocol sends the assignment, and
each member gets its own part when it is saved.

From v5 members must name their protocol (KIP-559).

With an authorizer the group needs READ (30).
"""

from __future__ import annotations

from kbroker.api.request import Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.groups.classic.messages import SyncReply, SyncRequest
from kbroker.security.acls import Operation, ResourceType

_SAYS_PROTOCOL_FROM = 5


async def handle(request: Request) -> SyncReply:
    body = request.body
    if request.version >= _SAYS_PROTOCOL_FROM and None in (body.protocol_type, body.protocol_name):
        return SyncReply(ErrorCode.inconsistent_group_protocol)
    if (rights := request.connection.rights) is not None and not rights.allows(
        Operation.READ, ResourceType.GROUP, body.group_id
    ):
        return SyncReply(ErrorCode.group_authorization_failed)
    wanted = SyncRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        generation=body.generation_id,
        protocol_type=getattr(body, "protocol_type", None),
        protocol_name=getattr(body, "protocol_name", None),
        assignments=tuple((each.member_id, each.assignment) for each in body.assignments),
    )
    groups = request.broker.consumer_group_service
    try:
        return await groups.ask(
            lambda ticket, now_ms: groups.groups.sync(wanted, ticket, now_ms=now_ms), request.connection
        )
    except KafkaError as error:
        return SyncReply(error.code)
