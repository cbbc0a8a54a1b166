"""DeleteGroups (42), v0-3: deletes groups without members, with their offsets or share state. An id
that is listed twice gets one row. Messages of errors (v3) are null, as in Kafka.

With an authorizer a group needs DELETE (30, whether or not it exists)."""

from __future__ import annotations

from kbroker.api.authorization import allows_on_group
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode
from kbroker.groups.ids import SHARE
from kbroker.security.acls import Operation


async def handle(request: Request) -> Message:
    group_ids = dict.fromkeys(request.body.groups_names)
    return {
        "results": [
            {"group_id": group_id, "error_code": await _deleted(request, group_id)} for group_id in group_ids
        ]
    }


async def _deleted(request: Request, group_id: str) -> ErrorCode:
    broker = request.broker
    if not allows_on_group(request, Operation.DELETE, group_id):
        return ErrorCode.group_authorization_failed
    if broker.group_ids.type_of(group_id) in (None, SHARE):
        return await broker.share_group_service.delete_group(group_id)
    return await broker.consumer_group_service.delete_group(group_id)
