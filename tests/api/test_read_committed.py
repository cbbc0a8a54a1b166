"""Fetch and ListOffsets at both isolation levels, over transactions that the test writes itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
import trio

from kbroker.api import APIS
from kbroker.formats.transactions import MarkerType
from tests.api.conftest import Client, Connect
from tests.api.producing import fetch
from tests.api.test_list_offsets import rows
from tests.broker.transactional_log import Log

ABORT, COMMIT = MarkerType.ABORT, MarkerType.COMMIT
P, Q = 5, 6
LATEST, MAX_TIMESTAMP = -1, -3


class World(NamedTuple):
    client: Client
    topic_id: Any
    log: Log

    async def fetch(self, offset: int, *, committed: bool = True, version: int = 18, **more: Any) -> Any:
        name = self.topic_id if version >= 13 else "a"
        answer = await fetch(
            self.client, name, offset, version=version, isolation_level=int(committed), **more
        )
        return answer.responses[0].partitions[0]

    async def find(self, *timestamps: int) -> list[int]:
        """The offsets that ListOffsets finds, with read_committed."""
        found = [(await rows(self.client, (0, timestamp)))[0] for timestamp in timestamps]
        assert not any(row.error_code for row in found)
        return [row.offset for row in found]


@asynccontextmanager
async def opened(connect: Connect, engine: str = "segment") -> AsyncIterator[World]:
    async with connect(engine) as client:
        topic = await client.create_topic("a")
        await client.partition("a").load_producers()
        yield World(client, topic.topic_id, Log(client.partition("a")))


def offsets(row: Any) -> list[int]:
    """Of the batches; each has one record."""
    found, data = [], row.records or b""
    while data:
        found.append(int.from_bytes(data[:8], "big"))
        data = data[12 + int.from_bytes(data[8:12], "big") :]
    return found


def aborted(row: Any) -> list[tuple[int, int]] | None:
    found = row.aborted_transactions
    return None if found is None else [(each.producer_id, each.first_offset) for each in found]


@pytest.mark.parametrize("version", range(APIS[1].first, APIS[1].last + 1))
async def test_both_levels_in_every_version(connect: Connect, version: int) -> None:
    async with opened(connect) as world:
        await world.log.send(P)  # 0
        await world.log.send(Q)  # 1
        await world.log.end(P, ABORT)  # 2
        committed = await world.fetch(0, version=version)
        every = await world.fetch(0, version=version, committed=False)
        for row in (committed, every):
            assert (row.error_code, row.high_watermark, row.last_stable_offset) == (0, 3, 1)
        assert (offsets(committed), aborted(committed)) == ([0], [(P, 0)])
        assert (offsets(every), aborted(every)) == ([0, 1, 2], None)


async def test_a_reader_waits_for_the_end_of_a_transaction(connect: Connect, every_engine: str) -> None:
    async with opened(connect, every_engine) as world:
        await world.log.send(P)
        row = await world.fetch(0, wait_ms=0)
        assert (offsets(row), aborted(row), row.last_stable_offset) == ([], [], 0)
        found = []

        async def wait() -> None:
            found.append(await world.fetch(0, wait_ms=60_000))

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked(0.05)
                await world.log.send(Q, transactional=False)
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert found == []
                await world.log.end(P, COMMIT)
        assert (offsets(found[0]), found[0].last_stable_offset) == ([0, 1, 2], 3)


@pytest.mark.parametrize(
    ("first", "max_bytes", "wanted"),
    [
        (0, 1, [(P, 0)]),
        (1, 1, [(P, 0), (Q, 1)]),
        (2, 1, [(P, 0), (Q, 1)]),
        (3, 1, [(P, 0), (Q, 1)]),
        (4, 1, [(Q, 1)]),
        (5, 1, [(Q, 1)]),
        (6, 1, []),
        (0, 1 << 20, [(P, 0), (Q, 1)]),
        (5, 1 << 20, [(Q, 1)]),
    ],
)
async def test_what_was_aborted_between_the_records_of_an_answer(
    connect: Connect, first: int, max_bytes: int, wanted: list[tuple[int, int]]
) -> None:
    async with opened(connect) as world:
        await world.log.send(P)  # 0
        await world.log.send(Q)  # 1
        await world.log.send(P)  # 2
        await world.log.end(P, ABORT)  # 3
        await world.log.send(Q)  # 4
        await world.log.end(Q, ABORT)  # 5
        await world.log.send(P)  # 6
        await world.log.end(P, COMMIT)  # 7
        assert sorted(aborted(await world.fetch(first, partition_max_bytes=max_bytes)) or []) == wanted


async def test_list_offsets_ends_at_the_last_stable_offset(connect: Connect) -> None:
    """A marker has a time, and is found by it."""
    async with opened(connect) as world:
        await world.log.send(Q, transactional=False, timestamp_ms=1000)
        assert await world.find(LATEST, MAX_TIMESTAMP, 1000, 1001) == [1, 0, 0, -1]
        await world.log.send(P, timestamp_ms=2000)
        await world.log.send(Q, transactional=False, timestamp_ms=3000)
        assert await world.find(LATEST, MAX_TIMESTAMP, 1000, 1001, 3000) == [1, -1, 0, -1, -1]
        await world.log.end(P, COMMIT)
        assert await world.find(LATEST, MAX_TIMESTAMP, 1000, 1001, 3000) == [4, 3, 0, 1, 2]
