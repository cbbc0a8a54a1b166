"""DescribeGroups (15), v0-6: groups of the classic protocol with their members. A group that does
not exist or is of another type is Dead; from v6 it is GROUP_ID_NOT_FOUND (KIP-1043).

With an authorizer a group needs DESCRIBE (30, whether or not it exists)."""

from __future__ import annotations

from kbroker.api.authorization import allows_on_group
from kbroker.api.authorized_operations import NOT_REQUESTED, group_operations
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode
from kbroker.groups.classic.messages import DescribedClassicGroup
from kbroker.protocol.long_responses import each_once
from kbroker.security.acls import Operation

_NOT_FOUND_FROM = 6


def handle(request: Request) -> Message:
    return {"groups": each_once(request.body.groups, lambda group_id: _group(request, group_id))}


def _group(request: Request, group_id: str) -> Message:
    if not allows_on_group(request, Operation.DESCRIBE, group_id):
        return {
            "error_code": ErrorCode.group_authorization_failed,
            "error_message": None,
            "group_id": group_id,
            "group_state": "",
            "protocol_type": "",
            "protocol_data": "",
            "members": (),
            "authorized_operations": NOT_REQUESTED,
        }
    is_asked = getattr(request.body, "include_authorized_operations", False)
    operations = group_operations(request, group_id) if is_asked else NOT_REQUESTED
    found = request.broker.consumer_group_service.groups.classic.describe(group_id)
    return _row(found, operations, request.version)


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
