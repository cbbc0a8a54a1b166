"""One ShareFetch's search for records: which share-partitions have some, reading them, acquiring
them, waiting for more.

The budget of records is over the whole request; bytes are split evenly over the partitions that can
deliver. Whole batches are handed out as they lie in the store, and the client keeps to the acquired
ranges; in an exact fetch only the records that it acquires (queues/sliced_batches.py). A fetch is
exact in record_limit mode, and in each mode where the group has a prefetch limit: then a member is
given no more than it has room for. Acquiring is one step with answering: a compressed batch is
opened before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from weakref import ref

import trio

from kbroker.broker.commits.deadlines import now_ms
from kbroker.broker.commits.waiting import Waiter
from kbroker.broker.connection import Connection
from kbroker.broker.queues.expiry import must_wait
from kbroker.broker.queues.loaded import LoadedSharePartition
from kbroker.broker.queues.opened_batches import BatchOpener
from kbroker.broker.queues.parked_fetching import plan_parked
from kbroker.broker.queues.sliced_batches import Walked, front_of, walk, whole_batches
from kbroker.errors import ErrorCode, KafkaError, StoreFailed
from kbroker.formats.batches import Buffer
from kbroker.metrics import TopicMetrics
from kbroker.protocol.responses import ShareFetchRow, share_fetch_row
from kbroker.share.effects import AcquiredRange
from kbroker.share.held import HeldRecords
from kbroker.share.persister import TopicPartition
from kbroker.share.session import SessionPartition
from kbroker.share.share_partition import AcquireMode, SharePartition

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker

_SMALL_READ_BYTES = 64 << 10
_BYTES_PER_RECORD = 4 << 10

_Watched: TypeAlias = dict[SessionPartition, LoadedSharePartition]


class ShareLimits(NamedTuple):
    """What a ShareFetch asks for; `min_bytes` and `max_bytes` are already capped by the
    broker's."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    mode: AcquireMode


