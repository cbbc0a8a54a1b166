"""Keeps records beside the log, so that a few unfinished ones do not hold all of it.

    log       | . . . p . . . | . h . . . . . | . . . . . . . | . . .
              '--- removed ---'--- removed ---'
    state     p and its record, h and its record: parked (share/parking.py) and kept

    p: a job for next month, h: a worker has held it for hours

Before the log start of a topic with `kbroker.queue.retention` moves, the records that groups have
not finished are kept. Records of a window are parked first (log_start.py). The log start moves
only when that is saved and synced. So a segment is removed if few of its records are unfinished. If
many are, or they make up most of its bytes, the log stays as it is.

A work queue is checked every few seconds. The last closed segment is left out if it was not closed
at the last check: records that workers hold at this moment are mostly finished at the next one.

An operator's DeleteRecords removes kept records as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import trio

from kbroker.broker.commits.deadlines import now_ms
from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.commits.waiting import Waiter
from kbroker.broker.logs.disk_floor import DiskFloor
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.stored_batches import iter_possible
from kbroker.broker.logs.topics import Topics
from kbroker.broker.queues.held_logs import HeldLogs, LogHold
from kbroker.broker.queues.loaded import LoadedSharePartition, is_aborted
from kbroker.broker.queues.share_partitions import SharePartitions
from kbroker.errors import ErrorCode, KafkaError, StoreFailed
from kbroker.formats.batches import crc_is_valid, stored_records
from kbroker.formats.compression import CorruptPayload
from kbroker.formats.kept_copies import copy_of
from kbroker.formats.transactions import AbortedTransaction
from kbroker.share import log_start
from kbroker.share.effects import Persist
from kbroker.share.parked import Parked
from kbroker.share.parking import Look, Parking
from kbroker.share.persister import PARKED, Persister, TopicPartition
from kbroker.share.share_partition import SharePartition
from kbroker.storage.spi import SegmentInfo, StampedBatch

logger = logging.getLogger(__name__)

RECORDS_A_TURN = 1000
BYTES_A_TURN = 16 << 20
_BYTES_A_WRITE = 1 << 20
_READ_BYTES = 1 << 20
_threads: Final = trio.CapacityLimiter(2)
"""Each may take twice 64 MiB for a decompressed batch."""


@dataclass(slots=True)
class _Group:
    """The records to keep for a group: parked ones, and offsets of the window. `stuck_at`: records
    from this offset on must stay in the log. `look`: notes changes since the parked ones were
    read."""

    loaded: LoadedSharePartition
    engine: SharePartition
    look: Look
    parked: list[Parked]
    offsets: Sequence[int]
    stuck_at: int

    def wanted(self) -> set[int]:
        return {*(each.offset for each in self.parked), *self.offsets}


class KeptRecordsStatistics(NamedTuple):
    """`kept`: records kept since the start of the broker."""

    kept: int


class KeptRecords:
    """`logs`: the commits of the log store. `report(partition, cause, group_id, records)` counts
    and logs records that a purge removes."""

    def __init__(
        self,
        persister: Persister,
        share_partitions: SharePartitions,
        held_logs: HeldLogs,
        topics: Topics,
        logs: Sequence[GroupCommit[StampedBatch]],
        report: Callable[[Partition, str, str, int], None],
        disk_floor: DiskFloor,
    ) -> None:
        self._rows = persister.waiting_rows
        self._share_partitions = share_partitions
        self._held_logs = held_logs
        self._topics = topics
        self._logs = logs
        self._report = report
        self._disk_floor = disk_floor
        self._closed_to: WeakKeyDictionary[Partition, int] = WeakKeyDictionary()
        self._stuck: WeakKeyDictionary[Partition, dict[str, int | None]] = WeakKeyDictionary()
        """The window starts of groups that are not in memory, and hold more of the log than can be
        kept."""
        self._locks: WeakKeyDictionary[Partition, trio.Lock] = WeakKeyDictionary()
        """Records that an operator deletes must not be kept meanwhile."""
        self._kept = 0

    def statistics(self) -> KeptRecordsStatistics:
        return KeptRecordsStatistics(self._kept)

    # -- retention

    async def make_way(
        self, partition: Partition, segments: Sequence[SegmentInfo], asked: int | None
    ) -> None:
        """Keep the unfinished records of whole segments, saved on return. `asked`: the requested
        log start; None: the first unfinished record, as in a work queue.

        Raises KafkaError, NoSpace and StoreFailed; records that were kept before that stay kept."""
        if self._rows is None:
            return
        async with self._lock(partition):
            if partition.must_load_transactions:
                await partition.load_producers()
            # Whether a record's transaction was aborted must be known when its copy is made.
            stable = partition.last_stable_offset
            ends = [segment.end_offset for segment in segments[:-1] if segment.end_offset <= stable]
            closed_to = self._closed_to.get(partition, -1)
            self._closed_to[partition] = ends[-1] if ends else -1
            limit = max([closed_to, *ends[:-1]]) if asked is None else asked
            ends = [end for end in ends if end <= limit]
            if not ends:
                return
            holds = {
                group_id: hold
                for group_id, hold in (await self._held_logs.holds(partition)).items()
                if hold.offset < ends[-1]
            }
            lowest = min((hold.offset for hold in holds.values()), default=ends[-1])
            ends = [end for end in ends if end > lowest]
            if not ends or any(hold.window_from is None for hold in holds.values()):
                return
            groups: list[_Group] = []
            try:
                for group_id, hold in holds.items():
                    group = await self._look(group_id, partition, hold, ends[-1])
                    if group is None:
                        return
                    groups.append(group)
                await self._keep(partition, segments, ends, groups)
            finally:
                for group in groups:
                    assert group.engine.parking is not None
                    group.engine.parking.end_look(group.look)
                    self._share_partitions.retire_unless_used(group.loaded)

    def _lock(self, partition: Partition) -> trio.Lock:
        return self._locks.setdefault(partition, trio.Lock())

    async def _look(
        self, group_id: str, partition: Partition, hold: LogHold, end_offset: int
    ) -> _Group | None:
        """The records that the group holds below `end_offset`. None if they are unknown at present,
        or known to be too many."""
        assert self._rows is not None
        key, stuck = TopicPartition(*partition.log), self._stuck.setdefault(partition, {})
        is_here = self._share_partitions.find(group_id, key) is not None
        if not is_here and group_id in stuck and stuck[group_id] == hold.window_from:
            return None
        loaded = await self._share_partitions.load(group_id, key)
        engine = loaded.engine
        assert engine is not None
        self._share_partitions.parked.prepare(engine, 0, must=True)
        parking = engine.parking
        if parking is None:
            return None
        if parking.has_unsaved:
            await self._saved(loaded, engine, engine.retry_unsaved())
        look = log_start.begin_look(engine)
        try:
            parked = await self._rows.read_from(
                group_id, key, PARKED, partition.log_start_offset, None, RECORDS_A_TURN + 1
            )
        except BaseException:
            parking.end_look(look)
            raise
        offsets, stuck_at = log_start.leavers(engine, end_offset, RECORDS_A_TURN)
        if len(parked) > RECORDS_A_TURN:
            stuck_at = min(stuck_at, parked.pop().offset)
        stuck.pop(group_id, None)
        if not is_here and not offsets and stuck_at < end_offset:
            stuck[group_id] = hold.window_from
        return _Group(loaded, engine, look, [each for each in parked if not each.kept], offsets, stuck_at)

    async def _keep(
        self,
        partition: Partition,
        segments: Sequence[SegmentInfo],
        ends: Sequence[int],
        groups: Sequence[_Group],
    ) -> None:
        """Keep as many records as it takes to free whole segments."""
        stuck_at = min(group.stuck_at for group in groups)
        ends = [end for end in ends if end <= stuck_at]
        while ends and sum(_below(group.wanted(), ends[-1]) for group in groups) > RECORDS_A_TURN:
            ends = ends[:-1]
        if not ends:
            return
        offsets = sorted({offset for group in groups for offset in group.wanted() if offset < ends[-1]})
        room = self._disk_floor.kept_room()
        max_bytes = min(BYTES_A_TURN, _freed(segments, ends[-1]), room)
        records: dict[int, bytes] = {}
        if offsets:
            states = partition.producers
            aborted = () if states is None else states.transactions.aborted_in(offsets[0], offsets[-1] + 1)
            records = await trio.to_thread.run_sync(
                _read, partition, offsets, max_bytes, aborted, limiter=_threads
            )
        missing = next((offset for offset in offsets if offset not in records), ends[-1])
        ends = [end for end in ends if end <= missing]
        size_bytes = 0
        while ends:
            size_bytes = _size(records, groups, ends[-1])
            if 2 * size_bytes <= _freed(segments, ends[-1]) and size_bytes <= room:
                break
            ends = ends[:-1]  # The records make up most of the segments, or the disk has no room.
        if not ends:
            return
        for commits in self._logs:
            # A power cut must not take a record from the log after it was kept: if the producer
            # sent it again, it would be delivered twice.
            await commits.flush()
        with self._disk_floor.promised(size_bytes):
            for group in groups:
                for piece in _pieces(records, ends[-1]):
                    await self._save(group, piece)

    async def _save(self, group: _Group, records: Mapping[int, bytes]) -> None:
        """Raises KafkaError."""
        engine, loaded = group.engine, group.loaded
        wanted = {offset: records[offset] for offset in group.offsets if offset in records}
        parked = [each for each in group.parked if each.offset in records]
        if parked:
            await self._saved(loaded, engine, log_start.keep(engine, parked, records, group.look))
        if wanted and not loaded.gone:
            await self._saved(loaded, engine, log_start.leave(engine, wanted, now_ms=now_ms()))
        self._share_partitions.schedule(loaded)
        loaded.waiters.wake_all()
        self._kept += len(wanted) + len(parked)

    async def _saved(
        self, loaded: LoadedSharePartition, engine: SharePartition, persist: Persist | None
    ) -> None:
        """Raises KafkaError; the next write of the share-partition then repeats the change."""
        saving = self._share_partitions.saving
        try:
            await saving.must_save(loaded, persist)
        except KafkaError:
            if not self._topics.reserve.is_there:
                raise
            # A full disk must not prevent the log from making room: use the space set aside.
            self._topics.reserve.give_up()
            await saving.must_save(loaded, engine.retry_unsaved())

    # -- DeleteRecords

    async def purge(self, partition: Partition, offset: int) -> None:
        """Remove the records that groups keep below `offset`; saved on return. Raises KafkaError if
        that is not certain; the caller may retry."""
        rows, key = self._rows, TopicPartition(*partition.log)
        if rows is None or partition.deleted:
            return
        async with self._lock(partition):
            for group_id in self._held_logs.groups_of(key):
                number = await rows.count(group_id, key, 0, offset, kept=True)
                if number:
                    await self._purge(group_id, key, offset)
                    self._report(partition, "DeleteRecords", group_id, number)

    async def before_reset(self, group_id: str, partitions: Iterable[TopicPartition]) -> Callable[[], None]:
        """Count the kept records of a group before it is reset to other offsets, which removes
        them. The caller calls the result when they are removed. Raises nothing."""
        rows, lost = self._rows, []
        for key in partitions:
            partition = self._topics.partition(*key)
            if partition is None or rows is None:
                continue
            try:
                end = partition.log_start_offset
                lost.append((partition, await rows.count(group_id, key, 0, end, kept=True)))
            except (KafkaError, StoreFailed) as error:
                place = partition.topic_name, partition.log.partition
                logger.warning(
                    "%s-%d: kept records of share group %s could not be counted: %s", *place, group_id, error
                )

        def report() -> None:
            for partition, number in lost:
                if number:
                    self._report(partition, "a new start offset", group_id, number)

        return report

    async def _purge(self, group_id: str, key: TopicPartition, offset: int) -> None:
        loaded = await self._share_partitions.load(group_id, key)
        engine = loaded.engine
        assert engine is not None
        if engine.parking is not None:
            await self._purge_memory(loaded, engine, engine.parking, offset)
            await self._share_partitions.parked.sweep(loaded, engine, engine.parking)
            if loaded.gone:
                raise KafkaError(ErrorCode.not_leader_or_follower)
        self._share_partitions.retire_unless_used(loaded)

    async def _purge_memory(
        self, loaded: LoadedSharePartition, engine: SharePartition, parking: Parking, offset: int
    ) -> None:
        """Wait for acknowledgements that are being saved, because they may park their records
        again. Raises KafkaError."""
        waiter = Waiter()
        loaded.settled.add(waiter)
        try:
            while not loaded.gone:
                waiter.rearm()
                persist = log_start.purge(engine, offset)
                if persist is not None:
                    await self._share_partitions.saving.must_save(loaded, persist)
                elif parking.is_pending_below(offset):
                    await waiter.wait()
                else:
                    break
        finally:
            loaded.settled.discard(waiter)


def _freed(segments: Sequence[SegmentInfo], end_offset: int) -> int:
    return sum(segment.size_bytes for segment in segments if segment.end_offset <= end_offset)


def _size(records: Mapping[int, bytes], groups: Iterable[_Group], end: int) -> int:
    """Of the copies below `end`, of which each group has its own."""
    return sum(len(records[offset]) for group in groups for offset in group.wanted() if offset < end)


def _below(offsets: Iterable[int], end: int) -> int:
    return sum(offset < end for offset in offsets)


def _pieces(records: Mapping[int, bytes], end: int) -> list[dict[int, bytes]]:
    pieces: list[dict[int, bytes]] = [{}]
    size = 0
    for offset, record in records.items():
        if offset >= end:
            break
        if size and size + len(record) > _BYTES_A_WRITE:
            pieces.append({})
            size = 0
        pieces[-1][offset] = record
        size += len(record)
    return pieces


def _read(
    partition: Partition, offsets: Sequence[int], max_bytes: int, aborted: Sequence[AbortedTransaction]
) -> dict[int, bytes]:
    """The first of the records at these offsets, each as a batch of its own, up to `max_bytes` in
    all. Ends before a record that the log does not have, or that is larger than its topic allows.
    Runs in a thread."""
    found: dict[int, bytes] = {}
    wanted, end_offset = set(offsets), partition.high_watermark
    try:
        for first in offsets:
            if first in found:
                continue
            views = partition.read_now(first, max_bytes=_READ_BYTES, end_offset=end_offset)
            for view, position, header in iter_possible(views, end_offset):
                trio.from_thread.check_cancelled()  # A batch may have 64 MiB, and there may be many.
                if header.is_control or wanted.isdisjoint(range(header.base_offset, header.last_offset + 1)):
                    continue
                if not crc_is_valid(view, position, header):
                    return found
                is_lost = is_aborted(header.attributes, header.producer_id, header.base_offset, aborted)
                for record in stored_records(view, position):
                    if record.offset not in wanted or record.offset in found:
                        continue
                    batch = copy_of(record, header, is_aborted=is_lost)
                    max_bytes -= len(batch)
                    if max_bytes < 0 or len(batch) > partition.topic.rules.max_message_bytes:
                        return found
                    found[record.offset] = batch
            if first not in found:
                break
    except (CorruptPayload, KafkaError, StoreFailed) as error:
        logger.info(
            "%s-%d: unfinished records cannot be kept beside the log: %s",
            partition.topic_name,
            partition.log.partition,
            error,
        )
    return found
