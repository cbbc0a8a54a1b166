"""A partition over the real memory engine: offsets, visibility, idempotence, and undoing failed
writes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
import trio

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.commits.waiting import Waiter
from kbroker.broker.logs.leader_epochs import EpochEntry, LeaderEpochs
from kbroker.broker.logs.partition import Partition, TopicShared
from kbroker.broker.logs.producer_state import ProducerStates
from kbroker.broker.logs.validation import BadBatch, BatchRules
from kbroker.errors import ErrorCode, KafkaError, NoSpace
from kbroker.formats.batches import (
    ProducerInfo,
    Record,
    build_batch,
    crc_is_valid,
    iter_headers,
    iter_records,
    read_header,
)
from kbroker.storage.memory_store import LOG_STORE
from kbroker.storage.spi import LogId, LogSettings, LogStore, StampedBatch

LOG = LogId(UUID(int=7), 0)
NOW_MS = 1_700_000_000_000


class Fixture:
    def __init__(self, store: LogStore, rules: BatchRules) -> None:
        self.no_space = False
        self.store = store
        self.commits: GroupCommit[StampedBatch] = GroupCommit(
            "log", self._write, store.sync, in_thread=False, durability="disk"
        )
        self.partition = Partition(
            LOG,
            TopicShared("orders", rules),
            self.store,
            self.commits,
            epochs=LeaderEpochs(3, [EpochEntry(3, 0)]),
            log_start_offset=0,
            read_producers=lambda _: ProducerStates(),
        )

    def _write(self, batches: list[StampedBatch]) -> None:
        if self.no_space:
            raise NoSpace("full")
        self.store.write(batches, now_ms=NOW_MS)

    async def produce(self, batch: bytes | memoryview | None, now_ms: int = NOW_MS) -> int:
        """Returns the base offset once the batch is visible."""
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
        await fixture.partition.load_producers()
        yield fixture
        fixture.commits.close()


def epoch_end(partition: Partition, epoch: int) -> tuple[int, int]:
    return partition.epochs.end_of(epoch, partition.log_start_offset, partition.high_watermark)


def batch(
    count: int = 1, *, sequence: int = -1, producer_id: int = -1, epoch: int = 0, timestamp_ms: int = NOW_MS
) -> bytes:
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


async def test_a_client_cannot_make_its_times_the_topic_s(tmp_path: Path) -> None:
    """Readers would take the batch's greatest timestamp as that of every record."""
    async with open_partition(tmp_path) as fixture:
        records = [Record(0, stamp_ms, None, b"x", ()) for stamp_ms in (5, 9)]
        await fixture.produce(build_batch(records, attributes=0x08))
        (view,) = await fixture.partition.read(0, max_bytes=1 << 20, end_offset=2)
        header = read_header(view)
        assert not header.is_log_append_time
        assert crc_is_valid(view, 0, header)
        assert [record.timestamp_ms for record in iter_records(view)] == [5, 9]


