"""Chooses the parked records for a fetch, and reads the batches that contain them.

Parked records that are due lie anywhere in the log, and many of them in the same batch if a service
failed for a while. The record that has been due for longest leads, and all due records of its batch
follow; then the next one leads. So a batch is read and decompressed once for all of them. A kept
record that has left the log is a batch of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

from kbroker.broker.logs.partition import Partition
from kbroker.broker.queues.loaded import CommittedLog, LoadedSharePartition
from kbroker.broker.queues.opened_batches import BatchOpener, Refusal, must_be_opened
from kbroker.broker.queues.sliced_batches import Walked, runs_in
from kbroker.errors import KafkaError
from kbroker.formats.batches import CODEC_AT, CODEC_MASK, read_header
from kbroker.formats.kept_copies import is_aborted_copy, without_mark
from kbroker.formats.turns import TURN_RECORDS
from kbroker.share.parking import Parking

_BATCHES_AT_MOST = 64
_READ_BYTES = 1
"""A read returns a whole batch, whatever its size."""
_READ_WITH_NEXT_BYTES = 1 << 20
"""Batches of this size in all are read in one thread; an engine may copy them."""

RecordOf: TypeAlias = Callable[[LoadedSharePartition, int], Awaitable[bytes | None]]
"""ParkedReading.record_of: the kept bytes of a record that has left the log, a batch of its own."""


class ParkedPlan(NamedTuple):
    """`offsets` of ready records, leaders before their followers, and their `batches` in order.
    `lost`: offsets of records that the log does not have."""

    offsets: Sequence[int]
    batches: Sequence[Walked]
    lost: Sequence[int]


async def plan_parked(
    loaded: LoadedSharePartition,
    parking: Parking,
    opener: BatchOpener,
    room: int,
    max_bytes: int,
    record_of: RecordOf,
) -> ParkedPlan:
    """At least one batch, then as many as `max_bytes` allows and as can be cut without waiting.
    Aborted records are lost if the group has read_committed; the transactions are loaded then.

    A read may wait, so other fetches may have acquired some of the records on return. Raises
    KafkaError for a log that cannot be read."""
    partition = loaded.partition
    offsets, taken, lost = list[int](), set[int](), list[int]()
    batches: list[Walked] = []
    walked = 0
    leaders = _leaders(parking, room, loaded.committed)
    read: dict[int, Sequence[memoryview]] = {}
    for number, leader in enumerate(leaders):
        if len(offsets) >= room or len(batches) >= _BATCHES_AT_MOST or (batches and max_bytes <= 0):
            break
        if leader in taken or any(first <= leader <= last for first, last, *_ in batches):
            continue  # Released since its batch was read, which is sent once.
        try:
            if leader not in read and _is_in_log(partition, leader):
                others = (each for each in leaders[number + 1 :] if each not in taken)
                read = await _read_with_next(partition, leader, others, max_bytes, opener)
            batch = await parked_batch(loaded, leader, record_of, read.get(leader))
        except KafkaError:
            if batches or lost:
                break  # The next plan begins with it, and reports it.
            raise
        if batch is None:
            if partition.deleted:  # The deletion may still be refused.
                break
            lost.append(leader)
            continue
        stored = batch[3][batch[4] : batch[5]]
        if not stored[CODEC_AT] & CODEC_MASK:  # To cut it is a walk over its records.
            walked += batch[1] - batch[0] + 1
        can_be_cut = await _can_be_cut(stored, opener, may_wait=not batches)
        if batches and (walked > TURN_RECORDS or not can_be_cut):
            break
        ready_here = (each for each in range(batch[0], batch[1] + 1) if parking.is_ready(each))
        beside = (each for each in ready_here if each != leader)
        here = [leader, *islice(beside, room - len(offsets) - 1)]
        gone = _gone_from(stored, here, opener)
        lost += gone
        here = [each for each in here if each not in gone]
        taken.update(here)
        if not here:
            continue
        offsets += here
        batches.append(batch)
        max_bytes -= len(stored)
        if not can_be_cut:
            break  # The batch is sent whole, in a separate answer.
    return ParkedPlan(offsets, sorted(batches, key=lambda each: each[0]), lost)


def _leaders(parking: Parking, room: int, committed: CommittedLog | None) -> Sequence[int]:
    """Records behind an open transaction have to wait."""
    if committed is None:
        return parking.in_turn(room)
    end_offset, ready = committed.high_watermark, parking.in_turn(parking.ready)
    return list(islice((offset for offset in ready if offset < end_offset), room))


async def _read_with_next(
    partition: Partition, offset: int, others: Iterable[int], max_bytes: int, opener: BatchOpener
) -> dict[int, Sequence[memoryview]]:
    """The batch of the offset. If its read may block, those of the others are read with it: handing
    each to a thread costs more processor time than the read. Not more of them than the loop may
    open."""
    views = partition.read_if_warm(offset, _READ_BYTES, partition.high_watermark)
    if views is not None:
        return {offset: views}
    following = islice((each for each in others if _is_in_log(partition, each)), _BATCHES_AT_MOST - 1)
    max_bytes = min(max_bytes, _READ_WITH_NEXT_BYTES)
    return await partition.read_batches([offset, *following], max_bytes, opener.reading_ends())


def _is_in_log(partition: Partition, offset: int) -> bool:
    return partition.log_start_offset <= offset < partition.high_watermark


async def parked_batch(
    loaded: LoadedSharePartition,
    offset: int,
    record_of: RecordOf,
    views: Sequence[memoryview] | None = None,
) -> Walked | None:
    """The record batch that has that offset, or the kept record if it has left the log. None: there
    is neither, or it belongs to an aborted transaction and the group has read_committed. `views`:
    the bytes of a read of that batch, if the caller has them."""
    engine, partition = loaded.engine, loaded.partition
    if _is_in_log(partition, offset):
        end_offset = partition.high_watermark
        if views is None:
            views = await partition.read(offset, max_bytes=_READ_BYTES, end_offset=end_offset)
        batches = loaded.walk(views, offset, 1, end_offset)
        if batches and batches[0][0] <= offset and not batches[0][2]:
            return batches[0]
    may_be_kept = engine is not None and engine.parking is not None and engine.parking.may_be_kept(offset)
    record = await record_of(loaded, offset) if may_be_kept else None
    if record is None or (loaded.committed is not None and is_aborted_copy(record)):
        return None
    record = without_mark(record)
    return offset, offset, False, memoryview(record), 0, len(record)


def _gone_from(stored: memoryview, offsets: Sequence[int], opener: BatchOpener) -> list[int]:
    """Those of the offsets whose records compaction has removed from their batch."""
    runs = runs_in(stored, opener)
    if runs is None:
        return []
    return [each for each in offsets if not any(first <= each <= last for first, last in runs)]


async def _can_be_cut(stored: memoryview, opener: BatchOpener, *, may_wait: bool) -> bool:
    """Whether a part of the batch can be sent; also false if that needs a wait that is not
    allowed."""
    header = read_header(stored)
    if not must_be_opened(header):
        return True
    opened = opener.find(header.base_offset, header.crc) or opener.open_quickly(stored)
    if opened is None and opener.must_pause:
        await opener.pause()
        opened = opener.open_quickly(stored)
    if opened is None and may_wait:
        await opener.open(stored)
        opened = opener.find(header.base_offset, header.crc)
    return opened is not None and not isinstance(opened, Refusal)
