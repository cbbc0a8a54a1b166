"""ShareGroupDescribe (77), v1 (KIP-932): groups with their members and assignments."""

from __future__ import annotations

from kbroker.api.authorized_operations import GROUP_OPERATIONS, NOT_REQUESTED
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode
from kbroker.groups.share.messages import DescribedShareGroup


def handle(request: Request) -> Message:
    operations = GROUP_OPERATIONS if request.body.include_authorized_operations else NOT_REQUESTED
    groups = request.broker.share_group_service.coordinator.describe(request.body.group_ids)
    return {"groups": [_row(group, operations) for group in groups]}


def _row(group: DescribedShareGroup, operations: int) -> Message:
    return {
        "error_code": group.error_code,
        "error_message": group.error_message,
        "group_id": group.group_id,
        "group_state": group.group_state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor_name,
        "members": group.members,
        "authorized_operations": NOT_REQUESTED if group.error_code is not ErrorCode.none else operations,
    }
