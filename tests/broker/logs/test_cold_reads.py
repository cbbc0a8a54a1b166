"""Which reads of a partition run in a thread because they may wait for the disk: on no engine does
the loop read data from before the last start."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kbroker import plugins
from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.logs.leader_epochs import LeaderEpochs
from kbroker.broker.logs.partition import Partition, TopicShared
from kbroker.broker.logs.producer_state import ProducerStates
from kbroker.broker.logs.validation import BatchRules
from kbroker.formats.batches import Record, build_batch, iter_headers, stamp
from kbroker.storage.spi import LogId, LogSettings, LogStore, StampedBatch

LOG = LogId(UUID(int=7), 0)
BATCHES, VALUE = 400, b"x" * 2_000
NOW_MS = 1_700_000_000_000


class SpyStore:
    """Wraps the store, and records whether its reads came from a thread."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.in_thread: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, log: LogId, offset: int, *, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        self.in_thread.append(threading.current_thread() is not threading.main_thread())
        return self._store.read(log, offset, max_bytes=max_bytes, end_offset=end_offset)


def stamped(offset: int) -> StampedBatch:
    batch = bytearray(build_batch([Record(0, NOW_MS, None, VALUE)]))
    stamp(batch, base_offset=offset, leader_epoch=0)
    return StampedBatch(LOG, offset, offset, NOW_MS, batch)


def opened(store: Any) -> Partition:
    commits: GroupCommit[StampedBatch] = GroupCommit(
        "log", store.write, store.sync, in_thread=False, durability="disk"
    )
    return Partition(
        LOG,
        TopicShared("orders", BatchRules()),
        store,
        commits,
        epochs=LeaderEpochs(0, ()),
        log_start_offset=0,
        read_producers=lambda _: ProducerStates(),
    )


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
async def test_what_an_earlier_life_wrote_is_read_in_a_thread(tmp_path: Path, engine: str) -> None:
    factory = plugins.log_store_factory(engine)
    store = factory.open(tmp_path / "log", {}, 1)
    store.create(LOG, LogSettings())
    store.write([stamped(offset) for offset in range(BATCHES)], now_ms=NOW_MS)
    store.sync()
    store.close()
    spy = SpyStore(factory.open(tmp_path / "log", {}, 2))
    partition = opened(spy)
    offset, waits = 0, 0
    while offset < BATCHES:
        spy.in_thread.clear()
        views = await partition.read(offset, max_bytes=1, end_offset=BATCHES)
        waits += any(spy.in_thread)
        assert len(set(spy.in_thread)) == 1
        (header,) = (header for view in views for _, header in iter_headers(view))
        assert header.base_offset == offset
        offset += 1
    assert 2 <= waits <= 8, "a thread reads ahead for those who take one batch at a time"
    spy.write([stamped(BATCHES)], now_ms=NOW_MS)
    partition.high_watermark = BATCHES + 1
    spy.in_thread.clear()
    assert len(await partition.read(BATCHES, max_bytes=1, end_offset=BATCHES + 1)) == 1
    assert spy.in_thread == [False], "this life's writes have brought it into the page cache"
    spy.close()
