"""Inspects records before members get them, in groups that have `kbroker.queue.scheduling`,
`kbroker.queue.ttl.ms` or `kbroker.queue.ordering`.

One task for each share-partition in memory reads its log ahead of the members. It opens batches and
finds the headers that schedule records (formats/schedule_headers.py) and the keys. The engine then
parks records that are due later, and queues records behind others with their keys. A batch without
these headers is not parsed where keys do not matter. The task also expires records (expiry.py). It
sleeps while members have enough to do, and appends wake it.

Memory holds the parked records that come next; a million others may be only in the store. So the
task looks up the keys of all records that join the window there (share/key_order.py). A record may
be finished during the lookup. So the order of keys is notified when a lookup begins and ends, and
drops the records that were finished in between.

A scan that parks a million records takes a while. So where it is far behind the log's end, and
members have little to do, it first looks ahead for batches with something to deliver now: that
reads a hundred times as fast.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import trio

from kbroker.broker.commits.background import Background
from kbroker.broker.commits.deadlines import now_ms
from kbroker.broker.commits.waiting import Waiter
from kbroker.broker.queues.expiry import Expiry
from kbroker.broker.queues.loaded import LoadedSharePartition
from kbroker.broker.queues.record_places import Runs, is_sparse, runs_of_payload
from kbroker.broker.queues.saving import Saving
from kbroker.broker.queues.sliced_batches import Walked, control_of, holes_of
from kbroker.clock import wall_clock_ms
from kbroker.errors import KafkaError, NoSpace, StoreFailed
from kbroker.formats.batches import read_header, records_payload, stored_records
from kbroker.formats.compression import DEFAULT_MAX_BYTES, CorruptPayload, TooLarge
from kbroker.formats.record_keys import BatchKeys, keys_of
from kbroker.formats.schedule_headers import MARK, Oddity, offsets_without, schedule_of
from kbroker.formats.turns import Turn
from kbroker.seldom import Seldom
from kbroker.share import log_start, scanning
from kbroker.share.effects import Persist, ShareSettings
from kbroker.share.key_order import KeyOrder
from kbroker.share.ordering import Keys
from kbroker.share.persister import Persister
from kbroker.share.runs import joined_runs
from kbroker.share.share_partition import SharePartition

logger = logging.getLogger(__name__)

OFFSETS_A_TURN = 300
"""Parking so many records keeps the loop busy for about 6 ms."""
BYTES_A_TURN = 1 << 20
AHEAD_FROM = 5000
"""The scan looks ahead if it is so many offsets behind the log's end."""
_AHEAD_BYTES = 4 << 20
_threads: Final = trio.CapacityLimiter(2)
"""Read the batches that are too large for a turn of the loop; in the worst case each takes twice 64
MiB."""
_WALKS: Final = 3
"""How often looked_at() may walk over the records of a batch."""
_KEPT_KEYS = 20_000
"""The keys of a batch in which a scan has stopped midway are kept, up to so many; larger batches
are reopened."""
_RETRY_S = 1.0
_REPORT_EVERY_S = 60.0
_MEANING = {
    Oddity.MALFORMED: "have a schedule that is no number, and were delivered at once",
    Oddity.TOO_FAR: "were scheduled for later than kbroker.queue.scheduling.max.delay.ms allows, and come "
    "earlier",
}


class Schedules(NamedTuple):
    """One batch: `due` has the offsets of records that are due later, and their due times; `odd`
    counts malformed schedules; `keys` are given where they matter, and `runs` of offsets with
    records for a batch with holes."""

    due: list[tuple[int, int]]
    odd: Counter[Oddity]
    keys: BatchKeys | None = None
    runs: Runs | None = None


