"""Group commit: the order of notifications, the extent of a failure, and that the store never gets
two calls at once."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Sequence

import pytest
import trio

from kbroker.errors import NoFiles, NoSpace, StoreFailed
from tests.broker.commits.committing import (
    FakeStore,
    become_known_to_write_alone,
    committing,
    noting,
    submit_and_start,
)


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


async def test_nothing_is_done_before_the_sync() -> None:
    store = FakeStore()
    notes: list[str] = []
    async with committing(store) as commits:
        store.gate.clear()
        commits.submit(["a"], noting(notes, "done"))
        await trio.testing.wait_all_tasks_blocked()
        assert (store.written, notes) == (["a"], [])
        store.gate.set()
        await commits.commit(["b"])
    assert notes == ["done"]


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


async def test_a_lack_of_open_files_is_not_called_a_full_disk(caplog: pytest.LogCaptureFixture) -> None:
    store = FakeStore()
    async with committing(store) as commits:
        store.fail_write = NoFiles("cannot write: raise ulimit -n")
        with pytest.raises(NoFiles):
            await commits.commit(["a"])
        await commits.commit(["b"])
    assert "no more open files, writes are refused: cannot write: raise ulimit -n" in caplog.text
    assert "disk" not in caplog.text
    assert store.synced == ["b"]


@pytest.mark.parametrize("durability", ["disk", "os"])
async def test_a_write_that_waits_runs_in_the_thread(durability: str) -> None:
    """Its writer is notified in the usual order; a full disk refuses it like any other."""
    store = FakeStore()
    notes: list[str] = []
    async with committing(store, waits=lambda items: "large" in items, durability=durability) as commits:
        await commits.commit(["small"])
        assert store.threads == {threading.get_ident()}
        store.threads.clear()
        commits.submit(["large"], noting(notes, "large"))
        await commits.commit([])
        assert notes == ["large"]
        assert threading.get_ident() not in store.threads
        await commits.commit(["next"])
        assert threading.get_ident() in store.threads
        store.fail_write = NoSpace("full")
        with pytest.raises(NoSpace):
            await commits.commit(["large"])
        await commits.commit(["large"])
        await commits.flush()
    assert store.synced == ["small", "large", "next", "large"]


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


async def test_a_deferred_write_joins_the_next_one() -> None:
    store = FakeStore()
    async with committing(store) as commits:
        commits.defer(["a"])
        await trio.testing.wait_all_tasks_blocked()
        assert store.groups == []
        await commits.commit(["b"])
        assert store.groups == [["a", "b"]]
        assert commits.statistics().syncs == 1


async def test_a_deferred_write_does_not_wait_for_long(autojump_clock: trio.testing.MockClock) -> None:
    store = FakeStore()
    async with committing(store) as commits:
        for name in "ab":
            commits.defer([name])
            await trio.sleep(0.2)
            # The sync runs in a thread, which this clock does not see.
            await commits.commit([])
            assert store.synced[-1] == name
    assert store.groups == [["a"], ["b"]]


@pytest.mark.parametrize("durability", ["os", "disk"])
async def test_a_deferred_write_is_not_lost_at_the_end(durability: str) -> None:
    store = FakeStore()
    async with committing(store, beside_sync=True, durability=durability) as commits:
        commits.defer(["a"])
    assert store.synced == ["a"]


async def test_a_deferred_write_that_is_refused_is_dropped() -> None:
    store = FakeStore()
    async with committing(store) as commits:
        store.fail_write = NoSpace("full")
        commits.defer(["a"])
        with pytest.raises(NoSpace):
            await commits.commit(["b"])
        await commits.commit(["c"])
    assert store.written == ["c"]


async def test_durability_os_is_synced_under_load_too() -> None:
    """Whenever a write in the thread ends, the next one is already queued."""
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
    async with (
        committing(store, beside_sync=True, durability="os") as commits,
        trio.open_nursery() as nursery,
    ):
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


async def test_an_error_that_no_write_may_raise_ends_the_committer() -> None:
    """The broker ends with it, as the waiting writers would never be notified."""
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
    """Engines in Rust raise it; it is not an Exception."""


@pytest.mark.parametrize("crash", [ZeroDivisionError("a bug"), Panic("engine")])
@pytest.mark.parametrize("in_thread", [False, True])
async def test_an_error_that_no_sync_may_raise_ends_the_committer(
    in_thread: bool, crash: BaseException
) -> None:
    store = FakeStore()
    notes: list[str] = []
    with pytest.RaisesGroup(type(crash), flatten_subgroups=True):
        async with committing(store, in_thread=in_thread) as commits:
            await become_known_to_write_alone(commits)
            store.fail_sync = crash
            await submit_and_start(commits, "a", notes)
            await trio.sleep_forever()
    assert notes == ["a:StoreFailed"]


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
            assert (store.written, notes) == (["a"], [])
            trio.lowlevel.current_trio_token().run_sync_soon(store.gate.set)
            raise ZeroDivisionError
    assert notes == ["a"]


@pytest.mark.parametrize("crash", [ZeroDivisionError("a bug"), Panic("a bug")])
async def test_nobody_waits_for_a_committer_that_has_ended(crash: BaseException) -> None:
    """Neither operations nor writes can be cancelled: otherwise the broker could not stop."""
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


@pytest.mark.parametrize("start", [True, False])
async def test_what_comes_after_the_committer_has_ended_is_refused(start: bool) -> None:
    """Refused later, not inside the call: the submitter may not be ready for its callback. Writes
    submitted by the callback of a refused one are refused, too."""
    notes: list[str] = []
    store = FakeStore()

    def again(error: Exception | None) -> None:
        noting(notes, "a")(error)
        commits.submit(["b"], noting(notes, "b"))

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with committing(store) as commits:
            store.fail_sync = ZeroDivisionError("a bug")
            commits.submit(["a"], again)
            await trio.sleep_forever()
    (commits.submit if start else commits.enqueue)(["c"], noting(notes, "c"))
    commits.start()
    assert "c:StoreFailed" not in notes
    with trio.fail_after(10):
        with pytest.raises(StoreFailed):
            await commits.commit(["d"])
    assert notes == ["a:StoreFailed", "b:StoreFailed", "c:StoreFailed"]
    assert store.groups == [["a"]]
