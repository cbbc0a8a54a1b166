"""A partition over the real memory engine: offsets, visibility, idempotence, and taking back what could not be written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
import trio

from kbroker.broker.batch_validation import BatchRules
from kbroker.broker.group_commit import GroupCommit
from kbroker.broker.partition import Partition
from kbroker.broker.producer_state import ProducerStates
from kbroker.broker.waiting import Waiter
from kbroker.errors import ErrorCode, KafkaError, NoSpace
from kbroker.records import ProducerInfo, Record, build_batch, iter_records, read_header
from kbroker.storage.memory_store import LOG_STORE
from kbroker.storage.spi import LogId, LogSettings, LogStore, StampedBatch

LOG = LogId(UUID(int=7), 0)
NOW_MS = 1_700_000_000_000


class Fixture:
    def __init__(self, store: LogStore, rules: BatchRules) -> None:
        self.no_space = False
        self.store = store
        self.first_appends: list[int] = []
        self.commits: GroupCommit[StampedBatch] = GroupCommit("log", self._write, store.sync, in_thread=False, durability="disk")
        self.partition = self.open(rules)

    def open(self, rules: BatchRules) -> Partition:
        return Partition(
            LOG,
            "orders",
            self.store,
            self.commits,
            rules=rules,
            leader_epoch=3,
            log_start_offset=0,
            epochs=(),
            load_producers=lambda _: ProducerStates(),
            on_first_append=lambda _, offset: self.first_appends.append(offset),
        )

    def _write(self, batches: list[StampedBatch]) -> None:
        if self.no_space:
            raise NoSpace("full")
        self.store.write(batches, now_ms=NOW_MS)

    async def produce(self, batch: bytes | None, now_ms: int = NOW_MS) -> int:
        """The base offset once the batch counts."""
        outcome: list[Exception | None] = []
        event = trio.Event()

        def done(error: Exception | None) -> None:
            outcome.append(error)
            event.set()

        appended = self.partition.append(batch, now_ms, done)
        await event.wait()
        if outcome[0] is not None:
            raise outcome[0]
        return appended.base_offset


@asynccontextmanager
async def open_partition(tmp_path: Path, rules: BatchRules | None = None) -> AsyncIterator[Fixture]:
    store = LOG_STORE.open(tmp_path, {}, 0)
    store.create(LOG, LogSettings())
    fixture = Fixture(store, rules or BatchRules())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fixture.commits.run)
        yield fixture
        fixture.commits.close()


def batch(count: int = 1, *, sequence: int = -1, producer_id: int = -1, epoch: int = 0, timestamp_ms: int = NOW_MS) -> bytes:
    records = [Record(0, timestamp_ms + index, None, b"%d" % index) for index in range(count)]
    producer = ProducerInfo(producer_id, epoch, sequence) if producer_id >= 0 else ProducerInfo()
    return build_batch(records, producer=producer)


async def test_offsets_are_stamped_and_visible_when_committed(tmp_path: Path) -> None:
    async with open_partition(tmp_path) as fixture:
        partition = fixture.partition
        assert await fixture.produce(batch(3)) == 0
        assert await fixture.produce(batch(2)) == 3
        assert partition.high_watermark == partition.next_offset == 5
        views = await partition.read(0, max_bytes=1 << 20, end_offset=5)
        headers = [read_header(b"".join(views))]
        assert [header.partition_leader_epoch for header in headers] == [3]
        assert fixture.first_appends == [0], "once in a broker life"


async def test_nothing_is_visible_before_the_commit(tmp_path: Path) -> None:
    async with open_partition(tmp_path) as fixture:
        outcomes: list[Exception | None] = []
        fixture.partition.append(batch(4), NOW_MS, outcomes.append)
        assert (fixture.partition.next_offset, fixture.partition.high_watermark) == (4, 0)
        assert list(await fixture.partition.read(0, max_bytes=100, end_offset=4)) == []
        await fixture.produce(batch())
        assert outcomes == [None]
        assert fixture.partition.high_watermark == 5


async def test_a_waiter_is_woken_by_the_high_watermark(tmp_path: Path) -> None:
    async with open_partition(tmp_path) as fixture:
        waiter = Waiter()
        fixture.partition.waiters.add(waiter)
        await fixture.produce(batch())
        assert waiter.woken


async def test_log_append_time(tmp_path: Path) -> None:
    async with open_partition(tmp_path, BatchRules(log_append_time=True)) as fixture:
        appended = fixture.partition.append(batch(2, timestamp_ms=5), NOW_MS, lambda _: None)
        assert appended.log_append_time_ms == NOW_MS
        await fixture.produce(batch())
        views = await fixture.partition.read(0, max_bytes=1 << 20, end_offset=2)
        assert [record.timestamp_ms for record in iter_records(views[0])] == [NOW_MS, NOW_MS]


class TestIdempotence:
    async def test_a_repeat_is_answered_with_the_old_offset(self, tmp_path: Path) -> None:  # BASE-35
        async with open_partition(tmp_path) as fixture:
            first = await fixture.produce(batch(2, producer_id=9, sequence=0))
            await fixture.produce(batch(2, producer_id=9, sequence=2))
            assert await fixture.produce(batch(2, producer_id=9, sequence=0)) == first
            assert fixture.partition.next_offset == 4

    async def test_a_repeat_of_a_pending_batch_waits_for_its_commit(self, tmp_path: Path) -> None:
        async with open_partition(tmp_path) as fixture:
            outcomes: list[str] = []
            one = batch(1, producer_id=9, sequence=0)
            fixture.partition.append(one, NOW_MS, lambda _: outcomes.append("first"))
            fixture.partition.append(one, NOW_MS, lambda _: outcomes.append("repeat"))
            assert outcomes == [], "never answered from memory"
            await fixture.produce(batch())
            assert outcomes == ["first", "repeat"]
            assert fixture.partition.next_offset == 2

    @pytest.mark.parametrize("sequence", [1, 3, 5])
    async def test_a_gap_or_an_overlap_is_refused(self, tmp_path: Path, sequence: int) -> None:  # BASE-37
        async with open_partition(tmp_path) as fixture:
            await fixture.produce(batch(2, producer_id=9, sequence=0))
            with pytest.raises(KafkaError) as refused:
                await fixture.produce(batch(2, producer_id=9, sequence=sequence))
            assert refused.value.code is ErrorCode.out_of_order_sequence_number
            assert fixture.partition.next_offset == 2

    async def test_a_repeat_older_than_five_batches_is_refused(self, tmp_path: Path) -> None:  # BASE-35, BASE-37
        async with open_partition(tmp_path) as fixture:
            for sequence in range(6):
                await fixture.produce(batch(producer_id=9, sequence=sequence))
            assert await fixture.produce(batch(producer_id=9, sequence=1)) == 1
            with pytest.raises(KafkaError) as refused:
                await fixture.produce(batch(producer_id=9, sequence=0))
            assert refused.value.code is ErrorCode.out_of_order_sequence_number

    async def test_epochs(self, tmp_path: Path) -> None:  # BASE-37, BASE-38
        async with open_partition(tmp_path) as fixture:
            await fixture.produce(batch(producer_id=9, sequence=0, epoch=1))
            with pytest.raises(KafkaError) as refused:
                await fixture.produce(batch(producer_id=9, sequence=1, epoch=0))
            assert refused.value.code is ErrorCode.invalid_producer_epoch
            with pytest.raises(KafkaError) as refused:
                await fixture.produce(batch(producer_id=9, sequence=1, epoch=2))
            assert refused.value.code is ErrorCode.out_of_order_sequence_number
            assert await fixture.produce(batch(producer_id=9, sequence=0, epoch=2)) == 1

    async def test_sequences_wrap(self, tmp_path: Path) -> None:  # BASE-40
        async with open_partition(tmp_path) as fixture:
            last = (1 << 31) - 1
            await fixture.produce(batch(1, producer_id=9, sequence=last))
            assert await fixture.produce(batch(1, producer_id=9, sequence=0)) == 1

    async def test_an_unknown_producer_may_start_anywhere(self, tmp_path: Path) -> None:  # BASE-39
        async with open_partition(tmp_path) as fixture:
            assert await fixture.produce(batch(producer_id=9, sequence=77)) == 0


class TestNoSpace:
    async def test_offsets_and_sequences_roll_back(self, tmp_path: Path) -> None:
        async with open_partition(tmp_path) as fixture:
            await fixture.produce(batch(2, producer_id=9, sequence=0))
            fixture.no_space = True
            outcomes: list[Exception | None] = []
            fixture.partition.append(batch(2, producer_id=9, sequence=2), NOW_MS, outcomes.append)
            fixture.partition.append(batch(3), NOW_MS, outcomes.append)
            with pytest.raises(NoSpace):
                await fixture.produce(batch(2, producer_id=9, sequence=4))
            assert [type(outcome) for outcome in outcomes] == [NoSpace, NoSpace]
            assert fixture.partition.next_offset == fixture.partition.high_watermark == 2
            fixture.no_space = False
            assert await fixture.produce(batch(2, producer_id=9, sequence=2)) == 2, "the producer's retry is taken"

    async def test_reading_goes_on(self, tmp_path: Path) -> None:
        async with open_partition(tmp_path) as fixture:
            await fixture.produce(batch(2))
            fixture.no_space = True
            with pytest.raises(NoSpace):
                await fixture.produce(batch())
            assert len(await fixture.partition.read(0, max_bytes=1000, end_offset=2)) == 1


class TestRanges:
    async def test_readable_range(self, tmp_path: Path) -> None:
        async with open_partition(tmp_path) as fixture:
            await fixture.produce(batch(2))
            for offset in (0, 1, 2):
                fixture.partition.check_readable(offset)
            for offset in (-1, 3):
                with pytest.raises(KafkaError) as refused:
                    fixture.partition.check_readable(offset)
                assert refused.value.code is ErrorCode.offset_out_of_range

    async def test_leader_epochs(self, tmp_path: Path) -> None:
        async with open_partition(tmp_path) as fixture:
            await fixture.produce(batch(2))
            partition = fixture.partition
            partition.check_leader_epoch(-1)
            partition.check_leader_epoch(3)
            for epoch, code in ((2, ErrorCode.fenced_leader_epoch), (4, ErrorCode.unknown_leader_epoch)):
                with pytest.raises(KafkaError) as refused:
                    partition.check_leader_epoch(epoch)
                assert refused.value.code is code
            assert partition.epoch_end(3) == (3, 2)
            assert partition.epoch_end(4) == (-1, -1)
            assert partition.epoch_end(1) == (1, 0), "older than all: it ended where the oldest known one begins"
