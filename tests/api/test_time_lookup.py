"""Look-ups by time leave the loop free: they read in threads, a few at a time, and stop between two
batches when cancelled."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
import trio.testing

from kbroker.broker.logs import time_lookup
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.time_lookup import OffsetAt, record_at_time, record_with_max_timestamp
from kbroker.errors import ErrorCode, KafkaError
from tests.api.conftest import Client, Connect

PATIENCE_S = 30


class HeldReads:
    """Stands in for a store's `read`: each call waits for a token of the test."""

    def __init__(self, read: Callable[..., Sequence[memoryview]]) -> None:
        self._read = read
        self._tokens = threading.Semaphore(0)
        self.calls = 0
        self._began, self._begins = trio.open_memory_channel[None](1000)
        self._trio = trio.lowlevel.current_trio_token()
        self._loop = threading.get_ident()

    def __call__(self, *arguments: object, **more: object) -> Sequence[memoryview]:
        assert threading.get_ident() != self._loop, "the loop reads"
        self._trio.run_sync_soon(self._began.send_nowait, None)
        assert self._tokens.acquire(timeout=PATIENCE_S)
        self.calls += 1
        return self._read(*arguments, **more)

    async def begun(self) -> None:
        """Wait until the next call waits."""
        with trio.fail_after(PATIENCE_S):
            await self._begins.receive()

    def go_on(self, calls: int = 1) -> None:
        self._tokens.release(calls)


def hold_reads(client: Client, monkeypatch: pytest.MonkeyPatch) -> HeldReads:
    held = HeldReads(client.broker.log_store.read)
    monkeypatch.setattr(client.broker.log_store, "read", held)
    return held


async def prepare(client: Client) -> None:
    """Three batches of two records."""
    await client.create_topic("a")
    for first_ms in (1000, 2000, 3000):
        await client.append("a", first_ms, first_ms + 10)


async def test_the_loop_goes_on_while_a_look_up_reads(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect() as client:
        await prepare(client)
        partition = client.partition("a")
        held = hold_reads(client, monkeypatch)
        found: dict[str, OffsetAt | None] = {}

        async def search(name: str, look_up: Callable[[], Awaitable[OffsetAt | None]]) -> None:
            found[name] = await look_up()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(search, "by time", lambda: record_at_time(partition, 2005))
            nursery.start_soon(
                search, "newest", lambda: record_with_max_timestamp(partition, client.broker.log_commits)
            )
            await held.begun()
            await held.begun()
            assert found == {}
            held.go_on(10)
        assert found == {"by time": (3, 2010), "newest": (5, 3010)}


async def test_few_look_ups_read_at_once(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connect() as client:
        await prepare(client)
        held = hold_reads(client, monkeypatch)
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(record_at_time, client.partition("a"), 1)
            for _ in range(time_lookup._SEARCHES_AT_ONCE):
                await held.begun()
            await trio.testing.wait_all_tasks_blocked()
            assert time_lookup._threads.statistics().tasks_waiting == 10 - time_lookup._SEARCHES_AT_ONCE
            held.go_on(10)
        assert held.calls == 10


async def test_a_cancelled_look_up_ends_with_the_batch_that_it_reads(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect() as client:
        await prepare(client)
        # all batches are to be searched
        monkeypatch.setattr(client.broker.log_store, "find_by_timestamp", lambda *_: 0)
        held = hold_reads(client, monkeypatch)
        scope = trio.CancelScope()

        async def search() -> None:
            with scope:
                await record_at_time(client.partition("a"), 3005)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(search)
            await held.begun()
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert nursery.child_tasks, "the thread is waited for: the store may be closed next"
            held.go_on(10)
        assert scope.cancelled_caught
        assert held.calls == 1
        monkeypatch.undo()
        assert await record_at_time(client.partition("a"), 3005) == (5, 3010)


async def test_a_topic_that_is_deleted_during_a_look_up(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect() as client:
        await prepare(client)
        partition = client.partition("a")
        held = hold_reads(client, monkeypatch)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect_unknown, partition)
            await held.begun()
            topic = client.broker.topics.by_name("a")
            assert topic is not None
            await client.broker.topics.delete(topic)
            held.go_on(10)


async def _expect_unknown(partition: Partition) -> None:
    with pytest.raises(KafkaError) as caught:
        await record_at_time(partition, 1005)
    assert caught.value.code is ErrorCode.unknown_topic_or_partition
