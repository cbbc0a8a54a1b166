"""Share groups with `share.isolation.level` read_committed (KIP-932, "Reading transactional
records"), over transactions that the test writes itself. Rules ISO-1 to ISO-7."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from uuid import UUID

import pytest
import trio

from kbroker.broker.queues.loaded import LoadedSharePartition
from kbroker.formats.transactions import MarkerType
from kbroker.share.persister import TopicPartition
from tests.api.conftest import Client, Connect
from tests.api.share_consumers import (
    ACCEPT,
    GROUP,
    RELEASE,
    Member,
    acquired,
    initialize,
    rows,
    sent,
    set_up_group,
)
from tests.broker.transactional_log import Log

ABORT, COMMIT = MarkerType.ABORT, MarkerType.COMMIT
P, Q = 5, 6
COMMITTED = {"share.isolation.level": "read_committed", "share.auto.offset.reset": "earliest"}
KEEPING = ("segment", "lmdb", "rocksdb")
QUEUES = ({}, {"kbroker.queue.prefetch": "1"}, {"kbroker.queue.scheduling": "true"})
"""Whole batches, records cut out of batches, and a scan ahead of the members."""


class World(NamedTuple):
    client: Client
    key: tuple[UUID, int]
    log: Log
    member: Member

    async def take(self, *offsets: int, count: int = 1) -> None:
        """The member gets just these records, one after the other, and accepts them."""
        found: list[tuple[int, int, int]] = []
        while sum(last - first + 1 for first, last, _ in found) < len(offsets):
            answer = await self.member.fetch([self.key], wait_ms=5000)
            assert acquired(answer), f"{found} of {offsets}"
            found += acquired(answer)
            await self.acknowledge(acquired(answer), ACCEPT)
        assert [each for first, last, _ in found for each in range(first, last + 1)] == list(offsets)
        assert {each[2] for each in found} == {count}

    async def acknowledge(self, ranges: Sequence[tuple[int, int, int]], kind: int) -> None:
        acks = [(first, last, [kind]) for first, last, _ in ranges]
        answer = await self.member.acknowledge({self.key: acks})
        assert rows(answer)[self.key].error_code == 0

    async def is_empty(self) -> bool:
        return acquired(await self.member.fetch([self.key])) == []

    async def loaded(self) -> LoadedSharePartition:
        return await self.client.broker.share_partitions.load(GROUP, TopicPartition(*self.key))


@asynccontextmanager
async def opened(
    connect: Connect, engine: str = "memory", configs: dict[str, str] | None = None
) -> AsyncIterator[World]:
    async with connect(engine) as client:
        topic = client.broker.topics.by_name("jobs")
        if topic is None:
            topic_id = (await client.create_topic("jobs")).topic_id
            await set_up_group(client, {**COMMITTED, **(configs or {})})
            await initialize(client, topic_id, 1)
        else:
            topic_id = topic.topic_id
        partition = client.partition("jobs")
        partition.has_transactions = True  # As AddPartitionsToTxn does before the first batch.
        await partition.load_producers()
        yield World(client, (topic_id, 0), Log(partition), Member(client, "M1"))


@pytest.mark.parametrize("configs", QUEUES)
async def test_members_get_what_is_committed(
    connect: Connect, every_engine: str, configs: dict[str, str]
) -> None:
    async with opened(connect, every_engine, configs) as world:
        for producer_id in (P, Q, P, Q):
            await world.log.send(producer_id)  # 0 to 3
        await world.log.end(P, ABORT)  # 4
        await world.log.end(Q, COMMIT)  # 5
        await world.log.send(7, transactional=False)  # 6
        await world.take(1, 3, 6)
        assert await world.is_empty()


@pytest.mark.parametrize("configs", QUEUES)
async def test_an_open_transaction_holds_back_what_follows(connect: Connect, configs: dict[str, str]) -> None:
    async with opened(connect, configs=configs) as world:
        await world.log.send(7, transactional=False)  # 0
        await world.log.send(P)  # 1
        await world.log.send(7, transactional=False)  # 2
        await world.take(0)
        assert await world.is_empty()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.take, 1, 2)
            await trio.testing.wait_all_tasks_blocked()
            await world.log.end(P, COMMIT)


async def test_a_waiting_member_reads_on_behind_an_aborted_transaction(connect: Connect) -> None:
    async with opened(connect) as world:
        for _ in range(20):
            await world.log.send(P)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.take, 21)
            await trio.testing.wait_all_tasks_blocked()
            await world.log.end(P, ABORT)  # 20
            await world.log.send(7, transactional=False)  # 21


@pytest.mark.parametrize("engine", KEEPING)
async def test_what_was_aborted_holds_nothing_back(connect: Connect, engine: str) -> None:
    """The share-partition's start moves past it, also over a restart."""
    async with opened(connect, engine) as world:
        await world.log.send(7, transactional=False)  # 0
        await world.log.send(P)  # 1
        await world.log.end(P, ABORT)  # 2
        await world.log.send(7, transactional=False)  # 3
        await world.take(0, 3)
        share_partition = (await world.loaded()).engine
        assert share_partition is not None
        assert share_partition.start_offset >= 3
    async with opened(connect, engine) as world:
        await world.log.send(8, transactional=False)  # 4
        await world.take(4)


