"""GroupCommit.flush with durability `os`: what it covers, what waits for it, and what does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from kbroker.errors import StoreFailed
from tests.broker.commits.committing import FakeStore, committing, noting

PATIENCE_S = 10
SELDOM_S = 60
"""No sync in the background during a test."""


@pytest.mark.parametrize("beside_sync", [False, True])
async def test_a_flush_covers_what_was_submitted_before(beside_sync: bool) -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(
        store, beside_sync=beside_sync, durability="os", sync_interval_s=SELDOM_S
    ) as commits:
        commits.submit(["a"], noting(notes, "a"))
        with trio.fail_after(PATIENCE_S):
            await commits.flush()
        assert (notes, store.synced) == (["a"], ["a"])
        assert commits.statistics().syncs == 1


async def test_writes_go_on_during_a_flush() -> None:
    store = FakeStore()
    async with (
        committing(store, beside_sync=True, durability="os", sync_interval_s=SELDOM_S) as commits,
        trio.open_nursery() as nursery,
    ):
        await commits.commit(["a"])
        store.gate.clear()
        nursery.start_soon(commits.flush)
        with trio.fail_after(PATIENCE_S):
            await store.is_syncing.wait()
            await commits.commit(["b"])
        assert store.busy
        store.gate.set()
    assert store.written == ["a", "b"]


async def test_flushes_that_wait_share_a_sync() -> None:
    """Those that come during a sync need another one: what they cover may have been written after
    it began."""
    store = FakeStore()
    flushed: list[str] = []
    async with committing(store, beside_sync=True, durability="os", sync_interval_s=SELDOM_S) as commits:

        async def write_and_flush(name: str) -> None:
            await commits.commit([name])
            await commits.flush()
            assert name in store.synced
            flushed.append(name)

        store.gate.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_and_flush, "a")
            with trio.fail_after(PATIENCE_S):
                await store.is_syncing.wait()
            for name in "bcd":
                nursery.start_soon(write_and_flush, name)
            await trio.testing.wait_all_tasks_blocked()
            assert (flushed, sorted(store.written)) == ([], ["a", "b", "c", "d"])
            store.gate.set()
        assert sorted(flushed) == ["a", "b", "c", "d"]
        assert commits.statistics().syncs == 2


async def test_a_failed_flush_ends_all_writing_and_is_told_to_all_who_wait() -> None:
    store = FakeStore()
    told: list[str] = []
    async with committing(store, beside_sync=True, durability="os", sync_interval_s=SELDOM_S) as commits:

        async def refused(call: Callable[[], Awaitable[object]]) -> None:
            with pytest.raises(StoreFailed, match="EIO"):
                await call()
            told.append("refused")

        await commits.commit(["a"])
        store.gate.clear()
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(refused, commits.flush)
                await trio.testing.wait_all_tasks_blocked()
            store.fail_sync = StoreFailed("EIO")
            store.gate.set()
        assert told == ["refused", "refused"]
        await refused(lambda: commits.commit(["b"]))
        await refused(commits.flush)
    assert store.written == ["a"]


async def test_a_panic_of_an_engine_in_a_flush_ends_the_committer() -> None:
    class Panic(BaseException):
        pass

    store = FakeStore()
    with pytest.RaisesGroup(Panic, flatten_subgroups=True):
        async with committing(store, beside_sync=True, durability="os", sync_interval_s=SELDOM_S) as commits:
            store.fail_sync = Panic("rust")
            with pytest.raises(StoreFailed, match="rust"):
                await commits.flush()


async def test_a_flush_is_not_cancelled() -> None:
    """Its caller may then do what must not happen before the sync."""
    store = FakeStore()
    async with committing(store, beside_sync=True, durability="os", sync_interval_s=SELDOM_S) as commits:
        await commits.commit(["a"])
        store.gate.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commits.flush)
            with trio.fail_after(PATIENCE_S):
                await store.is_syncing.wait()
            nursery.cancel_scope.cancel()
            store.gate.set()
        assert store.synced == ["a"]
