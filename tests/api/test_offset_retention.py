"""Offsets and groups that a running broker expires, and that do not return."""

from __future__ import annotations

from typing import Any

from trio.testing import MockClock

from tests.api.conftest import Client, Connect
from tests.api.dead_letter_queues import pass_time

CHECK = {"offsets.retention.check.interval.ms": "200", "group.initial.rebalance.delay.ms": "0"}
JOIN = {
    "session_timeout": 6000,
    "rebalance_timeout": 6000,
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b""}],
}


async def commit(client: Client, group: str, retention_ms: int, **member: Any) -> int:
    row = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}]
    who = {"generation_id_or_member_epoch": -1, "member_id": "", **member}
    topics = [{"name": "orders", "partitions": row}]
    answer = await client.call(
        "offset_commit", 4, group_id=group, **who, retention_time=retention_ms, topics=topics
    )
    return int(answer.topics[0].partitions[0].error_code)


async def groups(client: Client) -> dict[str, str]:
    return {
        row.group_id: row.group_state
        for row in (await client.call("list_groups", 4, states_filter=())).groups
    }


async def offset(client: Client, group: str) -> int:
    topics = [{"name": "orders", "partition_indexes": [0]}]
    answer = await client.call("offset_fetch", 5, group_id=group, topics=topics)
    return int(answer.topics[0].partitions[0].committed_offset)


async def test_what_is_old_is_forgotten_and_what_is_not_stays(
    jump_clock: MockClock, connect: Connect, every_engine: str
) -> None:
    async with connect(every_engine, CHECK) as client:
        await client.create_topic("orders")
        assert [
            await commit(client, group, retention_ms)
            for group, retention_ms in (("short", 1000), ("kept", -1), ("long", 60_000))
        ] == [0] * 3
        await pass_time(client, jump_clock, 0.5)
        assert await offset(client, "short") == 1
        await pass_time(client, jump_clock, 1)
        assert await groups(client) == {"kept": "Empty", "long": "Empty"}
        assert [await offset(client, group) for group in ("short", "kept", "long")] == [-1, 1, 1]
    async with connect(every_engine, CHECK) as client:
        assert await groups(client) == {"kept": "Empty", "long": "Empty"}


async def test_a_group_goes_when_it_is_empty_and_has_no_offsets(
    jump_clock: MockClock, connect: Connect
) -> None:
    """If it is recreated, its next generation is the first."""
    async with connect(config=CHECK) as client:
        await client.create_topic("orders")
        for _ in range(2):
            joined = await client.call("join_group", 3, group_id="g", member_id="", **JOIN)
            assert joined.generation_id == 1
            await pass_time(client, jump_clock, 0.5)
            assert await groups(client) == {"g": "CompletingRebalance"}
            assert (
                await client.call("leave_group", 1, group_id="g", member_id=joined.member_id)
            ).error_code == 0
            await pass_time(client, jump_clock, 0.5)
            assert await groups(client) == {}


async def test_offsets_of_members_stay_while_they_are_there(jump_clock: MockClock, connect: Connect) -> None:
    """However short their retention is: the broker does not know the subscriptions of these
    members."""
    async with connect(config=CHECK) as client:
        await client.create_topic("orders")
        joined = await client.call("join_group", 3, group_id="g", member_id="", **JOIN)
        member = {"generation_id": joined.generation_id, "member_id": joined.member_id}
        assert (await client.call("sync_group", 2, group_id="g", **member, assignments=())).error_code == 0
        who = {"generation_id_or_member_epoch": joined.generation_id, "member_id": joined.member_id}
        assert await commit(client, "g", 100, **who) == 0
        await pass_time(client, jump_clock, 1)
        assert await offset(client, "g") == 1
        await pass_time(client, jump_clock, 6)
        assert await groups(client) == {}, "the session is over, and the offset is old"
