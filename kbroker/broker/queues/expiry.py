"""Expires records that are past their time, in groups that have `kbroker.queue.ttl.ms`.

    record   timestamp ---- due time, if it is scheduled ------ ttl ---> expired
                            the age starts at the later of the two

The age of a record is stored only in its batch. So a batch is opened once before members get its
records, and the times of its records are kept in memory for all groups. A fetch checks the records
that it is about to acquire. The scanner (scanner.py) checks the oldest records each second, so that
they expire without a fetch; in an idle share-partition when the oldest batch expires (`pause_s`).
A record that a member holds does not expire.

A record without a timestamp does not expire, nor does one in a batch that cannot be read: the
member that gets it notices that.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import trio

from kbroker.bounded_cache import BoundedCache
from kbroker.broker.logs.partition import Partition
from kbroker.broker.queues.loaded import LoadedSharePartition
from kbroker.broker.queues.parked_fetching import RecordOf, parked_batch
from kbroker.broker.queues.sliced_batches import Walked
from kbroker.clock import wall_clock_ms
from kbroker.formats.batches import NO_TIMESTAMP, BatchHeader, read_header, records_payload, stored_records
from kbroker.formats.compression import CorruptPayload
from kbroker.formats.schedule_headers import MARK, due_of
from kbroker.formats.turns import Turn
from kbroker.share import offers, scanning
from kbroker.share.effects import Persist
from kbroker.share.redelivery import LOOK_AT_THE_CLOCK_MS
from kbroker.share.share_partition import SharePartition
from kbroker.storage.spi import LogId

AT_ONCE: Final = 1000
"""The most records that expire in one look."""
DEAD_LETTERS_AT_MOST: Final = 10_000
"""Limit of unwritten dead letters of a share-partition."""
_PARKED_AT_ONCE = 64
_threads: Final = trio.CapacityLimiter(2)
"""Read the batches that are compressed, or too large for a turn of the loop."""
_KEPT_BYTES = 8 << 20
_NEVER: Final = (1 << 63) - 1
_LOOK_S: Final = LOOK_AT_THE_CLOCK_MS / 1000
_LONGEST_PAUSE_S: Final = 10.0
"""The wall clock may be set meanwhile."""

_Key: TypeAlias = tuple[LogId, int, int, bool]
"""Log, base offset, CRC, whether schedules matter."""


class BatchTimes(NamedTuple):
    """When the ages of a batch's records start, in milliseconds since 1970. `each`: for the records
    at these ascending offset `deltas`; None: all are equal."""

    earliest_ms: int
    deltas: array[int] | None = None
    each: array[int] | None = None

    def of(self, delta: int) -> int:
        if self.deltas is None or self.each is None:
            return self.earliest_ms
        number = bisect_left(self.deltas, delta)
        return self.each[number] if number < len(self.deltas) and self.deltas[number] == delta else _NEVER

    @property
    def size_bytes(self) -> int:
        return 0 if self.each is None else 16 * len(self.each)


_AGELESS = BatchTimes(_NEVER)


def times_of(stored: memoryview, *, schedules: bool) -> BatchTimes:
    header = read_header(stored)
    try:
        return _times_of(stored, header, schedules=schedules)
    except CorruptPayload:
        return _AGELESS


def _times_of(stored: memoryview, header: BatchHeader, *, schedules: bool) -> BatchTimes:
    """Raises CorruptPayload."""
    payload = None
    if not (schedules and MARK in (payload := bytes(records_payload(stored, header)))):
        if header.is_log_append_time and header.record_count > header.last_offset_delta:
            return BatchTimes(header.max_timestamp_ms)
        schedules = False
    deltas, each = array("i"), array("q")
    for record in stored_records(stored, payload=payload):
        since_ms = _NEVER if record.timestamp_ms == NO_TIMESTAMP else record.timestamp_ms
        due_ms = due_of(record, since_ms).due_ms if schedules else None
        deltas.append(record.offset - header.base_offset)
        counts_from_ms = since_ms if due_ms is None else max(since_ms, due_ms)
        # A record with a delay may have no timestamp, or an extreme one.
        each.append(max(-_NEVER, min(counts_from_ms, _NEVER)))
    earliest_ms = min(each, default=_NEVER)
    # In a batch with holes only the records have times, as nothing expires that is not there.
    if max(each, default=_NEVER) == earliest_ms and len(each) > header.last_offset_delta:
        return BatchTimes(earliest_ms)
    return BatchTimes(earliest_ms, deltas, each)


class Expiry:
    """`save_later` and `record_of` are the methods of Saving and ParkedReading."""

    def __init__(
        self,
        save_later: Callable[[LoadedSharePartition, Persist | None], None],
        record_of: RecordOf,
    ) -> None:
        self._save_later = save_later
        self._record_of = record_of
        # The caller that has learnt the times of a batch looks for them next.
        self._known: BoundedCache[_Key, BatchTimes] = BoundedCache(_KEPT_BYTES, least=1)

    # -- with a fetch

    async def give_up(
        self, loaded: LoadedSharePartition, engine: SharePartition, batches: list[Walked]
    ) -> bool:
        """Call this before a fetch acquires from these batches. False: it may acquire from those
        left in `batches`. True: it must read again, because records have expired or the call has
        waited."""
        horizon_ms = _horizon_ms(engine)
        schedules, is_first, turn = engine.settings.schedules, True, Turn()
        offsets: list[int] = []
        for number, (base, last, is_control, view, start, end) in enumerate(batches):
            if is_control or not offers.acquirable_in(engine, base, last):
                continue
            stored = view[start:end]
            times = self._find(loaded.partition, stored, turn, schedules=schedules)
            if times is None:
                if is_first:
                    await self._learn(loaded.partition, stored, schedules=schedules)
                    return True
                del batches[number:]
                break
            is_first = False
            if times.earliest_ms <= horizon_ms:
                offsets += _old(engine, times, base, last, horizon_ms)
                if len(offsets) >= AT_ONCE:
                    break
        return self._expire(loaded, engine, offsets[:AT_ONCE])

    async def give_up_parked(
        self,
        loaded: LoadedSharePartition,
        engine: SharePartition,
        batches: Sequence[Walked],
        offsets: Sequence[int],
    ) -> bool:
        """Call this before a fetch acquires these parked records, which are in these batches. True:
        some have expired. The call may have waited."""
        horizon_ms, schedules = _horizon_ms(engine), engine.settings.schedules
        old: list[int] = []
        turn = Turn()
        for base, last, _, view, start, end in batches:
            times = self._find(loaded.partition, view[start:end], turn, schedules=schedules)
            if times is None:
                times = await self._learn(loaded.partition, view[start:end], schedules=schedules)
                turn.renew()
            if times.earliest_ms <= horizon_ms:
                old += [
                    offset
                    for offset in offsets
                    if base <= offset <= last and times.of(offset - base) <= horizon_ms
                ]
        return self._expire(loaded, engine, old)

    def _expire(self, loaded: LoadedSharePartition, engine: SharePartition, offsets: Sequence[int]) -> bool:
        persist = scanning.expire_records(engine, offsets) if offsets else None
        self._save_later(loaded, persist)
        return persist is not None

    # -- without a fetch

    async def look(self, loaded: LoadedSharePartition, engine: SharePartition) -> bool:
        """Expire the oldest records that no member holds, at most AT_ONCE of the window. True:
        there may be more. Raises KafkaError and StoreFailed."""
        if must_wait(engine):
            return False
        offset, partition = engine.window.next_available(), loaded.partition
        loaded.expires_ms = None
        has_changed = False
        end_offset = loaded.visible.high_watermark
        if offset is not None and offset < end_offset:
            views = await partition.read(offset, max_bytes=1, end_offset=end_offset)
            batches = loaded.walk(views, offset, 1, end_offset)
            if not loaded.gone:
                has_changed = await self.give_up(loaded, engine, batches)
                if len(batches) == 1 and not batches[0][2]:
                    header = read_header(batches[0][3], batches[0][4])
                    times = self._known.get(_key(partition, header, schedules=engine.settings.schedules))
                    loaded.expires_ms = None if times is None else times.earliest_ms
        if engine.parking is not None and engine.parking.ready and not loaded.gone:
            has_changed |= await self._look_at_parked(loaded, engine)
        return has_changed

    def pause_s(self, loaded: LoadedSharePartition, engine: SharePartition) -> float:
        """How long nothing expires after a `look` that found nothing, unless the share-partition
        changes. Thousands of idle ones must not cost a look a second each: without unfinished
        records nothing expires, nor does a parked one before it is due, and if members only have to
        fetch, the oldest batch comes first."""
        parking = engine.parking
        are_parked = parking is not None and parking.waiting > 0
        if (
            not engine.is_settled
            or (parking is not None and parking.ready)
            or (are_parked and engine.key_order is not None)
        ):
            return _LOOK_S
        if engine.start_offset >= loaded.visible.high_watermark:
            return _LONGEST_PAUSE_S if are_parked else math.inf
        if loaded.expires_ms is None:
            return _LOOK_S
        left_s = (loaded.expires_ms + engine.settings.ttl_ms - wall_clock_ms()) / 1000
        return min(max(left_s, _LOOK_S), _LONGEST_PAUSE_S)

    async def _look_at_parked(self, loaded: LoadedSharePartition, engine: SharePartition) -> bool:
        assert engine.parking is not None
        has_changed, last = False, -1
        for offset in sorted(engine.parking.in_turn(_PARKED_AT_ONCE)):
            if offset <= last:
                continue
            batch = await parked_batch(loaded, offset, self._record_of)
            if batch is None or loaded.gone:
                continue  # The next fetch notices that it is lost.
            last = batch[1]
            here = [each for each in engine.parking.in_turn(AT_ONCE) if batch[0] <= each <= last]
            has_changed |= await self.give_up_parked(loaded, engine, [batch], here)
        return has_changed

    # -- times of batches

    def _find(
        self, partition: Partition, stored: memoryview, turn: Turn, *, schedules: bool
    ) -> BatchTimes | None:
        """None: that takes longer than the loop may be blocked."""
        header = read_header(stored)
        key = _key(partition, header, schedules=schedules)
        times = self._known.get(key)
        if times is None:
            if header.codec_id or not turn.allows(header):
                return None
            turn.spend(header, header.size_bytes, header.record_count)
            times = times_of(stored, schedules=schedules)
            self._known.put(key, times, times.size_bytes)
        return times

    async def _learn(self, partition: Partition, stored: memoryview, *, schedules: bool) -> BatchTimes:
        times = await trio.to_thread.run_sync(lambda: times_of(stored, schedules=schedules), limiter=_threads)
        self._known.put(_key(partition, read_header(stored), schedules=schedules), times, times.size_bytes)
        return times


def _key(partition: Partition, header: BatchHeader, *, schedules: bool) -> _Key:
    return partition.log, header.base_offset, header.crc, schedules


def must_wait(engine: SharePartition) -> bool:
    """For a group with a time to live. True while many dead letters are unwritten, each of which
    takes memory. Nothing expires then, so nothing may be delivered."""
    return engine.parking is not None and engine.parking.archiving >= DEAD_LETTERS_AT_MOST


def _horizon_ms(engine: SharePartition) -> int:
    """Records from then or earlier have expired. None has, if the time to live was switched off
    while the caller waited."""
    ttl_ms = engine.settings.ttl_ms
    return wall_clock_ms() - ttl_ms if ttl_ms else -_NEVER


def _old(engine: SharePartition, times: BatchTimes, base: int, last: int, horizon_ms: int) -> list[int]:
    """Offsets of the batch whose records have expired and are held by no member."""
    return [
        offset for offset in engine.window.available_in(base, last) if times.of(offset - base) <= horizon_ms
    ]
