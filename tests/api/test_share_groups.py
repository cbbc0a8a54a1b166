"""ShareGroupHeartbeat and ShareGroupDescribe through their handlers: what a member and an administrator see of a group."""

from __future__ import annotations

from kbroker.errors import ErrorCode
from tests.api.conftest import Connect


async def test_a_member_joins_and_is_described(connect: Connect) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders", 2)
        fields = {"group_id": "g", "member_id": "M1", "rack_id": None}
        joined = await client.call("share_group_heartbeat", 1, member_epoch=0, subscribed_topic_names=["orders"], **fields)
        assert joined.error_code == 0
        assert [(part.topic_id, part.partitions) for part in joined.assignment.topic_partitions] == [(topic.topic_id, (0, 1))]
        (group,) = (await client.call("share_group_describe", 1, group_ids=["g"], include_authorized_operations=False)).groups
        assert (group.error_code, group.group_state, group.assignor_name) == (0, "Stable", "simple")
        assert [member.member_id for member in group.members] == ["M1"]
        left = await client.call("share_group_heartbeat", 1, member_epoch=-1, subscribed_topic_names=None, **fields)
        assert (left.error_code, left.member_epoch, left.assignment) == (0, -1, None)


async def test_groups_that_are_not_there(connect: Connect) -> None:
    """A row each, with the assignor's name all the same."""
    async with connect() as client:
        answer = await client.call("share_group_describe", 1, group_ids=["", "no"], include_authorized_operations=False)
        assert [(group.group_id, group.error_code, group.group_state, group.assignor_name) for group in answer.groups] == [
            ("", ErrorCode.invalid_group_id, "", "simple"),
            ("no", ErrorCode.group_id_not_found, "", "simple"),
        ]
