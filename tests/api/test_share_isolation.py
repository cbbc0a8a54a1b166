"""Share groups over logs with transactions, at both isolation levels. Members never get markers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from uuid import UUID

import trio
import trio.testing

from kbroker.formats.transactions import MarkerType
from tests.api.conftest import Connect
from tests.api.share_consumers import ACCEPT, Member, acquired, batches, prepare, set_up_group
from tests.broker.transactional_log import Log

ABORT, COMMIT = MarkerType.ABORT, MarkerType.COMMIT
P, Q = 5, 6
READ_COMMITTED = {"share.isolation.level": "read_committed"}


class World(NamedTuple):
    key: tuple[UUID, int]
    log: Log
    member: Member

    async def fetch(self, *, wait_ms: int = 5000) -> Any:
        add = [self.key] if self.member.epoch == 0 else []
        return await self.member.fetch(add, wait_ms=wait_ms)

    @asynccontextmanager
    async def waiting_fetch(self) -> AsyncIterator[list[tuple[int, int, int]]]:
        """A fetch that waits until the body has ended; the ranges that it acquires then."""
        found: list[tuple[int, int, int]] = []

        async def fetch() -> None:
            found.extend(acquired(await self.fetch(wait_ms=60_000)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert len(nursery.child_tasks) == 1, "it was answered at once"
            yield found


@asynccontextmanager
async def opened(connect: Connect, *, committed: bool) -> AsyncIterator[World]:
    """A group that begins at offset 0 of an empty log."""
    async with connect() as client:
        key = await prepare(client)
        await set_up_group(client, READ_COMMITTED if committed else {})
        partition = client.partition("orders")
        await partition.load_producers()
        yield World(key, Log(partition), Member(client, "m"))


async def test_read_uncommitted_delivers_everything_but_markers(connect: Connect) -> None:
    """ISO-1, FET-37: also records of open and aborted transactions."""
    async with opened(connect, committed=False) as world:
        await world.log.send(P)  # 0
        await world.log.end(P, ABORT)  # 1
        await world.log.send(P)  # 2
        await world.log.send(Q, transactional=False)  # 3
        assert acquired(await world.fetch()) == [(0, 0, 1), (2, 3, 1)]


async def test_read_committed_passes_over_aborted_records(connect: Connect) -> None:
    """ISO-2, ISO-3, FET-37. Their bytes are sent only between acquired records."""
    async with opened(connect, committed=True) as world:
        await world.log.send(P)  # 0
        await world.log.send(Q)  # 1
        await world.log.send(P)  # 2
        await world.log.send(Q)  # 3
        await world.log.end(P, ABORT)  # 4
        await world.log.end(Q, COMMIT)  # 5
        answer = await world.fetch()
        assert acquired(answer) == [(1, 1, 1), (3, 3, 1)]
        assert batches(answer)[0] == (1, 1)
        assert batches(answer)[-1] == (3, 3)
        await world.member.acknowledge({world.key: [(1, 1, [ACCEPT]), (3, 3, [ACCEPT])]})
        await world.log.send(P)  # 6
        await world.log.end(P, COMMIT)  # 7
        assert acquired(await world.fetch()) == [(6, 6, 1)]


async def test_an_open_transaction_holds_back_all_records_behind_it(connect: Connect) -> None:
    """ISO-6. Its end wakes a fetch that waits."""
    async with opened(connect, committed=True) as world:
        await world.log.send(Q, transactional=False)  # 0
        await world.log.send(P)  # 1
        await world.log.send(Q, transactional=False)  # 2
        assert acquired(await world.fetch()) == [(0, 0, 1)]
        async with world.waiting_fetch() as found:
            await world.log.end(P, COMMIT)  # 3
        assert found == [(1, 2, 1)]


async def test_a_fetch_that_finds_only_aborted_records_continues_to_wait(connect: Connect) -> None:
    """ISO-5."""
    async with opened(connect, committed=True) as world:
        await world.log.send(Q, transactional=False)  # 0
        assert acquired(await world.fetch()) == [(0, 0, 1)]
        await world.log.send(P)  # 1
        await world.log.end(P, ABORT)  # 2
        async with world.waiting_fetch() as found:
            await world.log.send(Q, transactional=False)  # 3
        assert found == [(3, 3, 1)]
