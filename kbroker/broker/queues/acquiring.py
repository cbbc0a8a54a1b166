"""Acquires records of one share-partition after another for a ShareFetch, and collects the answer's
rows.

Whole batches are sent as stored, and the client uses only the acquired ranges. An exact fetch
delivers only the records that it acquires (sliced_batches.py). A fetch is exact in record_limit
mode, and in each mode where the group has a prefetch limit: a member then gets no more than it has
room for.

Acquiring and answering are one step, so a compressed batch is opened before that. While a read or
an opening waits for its thread, other fetches may acquire, and the session may end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import trio

from kbroker.broker.commits.deadlines import now_ms
from kbroker.broker.logs.topics import Topics
from kbroker.broker.queues.loaded import LoadedSharePartition
from kbroker.broker.queues.opened_batches import BatchOpener, OpenedBatches
from kbroker.broker.queues.parked_fetching import ParkedPlan, plan_parked
from kbroker.broker.queues.record_places import is_sparse
from kbroker.broker.queues.share_partitions import SharePartitions
from kbroker.broker.queues.sliced_batches import (
    Walked,
    control_of,
    front_of,
    split,
    taken_records,
    whole_batches,
)
from kbroker.formats.batches import Buffer
from kbroker.metrics import WaitMetrics
from kbroker.protocol.responses import ShareFetchRow, share_fetch_row
from kbroker.share import log_start, offers
from kbroker.share.acquire import Batches
from kbroker.share.effects import AcquiredRange
from kbroker.share.parking import Parking
from kbroker.share.persister import TopicPartition
from kbroker.share.rules import alone_from
from kbroker.share.session import FetchPlan
from kbroker.share.share_partition import AcquireMode, SharePartition

_SMALL_READ_BYTES = 64 << 10
_BYTES_PER_RECORD = 4 << 10
_is_control = itemgetter(2)


class ShareLimits(NamedTuple):
    """Limits of a ShareFetch. `min_bytes` and `max_bytes` are already capped by the broker's."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    mode: AcquireMode


class ShareFetchContext(NamedTuple):
    """The parts of the broker that each ShareFetch uses."""

    share_partitions: SharePartitions
    topics: Topics
    opened_batches: OpenedBatches
    waits: WaitMetrics


