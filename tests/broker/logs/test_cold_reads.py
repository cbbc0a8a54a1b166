"""Which reads of a partition run in a thread because they may wait for the disk: on no engine does
the loop read data from before the last start."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio

from kbroker import plugins
from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.logs.leader_epochs import LeaderEpochs
from kbroker.broker.logs.partition import Partition, TopicShared
from kbroker.broker.logs.producer_state import ProducerStates
from kbroker.broker.logs.validation import BatchRules
from kbroker.errors import KafkaError
from kbroker.formats.batches import Record, build_batch, iter_headers, stamp
from kbroker.storage.files import Files
from kbroker.storage.spi import LogId, LogSettings, LogStore, StampedBatch

LOG = LogId(UUID(int=7), 0)
BATCHES, VALUE = 400, b"x" * 2_000
NOW_MS = 1_700_000_000_000


class SpyStore:
    """Wraps the store, and records whether its reads came from a thread."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.in_thread: list[bool] = []
        self.read_bytes = 0
        self.tells = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def is_cached(self, *arguments: Any, **limits: Any) -> bool:
        return self.tells and self._store.is_cached(*arguments, **limits)

    def read(self, log: LogId, offset: int, *, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        self.in_thread.append(threading.current_thread() is not threading.main_thread())
        views = self._store.read(log, offset, max_bytes=max_bytes, end_offset=end_offset)
        self.read_bytes += sum(map(len, views))
        return views


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


@contextmanager
def written_before(engine: str, directory: Path, segment_bytes: int = 1 << 30) -> Iterator[SpyStore]:
    """A store whose log of BATCHES batches was written by an earlier life."""
    factory, settings = plugins.log_store_factory(engine), LogSettings(segment_bytes=segment_bytes)
    store = factory.open(directory, {}, 1)
    store.create(LOG, settings)
    store.write([stamped(offset) for offset in range(BATCHES)], now_ms=NOW_MS)
    store.sync()
    store.close()
    spy = SpyStore(factory.open(directory, {}, 2))
    spy.create(LOG, settings)
    try:
        yield spy
    finally:
        spy.close()


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
async def test_what_an_earlier_life_wrote_is_read_in_a_thread(tmp_path: Path, engine: str) -> None:
    with written_before(engine, tmp_path / "log") as spy:
        await read_all_in_threads(spy)


async def read_all_in_threads(spy: SpyStore) -> None:
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


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
async def test_a_read_at_a_random_place_reads_its_batch_alone(tmp_path: Path, engine: str) -> None:
    """Parked records that are due after a restart are read one by one: reading ahead for each of
    them took four times the processor time of everything else (SegmentLogStore, 1 667 a second)."""
    with written_before(engine, tmp_path / "log") as spy:
        partition = opened(spy)
        for offset in random.Random(1).sample(range(0, BATCHES, 2), 100):
            spy.read_bytes = 0
            (view,) = await partition.read(offset, max_bytes=1, end_offset=offset + 1)
            assert spy.read_bytes == 2 * len(view), "once ahead, and once for the result"


def never(_: memoryview) -> bool:
    return False


@pytest.mark.usefixtures("page_cache_tells")
async def test_a_read_of_what_is_cached_stays_on_the_loop(tmp_path: Path) -> None:
    """The segment engine can tell. It checks no more than 64 KiB."""
    with written_before("segment", tmp_path / "log") as spy:
        partition, spy.tells = opened(spy), True
        for offset in random.Random(1).sample(range(BATCHES - 1), 20):
            assert partition.read_if_warm(offset, 1, offset + 1)
        assert spy.in_thread == [False] * 20
        assert partition.read_if_warm(0, 60_000, BATCHES)
        assert partition.read_if_warm(0, 100_000, BATCHES) is None
        assert partition.read_if_warm(BATCHES - 1, 1, BATCHES) is None, "the next segment may follow"


@pytest.mark.usefixtures("page_cache_tells")
@pytest.mark.parametrize("is_missing", [True, False])
async def test_a_sealed_segment_of_this_life_is_checked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_missing: bool
) -> None:
    """It may have left the page cache, and a page that the mapping lacks would stop the loop."""
    store = plugins.log_store_factory("segment").open(tmp_path / "log", {}, 1)
    store.create(LOG, LogSettings(segment_bytes=50_000))
    for offset in range(BATCHES):
        store.write([stamped(offset)], now_ms=NOW_MS)
    for _ in range(10):
        store.sync()
    spy = SpyStore(store)
    spy.tells = True
    checked: list[Path] = []
    loads: list[bool] = []
    is_cached, load = Files.is_cached, Files.load

    def noted_load(self: Files, path: Path, start: int, end: int) -> None:
        loads.append(threading.current_thread() is threading.main_thread())
        load(self, path, start, end)

    def noted(self: Files, path: Path, start: int, end: int) -> bool:
        checked.append(path)
        return not is_missing and is_cached(self, path, start, end)

    monkeypatch.setattr(Files, "is_cached", noted)
    monkeypatch.setattr(Files, "load", noted_load)
    partition = opened(spy)
    assert len(store.segments(LOG)) > 10
    places = (3, 100, 205)
    for offset in places:
        views = partition.read_if_warm(offset, 1, offset + 1)
        assert (views is None) == is_missing
        if views is None:
            loads.clear()
            views = await partition.read(offset, max_bytes=1, end_offset=offset + 1)
            assert loads == [False], "a thread loads it, and not the mapping"
        assert next(iter_headers(views[0]))[1].base_offset == offset
    bases = [max(each.base_offset for each in store.segments(LOG) if each.base_offset <= at) for at in places]
    assert [int(path.parent.name) for path in checked[:: 2 if is_missing else 1]] == bases
    spy.close()


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
async def test_one_thread_reads_batches_at_random_places(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = 0
    run_sync = trio.to_thread.run_sync

    async def counted(*arguments: Any) -> Any:
        nonlocal runs
        runs += 1
        return await run_sync(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", counted)
    with written_before(engine, tmp_path / "log") as spy:
        partition = opened(spy)
        places = random.Random(1).sample(range(BATCHES), 64)
        found = await partition.read_batches([*places, places[0]], 1 << 20, never)
        assert runs == 1
        assert len(spy.in_thread) == 64
        assert list(found) == places, "each batch once"
        for offset, (view,) in found.items():
            assert next(iter_headers(view))[1].base_offset == offset
        size = len(found[places[0]][0])
        assert list(await partition.read_batches(places, 2 * size, never)) == places[:2]
        assert list(await partition.read_batches(places, 1, never)) == places[:1], "the first in any case"
        assert list(await partition.read_batches(places, 1 << 20, lambda _: True)) == places[:1]


async def test_a_damaged_batch_is_the_matter_of_the_read_that_wants_it(tmp_path: Path) -> None:
    with written_before("segment", tmp_path / "log") as spy:
        (data,) = (tmp_path / "log").rglob("data.ninja")
        content = bytearray(data.read_bytes())
        at = 30 * len(stamped(30).data)
        content[at : at + 61] = bytes(61)
        data.write_bytes(content)
        partition = opened(spy)
        assert list(await partition.read_batches([10, 30, 20], 1 << 20, never)) == [10]
        with pytest.raises(KafkaError):
            await partition.read_batches([30, 20], 1 << 20, never)
        partition.deleted = True
        spy.drop(LOG)
        assert await partition.read_batches([10, 20], 1 << 20, never) == {10: ()}


async def test_the_loop_loads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reads come between: in sealed segments of an earlier life and of this one, at random
    places and in order, checked or not."""
    loads: list[bool] = []
    checks = random.Random(2)
    load, is_cached = Files.load, Files.is_cached

    def noted(self: Files, path: Path, start: int, end: int) -> None:
        loads.append(threading.current_thread() is threading.main_thread())
        load(self, path, start, end)

    def at_random(self: Files, path: Path, start: int, end: int) -> bool:
        return checks.random() < 0.5 and is_cached(self, path, start, end)

    monkeypatch.setattr(Files, "load", noted)
    monkeypatch.setattr(Files, "is_cached", at_random)
    with written_before("segment", tmp_path / "log", segment_bytes=100_000) as spy:
        for offset in range(BATCHES, 2 * BATCHES):
            spy.write([stamped(offset)], now_ms=NOW_MS)
            if offset % 10 == 0:
                spy.sync()
        partition, spy.tells, chance = opened(spy), True, random.Random(1)
        at = 0
        tail = spy.tail_offset(LOG)
        for _ in range(500):
            match chance.randrange(3):
                case 0:
                    await partition.read(at, max_bytes=1, end_offset=tail)
                    at = (at + 1) % tail
                case 1:
                    await partition.read(chance.randrange(tail), max_bytes=1, end_offset=tail)
                case 2:
                    await partition.read_batches(chance.sample(range(tail), 3), 1 << 20, never)
        assert len(loads) > 100
        assert not any(loads)


@pytest.mark.parametrize("tells", [False, True])
async def test_readers_in_order_read_ahead_beside_random_ones(
    tmp_path: Path, tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three consumers catch up in turns, and random reads come between. `tells`: half of their
    reads come from the page cache."""
    checks = random.Random(2)
    monkeypatch.setattr(Files, "is_cached", lambda *_: checks.random() < 0.5)
    with written_before("segment", tmp_path / "log") as spy:
        spy.tells = tells
        partition, chance, quarter = opened(spy), random.Random(1), BATCHES // 4
        places = {first: first for first in range(0, 3 * quarter, quarter)}
        reads_ahead = 0
        for _ in range(30):
            for first, offset in places.items():
                spy.read_bytes = 0
                (view,) = await partition.read(offset, max_bytes=1, end_offset=BATCHES)
                reads_ahead += spy.read_bytes > 10 * len(view)
                places[first] = offset + 1
                await partition.read(chance.randrange(3 * quarter, BATCHES), max_bytes=1, end_offset=BATCHES)
        assert reads_ahead >= 3 * 5


def test_a_small_read_loads_little_of_its_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[int] = []
    monkeypatch.setattr(Files, "load", lambda self, path, start, end: loaded.append(end - start))
    with written_before("segment", tmp_path / "log") as spy:
        (view,) = spy.read(LOG, 300, max_bytes=1, end_offset=301)
        spy.read(LOG, 0, max_bytes=300_000, end_offset=BATCHES)
    assert loaded == [16 * len(view), spy.segments(LOG)[0].size_bytes]


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
async def test_a_reader_gets_beyond_what_compaction_removed_since_a_cold_read(
    tmp_path: Path, engine: str
) -> None:
    with written_before(engine, tmp_path / "log", 20_000) as spy:
        partition = opened(spy)
        assert base_offset(await partition.read(0, max_bytes=1, end_offset=BATCHES)) == 0
        first = spy.segments(LOG)[0]
        replacement = spy.replacing(LOG, first.base_offset)
        replacement.add(first.end_offset, [stamped(offset) for offset in range(3, first.end_offset)])
        replacement.prepare()
        replacement.finish()
        assert base_offset(await partition.read(0, max_bytes=1, end_offset=BATCHES)) == 3
        assert not await partition.read(0, max_bytes=1, end_offset=1)


def base_offset(views: Sequence[memoryview]) -> int | None:
    return next((header.base_offset for view in views for _, header in iter_headers(view)), None)
