"""ShareGroupDescribe (77), v1 (KIP-932): groups with their members and assignments.

With an authorizer a group needs DESCRIBE (30, whether or not it exists; these rows come first). A
group with an assigned topic without DESCRIBE is 29, and shows nothing."""

from __future__ import annotations

from kbroker.api.consumer_group_describe import describe
from kbroker.api.request import Message, Request


def handle(request: Request) -> Message:
    return {"groups": describe(request, request.broker.share_group_service.coordinator.describe)}
