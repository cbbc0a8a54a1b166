"""ConsumerGroupDescribe (69), v0-1 (KIP-848): consumer groups, and each member's current and target
assignment."""

from __future__ import annotations

from kbroker.api.authorized_operations import GROUP_OPERATIONS, NOT_REQUESTED
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode
from kbroker.groups.consumer.messages import DescribedConsumerGroup


def handle(request: Request) -> Message:
    operations = GROUP_OPERATIONS if request.body.include_authorized_operations else NOT_REQUESTED
    groups = request.broker.consumer_group_service.groups.consumer.describe(request.body.group_ids)
    return {"groups": [_row(group, operations) for group in groups]}


def _row(group: DescribedConsumerGroup, operations: int) -> Message:
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