class Acquiring:
    """One fetch.

    - `budget`: how many more records it may acquire, over all share-partitions
    - `taken`: how many it has acquired
    - `has_read`: whether others may have had a turn since the fetch looked
    - `is_current()`: false once the session was used, replaced or ended elsewhere. Nothing may be
          acquired then: the client would never see the records, or would hold them in an ended
          session.
    """

    def __init__(self, context: ShareFetchContext, plan: FetchPlan, limits: ShareLimits) -> None:
        self._share_partitions, _, self._opened_batches, _ = context
        self.rows: dict[TopicPartition, ShareFetchRow] = {}
        self.budget = limits.max_records
        self.taken = 0
        self.exact = limits.mode is AcquireMode.RECORD_LIMIT
        self.has_read = False
        self.is_current = partial(self._share_partitions.sessions.is_current, plan)
        self._member_id = plan.session.key.member_id
        self._batch_size = limits.batch_size

    async def acquire(
        self, loaded: LoadedSharePartition, engine: SharePartition, share_bytes: int, known: int | None
    ) -> bool:
        """Acquire the next records of one share-partition. `known`: the offset to acquire from, if
        nothing has waited since it was found. False: nothing was acquired. Raises KafkaError for a
        log that cannot be read."""
        for each in loaded.filters:
            if await each.prepare(loaded):
                known = None
        end_offset = loaded.visible.high_watermark
        opener = self._opener(loaded) if self.exact else None
        while True:
            fetch_offset, known = offers.offset_to_acquire(engine) if known is None else known, None
            if fetch_offset is None or fetch_offset >= end_offset or _is_blocked(loaded, engine):
                return False
            wanted = self.budget + max(0, engine.end_offset - fetch_offset + 1)
            if engine.settings.scans:
                wanted = offers.offsets_to_read(engine, fetch_offset, self.budget)
            max_bytes = min(share_bytes, max(_SMALL_READ_BYTES, self.budget * _BYTES_PER_RECORD))
            self.has_read = True
            views = await loaded.partition.read(fetch_offset, max_bytes=max_bytes, end_offset=end_offset)
            if loaded.gone or not self.is_current():
                return False
            batches = loaded.walk(views, fetch_offset, wanted, end_offset)
            if opener is not None:
                stored = self._unopened(batches, engine, opener)
                if stored is not None or opener.must_pause:
                    await (opener.pause() if stored is None else opener.open(stored))
                    if loaded.gone or not self.is_current():
                        return False
                    continue  # Others may have acquired its records meanwhile.
            if loaded.filters:
                has_changed = await _inspect(loaded, engine, batches)
                if loaded.gone or not self.is_current():
                    return False
                if has_changed:
                    continue
            if self._take(loaded, engine, fetch_offset, batches, opener, share_bytes):
                return True
            self._share_partitions.saving.save_later(loaded, engine.save_passed())
            if offers.offset_to_acquire(engine) in (None, fetch_offset):
                return False
            await trio.lowlevel.checkpoint()  # Only control batches so far, and perhaps many more follow.

    def _opener(self, loaded: LoadedSharePartition) -> BatchOpener:
        return BatchOpener(self._opened_batches, loaded.partition.log, loaded.plain)

    def _unopened(
        self, batches: list[Walked], engine: SharePartition, opener: BatchOpener
    ) -> memoryview | None:
        """The batch that must be opened before anything can be acquired. If there is none, returns
        None, and leaves in `batches` those whose records may be acquired now, unless the opener
        must pause."""
        room = self.budget
        locks_left = engine.settings.max_record_locks - (engine.window.unread_from - engine.start_offset)
        if locks_left > 0:  # Otherwise only released records are delivered, whatever the limit.
            room = min(room, locks_left)
        ready, to_open = front_of(batches, room, partial(offers.acquirable_in, engine), opener)
        if ready or not batches or opener.must_pause:
            del batches[ready:]
            return None
        _, _, _, view, start, end = batches[to_open]
        return view[start:end]

    def _take(
        self,
        loaded: LoadedSharePartition,
        engine: SharePartition,
        fetch_offset: int,
        batches: list[Walked],
        opener: BatchOpener | None,
        share_bytes: int,
    ) -> bool:
        """`opener`: of an exact fetch."""
        if not batches:
            return False
        control = control_of(batches, batches[-1][1]) if any(map(_is_control, batches)) else []
        data: Batches = [batch for batch in batches if not batch[2]] if control else batches
        if opener is not None and any(is_sparse(view, start) for _, _, _, view, start, _ in batches):
            data, holes = split([each for each in batches if not each[2]], fetch_offset, opener)
            control = [*control, *holes]
        ranges = engine.acquire(
            self._member_id,
            mode=AcquireMode.BATCH_OPTIMIZED if opener is None else AcquireMode.RECORD_LIMIT,
            batch_size=self._batch_size,
            max_records=self.budget,
            fetch_offset=fetch_offset,
            batches=data,
            control=control,
            now_ms=now_ms(),
            follows=self.taken if engine.settings.is_queue else 0,
        )
        if engine.saves.has_given_up:
            self._share_partitions.saving.save_later(loaded, engine.save_passed())
        if not ranges:
            return False
        loaded.is_parked_turn = True
        records: Sequence[Buffer]
        if opener is not None:
            records = taken_records(batches, ranges, opener, share_bytes)
        else:
            records = whole_batches(batches, ranges, has_control=bool(control))
        self._answer(loaded, engine, ranges, records)
        return True

    async def acquire_parked(
        self, loaded: LoadedSharePartition, engine: SharePartition, share_bytes: int
    ) -> bool:
        """Like acquire(), for parked records of one share-partition that are due."""
        opener = self._opener(loaded)
        for each in loaded.filters:
            await each.prepare(loaded)
        while engine.parking is not None and offers.parked_ready(engine) and self.budget > 0:
            if _is_blocked(loaded, engine):
                break
            self.has_read = True
            if loaded.plan_ends is not None:
                await loaded.plan_ends.wait()
                if loaded.gone or not self.is_current():
                    return False
                continue
            plan = await self._plan_parked(loaded, engine.parking, opener, share_bytes)
            if loaded.gone or not self.is_current():
                return False
            self._share_partitions.saving.save_later(loaded, log_start.lost(engine, plan.lost))
            if loaded.filters:
                has_changed = await _inspect(loaded, engine, list(plan.batches), plan.offsets)
                if loaded.gone or not self.is_current():
                    return False
                if has_changed:
                    continue
            ranges = engine.acquire_parked(
                self._member_id,
                plan.offsets,
                now_ms=now_ms(),
                follows=self.taken if engine.settings.is_queue else 0,
            )
            if engine.saves.has_given_up:
                self._share_partitions.saving.save_later(loaded, engine.save_passed())
            if ranges:
                loaded.is_parked_turn = False
                records = taken_records(plan.batches, ranges, opener, share_bytes)
                self._answer(loaded, engine, ranges, records)
                self._share_partitions.parked.see_to(loaded)
                return True
            if not plan.lost and not plan.offsets:
                loaded.is_parked_turn = False  # An open transaction may hold all of them back.
                return False
            if self.taken:
                return False  # One that must not follow them may be first.
        return False

    async def _plan_parked(
        self, loaded: LoadedSharePartition, parking: Parking, opener: BatchOpener, share_bytes: int
    ) -> ParkedPlan:
        """One fetch at a time plans for a share-partition: others would read the same batches, as
        all begin with the records that have been due for longest. It plans in the next turn of the
        loop, as four plans in one took 50 ms."""
        record_of = self._share_partitions.parked.record_of
        loaded.plan_ends = ends = trio.Event()
        try:
            await trio.lowlevel.checkpoint()
            return await plan_parked(loaded, parking, opener, self.budget, share_bytes, record_of)
        finally:
            loaded.plan_ends = None
            ends.set()

    def _answer(
        self,
        loaded: LoadedSharePartition,
        engine: SharePartition,
        ranges: list[AcquiredRange],
        records: Sequence[Buffer],
    ) -> None:
        partition = loaded.key[1]
        self._share_partitions.schedule(loaded)
        self._share_partitions.scanner.resume(loaded)
        for first, last, _ in ranges:
            size = last - first + 1
            self.budget -= size
            self.taken += size
            if loaded.metrics is not None:
                loaded.metrics.acquired_ranges.observe(size)
        settings = engine.settings
        if settings.is_queue and ranges[-1].delivery_count > alone_from(settings):
            self.budget = 0  # No record of another share-partition goes with a last attempt.
        loaded.partition.metrics.bytes_out += sum(map(len, records))
        self.rows[partition] = share_fetch_row((partition.partition, 0, None, 0, None, records, ranges))


def _is_blocked(loaded: LoadedSharePartition, engine: SharePartition) -> bool:
    return bool(loaded.filters) and any(each.blocks(engine) for each in loaded.filters)


async def _inspect(
    loaded: LoadedSharePartition,
    engine: SharePartition,
    batches: list[Walked],
    parked: Sequence[int] | None = None,
) -> bool:
    for each in loaded.filters:
        if await each.inspect(loaded, engine, batches, parked):
            return True
    return False
