"""The cache of decompressed batches: each is opened once, however many fetches need it; the cache
is bounded in bytes; failed attempts are not repeated."""

from __future__ import annotations

import threading
from functools import partial
from uuid import UUID

import pytest
import trio
import trio.testing

from kbroker.broker.queues import opened_batches
from kbroker.broker.queues.opened_batches import (
    BatchKey,
    BatchOpener,
    OpenedBatch,
    OpenedBatches,
    Refusal,
    open_batch,
)
from kbroker.formats.batches import Record, build_batch, read_header
from kbroker.formats.compression import DEFAULT_MAX_BYTES, Codec, compress
from kbroker.formats.turns import TURN_BYTES
from kbroker.storage.spi import LogId
from tests.odd_batches import odd_batch, payload_of, with_header, with_payload

LOG = LogId(UUID(int=1), 0)
OTHER = LogId(UUID(int=1), 1)
MUCH = 1 << 30


def lz4(base_offset: int, *, size: int = 1000, count: int = 10) -> memoryview:
    return memoryview(
        build_batch([Record(0, 1, None, b"x" * size)] * count, base_offset=base_offset, codec=Codec.LZ4)
    )


def key_of(batch: memoryview, log: LogId = LOG) -> BatchKey:
    header = read_header(batch)
    return log, header.base_offset, header.crc


def is_kept(cache: OpenedBatches, batch: memoryview) -> bool:
    return any(key_of(batch) in each._entries for each in (cache._batches, cache._small))


class Counting:
    """Opens batches when allowed, and counts. It runs in the cache's threads, like the real
    function, which it calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[int] = []
        self.most_at_once = self._at_once = 0
        self.may_go = threading.Event()
        self._lock = threading.Lock()
        monkeypatch.setattr(opened_batches, "open_batch", self)

    def __call__(self, stored: memoryview) -> OpenedBatch | Refusal:
        with self._lock:
            self.opened.append(read_header(stored).base_offset)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        assert self.may_go.wait(30)
        with self._lock:
            self._at_once -= 1
        return open_batch(stored)

    async def until_opened(self, count: int) -> None:
        with trio.fail_after(30):
            while len(self.opened) < count:  # noqa: ASYNC110 - a thread has no event of trio's
                await trio.sleep(0.001)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
async def test_what_was_opened_is_plain(codec: Codec) -> None:
    records = [Record(n, 1000 + n, b"k%d" % n, b"v" * n) for n in range(100)]
    batch = memoryview(build_batch(records, codec=codec))
    cache = OpenedBatches(MUCH)
    found = await cache.open(key_of(batch), batch)
    assert isinstance(found, OpenedBatch)
    assert found.payload == build_batch(records)[61:]
    assert cache.find(key_of(batch)) is found
    assert cache.find(key_of(batch, OTHER)) is None
    assert cache.statistics() == (
        1,
        found.size_bytes,
        1,
        1,
        dict.fromkeys(("crc", "too_large", "payload", "records"), 0),
    )


async def test_many_that_want_one_batch_have_it_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counting, cache, batch = Counting(monkeypatch), OpenedBatches(MUCH), lz4(0)
    found: list[object] = []

    async def want() -> None:
        found.append(await cache.open(key_of(batch), batch))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(want)
        await counting.until_opened(1)
        counting.may_go.set()
    assert counting.opened == [0]
    assert len(found) == 10
    assert all(each is found[0] for each in found)
    assert cache.statistics()[:4] == (1, found[0].size_bytes, 0, 10)  # type: ignore[attr-defined]


async def test_few_threads_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    counting, cache = Counting(monkeypatch), OpenedBatches(MUCH)
    async with trio.open_nursery() as nursery:
        for number in range(8):
            batch = lz4(10 * number)
            nursery.start_soon(cache.open, key_of(batch), batch)
        await counting.until_opened(2)
        await trio.testing.wait_all_tasks_blocked()
        counting.may_go.set()
    assert counting.most_at_once == 2
    assert sorted(counting.opened) == [10 * number for number in range(8)]


async def test_one_that_is_cancelled_leaves_the_batch_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two others occupy both threads, so that the batch has not been started."""
    counting, cache, batch = Counting(monkeypatch), OpenedBatches(MUCH), lz4(1000)
    found: list[object] = []

    async def want(scope: trio.CancelScope) -> None:
        with scope:
            found.append(await cache.open(key_of(batch), batch))

    first, second, third = trio.CancelScope(), trio.CancelScope(), trio.CancelScope()
    async with trio.open_nursery() as nursery:
        for number in range(2):
            nursery.start_soon(cache.open, key_of(lz4(number)), lz4(number))
        await counting.until_opened(2)
        for scope in (first, second, third):
            nursery.start_soon(want, scope)
            await trio.testing.wait_all_tasks_blocked()
        first.cancel()
        await trio.testing.wait_all_tasks_blocked()
        counting.may_go.set()
    assert counting.opened.count(1000) == 1
    assert len(found) == 2
    assert found[0] is found[1]
    assert not cache._opening


