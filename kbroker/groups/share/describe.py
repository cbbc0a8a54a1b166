"""Share groups as ListGroups and ShareGroupDescribe show them. Nothing here changes a group."""

from __future__ import annotations

from kbroker.errors import ErrorCode
from kbroker.groups.share.messages import (
    DescribedAssignment,
    DescribedShareGroup,
    DescribedShareMember,
    DescribedTopicPartitions,
)
from kbroker.groups.share.state import ShareGroup, ShareMember


def describe_group(group_id: str, group: ShareGroup | None, assignor_name: str) -> DescribedShareGroup:
    """A row of ShareGroupDescribe; an error if the group does not exist or has another type."""
    if not group_id:
        return DescribedShareGroup(group_id, ErrorCode.invalid_group_id)
    if group is None:
        return DescribedShareGroup(group_id, ErrorCode.group_id_not_found, f"Group {group_id} not found.")
    return DescribedShareGroup(
        group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=assignor_name,
        members=tuple(_describe_member(group, member) for member in group.members.values()),
    )


def _describe_member(group: ShareGroup, member: ShareMember) -> DescribedShareMember:
    # A deleted topic no longer has a name. The member loses it at its next heartbeat.
    topics = tuple(
        DescribedTopicPartitions(topic_id, group.initialized[topic_id].name, numbers)
        for topic_id, numbers in member.assigned.items()
        if topic_id in group.initialized
    )
    return DescribedShareMember(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.topic_names,
        assignment=DescribedAssignment(topics),
    )
