"""Looks at records before members get them, in groups that have `kbroker.queue.scheduling` or
`kbroker.queue.ttl.ms`.

One task for a share-partition in memory goes through its log, ahead of the members: it opens batches,
finds the headers that schedule records (scheduled_records.py), and tells the engine, which parks what is
due later. A batch without these headers is not taken apart. It gives up what is past its time (expiry.py).
It sleeps while members have enough to do, and is woken by appends.

A scan that parks a million records takes a while. So where it is far behind the log's end, and members
have little to do, it first looks ahead for batches with something to deliver now: that reads a
hundred times as fast.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from kbroker.broker.deadlines import now_ms
from kbroker.broker.schedules import Schedules, due_now, schedules_of
from kbroker.broker.share_records import Walked, walk
from kbroker.broker.waiting import Waiter
from kbroker.clock import wall_clock_ms
from kbroker.errors import KafkaError, NoSpace, StoreFailed
from kbroker.records import read_header
from kbroker.scheduled_records import Oddity
from kbroker.seldom import Seldom
from kbroker.share.effects import Persist
from kbroker.share.redelivery import LOOK_AT_THE_CLOCK_MS
from kbroker.share.share_partition import SharePartition

if TYPE_CHECKING:
    from kbroker.broker.share_groups import LoadedSharePartition, ShareGroups

logger = logging.getLogger(__name__)

OFFSETS_A_TURN = 500
"""Parking so many takes the loop about 10 ms."""
BYTES_A_TURN = 1 << 20
AHEAD_FROM = 5000
"""Offsets between the scan and the log's end from which it looks ahead."""
_AHEAD_BYTES = 4 << 20
_IN_THREAD_FROM_BYTES = 64 << 10
_IN_THREAD_FROM_RECORDS = 500
_RETRY_S = 1.0
_REPORT_EVERY_S = 60.0
_MEANING = {
    Oddity.MALFORMED: "have a schedule that is no number, and were delivered at once",
    Oddity.TOO_FAR: "were scheduled for later than kbroker.queue.scheduling.max.delay.ms allows, and come earlier",
}


