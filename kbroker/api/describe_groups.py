"""DescribeGroups (15), v0-6: groups of the classic protocol with their members. A group that does
not exist or is of another type is Dead; from v6 it is GROUP_ID_NOT_FOUND (KIP-1043)."""

from __future__ import annotations

from kbroker.api.authorized_operations import GROUP_OPERATIONS, NOT_REQUESTED
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode
from kbroker.groups.classic.messages import DescribedClassicGroup

_NOT_FOUND_FROM = 6


def handle(request: Request) -> Message:
    operations = (
        GROUP_OPERATIONS if getattr(request.body, "include_authorized_operations", False) else NOT_REQUESTED
    )
    groups = request.broker.consumer_group_service.groups.classic
    return {
        "groups": [
            _row(groups.describe(group_id), operations, request.version) for group_id in request.body.groups
        ]
    }


def _row(group: DescribedClassicGroup, operations: int, version: int) -> Message:
    found = group.error_code is ErrorCode.none
    return {
        "error_code": group.error_code if version >= _NOT_FOUND_FROM else ErrorCode.none,
        "error_message": group.error_message,
        "group_id": group.group_id,
        "group_state": group.group_state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_data,
        "members": group.members,
        "authorized_operations": operations if found or version < _NOT_FOUND_FROM else NOT_REQUESTED,
    }
