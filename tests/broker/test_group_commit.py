"""Group commit: what is told when, what a failure takes with it, and that the store is never asked two things at once."""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext

import pytest
import trio

from kbroker.broker.group_commit import GroupCommit
from kbroker.errors import NoSpace, StoreFailed


class FakeStore:
    """Notes what it is asked, and fails on demand; `gate` holds the sync back until it is opened."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.synced: list[str] = []
        self.written: list[str] = []
        self.threads: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.fail_write: Exception | None = None
        self.fail_sync: BaseException | None = None
        self.busy = False
        self.token = trio.lowlevel.current_trio_token()
        self.beside_sync = False
        self.has_synced = trio.Event()
        self.is_syncing = trio.Event()

    def write(self, items: list[str]) -> None:
        assert not self.busy or self.beside_sync
        self.threads.add(threading.get_ident())
        if self.fail_write is not None:
            error, self.fail_write = self.fail_write, None
            raise error
        self.groups.append(list(items))
        self.written += items

    def sync(self) -> None:
        assert not self.busy
        self.busy = True
        covered = list(self.written)
        self.token.run_sync_soon(self.is_syncing.set)
        assert self.gate.wait(10)
        self.busy = False
        if self.fail_sync is not None:
            raise self.fail_sync
        self.synced = covered
        self.token.run_sync_soon(self.has_synced.set)


@asynccontextmanager
async def committing(
    store: FakeStore, *, in_thread: bool = False, beside_sync: bool = False, durability: str = "disk"
) -> AsyncIterator[GroupCommit[str]]:
    store.beside_sync = beside_sync
    commits: GroupCommit[str] = GroupCommit(
        "test", store.write, store.sync, in_thread=in_thread, beside_sync=beside_sync, durability=durability, sync_interval_s=0.05
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commits.run)
        await trio.testing.wait_all_tasks_blocked()
        yield commits
        store.gate.set()
        commits.close()


def noting(notes: list[str], name: str) -> Callable[[Exception | None], None]:
    return lambda error: notes.append(name if error is None else f"{name}:{type(error).__name__}")


@pytest.mark.parametrize("in_thread", [False, True])
async def test_done_means_written_and_synced(in_thread: bool) -> None:
    store = FakeStore()
    async with committing(store, in_thread=in_thread) as commits:
        await commits.commit(["a", "b"])
        assert store.synced == ["a", "b"]
    loop_thread = threading.get_ident()
    assert (loop_thread in store.threads) is not in_thread


async def test_what_gathers_during_a_commit_is_one_group() -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store) as commits:
        store.gate.clear()
        commits.submit(["a"], noting(notes, "a"))
        await trio.testing.wait_all_tasks_blocked()
        for name in ("b", "c", "d"):
            commits.submit([name], noting(notes, name))
        assert notes == []
        store.gate.set()
        await commits.commit(["e"])
    assert store.groups == [["a"], ["b", "c", "d", "e"]]
    assert notes == ["a", "b", "c", "d"]


async def test_entries_of_one_tick_are_one_group() -> None:
    store = FakeStore()
    async with committing(store) as commits, trio.open_nursery() as nursery:
        for name in ("a", "b", "c"):
            nursery.start_soon(commits.commit, [name])
    assert sorted(store.groups[0]) == ["a", "b", "c"]


async def test_written_is_told_before_the_sync() -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store) as commits:
        store.gate.clear()
        commits.submit(["a"], noting(notes, "done"), lambda: notes.append("written"))
        await trio.testing.wait_all_tasks_blocked()
        assert notes == ["written"]
        store.gate.set()
        await commits.commit(["b"])
    assert notes == ["written", "done"]


async def test_os_durability_does_not_wait_for_the_sync_but_syncs_later() -> None:
    store = FakeStore()
    async with committing(store, durability="os") as commits:
        await commits.commit(["a"])
        assert store.synced == []
        with trio.fail_after(5):
            await store.has_synced.wait()
        assert store.synced == ["a"]
        await commits.commit(["b"])
    assert store.synced == ["a", "b"], "closing syncs what is left"


async def test_no_space_refuses_the_group_and_all_behind_it_and_then_goes_on() -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store) as commits:
        store.gate.clear()
        commits.submit(["a"], noting(notes, "a"))
        await trio.testing.wait_all_tasks_blocked()
        commits.submit(["b"], noting(notes, "b"))
        store.fail_write = NoSpace("full")

        def refused(error: Exception | None) -> None:
            noting(notes, "c")(error)

        commits.submit(["c"], refused)
        store.gate.set()
        with pytest.raises(NoSpace):
            await commits.commit(["d"])
        assert notes == ["a", "b:NoSpace", "c:NoSpace"]
        await commits.commit(["e"])
        assert commits.statistics().refused == 3
    assert store.synced == ["a", "e"]


async def test_a_full_disk_is_reported_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    store = FakeStore()
    async with committing(store) as commits:
        for _ in range(100):
            store.fail_write = NoSpace("full")
            with pytest.raises(NoSpace):
                await commits.commit(["a"])
        for _ in range(3):
            await commits.commit(["b"])
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "100 writes were refused" in caplog.records[1].getMessage()


async def test_a_failed_sync_ends_all_writing() -> None:
    store = FakeStore()
    async with committing(store) as commits:
        store.fail_sync = StoreFailed("EIO")
        with pytest.raises(StoreFailed):
            await commits.commit(["a"])
        store.fail_sync = None
        with pytest.raises(StoreFailed):
            await commits.commit(["b"])
        with pytest.raises(StoreFailed):
            await commits.perform(lambda: None)
        assert commits.failed
        assert commits.statistics().failed == "EIO"
    assert store.groups == [["a"]], "nothing is written after the failure"


async def test_operations_run_between_commits() -> None:
    store = FakeStore()
    order: Sequence[str]
    async with committing(store) as commits:
        store.gate.clear()
        notes: list[str] = []
        commits.submit(["a"], noting(notes, "a"))
        await trio.testing.wait_all_tasks_blocked()

        def operation() -> str:
            assert not store.busy
            notes.append("operation")
            return "answer"

        async def ask() -> None:
            assert await commits.perform(operation) == "answer"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            assert notes == []
            store.gate.set()
        order = list(notes)
    assert order == ["a", "operation"]


async def test_an_operation_that_raises_is_its_callers_business() -> None:
    store = FakeStore()

    def broken() -> None:
        raise KeyError("no such log")

    async with committing(store) as commits:
        with pytest.raises(KeyError):
            await commits.perform(broken)
        await commits.commit(["a"])
    assert store.synced == ["a"]


async def test_nothing_to_write_is_done_after_everything_before_it() -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store) as commits:
        store.gate.clear()
        commits.submit(["a"], noting(notes, "a"))
        await trio.testing.wait_all_tasks_blocked()
        commits.submit([], noting(notes, "empty"))
        await trio.testing.wait_all_tasks_blocked()
        assert notes == []
        store.gate.set()
        await commits.commit([])
    assert notes == ["a", "empty"]
    assert store.groups == [["a"]]


async def test_durability_os_is_synced_under_load_too() -> None:
    """Whenever a write in the thread ends, the next one is queued already."""
    store = FakeStore()
    async with committing(store, in_thread=True, durability="os") as commits:

        def write_on(_: Exception | None) -> None:
            if not store.has_synced.is_set():
                commits.submit(["a"], write_on)

        write_on(None)
        with trio.move_on_after(10):
            await store.has_synced.wait()
        is_synced = bool(store.synced)
        store.has_synced.set()
    assert is_synced


async def test_durability_os_answers_while_the_background_sync_runs() -> None:
    store = FakeStore()
    async with committing(store, beside_sync=True, durability="os") as commits:
        store.gate.clear()
        await commits.commit(["a"])
        with trio.fail_after(10):
            await store.is_syncing.wait()
            await commits.commit(["b"])
        assert store.busy
        assert store.synced == []
        assert store.written == ["a", "b"]
    assert store.synced == ["a", "b"], "closing syncs what was written during a sync"


async def test_durability_os_waits_where_the_engine_allows_no_write_beside_a_sync() -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store, durability="os") as commits:
        store.gate.clear()
        await commits.commit(["a"])
        with trio.fail_after(10):
            await store.is_syncing.wait()
        commits.submit(["b"], noting(notes, "b"))
        await trio.testing.wait_all_tasks_blocked()
        assert (notes, store.written) == ([], ["a"])
    assert notes == ["b"]
    assert store.synced == ["a", "b"]


async def test_an_operation_waits_for_the_background_sync() -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store, beside_sync=True, durability="os") as commits, trio.open_nursery() as nursery:
        store.gate.clear()
        await commits.commit(["a"])
        with trio.fail_after(10):
            await store.is_syncing.wait()

        async def ask() -> None:
            await commits.perform(lambda: notes.append("busy" if store.busy else "idle"))

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert notes == []
        store.gate.set()
    assert notes == ["idle"]


async def test_a_failed_background_sync_ends_all_writing() -> None:
    store = FakeStore()
    async with committing(store, beside_sync=True, durability="os") as commits:
        store.gate.clear()
        store.fail_sync = StoreFailed("EIO")
        await commits.commit(["a"])
        with trio.fail_after(10):
            await store.is_syncing.wait()
        await commits.commit(["b"])
        store.gate.set()
        with trio.fail_after(10):
            while not commits.failed:
                await trio.testing.wait_all_tasks_blocked(0.01)
        with pytest.raises(StoreFailed):
            await commits.commit(["c"])
    assert store.written == ["a", "b"]
    assert store.synced == []


async def become_known_to_write_alone(commits: GroupCommit[str]) -> None:
    for _ in range(2):
        await submit_and_start(commits, "before", [])
        await commits.commit([])


async def submit_and_start(commits: GroupCommit[str], name: str, notes: list[str]) -> None:
    commits.submit([name], noting(notes, name), lambda: notes.append(f"{name} written"), start=False)
    commits.start()


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
        assert notes == ["a written", "a", "b written", "b", "c written", "c"]
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
    assert notes == ["a written", "a"]


async def test_a_task_that_writes_alone_begins_the_sync_at_once() -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store) as commits:
        await become_known_to_write_alone(commits)
        del store.groups[:]
        store.gate.clear()
        await submit_and_start(commits, "a", notes)
        assert notes == ["a written"]
        await submit_and_start(commits, "b", notes)
        await trio.testing.wait_all_tasks_blocked()
        assert store.groups == [["a"]], "one group at a time"
        store.gate.set()
        await commits.commit(["c"])
    assert notes == ["a written", "a", "b written", "b"]
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
    assert notes == ["a written", "a", "b written", "b", "operation", "c written", "c"]


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
        assert notes == ["a written"]
    assert notes == ["a written", "a", "b written", "b"]


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
    assert notes == ["a written", *(f"{name}:{type(error).__name__}" for name in "abc")]


@pytest.mark.parametrize("error", [NoSpace("full"), StoreFailed("EIO"), None])
@pytest.mark.parametrize("is_closing", [False, True])
async def test_what_is_behind_a_group_that_ends_at_once_is_not_forgotten(error: Exception | None, is_closing: bool) -> None:
    """Refused, or without anything to write: no thread will say that it has ended."""
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
            commits.submit([] if error is None else ["b"], noting(notes, "b"), start=False)
            commits.start()
            commits.close() if is_closing else nursery.start_soon(operate, commits)
            await trio.testing.wait_all_tasks_blocked()
            store.gate.set()
    outcome = "b" if error is None else f"b:{type(error).__name__}"
    operation = [] if is_closing or isinstance(error, StoreFailed) else ["operation"]
    assert notes == ["a written", "a", outcome, *operation]


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("durability", ["os", "disk"])
async def test_a_group_that_has_been_told_is_kept_by_nobody(in_thread: bool, durability: str) -> None:
    """It holds whole requests, of any size."""

    class Done:
        def __call__(self, error: Exception | None) -> None:
            assert error is None

    store = FakeStore()
    async with committing(store, in_thread=in_thread, durability=durability) as commits:
        told: list[weakref.ref[Done]] = []
        for _ in range(5):
            done = Done()
            told.append(weakref.ref(done))
            commits.submit(["a"], done, start=False)
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
async def test_two_tasks_that_write_in_the_same_ticks_are_one_group_in_whatever_order(durability: str) -> None:
    store = FakeStore()
    async with committing(store, durability=durability) as commits, trio.open_nursery() as nursery:
        turn = trio.Event()

        async def write(name: str) -> None:
            for _ in range(20):
                commits.submit([name], lambda _: None, start=False)
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
        assert notes == ["a written", "a"]
        store.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        await commits.commit([])
    assert notes == ["a written", "a", "operation", "b written", "b"]


async def test_a_write_at_once_is_refused_with_all_that_is_queued() -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store, durability="os") as commits:
        await become_known_to_write_alone(commits)
        commits.submit(["b"], noting(notes, "b"), start=False)
        store.fail_write = NoSpace("full")
        await submit_and_start(commits, "c", notes)
        assert notes == ["b:NoSpace", "c:NoSpace"]
        await submit_and_start(commits, "d", notes)
    assert notes[2:] == ["d written", "d"]


async def test_an_error_that_no_write_may_raise_ends_the_committer() -> None:
    """The broker ends with it, as whoever was to be told never will be."""
    store = FakeStore()
    notes: list[str] = []
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with committing(store, durability="os") as commits:
            await become_known_to_write_alone(commits)
            store.fail_write = ZeroDivisionError("a bug")
            await submit_and_start(commits, "b", notes)
            await trio.sleep_forever()
    assert notes == ["b:StoreFailed"]


class Panic(BaseException):
    """What engines in Rust raise: no Exception."""


@pytest.mark.parametrize("crash", [ZeroDivisionError("a bug"), Panic("engine")])
@pytest.mark.parametrize("in_thread", [False, True])
async def test_an_error_that_no_sync_may_raise_ends_the_committer(in_thread: bool, crash: BaseException) -> None:
    store = FakeStore()
    notes: list[str] = []
    with pytest.RaisesGroup(type(crash), flatten_subgroups=True):
        async with committing(store, in_thread=in_thread) as commits:
            await become_known_to_write_alone(commits)
            store.fail_sync = crash
            await submit_and_start(commits, "a", notes)
            await trio.sleep_forever()
    assert notes == [*([] if in_thread else ["a written"]), "a:StoreFailed"]


@pytest.mark.parametrize("durability", ["os", "disk"])
async def test_a_callback_that_raises_ends_the_committer(durability: str) -> None:
    store = FakeStore()

    def broken(_: Exception | None) -> None:
        raise ZeroDivisionError("a bug")

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with committing(store, durability=durability) as commits:
            commits.submit(["a"], broken)
            await trio.sleep_forever()


async def test_what_a_callback_submits_comes_after_its_group() -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store) as commits:

        def submit_more(error: Exception | None) -> None:
            notes.append("a")
            commits.submit(["c"], noting(notes, "c"))

        commits.submit(["a"], submit_more)
        await commits.commit(["b"])
        notes.append("b")
        await commits.commit([])
    assert notes == ["a", "b", "c"]
    assert store.groups == [["a", "b"], ["c"]]


async def test_a_group_in_the_thread_is_told_even_when_the_committer_ends_with_an_error() -> None:
    store = FakeStore()
    notes: list[str] = []
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with committing(store) as commits, trio.open_nursery() as nursery:
            store.gate.clear()
            nursery.start_soon(submit_and_start, commits, "a", notes)
            await trio.testing.wait_all_tasks_blocked()
            assert notes == ["a written"]
            trio.lowlevel.current_trio_token().run_sync_soon(store.gate.set)
            raise ZeroDivisionError
    assert notes == ["a written", "a"]


@pytest.mark.parametrize("crash", [ZeroDivisionError("a bug"), Panic("a bug")])
async def test_nobody_waits_for_a_committer_that_has_ended(crash: BaseException) -> None:
    """Neither operations nor writes can be cancelled: the broker could not end."""
    store = FakeStore()
    notes: list[str] = []

    async def refused(call: Awaitable[object]) -> None:
        with pytest.raises(StoreFailed):
            await call
        notes.append("refused")

    with pytest.RaisesGroup(type(crash), flatten_subgroups=True), trio.fail_after(10):
        async with trio.open_nursery() as nursery, committing(store) as commits:
            store.gate.clear()
            commits.submit(["a"], noting(notes, "a"))
            await trio.testing.wait_all_tasks_blocked()
            store.fail_sync = crash
            nursery.start_soon(refused, commits.perform(lambda: notes.append("operation")))
            commits.submit(["b"], noting(notes, "b"))
            nursery.start_soon(refused, commits.commit(["c"]))
            await trio.testing.wait_all_tasks_blocked()
            store.gate.set()
            await trio.sleep_forever()
    assert sorted(notes) == ["a:StoreFailed", "b:StoreFailed", "refused", "refused"]
