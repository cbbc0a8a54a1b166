"""Checks of requests to share groups, with Kafka's messages. Nothing here changes a group."""

from __future__ import annotations

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.state import MAX_GROUP_ID_BYTES
from kbroker.groups.share.messages import JOIN_EPOCH, LEAVE_EPOCH, ShareGroupHeartbeatRequest
from kbroker.groups.share.state import ShareGroup, ShareMember

MAX_MEMBER_ID_LENGTH = 36


def check_group_id(group_id: str) -> None:
    if not group_id or len(group_id.encode()) > MAX_GROUP_ID_BYTES:
        raise KafkaError(ErrorCode.invalid_group_id, f"A group id must have 1 to {MAX_GROUP_ID_BYTES} bytes.")


def check_form(request: ShareGroupHeartbeatRequest) -> None:
    """The checks that need no group. `heartbeat` makes them too. Raises KafkaError."""
    if not request.member_id or len(request.member_id) > MAX_MEMBER_ID_LENGTH:
        raise KafkaError(ErrorCode.invalid_request)
    for wrong, message in (
        (not request.group_id.strip(), "GroupId can't be empty."),
        (
            len(request.group_id.encode()) > MAX_GROUP_ID_BYTES,
            f"GroupId can't be longer than {MAX_GROUP_ID_BYTES} bytes.",
        ),
        (not request.member_id.strip(), "MemberId can't be empty."),
        (request.rack_id is not None and not request.rack_id.strip(), "RackId can't be empty."),
        (
            request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names,
            "SubscribedTopicNames must be set in first request.",
        ),
        (request.member_epoch < LEAVE_EPOCH, "MemberEpoch is invalid."),
    ):
        if wrong:
            raise KafkaError(ErrorCode.invalid_request, message)


def check_epoch(member: ShareMember, epoch: int) -> None:
    """Accept the member's epoch and the previous one, since the reply with the newer one may be
    lost. Raises KafkaError."""
    if epoch in (LEAVE_EPOCH, member.member_epoch, member.previous_epoch):
        return
    size = "greater" if epoch > member.member_epoch else "smaller"
    raise KafkaError(
        ErrorCode.fenced_member_epoch,
        f"The share group member has a {size} member epoch ({epoch}) than the one known by the group "
        "coordinator "
        f"({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def member_of(group: ShareGroup, member_id: str) -> ShareMember:
    member = group.members.get(member_id)
    if member is None:
        raise KafkaError(
            ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {group.group_id}."
        )
    return member


def not_found(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