class ShareFetching:
    """`empty_rows`: whether partitions without records and errors are to have a row."""

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        group_id: str,
        member_id: str,
        limits: ShareLimits,
        *,
        empty_rows: bool,
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._group_id = group_id
        self._member_id = member_id
        self._limits = limits
        self._empty_rows = empty_rows
        self._exact = limits.mode is AcquireMode.RECORD_LIMIT
        self._is_watching = False
        self._has_read = False
        self._rows: dict[TopicPartition, ShareFetchRow] = {}
        self._budget = limits.max_records
        self._held: HeldRecords | None = None
        self._watched_in_turn = False
        self._has_failed_load = False
        self._usable = 0
        self._failed: set[TopicMetrics] = set()

    async def run(
        self, places: Sequence[SessionPartition], is_current: Callable[[], bool]
    ) -> dict[TopicPartition, ShareFetchRow]:
        """A row for every partition that has records or failed, and for those that are loaded if
        wanted. Raises PeerGone without holding anything.

        Partitions are told whom to wake only if there is to be a wait: most fetches of a group at
        work find something. If reading has let others work meanwhile, all are looked at once more
        then.

        Nothing is acquired once `is_current` is false (the session was used, replaced or ended
        elsewhere): the client would never see the records, or hold them in a session that is not
        there.
        """
        self._is_current = is_current
        expired, until = self._limits.max_wait_ms <= 0, None
        waits, has_waited = self._broker.metrics.share_fetch, False
        waiter = Waiter()
        watched: _Watched = {}
        try:
            while True:
                waiter.rearm()
                if not is_current():
                    return self._rows
                lost_one = self._find(places, waiter, watched)
                acquired = await self._attempt(watched, expired=expired)
                nothing_to_wait_for = not watched and not self._has_failed_load
                if (
                    acquired
                    or expired
                    or lost_one
                    or nothing_to_wait_for
                    or self._broker.closing
                    or not is_current()
                ):
                    if expired and has_waited and not acquired:
                        waits.expired += 1
                    return self._rows
                if not self._is_watching:
                    self._is_watching = True
                    for loaded in watched.values():
                        self._watch(loaded, waiter)
                    if self._has_read:
                        continue
                # Known when the group is loaded, and may be altered.
                elif self._watched_in_turn != (self._held is not None):
                    for loaded in watched.values():
                        self._unwatch(loaded, waiter)
                        self._watch(loaded, waiter)
                    continue
                has_waited = True
                if until is None:
                    until = trio.current_time() + self._limits.max_wait_ms / 1000
                with waits:
                    await self._connection.park(waiter, until)
                expired = trio.current_time() >= until
        finally:
            self._count(watched, len(places))
            for loaded in watched.values():
                if self._is_watching:
                    self._unwatch(loaded, waiter)
                if loaded.retiring:
                    self._broker.share_partitions.retire(loaded)

    def _count(self, watched: _Watched, wanted: int) -> None:
        """Each topic counts once for a fetch, as in Kafka."""
        topics = {loaded.partition.metrics for loaded in watched.values()}
        if self._failed:
            topics |= self._failed
        for topic in topics:
            topic.share_fetch_requests += 1
            topic.failed_share_fetch_requests += topic in self._failed
        group = self._broker.share_partitions.metrics.get(self._group_id)
        if group is not None and wanted:
            group.fetch_ratio.observe(100 * self._usable / wanted)

    def _fail(self, partition: TopicPartition, error: KafkaError) -> None:
        """An error row: without a message, as in Kafka, where only rows of acknowledgements have
        one."""
        self._rows[partition] = ShareFetchRow(partition.partition, int(error.code))
        topic = self._broker.topics.by_id(partition.topic_id)
        if topic is not None:
            self._failed.add(topic.metrics)

    def _find(self, places: Sequence[SessionPartition], waiter: Waiter, watched: _Watched) -> bool:
        """Watch what can be watched, note an error row for the rest. True if a partition is gone
        that was waited for: the client hears of that at once, while one that cannot be loaded is
        answered after MaxWaitMs, or clients would ask in a busy loop."""
        lost_one = False
        for place in places:
            loaded = watched.get(place) if watched else None
            if loaded is not None and not loaded.gone:
                continue
            if loaded is not None:
                if self._is_watching:
                    self._unwatch(loaded, waiter)
                del watched[place]
                if loaded.error is not None:
                    self._fail(place.partition, loaded.error)
                    self._has_failed_load = True
                    continue
                lost_one |= loaded.partition.deleted
            if self._rows and (row := self._rows.get(place.partition)) is not None and row.error_code:
                continue
            if place.memo is None or (loaded := place.memo()) is None or loaded.gone:
                try:
                    loaded = self._broker.share_partitions.find_or_load(self._group_id, place.partition)
                except KafkaError as error:
                    self._fail(place.partition, error)
                    continue
                place.memo = ref(loaded)  # The session may be idle when it is forgotten.
            if self._is_watching:
                self._watch(loaded, waiter)
            watched[place] = loaded
        return lost_one

    async def _attempt(self, watched: _Watched, *, expired: bool) -> bool:
        """True if something was acquired, or there is an error that must not wait."""
        if (held := self._broker.share_partitions.held) or self._held is not None:
            self._see_to_prefetch(held.get(self._group_id))
        unusual = self._broker.share_partitions.unusual
        settings = unusual.get(self._group_id) if unusual else None
        if settings is not None and settings.paused:
            return False
        acquirable = []
        parked = []
        for place, loaded in watched.items():
            engine = loaded.engine
            if engine is None:
                continue
            if self._empty_rows and place.partition not in self._rows:
                self._rows[place.partition] = ShareFetchRow(place.partition.partition)
            if engine.start_offset < (log_start_offset := loaded.partition.log_start_offset):
                self._broker.share_partitions.saving.save_later(
                    loaded, engine.log_start_moved(log_start_offset)
                )
            offset = engine.offset_to_acquire()
            if engine.parking is not None:
                self._broker.share_partitions.saving.save_later(loaded, engine.parked_below(log_start_offset))
                if engine.parked_ready and (
                    loaded.is_parked_turn or offset is None or offset >= loaded.partition.high_watermark
                ):
                    parked.append((place.partition, loaded))
                    continue
            if offset is not None:
                acquirable.append((place.partition, loaded, offset))
        if self._limits.max_bytes < 0:  # Kafka finds out with the first read, even at the log's end.
            for partition, _, _ in acquirable:
                self._fail(partition, KafkaError(ErrorCode.unknown_server_error))
            return bool(acquirable)
        usable = [
            each for each in acquirable if each[2] < each[1].partition.high_watermark and self._budget > 0
        ]
        self._usable = len(usable) + len(parked)
        if not self._usable:
            return False
        if settings is not None:
            usable, parked = _most_urgent(dict(settings.priorities), usable, parked)
        share_bytes = self._limits.max_bytes // self._usable or 1
        if (
            self._limits.min_bytes > 1
            and not expired
            and not parked
            and not self._has_min_bytes(usable, share_bytes)
        ):
            return False
        acquired_any = False
        for partition, loaded in parked:
            if self._budget > 0:
                try:
                    acquired_any |= await self._acquire_parked(partition, loaded, share_bytes)
                except KafkaError as error:
                    self._fail(partition, error)
        for partition, loaded, fetch_offset in usable:
            if self._budget <= 0:
                break
            try:
                acquired_any |= await self._acquire(
                    partition, loaded, share_bytes, fetch_offset if partition is usable[0][0] else None
                )
            # It cannot be read: heard of at once beside others' records, else after MaxWaitMs.
            except KafkaError as error:
                self._fail(partition, error)
        return acquired_any

    def _has_min_bytes(
        self, usable: Sequence[tuple[TopicPartition, LoadedSharePartition, int]], share_bytes: int
    ) -> bool:
        """Whether MinBytes can be read by now. What cannot be read counts as enough, so that nobody
        waits for it, and so does what lies in an older segment, so that it is not read twice. Where
        more follows than fits, the share is used up."""
        total = 0
        for _, loaded, offset in usable:
            if loaded.partition.deleted:
                continue
            end_offset = loaded.partition.high_watermark
            if loaded.partition.is_in_older_segment(offset):
                return True
            try:
                views = loaded.partition.read_now(offset, max_bytes=share_bytes, end_offset=end_offset)
            except (StoreFailed, KafkaError):  # reported when it is really read
                return True
            batches = walk(views, offset, end_offset - offset, end_offset)
            reaches_the_end = not batches or batches[-1][1] + 1 >= end_offset
            size = sum(end - start for _, _, is_control, _, start, end in batches if not is_control)
            total += size if reaches_the_end else max(size, share_bytes)
        return total >= self._limits.min_bytes

    async def _acquire(
        self, partition: TopicPartition, loaded: LoadedSharePartition, share_bytes: int, known: int | None
    ) -> bool:
        """Acquire what is next in one share-partition, from the offset `known` on where nothing has
        been waited for since that was found. Others may acquire while a read is in its thread."""
        engine = loaded.engine
        end_offset = loaded.partition.high_watermark
        opener = BatchOpener(self._broker.opened_batches, loaded.partition.log) if self._exact else None
        while engine is not None:
            fetch_offset, known = engine.offset_to_acquire() if known is None else known, None
            if fetch_offset is None or fetch_offset >= end_offset or must_wait(engine):
                break
            wanted = self._budget + max(0, engine.end_offset - fetch_offset + 1)
            if engine.settings.scans:
                wanted = engine.offsets_to_read(fetch_offset, self._budget)
            max_bytes = min(share_bytes, max(_SMALL_READ_BYTES, self._budget * _BYTES_PER_RECORD))
            self._has_read = True
            views = await loaded.partition.read(fetch_offset, max_bytes=max_bytes, end_offset=end_offset)
            if loaded.gone or not self._is_current():
                return False
            batches = walk(views, fetch_offset, wanted, end_offset)
            if opener is not None and (stored := self._unopened(batches, engine, opener)) is not None:
                await opener.open(stored)
                if loaded.gone or not self._is_current():
                    return False
                continue  # Others may have acquired its records meanwhile.
            if engine.settings.ttl_ms:
                has_changed = await self._broker.share_partitions.expiry.give_up(loaded, engine, batches)
                if loaded.gone or not self._is_current():
                    return False
                if has_changed:
                    continue
            if self._take(partition, loaded, engine, fetch_offset, batches, opener, share_bytes):
                return True
            if engine.offset_to_acquire() in (None, fetch_offset):
                return False
            await trio.lowlevel.checkpoint()  # There were control batches alone, and there may be many.
        return False

    def _unopened(
        self, batches: list[Walked], engine: SharePartition, opener: BatchOpener
    ) -> memoryview | None:
        """The batch that has to be opened before anything can be acquired. None: leaves in
        `batches` those of which records may be acquired now."""
        room = self._budget
        locks_left = engine.settings.max_record_locks - (engine.unread_from - engine.start_offset)
        if locks_left > 0:  # Otherwise only what came back is delivered, whatever the limit.
            room = min(room, locks_left)
        ready, to_open = front_of(batches, room, engine.acquirable_in, opener)
        if ready or not batches:
            del batches[ready:]
            return None
        _, _, _, view, start, end = batches[to_open]
        return view[start:end]

    def _take(
        self,
        partition: TopicPartition,
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
        control = [(first, last) for first, last, is_control, _, _, _ in batches if is_control]
        ranges = engine.acquire(
            self._member_id,
            mode=AcquireMode.BATCH_OPTIMIZED if opener is None else AcquireMode.RECORD_LIMIT,
            batch_size=self._limits.batch_size,
            max_records=self._budget,
            fetch_offset=fetch_offset,
            batches=[batch for batch in batches if not batch[2]] if control else batches,
            control=control,
            now_ms=now_ms(),
        )
        if not ranges:
            return False
        loaded.is_parked_turn = True
        records: Sequence[Buffer]
        if opener is not None:
            records = loaded.records.of(batches, ranges, opener, share_bytes)
        else:
            records = whole_batches(batches, ranges, has_control=bool(control))
        self._answer(partition, loaded, ranges, records)
        return True

    async def _acquire_parked(
        self, partition: TopicPartition, loaded: LoadedSharePartition, share_bytes: int
    ) -> bool:
        """Acquire parked records of one share-partition that are due. Others may acquire while a
        read is in its thread."""
        engine, opener = loaded.engine, BatchOpener(self._broker.opened_batches, loaded.partition.log)
        while engine is not None and engine.parked_ready and self._budget > 0 and not must_wait(engine):
            self._has_read = True
            record_of = partial(self._broker.share_partitions.parked.record_of, loaded)
            plan = await plan_parked(loaded.partition, engine, opener, self._budget, share_bytes, record_of)
            if loaded.gone or not self._is_current():
                return False
            self._broker.share_partitions.saving.save_later(loaded, engine.parked_lost(plan.lost))
            if engine.settings.ttl_ms:
                has_expired = await self._broker.share_partitions.expiry.give_up_parked(
                    loaded, engine, plan.batches, plan.offsets
                )
                if loaded.gone or not self._is_current():
                    return False
                if has_expired:
                    continue
            ranges = engine.acquire_parked(self._member_id, plan.offsets, now_ms=now_ms())
            if ranges:
                loaded.is_parked_turn = False
                self._answer(
                    partition, loaded, ranges, loaded.records.of(plan.batches, ranges, opener, share_bytes)
                )
                self._broker.share_partitions.parked.see_to(loaded)
                return True
            if not plan.lost and not plan.offsets:
                return False
        return False

    def _answer(
        self,
        partition: TopicPartition,
        loaded: LoadedSharePartition,
        ranges: list[AcquiredRange],
        records: Sequence[Buffer],
    ) -> None:
        self._broker.share_partitions.schedule(loaded)
        self._broker.share_partitions.scanner.resume(loaded)
        for first, last, _ in ranges:
            size = last - first + 1
            self._budget -= size
            if loaded.metrics is not None:
                loaded.metrics.acquired_ranges.observe(size)
        loaded.partition.metrics.bytes_out += sum(map(len, records))
        self._rows[partition] = share_fetch_row((partition.partition, 0, None, 0, None, records, ranges))

    # -- members with a prefetch limit
    # ----------------------------------------------------------------------------

    def _see_to_prefetch(self, held: HeldRecords | None) -> None:
        """The group's limit may have been altered since the last look, and so may have been what
        the member holds."""
        self._held = held
        self._exact = held is not None or self._limits.mode is AcquireMode.RECORD_LIMIT
        self._budget = (
            self._limits.max_records if held is None else min(self._limits.max_records, self._room())
        )

    def _room(self) -> int:
        """How many more records the member may hold."""
        held = 0 if self._held is None else self._held.of(self._member_id)
        return self._broker.share_partitions.settings(self._group_id).prefetch - held

    def _watch(self, loaded: LoadedSharePartition, waiter: Waiter) -> None:
        self._watched_in_turn = self._held is not None
        if self._held is None:
            loaded.waiters.add(waiter)
            loaded.partition.waiters.add(waiter)
        else:
            loaded.turns.add(waiter, self._room)
            self._held.notify[self._member_id] = waiter.wake

    def _unwatch(self, loaded: LoadedSharePartition, waiter: Waiter) -> None:
        loaded.waiters.discard(waiter)
        loaded.partition.waiters.discard(waiter)
        if waiter in loaded.turns.order:
            loaded.turns.discard(waiter)
            loaded.turns.wake()  # What this fetch was woken for, and did not take, is for the next one.
        if self._held is not None and self._held.notify.get(self._member_id) == waiter.wake:
            del self._held.notify[self._member_id]


_Usable: TypeAlias = tuple[TopicPartition, LoadedSharePartition, int]
_Parked: TypeAlias = tuple[TopicPartition, LoadedSharePartition]


def _most_urgent(
    priorities: Mapping[str, int], usable: Sequence[_Usable], parked: Sequence[_Parked]
) -> tuple[list[_Usable], list[_Parked]]:
    """Those of the topics with the highest number that have records to deliver."""

    def number(loaded: LoadedSharePartition) -> int:
        return priorities.get(loaded.partition.topic_name, 0)

    highest = max([number(each[1]) for each in usable] + [number(each[1]) for each in parked])
    most_urgent = [each for each in usable if number(each[1]) == highest]
    return most_urgent, [each for each in parked if number(each[1]) == highest]
