"""Classic groups as DescribeGroups shows them. Nothing here changes a group."""

from __future__ import annotations

from kbroker.errors import ErrorCode
from kbroker.groups.classic.messages import DescribedClassicGroup, DescribedClassicMember
from kbroker.groups.classic.state import ClassicGroup, ClassicMember, GroupState


def describe_group(group_id: str, group: ClassicGroup | None) -> DescribedClassicGroup:
    """A row of DescribeGroups; an error if the group does not exist. A group that rebalances has no
    protocol, and so no metadata."""
    if group is None:
        return DescribedClassicGroup(group_id, ErrorCode.group_id_not_found, f"Group {group_id} not found.")
    protocol_name = group.protocol_name if group.state is GroupState.STABLE else None
    return DescribedClassicGroup(
        group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=protocol_name or "",
        members=tuple(_describe_member(member, protocol_name) for member in group.members.values()),
    )


def _describe_member(member: ClassicMember, protocol_name: str | None) -> DescribedClassicMember:
    return DescribedClassicMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=b"" if protocol_name is None else member.metadata(protocol_name),
        member_assignment=member.assignment,
    )
