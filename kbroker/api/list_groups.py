"""ListGroups (16), v0-5: groups of all types, filtered by state (v4) and by type (v5). Unknown filters match nothing."""

from __future__ import annotations

from kbroker.broker.connection import Message, Request
from kbroker.errors import ErrorCode


def handle(request: Request) -> Message:
    states = getattr(request.body, "states_filter", ()) or ()
    types = getattr(request.body, "types_filter", ()) or ()
    return {"error_code": ErrorCode.none, "groups": request.broker.group_coordinator.coordinator.list_groups(states, types)}
