"""ListGroups (16), v0-5: groups of all types, filtered by state (v4) and by type (v5), ignoring
case. Unknown filters match nothing.

With an authorizer, DESCRIBE on the cluster lists all groups. Other clients get those on which they
have DESCRIBE."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain

from kbroker.api.authorization import has, has_on_cluster
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode
from kbroker.groups.ids import ListedGroup
from kbroker.security.acls import Operation, ResourceType


def handle(request: Request) -> Message:
    states = {each.lower() for each in getattr(request.body, "states_filter", ()) or ()}
    types = {each.lower() for each in getattr(request.body, "types_filter", ()) or ()}
    return {"error_code": ErrorCode.none, "groups": _rows(request, states, types)}


def _rows(request: Request, states: Collection[str], types: Collection[str]) -> Iterator[ListedGroup | None]:
    """None for a group that is left out. A group that changes its type meanwhile is listed once."""
    broker = request.broker
    sees_all = has_on_cluster(request, Operation.DESCRIBE)
    listed: set[str] = set()
    for group in chain(
        broker.consumer_group_service.groups.listed(), broker.share_group_service.coordinator.listed()
    ):
        is_wanted = (
            group.group_id not in listed
            and (not states or group.group_state.lower() in states)
            and (not types or group.group_type.lower() in types)
            and (sees_all or has(request, Operation.DESCRIBE, ResourceType.GROUP, group.group_id))
        )
        listed.add(group.group_id)
        yield group if is_wanted else None
