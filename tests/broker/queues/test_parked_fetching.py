"""Which batches a fetch of parked records reads, and in how many threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import trio

from kbroker import plugins
from kbroker.broker.logs.reading import ReadablePartition
from kbroker.broker.queues.opened_batches import BatchOpener, OpenedBatches
from kbroker.broker.queues.parked_fetching import ParkedPlan, plan_parked
from kbroker.broker.queues.sliced_batches import walk
from kbroker.errors import KafkaError
from kbroker.formats.batches import Record, build_batch, stamp
from kbroker.formats.compression import Codec
from kbroker.storage.spi import LogId, LogSettings, StampedBatch

LOG = LogId(UUID(int=7), 0)
NOW_MS = 1_700_000_000_000
BATCHES, OF_EACH = 100, 10
KEPT = build_batch([Record(0, NOW_MS, None, b"kept")])


class Due:
    """The part of Parking that a plan uses: these records are due, in this order."""

    def __init__(self, offsets: Sequence[int]) -> None:
        self._offsets = list(offsets)

    def in_turn(self, most: int) -> list[int]:
        return self._offsets[:most]

    def is_ready(self, offset: int) -> bool:
        return offset in self._offsets

    def may_be_kept(self, offset: int) -> bool:
        return True


class World:
    def __init__(self, partition: ReadablePartition, store: Any) -> None:
        self.partition, self.store = partition, store
        self.threads = self.reads = 0
        self._opened = OpenedBatches(1 << 20)
        read = store.read

        def counted(*arguments: Any, **limits: Any) -> Sequence[memoryview]:
            self.reads += 1
            return read(*arguments, **limits)  # type: ignore[no-any-return]

        store.read = counted

    async def plan(self, *offsets: int, room: int = 500, max_bytes: int = 50 << 20) -> ParkedPlan:
        self.threads = self.reads = 0
        due: Any = Due(offsets)
        loaded: Any = SimpleNamespace(
            partition=self.partition, engine=SimpleNamespace(parking=due), committed=None, walk=walk
        )
        opener = BatchOpener(self._opened, LOG, {})
        return await plan_parked(loaded, due, opener, room, max_bytes, _kept)


async def _kept(_: object, offset: int) -> bytes | None:
    return KEPT if offset < 50 else None


@contextmanager
def opened(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    codec: Codec = Codec.NONE,
    value: bytes = b"x" * 50,
    of_each: int = OF_EACH,
) -> Iterator[World]:
    """LMDB, which cannot tell what is cached, with a log of an earlier life that begins at 50."""
    factory = plugins.log_store_factory("lmdb")
    store = factory.open(directory, {}, 1)
    store.create(LOG, LogSettings())
    records = [Record(i, NOW_MS, None, value) for i in range(of_each)]
    for first in range(0, BATCHES * of_each, of_each):
        data = bytearray(build_batch(records, codec=codec))
        stamp(data, base_offset=first, leader_epoch=0)
        store.write([StampedBatch(LOG, first, first + of_each - 1, NOW_MS, data)], now_ms=0)
    store.sync()
    store.close()
    store = factory.open(directory, {}, 2)
    world = World(ReadablePartition(LOG, "jobs", store, 50), store)
    run_sync = trio.to_thread.run_sync

    async def counted(*arguments: Any, **options: Any) -> Any:
        world.threads += 1
        return await run_sync(*arguments, **options)

    monkeypatch.setattr(trio.to_thread, "run_sync", counted)
    try:
        yield world
    finally:
        store.close()


async def test_one_thread_reads_the_batches_of_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "log", monkeypatch) as world:
        offsets = [place * OF_EACH + 3 for place in range(95, 55, -1)]
        plan = await world.plan(*offsets, offsets[0] + 1)
        assert plan.offsets == [offsets[0], offsets[0] + 1, *offsets[1:]]
        assert [batch[0] for batch in plan.batches] == sorted(each - 3 for each in offsets)
        assert (world.threads, world.reads) == (1, len(offsets))


async def test_kept_records_between_them_cost_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "log", monkeypatch) as world:
        offsets = [each for number in range(20) for each in (60 + number * OF_EACH, number)]
        plan = await world.plan(*offsets)
        assert sorted(plan.offsets) == sorted(offsets)
        assert (world.threads, world.reads) == (1, 20)


async def test_nothing_is_read_after_a_batch_that_ends_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large compressed batch is opened in a thread, and the plan ends before the next one."""
    value = os.urandom(40_000)
    with opened(tmp_path / "log", monkeypatch, codec=Codec.LZ4, value=value) as world:
        plan = await world.plan(*(place * OF_EACH for place in range(10, 50)))
        assert len(plan.batches) == 1
        assert world.reads == 2


async def test_a_batch_of_many_records_ends_the_plan_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "log", monkeypatch, codec=Codec.LZ4, value=b"x", of_each=1100) as world:
        assert len((await world.plan(*(place * 1100 for place in range(1, 50)))).batches) == 1
        assert world.reads == 2


async def test_no_more_is_read_than_the_loop_may_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "log", monkeypatch, codec=Codec.LZ4, of_each=500) as world:
        plan = await world.plan(*(place * 500 for place in range(1, 90)))
        assert 3 < len(plan.batches) <= world.reads <= 11


async def test_small_batches_may_be_large_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread opens them, one in a plan. Once that is known, no others are read in vain."""
    with opened(tmp_path / "log", monkeypatch, codec=Codec.LZ4, value=b"x" * 8000) as world:
        offsets = [place * OF_EACH for place in range(10, 90)]
        assert len((await world.plan(*offsets)).batches) == 1
        for first in range(1, 5):
            assert len((await world.plan(*offsets[first:])).batches) == 1
            assert world.reads <= 2


async def test_a_damaged_batch_does_not_hold_up_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "log", monkeypatch) as world:
        read = world.store.read

        def damaged(log: LogId, offset: int, **limits: Any) -> Sequence[memoryview]:
            return [memoryview(bytes(100))] if 700 <= offset < 710 else read(log, offset, **limits)

        world.store.read = damaged
        assert (await world.plan(600, 650, 703, 800)).offsets == [600, 650]
        with pytest.raises(KafkaError):
            await world.plan(703, 600)
        lost = BATCHES * OF_EACH + 5
        assert (await world.plan(lost, 703, 600)).lost == [lost], "the next plan reports the damage"


async def test_no_record_is_lost_while_its_topic_is_being_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "log", monkeypatch) as world:
        world.partition.deleted = True
        assert await world.plan(600, 650) == ([], [], [])
        world.partition.deleted = False
        assert (await world.plan(600, 650)).offsets == [600, 650]