async def test_the_least_recently_used_goes_first() -> None:
    size = open_batch(lz4(0)).size_bytes  # type: ignore[union-attr]
    cache = OpenedBatches(3 * size)
    batches = [lz4(10 * number) for number in range(5)]
    for number in range(3):
        await cache.open(key_of(batches[number]), batches[number])
    assert cache.find(key_of(batches[0])) is not None
    for number in (3, 4):
        await cache.open(key_of(batches[number]), batches[number])
    assert [number for number in range(5) if is_kept(cache, batches[number])] == [0, 3, 4]
    assert cache.statistics()[:2] == (3, 3 * size)


async def test_small_ones_have_a_quarter_of_the_room() -> None:
    """Reopening one is cheap, and many of them are no longer useful."""
    size = open_batch(lz4(0)).size_bytes  # type: ignore[union-attr]
    cache, large = OpenedBatches(8 * size), lz4(1000)
    await cache.open(key_of(large), large)
    batches = [lz4(10 * number) for number in range(20)]
    for batch in batches:
        await trio.lowlevel.checkpoint()
        cache.open_quickly(key_of(batch), batch, TURN_BYTES)
    assert [number for number in range(20) if is_kept(cache, batches[number])] == [18, 19]
    assert is_kept(cache, large)
    assert cache.statistics()[:2] == (3, 3 * size)
    assert cache.find(key_of(batches[18])) is not None
    await trio.lowlevel.checkpoint()
    cache.open_quickly(key_of(batches[0]), batches[0], TURN_BYTES)
    assert [number for number in range(20) if is_kept(cache, batches[number])] == [0, 18]


async def test_one_that_is_larger_than_the_bound_is_held_alone() -> None:
    cache = OpenedBatches(50_000)
    small, large, other = lz4(0), lz4(10, size=100_000), lz4(20)
    await cache.open(key_of(small), small)
    await cache.open(key_of(large), large)
    assert (is_kept(cache, small), is_kept(cache, large)) == (False, True)
    assert cache.statistics().size_bytes > 1_000_000
    await cache.open(key_of(other), other)
    assert (is_kept(cache, large), is_kept(cache, other)) == (False, True)
    assert cache.statistics().size_bytes < 50_000


async def test_a_fetch_has_what_it_waited_for_whatever_others_do() -> None:
    cache = OpenedBatches(1)
    mine, others = lz4(0), lz4(10)
    opener = BatchOpener(cache, LOG, {})
    await opener.open(mine)
    await BatchOpener(cache, LOG, {}).open(others)
    assert not is_kept(cache, mine)
    found = opener.find(*key_of(mine)[1:])
    assert isinstance(found, OpenedBatch)
    assert found.payload.count(b"x") == 10_000
    assert BatchOpener(cache, LOG, {}).find(*key_of(mine)[1:]) is None


class TestRefused:
    @pytest.mark.parametrize(
        ("batch", "reason"),
        [
            (bytes(lz4(0))[:-1] + b"\1", Refusal.CRC),
            (odd_batch("no lz4"), Refusal.PAYLOAD),
            (odd_batch("gzip that is cut off"), Refusal.PAYLOAD),
            (odd_batch("zstd of nothing"), Refusal.RECORDS),
            (odd_batch("snappy of no structure"), Refusal.RECORDS),
            (odd_batch("a bomb"), Refusal.TOO_LARGE),
            (with_header(odd_batch("no lz4"), attributes=7), Refusal.PAYLOAD),
        ],
    )
    async def test_for_a_reason_and_once(
        self, batch: bytes, reason: Refusal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counting, cache, stored = Counting(monkeypatch), OpenedBatches(MUCH), memoryview(batch)
        counting.may_go.set()
        opener = BatchOpener(cache, LOG, {})
        key = key_of(stored)[1:]
        assert opener.find(*key) is None
        await opener.open(stored)
        for each in (opener, BatchOpener(cache, LOG, {})):
            assert each.find(*key) is reason
        assert {name: count for name, count in cache.statistics().refused.items() if count} == {
            reason.value: 1
        }
        assert cache.statistics()[:2] == (0, 0)

    def test_the_greatest_payload_that_is_opened(self) -> None:
        value = bytes(
            DEFAULT_MAX_BYTES - len(payload_of(bytes(DEFAULT_MAX_BYTES - 100))) + DEFAULT_MAX_BYTES - 100
        )
        for more, expected in ((b"", OpenedBatch), (b"\0", Refusal)):
            payload = payload_of(value + more)
            assert len(payload) == DEFAULT_MAX_BYTES + len(more)
            batch = with_payload(compress(Codec.ZSTD, payload), codec=Codec.ZSTD, claimed=1)
            assert isinstance(open_batch(memoryview(batch)), expected)

    async def test_only_so_many_are_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(opened_batches, "_REFUSED_KEPT", 3)
        cache = OpenedBatches(MUCH)
        bad = memoryview(odd_batch("no lz4"))
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(partial(cache.open, (LOG, number, 7), bad))
        assert sum(cache.find((LOG, number, 7)) is Refusal.PAYLOAD for number in range(10)) == 3
        assert cache.statistics().refused["payload"] == 10
