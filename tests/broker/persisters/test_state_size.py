"""The state of a busy group stays bounded on every engine, whatever is written, and deleted state
leaves nothing behind.

Hours of acknowledgements go through the real persister, group commit and engine, as fast as these
allow. What an engine keeps beside the live state has its own limits (a log's dead bytes, a redo
log, memtables). The long variant uses the real limits. The short one lowers them, and the number of
updates that a share-partition keeps, so that little traffic exceeds them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import UUID

import pytest
import trio

from kbroker import plugins
from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.persisters.local import LocalPersister
from kbroker.errors import ErrorCode
from kbroker.share.effects import StateBatch
from kbroker.share.persister import InitializeRequest, ReadRequest, TopicPartition, WriteRequest
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.states import UPDATES_PER_SNAPSHOT
from kbroker.storage.lmdb import state_store as lmdb_state_store
from kbroker.storage.lmdb.state_store import LmdbStateStore
from kbroker.storage.rocksdb import database as rocksdb_database
from kbroker.storage.segment_state import store as log_state_store
from kbroker.storage.segment_state.store import LogStateStore
from kbroker.storage.spi import Change, LogSettings, StateStore

ENGINES = ("segment", "lmdb", "rocksdb")
TOPIC = UUID(int=7)
SHARE_PARTITIONS = [TopicPartition(TOPIC, number) for number in range(10)]
BATCHES = 16
WRITES_OF_AN_HOUR = 36_000
"""Ten a second, over all share-partitions."""

SMALL_OVERHEAD_BYTES = 2 << 20
OVERHEAD_BYTES = 32 << 20
"""What an engine may use in addition to three times the live state: live data, dead data, and a
copy during a rewrite."""


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sixteenth of the real limits."""
    monkeypatch.setattr(log_state_store, "SETTINGS", LogSettings(segment_bytes=512 << 10, segment_ms=1 << 62))
    monkeypatch.setattr(log_state_store, "SMALLEST_DEAD_BYTES", 1 << 20)
    monkeypatch.setattr(
        lmdb_state_store, "REDO_SETTINGS", LogSettings(segment_bytes=64 << 10, segment_ms=1 << 62)
    )
    monkeypatch.setattr(lmdb_state_store, "MOST_REDO_BYTES", 64 << 10)
    monkeypatch.setattr(rocksdb_database, "META_BUFFER_BYTES", 256 << 10)


def bytes_on_disk(directory: Path) -> int:
    """Blocks, not lengths: files may have holes. Files removed meanwhile are not counted."""
    total = 0
    for folder, _, files in os.walk(directory):
        for name in files:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name)).st_blocks * 512
    return total


class BusyGroup:
    """A persister over one engine, and a group whose share-partitions write their state
    repeatedly."""

    def __init__(
        self, store: StateStore, commits: GroupCommit[Change], directory: Path, updates_per_snapshot: int
    ) -> None:
        self.store = store
        coordinator = ShareStateCoordinator(
            store.scan, lambda *_: True, updates_per_snapshot=updates_per_snapshot
        )
        self.persister = LocalPersister(coordinator, commits)
        self.directory = directory
        self.updates_per_snapshot = updates_per_snapshot
        self.start_offset = 0
        self.written_bytes = self.most_live_bytes = self.most_bytes = self.most_keys = 0

    async def initialize(self, state_epoch: int) -> None:
        requests = [
            InitializeRequest(partition, state_epoch, self.start_offset) for partition in SHARE_PARTITIONS
        ]
        for result in await self.persister.initialize("busy", requests):
            assert result.code is ErrorCode.none
        await self.persister.read("busy", [ReadRequest(partition, 0) for partition in SHARE_PARTITIONS])

    async def work(self, writes: int, state_epoch: int = 0) -> None:
        rounds = writes // len(SHARE_PARTITIONS)
        for number in range(rounds):
            self.start_offset += 3 * BATCHES
            first = self.start_offset
            batches = [
                StateBatch(first + 3 * each, first + 3 * each + 1, 2, 1 + each % 2) for each in range(BATCHES)
            ]
            requests = [
                WriteRequest(partition, state_epoch, 0, first, 20, batches) for partition in SHARE_PARTITIONS
            ]
            for result in await self.persister.write("busy", requests):
                assert result.code is ErrorCode.none
            if number % (rounds // 40) == 0:
                self.measure()
        self.measure()
        # at least that much: batches alone
        self.written_bytes += rounds * len(SHARE_PARTITIONS) * BATCHES * 20

    def measure(self) -> None:
        entries = list(self.store.scan(b"share/"))
        self.most_keys = max(self.most_keys, len(entries))
        self.most_live_bytes = max(self.most_live_bytes, sum(len(key) + len(value) for key, value in entries))
        self.most_bytes = max(self.most_bytes, bytes_on_disk(self.directory))

    async def delete_all(self) -> None:
        for result in await self.persister.delete("busy", SHARE_PARTITIONS):
            assert result.code is ErrorCode.none


@asynccontextmanager
async def busy_group(engine: str, directory: Path, updates_per_snapshot: int) -> AsyncIterator[BusyGroup]:
    options = {"redo_bytes": str(lmdb_state_store.MOST_REDO_BYTES)} if engine == "lmdb" else {}
    store: StateStore = plugins.state_store_factory(engine).open(directory, options, 1)
    try:
        commits: GroupCommit[Change] = GroupCommit(
            "state", store.write, store.sync, in_thread=store.write_in_thread,
            beside_sync=store.write_beside_sync,
            # sync() drops dead entries: with `os` the disk's speed would decide how many gather
            durability="disk",
        )  # fmt: skip
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commits.run)
            yield BusyGroup(store, commits, directory, updates_per_snapshot)
            commits.close()
    finally:
        store.close()  # type: ignore[attr-defined]


async def check_bounded(
    engine: str, directory: Path, writes: int, updates_per_snapshot: int, overhead_bytes: int
) -> None:
    async with busy_group(engine, directory, updates_per_snapshot) as group:
        await group.initialize(0)
        await group.work(writes)
        limit_bytes = 3 * group.most_live_bytes + overhead_bytes
        assert group.written_bytes > limit_bytes, "too little traffic to show anything"
        assert group.most_keys <= len(SHARE_PARTITIONS) * (updates_per_snapshot + 1)
        assert group.most_bytes <= limit_bytes
        await group.delete_all()
        assert list(group.store.scan(b"")) == []
        await group.initialize(1)
        await group.work(writes // 3, state_epoch=1)
        assert group.most_bytes <= limit_bytes, "the space of what was deleted is used again"
        check_gave_up(group.store)


def check_gave_up(store: StateStore) -> None:
    """The engine really discarded something."""
    if isinstance(store, LogStateStore):
        assert store.statistics().rewrites > 1
    elif isinstance(store, LmdbStateStore):
        assert store.statistics().file_bytes > 1 << 16


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("engine", ENGINES)
async def test_the_state_of_a_busy_group_stays_bounded(engine: str, tmp_path: Path) -> None:
    await check_bounded(engine, tmp_path / "state", WRITES_OF_AN_HOUR // 3, 100, SMALL_OVERHEAD_BYTES)


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
async def test_the_state_of_a_busy_group_stays_bounded_for_long(engine: str, tmp_path: Path) -> None:
    await check_bounded(
        engine, tmp_path / "state", 10 * WRITES_OF_AN_HOUR, UPDATES_PER_SNAPSHOT, OVERHEAD_BYTES
    )
