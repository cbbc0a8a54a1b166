"""Checks of ConsumerGroupHeartbeat, in Kafka's order and with its messages: the form of a request,
and whether the member may use its epoch. Nothing here changes a group.
"""

from __future__ import annotations

from collections.abc import Collection

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.state import MAX_GROUP_ID_BYTES, MAX_MEMBER_ID_BYTES
from kbroker.groups.consumer.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupHeartbeatRequest,
    Partitions,
)
from kbroker.groups.consumer.reconciliation import Owned
from kbroker.groups.consumer.state import ConsumerGroup, ConsumerMember


def check_form(request: ConsumerGroupHeartbeatRequest, assignors: Collection[str]) -> None:
    """The checks that need no group. Raises KafkaError."""
    epoch = request.member_epoch
    needs_id = request.version >= 1 or epoch > 0 or epoch == LEAVE_EPOCH
    joins, leaves_for_a_while = epoch == JOIN_EPOCH, epoch == LEAVE_STATIC_EPOCH
    for wrong, message in (
        (needs_id and not request.member_id.strip(), "MemberId can't be empty."),
        (
            len(request.member_id.encode()) > MAX_MEMBER_ID_BYTES,
            f"MemberId can't be longer than {MAX_MEMBER_ID_BYTES} bytes.",
        ),
        (not request.group_id.strip(), "GroupId can't be empty."),
        (
            len(request.group_id.encode()) > MAX_GROUP_ID_BYTES,
            f"GroupId can't be longer than {MAX_GROUP_ID_BYTES} bytes.",
        ),
        (request.instance_id is not None and not request.instance_id.strip(), "InstanceId can't be empty."),
        (request.rack_id is not None and not request.rack_id.strip(), "RackId can't be empty."),
        (
            joins and request.rebalance_timeout_ms == -1,
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        (
            joins and (request.owned is None or bool(request.owned)),
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            joins and request.subscribed_topic_names is None and request.subscribed_topic_regex is None,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (leaves_for_a_while and request.instance_id is None, "InstanceId can't be null."),
        (epoch < LEAVE_STATIC_EPOCH, "MemberEpoch is invalid."),
    ):
        if wrong:
            raise KafkaError(ErrorCode.invalid_request, message)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        message = (
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: "
            f"{', '.join(assignors)}."
        )
        raise KafkaError(ErrorCode.unsupported_assignor, message)


def member_of(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    member = group.members.get(member_id)
    if member is None:
        raise KafkaError(
            ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {group.group_id}."
        )
    return member


def static_member_of(group: ConsumerGroup, member_id: str, instance_id: str) -> ConsumerMember:
    """Raises KafkaError if no member, or another one, has the instance id."""
    member = group.static_member(instance_id)
    if member is None:
        raise KafkaError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise KafkaError(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{member.member_id}.",
        )
    return member


def replaced_member(
    group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, member_id: str
) -> ConsumerMember | None:
    """Raises KafkaError unless the request is a valid heartbeat of the member. Returns the static
    member whose place it takes, if any."""
    instance_id, epoch = request.instance_id, request.member_epoch
    if instance_id is None:
        if epoch != JOIN_EPOCH:
            _check_epoch(member_of(group, member_id), epoch, request.owned)
        return None
    if epoch != JOIN_EPOCH:
        _check_epoch(static_member_of(group, member_id, instance_id), epoch, request.owned)
        return None
    old = group.static_member(instance_id)
    if old is not None and not old.is_classic and old.current.epoch != LEAVE_STATIC_EPOCH:
        raise KafkaError(
            ErrorCode.unreleased_instance_id,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
            "instance id is owned by "
            f"{old.member_id} member.",
        )
    return old


def _check_epoch(member: ConsumerMember, epoch: int, owned: Partitions | None) -> None:
    """Accept the member's epoch. Also accept the previous epoch if the member reports no partitions
    beyond its assignment, since a reply may have been lost. Raises KafkaError."""
    current = member.current
    if epoch == current.epoch:
        return
    if (
        epoch < current.epoch
        and epoch == current.previous_epoch
        and owned is not None
        and _has_all(current.assigned, owned)
    ):
        return
    size = "greater" if epoch > current.epoch else "smaller"
    raise KafkaError(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {size} member epoch ({epoch}) than the one known by the group "
        "coordinator "
        f"({current.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _has_all(assigned: Owned, owned: Partitions) -> bool:
    return all(
        number in assigned.get(topic_id, ()) for topic_id, numbers in owned.items() for number in numbers
    )