class Scanner:
    """`schedule(loaded)` sets the timer for the next lock or wait that ends. `flush` syncs the
    state store."""

    def __init__(
        self,
        persister: Persister,
        background: Background,
        saving: Saving,
        expiry: Expiry,
        schedule: Callable[[LoadedSharePartition], None],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        self._rows = persister.waiting_rows
        self._background = background
        self._saving = saving
        self._expiry = expiry
        self._schedule = schedule
        self._flush = flush
        self._reports = Seldom(_REPORT_EVERY_S)

    def resume(self, loaded: LoadedSharePartition) -> None:
        """Wake a scan that has something to do: there may be more room, or keys to look up. Each
        fetch and acknowledgement calls this, usually with no effect."""
        if (
            loaded.scanner is not None
            and loaded.engine is not None
            and scanning.has_to_scan(loaded.engine, loaded.visible.high_watermark)
        ):
            loaded.scanner.wake()

    def see_to(self, loaded: LoadedSharePartition) -> None:
        """Start or wake the scan after the load, or after settings were altered."""
        engine = loaded.engine
        if engine is None or engine.parking is None:
            return
        if loaded.scanner is not None:
            loaded.scanner.wake()
        elif engine.settings.scans:
            loaded.scanner = Waiter()
            self._background.start(self._work, loaded, engine)

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
                    if loaded.committed is not None:
                        await loaded.committed.load()
                    ahead = await self._look_ahead(loaded, engine, ahead)
                    has_more = await self._turn(loaded, engine, known)
                except (KafkaError, NoSpace, StoreFailed) as error:
                    if self._reports.times(loaded.key, trio.current_time()):
                        place = loaded.key[0], loaded.partition.topic_name, loaded.partition.log.partition
                        what = "the scan of share-partition %s:%s-%d ahead of its members has to wait: %s"
                        logger.warning(what, *place, error)
                    await trio.sleep(_RETRY_S)
                    continue
                if has_more:
                    await trio.lowlevel.checkpoint()
                else:
                    if any(each.keys is None or len(each.keys) > _KEPT_KEYS for each in known.values()):
                        known.clear()
                    ttl_ms = engine.settings.ttl_ms
                    with trio.move_on_after(self._expiry.pause_s(loaded, engine) if ttl_ms else math.inf):
                        await waiter.wait()
        finally:
            loaded.partition.waiters.discard(waiter)
            loaded.scanner = None

    async def _turn(
        self, loaded: LoadedSharePartition, engine: SharePartition, known: dict[tuple[int, int], Schedules]
    ) -> bool:
        """False: there is nothing to do for now. Raises KafkaError and StoreFailed."""
        partition = loaded.partition
        if engine.start_offset < partition.log_start_offset:
            self._saving.save_later(loaded, log_start.log_start_moved(engine, partition.log_start_offset))
        await self._save(loaded, scanning.park_again(engine, wall_clock_ms()))
        if engine.key_order is not None:
            await self._see_to_keys(loaded, engine)
        has_expired = engine.settings.ttl_ms > 0 and await self._expiry.look(loaded, engine)
        return await self._scan(loaded, engine, known) or has_expired

    async def _look_ahead(self, loaded: LoadedSharePartition, engine: SharePartition, ahead: int) -> int:
        """Returns the offset to look from next time. `ahead`: where to look now, unless the scan
        has passed it. Raises KafkaError and StoreFailed."""
        partition, settings = loaded.partition, engine.settings
        while settings.schedules and scanning.may_look_ahead(engine) and not loaded.gone:
            scan_from, end_offset = scanning.scan_from(engine), loaded.visible.high_watermark
            if scan_from is None or end_offset - scan_from < AHEAD_FROM:
                break
            ahead = max(ahead, scan_from)
            views = await partition.read(ahead, max_bytes=_AHEAD_BYTES, end_offset=end_offset)
            batches = loaded.walk(views, ahead, end_offset - ahead, end_offset)
            if not batches:
                break
            found = await trio.to_thread.run_sync(due_now, batches, limiter=_threads)
            ahead = batches[-1][1] + 1
            for first, last in found:
                if not scanning.may_look_ahead(engine):
                    return first
                scanning.place_ahead(engine, first, last)
            if found:
                self._schedule(loaded)
                loaded.waiters.wake_all()
        return ahead

    async def _scan(
        self, loaded: LoadedSharePartition, engine: SharePartition, known: dict[tuple[int, int], Schedules]
    ) -> bool:
        partition, end_offset = loaded.partition, loaded.visible.high_watermark
        offset = scanning.scan_from(engine)
        if offset is None:
            return False
        views = await partition.read(offset, max_bytes=BYTES_A_TURN, end_offset=end_offset)
        most = OFFSETS_A_TURN
        if engine.key_order is not None:
            most = min(most, engine.key_order.most_at_once())
        batches = loaded.walk(views, offset, most, end_offset)
        order = engine.key_order
        if not batches:  # The log ends here.
            if order is None or order.has_learnt:
                return False
            self._scanned(loaded, engine, offset, offset, [], [], {}, Keys({}, {}, order.learn_to))
            return True
        with _lookup(order):
            due, keys_of_batches, runs = await self._schedules(loaded, batches, engine.settings, known)
            last = min(max(offset, batches[0][0]) + most - 1, batches[-1][1])
            keys = None
            if order is not None:
                hashes: dict[int, int] = {}
                for batch_keys in keys_of_batches:
                    hashes |= batch_keys.between(offset, last)
                keys = Keys(hashes, await self._find_keys(loaded, engine, set(hashes.values())), last)
            if loaded.gone or scanning.scan_from(engine) != offset or engine.key_order is not order:
                return True  # Another task has moved the window meanwhile.
            persist = self._scanned(loaded, engine, offset, last, batches, due, runs, keys)
        await self._save(loaded, persist)
        # Behind a long hole nothing fits into the window before the SPSO has passed.
        return scanning.scan_from(engine) != offset

    async def _see_to_keys(self, loaded: LoadedSharePartition, engine: SharePartition) -> None:
        """A change that was not saved may keep a key waiting, and so may parked records whose keys
        are unknown: look these up, and let those that are due join the window. Raises
        KafkaError."""
        await self._save(loaded, engine.retry_unsaved())
        order = engine.key_order
        if order is None or not order.asked or not order.has_learnt:
            return
        asked = dict(order.asked)
        with _lookup(order):
            found = await self._find_keys(loaded, engine, asked.values())
            if not loaded.gone and engine.key_order is order:
                scanning.keys_found(engine, list(asked), found)
        loaded.waiters.wake_all()

    async def _find_keys(
        self, loaded: LoadedSharePartition, engine: SharePartition, hashes: Iterable[int]
    ) -> Mapping[int, Sequence[int]]:
        """By hash, the parked records for which a key waits; empty if memory has them all. Raises
        KafkaError."""
        if self._rows is None or engine.parking is None or engine.parking.knows_redeliveries:
            return {}
        return await self._rows.read_keys(*loaded.key, hashes)

    def _scanned(
        self,
        loaded: LoadedSharePartition,
        engine: SharePartition,
        offset: int,
        last: int,
        batches: list[Walked],
        due: list[tuple[int, int]],
        runs: Mapping[int, Runs],
        keys: Keys | None,
    ) -> Persist | None:
        data: list[tuple[int, int]] = []
        control = control_of(batches, last)
        for batch in batches:
            if batch[2] or batch[0] > last:
                continue
            here = runs.get(batch[0], [(batch[0], batch[1])])
            data += [(first, min(end, last)) for first, end in here if first <= last]
            control += [
                hole._replace(last_offset=min(hole.last_offset, last))
                for hole in holes_of(batch[0], batch[1], here)
                if hole.first_offset <= last
            ]
        scheduled = [each for each in due if offset <= each[0] <= last]
        persist = scanning.scanned(
            engine, offset, data, control, scheduled, now_ms=now_ms(), wall_ms=wall_clock_ms(), keys=keys
        )
        if persist is None:
            self._saving.save_later(loaded, engine.save_passed())
        self._schedule(loaded)
        loaded.waiters.wake_all()
        return persist

    async def _save(self, loaded: LoadedSharePartition, persist: Persist | None) -> None:
        """A change is synced on return, so that a scan cannot outrun a store that keeps recent
        changes in memory. Raises KafkaError, StoreFailed."""
        if persist is not None:
            await self._saving.must_save(loaded, persist)
            await self._flush()

    async def _schedules(
        self,
        loaded: LoadedSharePartition,
        batches: list[Walked],
        settings: ShareSettings,
        known: dict[tuple[int, int], Schedules],
    ) -> tuple[list[tuple[int, int]], list[BatchKeys], dict[int, Runs]]:
        """The schedules and keys of these batches, and the runs of records of those with holes. A
        long batch takes several turns, and is opened in the first one."""
        due: list[tuple[int, int]] = []
        hashes: list[BatchKeys] = []
        runs: dict[int, Runs] = {}
        keys, turn = [], Turn()
        for base_offset, _, is_control, view, start, end in batches:
            if is_control:
                continue
            header = read_header(view, start)
            key = base_offset, header.crc
            keys.append(key)
            if key not in known or (settings.ordered and known[key].keys is None):
                known[key] = await _looked_at(view[start:end], settings, turn)
                self._report(loaded, known[key].odd)
            found = known[key]
            due += found.due
            if found.runs is not None:
                runs[base_offset] = found.runs
            if found.keys is not None:
                hashes.append(found.keys)
        for key in known.keys() - set(keys[-1:]):
            del known[key]
        return due, hashes, runs

    def _report(self, loaded: LoadedSharePartition, odd: Counter[Oddity]) -> None:
        group_id = loaded.key[0]
        for oddity, number in odd.items():
            if loaded.metrics is not None:
                loaded.metrics.odd_schedules[oddity.value] += number
            if self._reports.times((group_id, oddity), trio.current_time()):
                logger.warning("%d records for share group %s %s", number, group_id, _MEANING[oddity])


@contextmanager
def _lookup(order: KeyOrder | None) -> Iterator[None]:
    """Inside, keys are looked up in the persister, if there is an order."""
    if order is None:
        yield
        return
    order.begin_lookup()
    try:
        yield
    finally:
        order.end_lookup()


async def _looked_at(stored: memoryview, settings: ShareSettings, turn: Turn) -> Schedules:
    """On the loop if the batch is small, else in a thread. May wait."""
    header, found = read_header(stored), None
    if not turn.allows(header, walks=_WALKS) and Turn().allows(header, walks=_WALKS):
        await trio.lowlevel.checkpoint()
        turn.renew()
    if turn.allows(header, walks=_WALKS):
        found = looked_at(stored, wall_clock_ms(), settings, turn)
    if found is None:
        found = await trio.to_thread.run_sync(looked_at, stored, wall_clock_ms(), settings, limiter=_threads)
        turn.renew()
    assert found is not None
    return found


def looked_at(
    stored: memoryview, wall_ms: int, settings: ShareSettings, turn: Turn | None = None
) -> Schedules | None:
    """`turn`: that of the loop, if it is called there. None: the batch must be opened in a thread.
    A batch that cannot be read has no schedules; the member that gets it notices that."""
    header = read_header(stored)
    try:
        max_bytes = turn.bytes_left if turn else DEFAULT_MAX_BYTES
        payload = bytes(records_payload(stored, header, max_bytes=max_bytes))
    except CorruptPayload as error:
        if turn is not None:
            turn.end()
            if isinstance(error, TooLarge):
                return None
        return Schedules([], Counter(), BatchKeys(header.base_offset) if settings.ordered else None)
    if turn is not None:
        turn.spend(header, len(payload), _WALKS * header.record_count)
    due, odd = _schedules_of(stored, payload, wall_ms, settings) if settings.schedules else ([], Counter())
    runs = runs_of_payload(payload, header) if is_sparse(stored) else None
    return Schedules(due, odd, keys_of(stored, payload) if settings.ordered else None, runs)


def _schedules_of(
    stored: memoryview, payload: bytes, wall_ms: int, settings: ShareSettings
) -> tuple[list[tuple[int, int]], Counter[Oddity]]:
    due: list[tuple[int, int]] = []
    odd: Counter[Oddity] = Counter()
    try:
        for record in stored_records(stored, payload=payload) if MARK in payload else ():
            due_ms, oddity = schedule_of(record, wall_ms, settings.max_delay_ms)
            if due_ms is not None:
                due.append((record.offset, due_ms))
            if oddity is not None:
                odd[oddity] += 1
    except CorruptPayload:
        due.clear()
    return due, odd


def due_now(batches: Sequence[Walked]) -> list[tuple[int, int]]:
    """Runs of records that have no schedule, by their first and last offset. Records that may have
    one are left out: decoding them takes as long as parking them."""
    found: list[tuple[int, int]] = []
    for base_offset, last_offset, is_control, view, start, end in batches:
        stored = view[start:end]
        header = read_header(stored)
        try:
            payload = bytes(records_payload(stored, header))
            marks = payload.count(MARK)
            if is_control or marks >= header.record_count:
                continue
            if marks:
                offsets = offsets_without(MARK, stored, payload)
                found += joined_runs([(offset, offset) for offset in offsets])
            else:
                found.append((base_offset, last_offset))
        except CorruptPayload:
            continue
    return found
