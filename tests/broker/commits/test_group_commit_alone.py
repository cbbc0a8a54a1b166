"""Group commit when a single task writes: its groups begin within its own turn of the loop, and
nothing else changes."""

from __future__ import annotations

import weakref
from contextlib import nullcontext

import pytest
import trio

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.errors import NoSpace, StoreFailed
from tests.broker.commits.committing import (
    FakeStore,
    become_known_to_write_alone,
    committing,
    noting,
    submit_and_start,
)


async def test_a_task_that_writes_alone_is_told_at_once() -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store, durability="os") as commits:
        for name in ("a", "b"):
            told = len(notes)
            await submit_and_start(commits, name, notes)
            assert len(notes) == told, "nobody knows yet whether it is alone"
            await trio.testing.wait_all_tasks_blocked()
        await submit_and_start(commits, "c", notes)
        assert notes == ["a", "b", "c"]
        commits.start()
        assert commits.statistics().groups == 3, "nothing was queued"


@pytest.mark.parametrize("durability", ["os", "disk"])
async def test_what_waits_for_the_thread_is_only_begun(durability: str) -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store, in_thread=True, durability=durability) as commits:
        await become_known_to_write_alone(commits)
        await submit_and_start(commits, "a", notes)
        assert notes == []
        await commits.commit([])
    assert notes == ["a"]


async def test_a_task_that_writes_alone_begins_the_sync_at_once() -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store) as commits:
        await become_known_to_write_alone(commits)
        del store.groups[:]
        store.gate.clear()
        await submit_and_start(commits, "a", notes)
        assert (store.groups, notes) == ([["a"]], [])
        await submit_and_start(commits, "b", notes)
        await trio.testing.wait_all_tasks_blocked()
        assert store.groups == [["a"]], "one group at a time"
        store.gate.set()
        await commits.commit(["c"])
    assert notes == ["a", "b"]
    assert store.groups == [["a"], ["b", "c"]]


async def test_what_is_behind_a_write_alone_keeps_its_order() -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store) as commits, trio.open_nursery() as nursery:
        await become_known_to_write_alone(commits)
        store.gate.clear()
        await submit_and_start(commits, "a", notes)
        await submit_and_start(commits, "b", notes)
        nursery.start_soon(commits.perform, lambda: notes.append("operation"))
        await trio.testing.wait_all_tasks_blocked()
        await submit_and_start(commits, "c", notes)
        store.gate.set()
        await commits.commit([])
    assert notes == ["a", "b", "operation", "c"]


async def test_closing_waits_for_a_write_alone_and_what_is_behind_it() -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store) as commits:
        await become_known_to_write_alone(commits)
        store.gate.clear()
        await submit_and_start(commits, "a", notes)
        await submit_and_start(commits, "b", notes)
        commits.close()
        await trio.testing.wait_all_tasks_blocked()
        assert (store.written[-1], notes) == ("a", [])
    assert notes == ["a", "b"]


@pytest.mark.parametrize("error", [NoSpace("full"), StoreFailed("EIO")])
async def test_a_write_alone_that_fails_refuses_all_behind_it(error: Exception) -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store) as commits:
        await become_known_to_write_alone(commits)
        store.gate.clear()
        await submit_and_start(commits, "a", notes)
        await submit_and_start(commits, "b", notes)
        await submit_and_start(commits, "c", notes)
        store.fail_sync = error
        store.gate.set()
        with pytest.raises(type(error)):
            await commits.commit(["d"])
        assert commits.failed is isinstance(error, StoreFailed)
    assert notes == [f"{name}:{type(error).__name__}" for name in "abc"]