class Scanner:
    def __init__(self, share_groups: ShareGroups, start: Callable[..., None], flush: Callable[[], Awaitable[None]]) -> None:
        self._share_groups = share_groups
        self._flush = flush
        self._start = start
        self._reports = Seldom(_REPORT_EVERY_S)

    def see_to(self, loaded: LoadedSharePartition) -> None:
        """It was loaded, its settings were altered, or there is more room."""
        engine = loaded.engine
        if engine is None or engine.parking is None:
            return
        if loaded.scanner is not None:
            loaded.scanner.wake()
        elif engine.settings.scans:
            loaded.scanner = Waiter()
            self._start(self._work, loaded, engine)

    async def _work(self, loaded: LoadedSharePartition, engine: SharePartition) -> None:
        waiter = loaded.scanner
        assert waiter is not None
        known: dict[tuple[int, int], Schedules] = {}
        ahead = 0
        loaded.partition.waiters.add(waiter)
        try:
            while not loaded.gone and engine.settings.scans and not loaded.partition.deleted:
                waiter.rearm()
                try:
                    ahead = await self._look_ahead(loaded, engine, ahead)
                    has_more = await self._turn(loaded, engine, known)
                except (KafkaError, NoSpace, StoreFailed) as error:
                    logger.warning("the scan of share-partition %s for scheduled records has to wait: %s", loaded.key, error)
                    await trio.sleep(_RETRY_S)
                    continue
                if has_more:
                    await trio.lowlevel.checkpoint()
                else:
                    known.clear()
                    with trio.move_on_after(LOOK_AT_THE_CLOCK_MS / 1000 if engine.settings.ttl_ms else math.inf):
                        await waiter.wait()
        finally:
            loaded.partition.waiters.discard(waiter)
            loaded.scanner = None

    async def _turn(
        self, loaded: LoadedSharePartition, engine: SharePartition, known: dict[tuple[int, int], Schedules]
    ) -> bool:
        """False: there is nothing to be done for now. Raises KafkaError and StoreFailed."""
        partition = loaded.partition
        if engine.start_offset < partition.log_start_offset:
            self._share_groups.save_later(loaded, engine.log_start_moved(partition.log_start_offset))
        persist = engine.park_again(wall_clock_ms())
        if persist is not None:
            await self._save(loaded, persist)
        has_expired = engine.settings.ttl_ms > 0 and await self._share_groups.expiry.look(loaded, engine)
        return await self._scan(loaded, engine, known) or has_expired

    async def _look_ahead(self, loaded: LoadedSharePartition, engine: SharePartition, ahead: int) -> int:
        """Where to look next time; `ahead`: where to look now, unless the scan has been there. Raises KafkaError and StoreFailed."""
        partition, settings = loaded.partition, engine.settings
        while settings.schedules and engine.may_look_ahead() and not loaded.gone:
            scan_from, end_offset = engine.scan_from(), partition.high_watermark
            if scan_from is None or end_offset - scan_from < AHEAD_FROM:
                break
            ahead = max(ahead, scan_from)
            views = await partition.read(ahead, max_bytes=_AHEAD_BYTES, end_offset=end_offset) if ahead < end_offset else []
            batches = walk(views, ahead, end_offset - ahead, end_offset)
            if not batches:
                break
            arguments = wall_clock_ms(), settings.max_delay_ms
            found = await trio.to_thread.run_sync(due_now, batches, *arguments)
            ahead = batches[-1][1] + 1
            for first, last, later in found:
                if not engine.may_look_ahead():
                    return first
                persist = engine.scanned_ahead(first, last, later, now_ms=now_ms(), wall_ms=wall_clock_ms())
                if persist is not None:
                    await self._save(loaded, persist)
            if found:
                self._share_groups.schedule(loaded)
                loaded.waiters.wake_all()
        return ahead

    async def _scan(
        self, loaded: LoadedSharePartition, engine: SharePartition, known: dict[tuple[int, int], Schedules]
    ) -> bool:
        partition, end_offset = loaded.partition, loaded.partition.high_watermark
        offset = engine.scan_from()
        if offset is None or offset >= end_offset:
            return False
        views = await partition.read(offset, max_bytes=BYTES_A_TURN, end_offset=end_offset)
        batches = walk(views, offset, OFFSETS_A_TURN, end_offset)
        if not batches:
            return False
        due: list[tuple[int, int]] = []
        if engine.settings.schedules:
            due = await self._schedules(loaded, batches, engine.settings.max_delay_ms, known)
        if loaded.gone or engine.scan_from() != offset:
            return True  # Somebody else has moved the window meanwhile.
        last = offset + OFFSETS_A_TURN - 1
        data = [(batch[0], min(batch[1], last)) for batch in batches if not batch[2] and batch[0] <= last]
        control = [(batch[0], min(batch[1], last)) for batch in batches if batch[2] and batch[0] <= last]
        scheduled = [each for each in due if offset <= each[0] <= last]
        persist = engine.scanned(offset, data, control, scheduled, now_ms=now_ms(), wall_ms=wall_clock_ms())
        self._share_groups.schedule(loaded)
        loaded.waiters.wake_all()
        if persist is not None:
            await self._save(loaded, persist)
        return True

    async def _save(self, loaded: LoadedSharePartition, persist: Persist) -> None:
        """Synced on return, so that a scan cannot outrun a store that keeps the latest in memory. Raises KafkaError, StoreFailed."""
        if (error := await self._share_groups.save(loaded, persist)) is not None:
            raise error
        await self._flush()

    async def _schedules(
        self, loaded: LoadedSharePartition, batches: list[Walked], max_delay_ms: int, known: dict[tuple[int, int], Schedules]
    ) -> list[tuple[int, int]]:
        """A long batch takes several turns, and is opened in the first."""
        due: list[tuple[int, int]] = []
        keys = []
        for base_offset, _, is_control, view, start, end in batches:
            if is_control:
                continue
            key = base_offset, read_header(view, start).crc
            keys.append(key)
            if key not in known:
                arguments = view[start:end], wall_clock_ms(), max_delay_ms
                if end - start < _IN_THREAD_FROM_BYTES and read_header(view, start).record_count < _IN_THREAD_FROM_RECORDS:
                    known[key] = schedules_of(*arguments)
                else:
                    known[key] = await trio.to_thread.run_sync(schedules_of, *arguments)
                self._report(loaded, known[key].odd)
            due += known[key].due
        for key in known.keys() - set(keys[-1:]):
            del known[key]
        return due

    def _report(self, loaded: LoadedSharePartition, odd: Counter[Oddity]) -> None:
        group_id = loaded.key[0]
        for oddity, number in odd.items():
            if loaded.metrics is not None:
                loaded.metrics.odd_schedules[oddity.value] += number
            if self._reports.times((group_id, oddity), trio.current_time()):
                logger.warning("%d records for share group %s %s", number, group_id, _MEANING[oddity])
