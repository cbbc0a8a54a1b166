"""DeleteGroups (42), v0-2: deletes groups without members, with their offsets or share state. An id
that is listed twice gets one row."""

from __future__ import annotations

from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode
from kbroker.groups.ids import SHARE


async def handle(request: Request) -> Message:
    group_ids = dict.fromkeys(request.body.groups_names)
    return {
        "results": [
            {"group_id": group_id, "error_code": await _deleted(request, group_id)} for group_id in group_ids
        ]
    }


async def _deleted(request: Request, group_id: str) -> ErrorCode:
    broker = request.broker
    if broker.group_ids.type_of(group_id) in (None, SHARE):
        return await broker.share_group_service.delete_group(group_id)
    return await broker.consumer_group_service.delete_group(group_id)