@pytest.mark.parametrize("engine", KEEPING)
async def test_a_restart_loads_transactions_before_members_read(connect: Connect, engine: str) -> None:
    async with opened(connect, engine) as world:
        await world.log.send(P)  # 0
        await world.log.end(P, ABORT)  # 1
        await world.log.send(Q)  # 2
    async with connect(engine) as client:
        partition = client.partition("jobs")
        partition.has_transactions = True
        assert partition.producers is None
        topic = client.broker.topics.by_name("jobs")
        assert topic is not None
        member = Member(client, "M1")
        await client.broker.share_partitions.load(GROUP, TopicPartition(topic.topic_id, 0))
        assert acquired(await member.fetch([(topic.topic_id, 0)])) == []
        assert partition.producers is not None
        await Log(partition).end(Q, COMMIT)  # 3
        assert sent(await member.fetch([(topic.topic_id, 0)], wait_ms=5000)) == [2]


async def test_both_levels_beside_each_other(connect: Connect) -> None:
    async with opened(connect) as world:
        await set_up_group(world.client, {"share.auto.offset.reset": "earliest"}, "every")
        await initialize(world.client, world.key[0], 1, "every")
        await world.log.send(P)  # 0
        await world.log.end(P, ABORT)  # 1
        await world.log.send(Q)  # 2
        other = Member(world.client.another(2), "M2", "every")
        answer: Any = await other.fetch([world.key], wait_ms=5000)
        assert sent(answer) == [0, 2]
        assert await world.is_empty()


@pytest.mark.parametrize("configs", QUEUES[:2])
async def test_the_level_is_altered_while_records_are_held(connect: Connect, configs: dict[str, str]) -> None:
    """Members keep what they hold; returned records of an aborted transaction are given up."""
    async with opened(connect, configs={**configs, "share.isolation.level": "read_uncommitted"}) as world:
        await world.log.send(P)  # 0
        await world.log.send(P)  # 1
        await world.log.send(7, transactional=False)  # 2
        first = await world.member.fetch([world.key], max_records=1, batch_size=1, wait_ms=5000)
        await world.acknowledge([(0, 0, 1)], ACCEPT)
        second = await world.member.fetch([world.key], max_records=1, batch_size=1, wait_ms=5000)
        assert [acquired(first), acquired(second)] == [[(0, 0, 1)], [(1, 1, 1)]]
        await world.log.end(P, ABORT)  # 3
        await set_up_group(world.client, {"share.isolation.level": "read_committed"})
        await world.acknowledge([(1, 1, 1)], RELEASE)
        await world.take(2)
        share_partition = (await world.loaded()).engine
        assert share_partition is not None
        assert share_partition.start_offset >= 3
