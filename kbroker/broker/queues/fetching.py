"""One ShareFetch: which share-partitions have records, whether they are enough, and what it waits
for if they are not.

The budget of records is for the whole request. The bytes are split evenly over the share-partitions
that can deliver. acquiring.py reads and acquires; Connection.wait_for() is the loop of waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from weakref import ref

import trio

from kbroker.broker.commits.waiting import Waiter
from kbroker.broker.connection import ClientConnection
from kbroker.broker.queues.acquiring import Acquiring, ShareFetchContext, ShareLimits
from kbroker.broker.queues.loaded import LoadedSharePartition, Turn
from kbroker.errors import ErrorCode, KafkaError, StoreFailed
from kbroker.metrics import TopicMetrics
from kbroker.protocol.responses import ShareFetchRow
from kbroker.share import log_start, offers
from kbroker.share.held import HeldRecords
from kbroker.share.persister import TopicPartition
from kbroker.share.session import FetchPlan, SessionPartition
from kbroker.share.share_partition import AcquireMode
from kbroker.turns import ROWS_A_TURN

_TOPIC_IS_GONE = KafkaError(ErrorCode.unknown_topic_or_partition)
"""As in Kafka, a topic that was deleted within the session is not an unknown id."""

_metrics_of: Callable[[LoadedSharePartition], TopicMetrics] = attrgetter("partition.metrics")


class ShareFetch:
    """Searches until it has acquired enough, or its time is over."""

    def __init__(
        self, context: ShareFetchContext, connection: ClientConnection, plan: FetchPlan, limits: ShareLimits
    ) -> None:
        self._share_partitions, self._topics, _, self._waits = context
        self._limits = limits
        self._connection = connection
        self._group_id, self._member_id = plan.session.key
        self._places = plan.places
        self._empty_rows = plan.is_new or plan.session.has_rows_due
        """Whether partitions without records and errors need a row."""
        self._acquiring = Acquiring(context, plan, limits)
        self._rows = self._acquiring.rows
        self._watched: dict[SessionPartition, LoadedSharePartition] = {}
        self._waiter: Waiter | None = None
        self._watches_in_turn = False
        self._held: HeldRecords | None = None
        self._has_failed_load = False
        self._usable = 0
        self._failed: set[TopicMetrics] = set()

    async def run(self) -> dict[TopicPartition, ShareFetchRow]:
        """A row for each partition that has records or has failed, and for loaded ones if rows are
        due. Raises PeerGone without holding anything."""
        max_wait_ms = self._limits.max_wait_ms
        try:
            if not await self.look(is_last=max_wait_ms <= 0) and max_wait_ms > 0:
                await self._connection.wait_for(self, max_wait_ms, self._waits)
            return self._rows
        finally:
            for loaded in self._watched.values():
                if loaded.retiring:
                    self._share_partitions.retire(loaded)
            # Each topic is counted once for a fetch, as in Kafka.
            for topic in {*map(_metrics_of, self._watched.values()), *self._failed}:
                topic.share_fetch_requests += 1
                topic.failed_share_fetch_requests += topic in self._failed
            group = self._share_partitions.metrics.get(self._group_id)
            if group is not None and self._places:
                group.fetch_ratio.observe(100 * self._usable / len(self._places))

    # -- the search (connection.py)

    @property
    def has_paused(self) -> bool:
        return self._acquiring.has_read

    async def look(self, *, is_last: bool) -> bool:
        if not self._acquiring.is_current():
            return True
        has_lost_one = await self._find()
        if await self._acquire(is_last=is_last):
            return True
        if self._waiter is not None and self._watches_in_turn != (self._held is not None):
            # The prefetch limit is known only once the group is loaded, and may be altered.
            waiter = self._waiter
            self.unwatch()
            self.watch(waiter)
            waiter.wake()
        nothing_to_wait_for = not self._watched and not self._has_failed_load
        return (
            has_lost_one
            or nothing_to_wait_for
            or self._share_partitions.is_closing
            or not self._acquiring.is_current()
        )

    def watch(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self._watches_in_turn = self._held is not None
        for loaded in self._watched.values():
            self._watch(loaded, waiter)

    def unwatch(self) -> None:
        if self._waiter is not None:
            for loaded in self._watched.values():
                self._unwatch(loaded, self._waiter)
            self._waiter = None

    # -- share-partitions of the session

    async def _pause(self) -> None:
        self._acquiring.has_read = True
        await trio.lowlevel.checkpoint()

    async def _find(self) -> bool:
        """Find or load the share-partitions, and note an error row where that fails.

        True: a share-partition that this fetch waited for is gone, which is answered at once. A
        loading error is answered after MaxWaitMs, or clients would retry in a busy loop."""
        has_lost_one = False
        watched, rows = self._watched, self._rows
        count = 0
        for place in self._places:
            count += 1
            if not count % ROWS_A_TURN:
                await self._pause()
            loaded = watched.get(place) if watched else None
            if loaded is not None and not loaded.gone:
                continue
            if loaded is not None:
                if self._waiter is not None:
                    self._unwatch(loaded, self._waiter)
                del watched[place]
                if loaded.error is not None:
                    self._fail(place.partition, loaded.error)
                    self._has_failed_load = True
                    continue
                has_lost_one |= loaded.partition.deleted
            if rows and (row := rows.get(place.partition)) is not None and row.error_code:
                continue
            if place.memo is None or (loaded := place.memo()) is None or loaded.gone:
                try:
                    loaded = self._share_partitions.find_or_load(self._group_id, place.partition)
                except KafkaError as error:
                    was_known = place.memo is not None and error.code is ErrorCode.unknown_topic_id
                    self._fail(place.partition, _TOPIC_IS_GONE if was_known else error)
                    continue
                place.memo = ref(loaded)  # The session may be idle when it is forgotten.
            if self._waiter is not None:
                self._watch(loaded, self._waiter)
            watched[place] = loaded
        return has_lost_one

    def _fail(self, partition: TopicPartition, error: KafkaError) -> None:
        """Note an error row. As in Kafka it has no message; only rows of acknowledgements do."""
        self._rows[partition] = ShareFetchRow(partition.partition, int(error.code))
        topic = self._topics.by_id(partition.topic_id)
        if topic is not None:
            self._failed.add(topic.metrics)

    # -- records

    async def _acquire(self, *, is_last: bool) -> bool:
        """True if records were acquired, or there is an error that must not wait. `is_last`: the
        time is over, so that MinBytes no longer counts."""
        if (held := self._share_partitions.held) or self._held is not None:
            self._see_to_prefetch(held.get(self._group_id))
        acquiring, max_bytes = self._acquiring, self._limits.max_bytes
        turns = await self._acquirable()
        if max_bytes < 0:  # Kafka refuses it at the first read, even at the log's end.
            refused = [loaded for loaded, _, offset in turns if offset is not None]
            for loaded in refused:
                self._fail(loaded.key[1], KafkaError(ErrorCode.unknown_server_error))
            return bool(refused)
        turns = [
            turn
            for turn in turns
            if turn[2] is None or (turn[2] < turn[0].visible.high_watermark and acquiring.budget > 0)
        ]
        self._usable = len(turns)
        for each in turns[0][0].filters if turns else ():  # Those of the group.
            turns = each.choose(turns)
        if not turns:
            self._usable = 0
            return False
        share_bytes = max_bytes // self._usable or 1
        if self._limits.min_bytes > 1 and not is_last and not await self._has_min_bytes(turns, share_bytes):
            return False
        # An error of one that cannot be read is answered at once beside records of others, and
        # after MaxWaitMs otherwise.
        acquired_any = False
        for count, (loaded, engine, offset) in enumerate(turns, 1):
            if acquiring.budget <= 0:
                break
            if not count % ROWS_A_TURN:
                await self._pause()
            try:
                if offset is None:
                    acquired_any |= await acquiring.acquire_parked(loaded, engine, share_bytes)
                else:
                    is_known = count == 1 and len(self._watched) < ROWS_A_TURN
                    known = offset if is_known else None
                    acquired_any |= await acquiring.acquire(loaded, engine, share_bytes, known)
            except KafkaError as error:
                self._fail(loaded.key[1], error)
        return acquired_any

    async def _acquirable(self) -> list[Turn]:
        """The share-partitions with records, in the order of the session: a last attempt goes
        alone, so with many of them the parked records of one would starve all others."""
        turns: list[Turn] = []
        count = 0
        for place, loaded in self._watched.items():
            count += 1
            if not count % ROWS_A_TURN:
                await self._pause()
            engine = loaded.engine
            if engine is None:
                continue
            if self._empty_rows and place.partition not in self._rows:
                self._rows[place.partition] = ShareFetchRow(place.partition.partition)
            if engine.start_offset < (log_start_offset := loaded.partition.log_start_offset):
                persist = log_start.log_start_moved(engine, log_start_offset)
                self._share_partitions.saving.save_later(loaded, persist)
            offset = offers.offset_to_acquire(engine)
            if engine.parking is not None:
                if (persist := log_start.parked_below(engine, log_start_offset)) is not None:
                    self._share_partitions.saving.save_later(loaded, persist)
                if offers.parked_ready(engine) and (
                    loaded.is_parked_turn or offset is None or offset >= loaded.visible.high_watermark
                ):
                    turns.append((loaded, engine, None))
                    continue
            if offset is not None:
                turns.append((loaded, engine, offset))
        return turns

    async def _has_min_bytes(self, turns: Sequence[Turn], share_bytes: int) -> bool:
        """Whether MinBytes can be read by now.

        Parked records are enough, and those that cannot be read, so that no client waits for them.
        So are records in an older segment, which are not worth reading twice. If more follows than
        fits, the share of bytes is used up."""
        total = count = 0
        if any(offset is None for _, _, offset in turns):
            return True
        for loaded, _, offset in turns:
            count += 1
            if not count % ROWS_A_TURN:
                await self._pause()
            if loaded.partition.deleted or offset is None:
                continue
            end_offset = loaded.visible.high_watermark
            if loaded.partition.is_in_older_segment(offset):
                return True
            try:
                views = loaded.partition.read_now(offset, max_bytes=share_bytes, end_offset=end_offset)
            except (StoreFailed, KafkaError):  # Reported by the read that acquires.
                return True
            batches = loaded.walk(views, offset, end_offset - offset, end_offset)
            reaches_the_end = not batches or batches[-1][1] + 1 >= end_offset
            size = sum(end - start for _, _, is_control, _, start, end in batches if not is_control)
            total += size if reaches_the_end else max(size, share_bytes)
        return total >= self._limits.min_bytes

    # -- members with a prefetch limit

    def _see_to_prefetch(self, held: HeldRecords | None) -> None:
        """The group's limit may have been altered since the last look, and the member may hold more
        or fewer records."""
        limits = self._limits
        self._held = held
        self._acquiring.exact = held is not None or limits.mode is AcquireMode.RECORD_LIMIT
        room = limits.max_records if held is None else self._room()
        self._acquiring.budget = min(limits.max_records, room)

    def _room(self) -> int:
        """How many more records the member may hold."""
        held = 0 if self._held is None else self._held.of(self._member_id)
        return self._share_partitions.settings(self._group_id).prefetch - held

    def _watch(self, loaded: LoadedSharePartition, waiter: Waiter) -> None:
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
            loaded.turns.wake()  # Another fetch may take the records that this one was woken for and left.
        if self._held is not None and self._held.notify.get(self._member_id) == waiter.wake:
            del self._held.notify[self._member_id]
