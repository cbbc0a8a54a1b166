"""For tests of group commit: a store that fails on demand, and its committer."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from kbroker.broker.commits.group_commit import GroupCommit


class FakeStore:
    """Records its calls and fails on demand; `gate` blocks the sync until it is opened."""

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
    store: FakeStore,
    *,
    in_thread: bool = False,
    beside_sync: bool = False,
    waits: Callable[[list[str]], bool] | None = None,
    durability: str = "disk",
    sync_interval_s: float = 0.05,
) -> AsyncIterator[GroupCommit[str]]:
    store.beside_sync = beside_sync
    commits: GroupCommit[str] = GroupCommit(
        "test",
        store.write,
        store.sync,
        in_thread=in_thread,
        beside_sync=beside_sync,
        waits=waits,
        durability=durability,
        sync_interval_s=sync_interval_s,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commits.run)
        await trio.testing.wait_all_tasks_blocked()
        yield commits
        store.gate.set()
        commits.close()


def noting(notes: list[str], name: str) -> Callable[[Exception | None], None]:
    return lambda error: notes.append(name if error is None else f"{name}:{type(error).__name__}")


async def become_known_to_write_alone(commits: GroupCommit[str]) -> None:
    for _ in range(2):
        await submit_and_start(commits, "before", [])
        await commits.commit([])


async def submit_and_start(commits: GroupCommit[str], name: str, notes: list[str]) -> None:
    commits.enqueue([name], noting(notes, name))
    commits.start()
