"""Writes record batches: the append alone, the append with its sync, and the broker's group commit
around both.

- *append*: `LogStore.write()` of batches of one log, one or many per write. The data is then
  written: it survives the process.
- *commit*: `write()` and `sync()` of several batches over 1 or 16 partitions. The data is then
  durable, as durability `disk` requires. The disk dominates the time.
- *group commit*: the same through the broker's queue and thread (broker/commits/group_commit.py).
  Every batch is a separate entry with its own waiter, so the difference to *commit* is the cost of
  the queue. With `os`, a group commit waits only for the write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest
import trio

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.storage.spi import LogId, LogStore, StampedBatch
from perf.parts.material import (
    KIB,
    LOG_ENGINES,
    MIB,
    NOW_MS,
    batch_of,
    create_logs,
    named,
    open_log_store,
    stamped,
)
from perf.parts.part import Part

_MOST_BYTES = 96 * MIB
_A_ROUND_BYTES = 2 * MIB
_COMMITS = [(1, 1), (10, 1), (100, 1), (16, 16), (100, 16)]


@pytest.fixture(params=LOG_ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(engine: str, directory: Path) -> Iterator[LogStore]:
    store = open_log_store(engine, directory)
    yield store
    store.close()


@pytest.mark.parametrize(
    ("size", "in_a_write"), [(KIB, 1), (KIB, 64), (16 * KIB, 1), (16 * KIB, 64), (MIB, 1), (MIB, 16)]
)
def test_append(part: Part, engine: str, store: LogStore, size: int, in_a_write: int) -> None:
    (log,) = create_logs(store)
    data = batch_of(size)
    writes = max(1, min(50, _A_ROUND_BYTES // (size * in_a_write)))
    a_round = writes * in_a_write
    offsets = count(0, a_round)

    def prepare() -> tuple[list[list[StampedBatch]]]:
        first = next(offsets)
        return ([stamped(log, first + at * in_a_write, in_a_write, data) for at in range(writes)],)

    def append(groups: Sequence[Sequence[StampedBatch]]) -> None:
        for group in groups:
            store.write(group, now_ms=NOW_MS)

    part.rounds(
        prepare, append, rounds=max(3, min(40, _MOST_BYTES // (a_round * size))), things=a_round,
        thing="batch", size=a_round * size,
        group=f"append: batches of {named(size)}, {in_a_write} in a write", name=engine,
    )  # fmt: skip


@pytest.mark.parametrize(("batches", "partitions"), _COMMITS)
def test_commit(part: Part, engine: str, store: LogStore, batches: int, partitions: int) -> None:
    groups = Groups(create_logs(store, partitions), batches)

    def commit(group: Sequence[StampedBatch]) -> None:
        store.write(group, now_ms=NOW_MS)
        store.sync()

    part.rounds(
        lambda: (groups.next(),), commit, rounds=40, things=1, thing="commit", size=batches * KIB,
        group=commit_of(batches, partitions), name=f"{engine}, write and sync",
    )  # fmt: skip


@pytest.mark.parametrize("durability", ["disk", "os"])
@pytest.mark.parametrize(("batches", "partitions"), [(1, 1), (100, 1), (100, 16)])
def test_group_commit(
    part: Part, engine: str, store: LogStore, batches: int, partitions: int, durability: str
) -> None:
    groups = Groups(create_logs(store, partitions), batches)
    commits = 20

    def work(some: Sequence[Sequence[StampedBatch]]) -> None:
        trio.run(commit_all, store, durability, some)

    part.rounds(
        lambda: ([groups.next() for _ in range(commits)],), work, rounds=5, things=commits, thing="commit",
        size=commits * batches * KIB,
        group=commit_of(batches, partitions), name=f"{engine}, group commit, {durability}",
    )  # fmt: skip


def commit_of(batches: int, partitions: int) -> str:
    return (
        f"commit: {batches} x 1 KiB in {'one partition' if partitions == 1 else f'{partitions} partitions'}"
    )


class Groups:
    """Groups of 1 KiB batches over several logs, with offsets rising from group to group."""

    def __init__(self, logs: Sequence[LogId], batches: int) -> None:
        self._shares = [len(range(number, batches, len(logs))) for number in range(len(logs))]
        self._logs = logs
        self._numbers = count()

    def next(self) -> list[StampedBatch]:
        number, data = next(self._numbers), batch_of(KIB)
        shares = zip(self._logs, self._shares, strict=True)
        return [batch for log, share in shares for batch in stamped(log, number * share, share, data)]


async def commit_all(store: LogStore, durability: str, groups: Sequence[Sequence[StampedBatch]]) -> None:
    """Commits one group after the other and waits for each. The start of trio and of the thread are
    timed too: less than 1 ms in all."""
    commits: GroupCommit[StampedBatch] = GroupCommit(
        "log", lambda items: store.write(items, now_ms=NOW_MS), store.sync,
        in_thread=store.write_in_thread, beside_sync=store.write_beside_sync, durability=durability,
        sync_interval_s=60,
    )  # fmt: skip
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commits.run)
        for group in groups:
            waiting, done = len(group), trio.Event()

            def on_done(error: Exception | None, done: trio.Event = done) -> None:
                nonlocal waiting
                if error is not None:
                    raise error
                waiting -= 1
                if not waiting:
                    done.set()

            for batch in group:
                commits.submit((batch,), on_done)
            await done.wait()
        commits.close()
