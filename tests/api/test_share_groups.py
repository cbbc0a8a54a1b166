"""ShareGroupHeartbeat and ShareGroupDescribe through their handlers: the group as members and
administrators see it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import trio

from kbroker.errors import ErrorCode
from kbroker.protocol.messages import request_schema
from kbroker.share.persister import ReadRequest, TopicPartition
from tests.api.conftest import KEYS, Client, Connect


async def test_a_member_joins_and_is_described(connect: Connect) -> None:  # GRP-21, GRP-35, GRP-51, RPC-1
    async with connect() as client:
        topic = await client.create_topic("orders", 2)
        fields = {"group_id": "g", "member_id": "M1", "rack_id": None}
        joined = await client.call(
            "share_group_heartbeat", 1, member_epoch=0, subscribed_topic_names=["orders"], **fields
        )
        assert joined.error_code == 0
        assert [(part.topic_id, part.partitions) for part in joined.assignment.topic_partitions] == [
            (topic.topic_id, (0, 1))
        ]
        (group,) = (
            await client.call("share_group_describe", 1, group_ids=["g"], include_authorized_operations=False)
        ).groups
        assert (group.error_code, group.group_state, group.assignor_name) == (0, "Stable", "simple")
        assert [member.member_id for member in group.members] == ["M1"]
        left = await client.call(
            "share_group_heartbeat", 1, member_epoch=-1, subscribed_topic_names=None, **fields
        )
        assert (left.error_code, left.member_epoch, left.assignment) == (0, -1, None)


async def test_groups_that_are_not_there(connect: Connect) -> None:  # GRP-52, RPC-62
    """Each gets a row with the error only."""
    async with connect() as client:
        answer = await client.call(
            "share_group_describe", 1, group_ids=["", "no"], include_authorized_operations=False
        )
        assert [
            (group.group_id, group.error_code, group.group_state, group.assignor_name)
            for group in answer.groups
        ] == [
            ("", ErrorCode.invalid_group_id, "", ""),
            ("no", ErrorCode.group_id_not_found, "", ""),
        ]


async def test_members_are_neither_static_nor_choose_an_assignor(connect: Connect) -> None:  # GRP-19, GRP-8
    """A request has no field for either, and -2, by which static members of consumer groups leave
    temporarily, is not an epoch."""
    asked = {field.name for field in fields(request_schema(KEYS["share_group_heartbeat"], 1))}
    assert asked == {"group_id", "member_id", "member_epoch", "rack_id", "subscribed_topic_names"}
    async with connect() as client:
        await client.create_topic("orders")
        assert (await join(client, "M1")).error_code == 0
        away = {
            "group_id": "g",
            "member_id": "M1",
            "member_epoch": -2,
            "rack_id": None,
            "subscribed_topic_names": None,
        }
        assert (await client.call("share_group_heartbeat", 1, **away)).error_code == ErrorCode.invalid_request
        (group,) = (
            await client.call("share_group_describe", 1, group_ids=["g"], include_authorized_operations=False)
        ).groups
        assert (group.assignor_name, [member.member_id for member in group.members]) == ("simple", ["M1"])


async def join(client: Client, member_id: str) -> Any:
    return await client.call(
        "share_group_heartbeat",
        1,
        group_id="g",
        member_id=member_id,
        member_epoch=0,
        rack_id=None,
        subscribed_topic_names=["orders"],
    )


# GRP-35, GRP-36
async def test_many_join_at_once_and_all_have_their_assignment_at_once(
    connect: Connect, every_engine: str
) -> None:
    async with connect(engine=every_engine) as client:
        await client.create_topic("orders")
        answers: list[Any] = []

        async def one(member_id: str) -> None:
            answers.append(await join(client, member_id))

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(one, f"M{number}")
        assert [answer.error_code for answer in answers] == [0] * 8
        assert all(answer.assignment.topic_partitions[0].partitions == (0,) for answer in answers)


async def test_nobody_joins_a_group_that_is_being_deleted(connect: Connect, every_engine: str) -> None:
    """Its share state would be deleted while the member's is created: one of them would be lost."""
    async with connect(engine=every_engine) as client:
        await client.create_topic("orders")
        await join(client, "M1")
        leave = {
            "group_id": "g",
            "member_id": "M1",
            "member_epoch": -1,
            "rack_id": None,
            "subscribed_topic_names": None,
        }
        await client.call("share_group_heartbeat", 1, **leave)
        codes: dict[str, int] = {}

        async def delete() -> None:
            codes["delete"] = (
                (await client.call("delete_groups", 2, groups_names=["g"])).results[0].error_code
            )

        async def come() -> None:
            codes["join"] = (await join(client, "M2")).error_code

        async with trio.open_nursery() as nursery:
            nursery.start_soon(delete)
            nursery.start_soon(come)
        assert sorted(codes.values()) in (
            [0, ErrorCode.coordinator_load_in_progress],
            [0, ErrorCode.non_empty_group],
        )
        assert (await join(client, "M3")).error_code == 0
        topic = client.broker.topics.by_name("orders")
        assert topic is not None
        partition = TopicPartition(topic.topic_id, 0)
        (summary,) = await client.broker.share_state.read_summary("g", [ReadRequest(partition, 0)])
        assert summary.state_epoch > 0, "initialised"