@pytest.mark.parametrize("error", [NoSpace("full"), StoreFailed("EIO"), None])
@pytest.mark.parametrize("is_closing", [False, True])
async def test_what_is_behind_a_group_that_ends_at_once_is_not_forgotten(
    error: Exception | None, is_closing: bool
) -> None:
    """The group is refused, or has nothing to write: no thread will report its end."""
    store = FakeStore()
    notes: list[str] = []

    async def operate(commits: GroupCommit[str]) -> None:
        with pytest.raises(StoreFailed) if isinstance(error, StoreFailed) else nullcontext():
            await commits.perform(lambda: notes.append("operation"))

    with trio.fail_after(10):
        async with committing(store) as commits, trio.open_nursery() as nursery:
            await become_known_to_write_alone(commits)
            store.gate.clear()
            await submit_and_start(commits, "a", notes)
            store.fail_write = error
            commits.enqueue([] if error is None else ["b"], noting(notes, "b"))
            commits.start()
            commits.close() if is_closing else nursery.start_soon(operate, commits)
            await trio.testing.wait_all_tasks_blocked()
            store.gate.set()
    outcome = "b" if error is None else f"b:{type(error).__name__}"
    operation = [] if is_closing or isinstance(error, StoreFailed) else ["operation"]
    assert notes == ["a", outcome, *operation]


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("durability", ["os", "disk"])
async def test_a_group_that_has_been_told_is_kept_by_nobody(in_thread: bool, durability: str) -> None:
    """It contains whole requests, of any size."""

    class Done:
        def __call__(self, error: Exception | None) -> None:
            assert error is None

    store = FakeStore()
    async with committing(store, in_thread=in_thread, durability=durability) as commits:
        told: list[weakref.ref[Done]] = []
        for _ in range(5):
            done = Done()
            told.append(weakref.ref(done))
            commits.enqueue(["a"], done)
            commits.start()
            del done
            await commits.commit([])
            await trio.testing.wait_all_tasks_blocked()
        assert [each() for each in told] == [None] * 5


async def test_tasks_that_write_in_one_tick_are_one_group() -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store, durability="os") as commits:
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                for name in ("a", "b", "c"):
                    nursery.start_soon(submit_and_start, commits, name, notes)
            await trio.testing.wait_all_tasks_blocked()
    assert [sorted(group) for group in store.groups] == [["a", "b", "c"]] * 2


@pytest.mark.parametrize("durability", ["os", "disk"])
async def test_two_tasks_that_write_in_the_same_ticks_are_one_group_in_whatever_order(
    durability: str,
) -> None:
    store = FakeStore()
    async with committing(store, durability=durability) as commits, trio.open_nursery() as nursery:
        turn = trio.Event()

        async def write(name: str) -> None:
            for _ in range(20):
                commits.enqueue([name], lambda _: None)
                commits.start()
                await turn.wait()

        for name in ("a", "b"):
            nursery.start_soon(write, name)
        for _ in range(20):
            await trio.testing.wait_all_tasks_blocked()
            await commits.commit([])
            turn, ended = trio.Event(), turn
            ended.set()
    assert [sorted(group) for group in store.groups] == [["a", "b"]] * 20


async def test_what_is_started_keeps_its_place_behind_a_sync_and_operations() -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store, durability="os") as commits, trio.open_nursery() as nursery:
        await submit_and_start(commits, "a", notes)
        await trio.testing.wait_all_tasks_blocked()
        store.gate.clear()
        with trio.fail_after(10):
            await store.is_syncing.wait()
        nursery.start_soon(commits.perform, lambda: notes.append("operation"))
        await trio.testing.wait_all_tasks_blocked()
        await submit_and_start(commits, "b", notes)
        assert notes == ["a"]
        store.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        await commits.commit([])
    assert notes == ["a", "operation", "b"]


async def test_a_write_at_once_is_refused_with_all_that_is_queued() -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store, durability="os") as commits:
        await become_known_to_write_alone(commits)
        commits.enqueue(["b"], noting(notes, "b"))
        store.fail_write = NoSpace("full")
        await submit_and_start(commits, "c", notes)
        assert notes == ["b:NoSpace", "c:NoSpace"]
        await submit_and_start(commits, "d", notes)
    assert notes[2:] == ["d"]
