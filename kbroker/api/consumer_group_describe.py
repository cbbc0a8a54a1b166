"""ConsumerGroupDescribe (69), v0-1 (KIP-848): consumer groups, and each member's current and target
assignment.

With an authorizer a group needs DESCRIBE (30, whether or not it exists; these rows come first). A
group with an assigned topic without DESCRIBE is 29, and shows nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kbroker.api.authorization import allows_on_group, sees_topics
from kbroker.api.authorized_operations import NOT_REQUESTED, group_operations
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode
from kbroker.protocol.long_responses import each_once
from kbroker.security.acls import Operation

_TOPICS_HIDDEN = "The group has described topic(s) that the client is not authorized to describe."


def handle(request: Request) -> Message:
    groups = request.broker.consumer_group_service.groups.consumer
    return {"groups": describe(request, groups.describe)}


def describe(request: Request, found: Callable[[str], Any]) -> Iterator[Any]:
    """The rows of consumer or share groups. `found`: describes the group of an id."""
    allowed: list[str] = []
    for group_id in request.body.group_ids:
        if allows_on_group(request, Operation.DESCRIBE, group_id):
            allowed.append(group_id)
            yield None
        else:
            yield _refused_row(group_id)
    yield from each_once(allowed, lambda group_id: _row(request, found(group_id)))


def _refused_row(
    group_id: str, code: ErrorCode = ErrorCode.group_authorization_failed, message: str | None = None
) -> Message:
    return {
        "error_code": code,
        "error_message": message,
        "group_id": group_id,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": (),
        "authorized_operations": NOT_REQUESTED,
    }


def _row(request: Request, group: Any) -> Message:
    if not sees_topics(request, _topics_of(group)):
        return _refused_row(group.group_id, ErrorCode.topic_authorization_failed, _TOPICS_HIDDEN)
    is_asked = request.body.include_authorized_operations and group.error_code is ErrorCode.none
    return {
        "error_code": group.error_code,
        "error_message": group.error_message,
        "group_id": group.group_id,
        "group_state": group.group_state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor_name,
        "members": group.members,
        "authorized_operations": group_operations(request, group.group_id) if is_asked else NOT_REQUESTED,
    }


def _topics_of(group: Any) -> set[str]:
    """The topics of all assignments, and targets, of its members."""
    return {
        part.topic_name
        for member in group.members
        for assignment in (member.assignment, getattr(member, "target_assignment", member.assignment))
        for part in assignment.topic_partitions
    }