class TestIdempotence:
    @pytest.mark.parametrize(("log_append_time", "told_ms"), [(False, 5), (True, NOW_MS)])
    # BASE-36
    async def test_a_repeat_is_told_a_time(self, tmp_path: Path, log_append_time: bool, told_ms: int) -> None:
        async with open_partition(tmp_path, BatchRules(log_append_time=log_append_time)) as fixture:
            one = batch(1, producer_id=9, sequence=0, timestamp_ms=5)
            first = fixture.partition.append(one, NOW_MS, lambda _: None)
            assert first.log_append_time_ms == (NOW_MS if log_append_time else -1)
            assert fixture.partition.append(one, NOW_MS + 1, lambda _: None) == (0, told_ms)
            await fixture.produce(batch())

    # BASE-35, BASE-39
    async def test_a_producer_without_an_epoch_may_go_on_anywhere(self, tmp_path: Path) -> None:
        async with open_partition(tmp_path) as fixture:
            offsets = [
                await fixture.produce(batch(producer_id=9, epoch=-1, sequence=sequence))
                for sequence in (0, 5, 5, 1, 0)
            ]
            assert offsets == [0, 1, 1, 2, 0], "repeats are known all the same"
            assert await fixture.produce(batch(producer_id=9, epoch=0, sequence=9)) == 3
            for epoch, sequence, code in (
                (0, 11, ErrorCode.out_of_order_sequence_number),
                (-1, 0, ErrorCode.invalid_producer_epoch),
            ):
                with pytest.raises(BadBatch) as refused:
                    await fixture.produce(batch(producer_id=9, epoch=epoch, sequence=sequence))
                assert (refused.value.code, refused.value.by_log) == (code, True)

    async def test_an_epoch_below_none_is_refused(self, tmp_path: Path) -> None:  # BASE-38
        async with open_partition(tmp_path) as fixture:
            with pytest.raises(BadBatch) as refused:
                await fixture.produce(batch(producer_id=9, epoch=-2, sequence=0))
            assert refused.value.code is ErrorCode.invalid_producer_epoch

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

    # BASE-35, BASE-37
    async def test_a_repeat_older_than_five_batches_is_refused(self, tmp_path: Path) -> None:
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
            assert await fixture.produce(batch(2, producer_id=9, sequence=2)) == 2, (
                "the producer's retry is taken"
            )

    async def test_a_new_producer_begins_with_what_was_refused(self, tmp_path: Path) -> None:
        """A later batch that would fit meanwhile must not be accepted: the retry of the first one
        would be a sequence error, which is fatal."""
        async with open_partition(tmp_path) as fixture:
            fixture.no_space = True
            outcomes: list[Exception | None] = []
            fixture.partition.append(batch(2, producer_id=9, sequence=0), NOW_MS, outcomes.append)
            with pytest.raises(NoSpace):
                await fixture.produce(batch(2, producer_id=9, sequence=2))
            assert [type(outcome) for outcome in outcomes] == [NoSpace]
            fixture.no_space = False
            for sequence in (1, 2, 4):
                with pytest.raises(BadBatch) as refused:
                    await fixture.produce(batch(2, producer_id=9, sequence=sequence))
                assert refused.value.code is ErrorCode.out_of_order_sequence_number
            assert await fixture.produce(batch(2, producer_id=8, sequence=5)) == 0, (
                "others may begin anywhere"
            )
            assert await fixture.produce(batch(2, producer_id=9, sequence=0)) == 2
            assert await fixture.produce(batch(2, producer_id=9, sequence=2)) == 4

    async def test_a_new_producer_may_give_up_what_was_refused(self, tmp_path: Path) -> None:
        """Then its client raises the epoch. A refusal is remembered as long as its producer."""
        async with open_partition(tmp_path) as fixture:
            fixture.no_space = True
            for producer_id in (8, 9):
                with pytest.raises(NoSpace):
                    await fixture.produce(batch(producer_id=producer_id, sequence=0))
            fixture.no_space = False
            assert await fixture.produce(batch(producer_id=9, epoch=1, sequence=0)) == 0
            assert await fixture.produce(batch(producer_id=9, epoch=1, sequence=1)) == 1
            producers = await fixture.partition.load_producers()
            producers.expire(NOW_MS)
            with pytest.raises(BadBatch):
                await fixture.produce(batch(producer_id=8, sequence=1))
            producers.expire(NOW_MS + 1)
            assert await fixture.produce(batch(producer_id=8, sequence=1)) == 2

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
            partition.epochs.check(-1)
            partition.epochs.check(3)
            fenced = ErrorCode.fenced_leader_epoch
            for epoch, code in ((2, fenced), (-2, fenced), (4, ErrorCode.unknown_leader_epoch)):
                with pytest.raises(KafkaError) as refused:
                    partition.epochs.check(epoch)
                assert refused.value.code is code
            assert epoch_end(partition, 3) == (3, 2)
            assert epoch_end(partition, 4) == (-1, -1)
            assert epoch_end(partition, 1) == (1, 0), (
                "older than all: it ended where the oldest known one begins"
            )
            assert epoch_end(partition, -5) == (-5, 0)
            assert epoch_end(partition, -1) == (-1, -1)
            assert [partition.epochs.of_offset(offset) for offset in (0, 1, 2)] == [3, 3, 3]

    async def test_leader_epochs_of_deleted_records(self, tmp_path: Path) -> None:  # BASE-53
        async with open_partition(tmp_path) as fixture:
            await fixture.produce(batch(9))
            partition = fixture.partition
            partition.epochs.entries[:] = [EpochEntry(0, 0), EpochEntry(1, 3), EpochEntry(2, 6)]
            ends = {}
            for start in (0, 2, 3, 5, 6, 8, 9):
                partition.log_start_offset = start
                ends[start] = [epoch_end(partition, epoch) for epoch in (-2, 0, 1, 2)]
            assert ends == {
                0: [(-2, 0), (0, 3), (1, 6), (2, 9)],
                2: [(-2, 2), (0, 3), (1, 6), (2, 9)],
                3: [(-2, 3), (0, 3), (1, 6), (2, 9)],
                5: [(-2, 5), (0, 5), (1, 6), (2, 9)],
                6: [(-2, 6), (0, 6), (1, 6), (2, 9)],
                8: [(-2, 8), (0, 8), (1, 8), (2, 9)],
                9: [(-2, 9), (0, 9), (1, 9), (2, 9)],
            }


async def test_a_batch_that_may_be_written_to_is_stamped_in_place(tmp_path: Path) -> None:
    """Any other is copied: its buffer belongs to other code."""
    async with open_partition(tmp_path) as fixture:
        kept, taken = batch(), bytearray(batch())
        for records in (kept, memoryview(kept), memoryview(taken)):
            await fixture.produce(records)
        assert kept == batch()
        assert read_header(taken).base_offset == 2
        views = await fixture.partition.read(0, max_bytes=1 << 20, end_offset=3)
        assert [header.base_offset for _, header in iter_headers(b"".join(views))] == [0, 1, 2]
