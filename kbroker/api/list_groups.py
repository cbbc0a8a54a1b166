"""ListGroups (16), v0-5: groups of all types, filtered by state (v4) and by type (v5), ignoring
case. Unknown filters match nothing."""

from __future__ import annotations

from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode


def handle(request: Request) -> Message:
    states = {each.lower() for each in getattr(request.body, "states_filter", ()) or ()}
    types = {each.lower() for each in getattr(request.body, "types_filter", ()) or ()}
    broker = request.broker
    groups = [
        group
        for group in (
            *broker.consumer_group_service.groups.listed(),
            *broker.share_group_service.coordinator.list_groups(),
        )
        if (not states or group.group_state.lower() in states)
        and (not types or group.group_type.lower() in types)
    ]
    return {"error_code": ErrorCode.none, "groups": groups}
