"""DeleteGroups (42), v0-2: a group without members, with its share state. The same id twice is one row."""

from __future__ import annotations

from kbroker.broker.connection import Message, Request


async def handle(request: Request) -> Message:
    coordinator = request.broker.group_coordinator
    group_ids = dict.fromkeys(request.body.groups_names)
    return {"results": [{"group_id": group_id, "error_code": await coordinator.delete_group(group_id)} for group_id in group_ids]}
