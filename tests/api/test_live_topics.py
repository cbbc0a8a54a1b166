"""Topics that are deleted, recreated and grown while share groups use them: which state the groups
keep, drop and begin with."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing

from kbroker.errors import ErrorCode
from kbroker.formats.state import ShareStateKey
from tests.api.conftest import Client, Connect
from tests.api.share_consumers import ACCEPT, GROUP, Member, acquired, rows, set_up_group
from tests.api.test_live_group_configs import heartbeat, partitions
from tests.api.test_share_group_offsets import describe, starts


async def at_work(client: Client, records: int, **configs: str) -> tuple[Member, tuple[UUID, int]]:
    """A member that has joined and reads "orders" with that many records."""
    topic = await client.create_topic("orders")
    for number in range(records):
        await client.append("orders", number)
    await set_up_group(
        client, {"share.auto.offset.reset": "earliest", "share.assignment.interval.ms": "0", **configs}
    )
    assert partitions(await heartbeat(client, "m", 0, "orders")) == 1
    return Member(client.another(2), "m"), (topic.topic_id, 0)


async def delete_topic(client: Client) -> None:
    answer = await client.call("delete_topics", 6, topics=[{"name": "orders", "topic_id": None}])
    assert answer.responses[0].error_code == 0


async def grow(client: Client, count: int) -> None:
    topics = [{"name": "orders", "count": count, "assignments": None}]
    answer = await client.call("create_partitions", 3, topics=topics, validate_only=False)
    assert answer.results[0].error_code == 0


def stored_topics(client: Client) -> set[UUID]:
    """Topics of which some group has share state."""
    prefix = len(ShareStateKey.namespace)
    return {
        UUID(bytes=key[prefix : prefix + 16])
        for key, _ in client.broker.state_store.scan(ShareStateKey.namespace)
    }


# GRP-30, INIT-3, INIT-9, OFF-1, SC-49
async def test_a_topic_made_again_has_nothing_of_the_old_one(connect: Connect) -> None:
    """Neither its offsets nor the records that members hold."""
    async with connect() as client:
        member, key = await at_work(client, 3)
        assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 2, 1)]
        await member.acknowledge({key: [(0, 0, [ACCEPT])]})
        await delete_topic(client)
        assert await describe(client) == ()
        assert stored_topics(client) == set()
        assert (
            rows(await member.acknowledge({key: [(1, 2, [ACCEPT])]}))[key].error_code
            == ErrorCode.unknown_topic_id
        )
        again = await client.create_topic("orders")
        await client.append("orders", 1)
        joined = await heartbeat(client, "m", 0, "orders")
        assert [(topic.topic_id, topic.partitions) for topic in joined.assignment.topic_partitions] == [
            (again.topic_id, (0,))
        ]
        assert acquired(await member.fetch([(again.topic_id, 0)], forget=[key], wait_ms=5000)) == [(0, 0, 1)]
        assert stored_topics(client) == {again.topic_id}
        assert [topic.topic_id for topic in await describe(client)] == [again.topic_id]


# INIT-9, OFF-1
async def test_a_topic_deleted_before_the_group_heard_of_it(connect: Connect, every_engine: str) -> None:
    """If the broker died in between, the group learns of the deletion when it is back."""
    async with connect(engine=every_engine) as client:
        await at_work(client, 1)
        assert list(await starts(client)) == [0]
        topic = client.broker.topics.by_name("orders")
        assert topic is not None
        await client.broker.topics.delete(topic)
    async with connect(engine=every_engine) as client:
        assert await describe(client) == ()
        coordinator = client.broker.share_group_service.coordinator
        while coordinator.topic_ids():
            await trio.lowlevel.checkpoint()
        again = await client.create_topic("orders")
        joined = await heartbeat(client, "m", 0, "orders")
        assert [topic.topic_id for topic in joined.assignment.topic_partitions] == [again.topic_id]


@pytest.mark.parametrize("policy", ["latest", "earliest"])
# INIT-4, GRP-30
async def test_new_partitions_begin_at_their_beginning(connect: Connect, policy: str) -> None:
    """Also under `latest`: otherwise records that arrived before the group noticed the partitions
    would be skipped."""
    async with connect() as client:
        member, _ = await at_work(client, 1, **{"share.auto.offset.reset": policy})
        await grow(client, 3)
        await client.append("orders", 1, partition=1)
        epoch = (await heartbeat(client, "m", 0, "orders")).member_epoch
        assert {index: start for index, (start, _) in (await starts(client)).items()} == {0: -1, 1: 0, 2: 0}
        await client.append("orders", 1, partition=2)
        topic = client.broker.topics.by_name("orders")
        assert topic is not None
        keys = [(topic.topic_id, index) for index in (1, 2)]
        assert acquired(await member.fetch(keys, wait_ms=5000)) == [(0, 0, 1), (0, 0, 1)]
        assert (await heartbeat(client, "m", epoch)).error_code == 0


# INIT-4
async def test_a_group_without_members_gets_new_partitions_with_its_next_member(connect: Connect) -> None:
    async with connect() as client:
        _, key = await at_work(client, 1)
        await heartbeat(client, "m", -1)
        await grow(client, 2)
        await client.append("orders", 1, partition=1)
        assert await starts(client) == {0: (-1, -1)}
        assert partitions(await heartbeat(client, "n", 0, "orders")) == 2
        assert await starts(client) == {0: (-1, -1), 1: (0, 1)}
        assert acquired(await Member(client, "n").fetch([key], wait_ms=5000)) == [(0, 0, 1)]


# OFF-16
async def test_a_deleted_topic_ends_an_alteration_of_its_offsets(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows say so, and the group gets no state of a deleted topic."""
    async with connect() as client:
        await at_work(client, 1)
        await heartbeat(client, "m", -1)
        real, hold = client.broker.persister.initialize, trio.Event()

        async def held(*arguments: Any) -> Any:
            await hold.wait()
            return await real(*arguments)

        monkeypatch.setattr(client.broker.persister, "initialize", held)
        answers: list[Any] = []

        async def alter() -> None:
            wanted = [{"topic_name": "orders", "partitions": [{"partition_index": 0, "start_offset": 1}]}]
            answers.append(await client.call("alter_share_group_offsets", 0, group_id=GROUP, topics=wanted))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(alter)
            await trio.testing.wait_all_tasks_blocked()
            await delete_topic(client)
            hold.set()
        (row,) = answers[0].responses[0].partitions
        assert row.error_code == ErrorCode.unknown_topic_or_partition
        assert client.broker.share_group_service.coordinator.topic_ids() == set()
        assert stored_topics(client) == set()


async def test_a_topic_that_was_just_made_is_known(connect: Connect) -> None:  # SC-29
    """Kafka's share coordinator answers 3 until it knows the topic."""
    async with connect() as client:
        for number in range(20):
            topic = await client.create_topic(f"orders-{number}")
            rows = [{"partition": 0, "state_epoch": 0, "start_offset": 0}]
            topics = [{"topic_id": topic.topic_id, "partitions": rows}]
            answer = await client.call("initialize_share_group_state", 0, group_id=GROUP, topics=topics)
            assert answer.results[0].partitions[0].error_code == 0
