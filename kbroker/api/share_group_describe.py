"""ShareGroupDescribe (77), v1 (KIP-932): groups with their members and assignments. Authorized operations are not computed."""

from __future__ import annotations

from kbroker.api.metadata import NOT_REQUESTED
from kbroker.broker.connection import Message, Request
from kbroker.coordinator.share_group_api import DescribedGroup


def handle(request: Request) -> Message:
    return {"groups": [_row(group) for group in request.broker.group_coordinator.coordinator.describe(request.body.group_ids)]}


def _row(group: DescribedGroup) -> Message:
    return {
        "error_code": group.error_code,
        "error_message": group.error_message,
        "group_id": group.group_id,
        "group_state": group.group_state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor_name,
        "members": group.members,
        "authorized_operations": NOT_REQUESTED,
    }
