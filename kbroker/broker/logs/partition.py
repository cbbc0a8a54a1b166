"""One topic partition of the broker: stamps offsets, queues batches for the group commit, knows
what is visible.

Between validating a batch and queueing it there is no wait, so offsets follow the order in which
requests are handled. Three offsets matter: `next_offset` (given to the next batch),
`high_watermark` (below it everything counts: synced, or written with durability `os`; readers see
nothing else) and `log_start_offset`.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import trio

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.commits.waiting import OnDone, Waiters
from kbroker.broker.logs.producer_state import ProducerStates
from kbroker.broker.logs.stored_batches import checked, iter_possible
from kbroker.broker.logs.validation import BatchRules, validate
from kbroker.errors import ErrorCode, KafkaError, StoreFailed
from kbroker.formats.batches import (
    CONTROL,
    LENGTH_END,
    LOG_APPEND_TIME,
    BatchHeader,
    read_header,
    stamp,
    stamp_create_time,
    stamp_log_append_time,
)
from kbroker.metrics import TopicMetrics
from kbroker.storage.spi import LogId, LogStore, SegmentInfo, StampedBatch

logger = logging.getLogger(__name__)

_REPORT_EVERY_S = 60.0
"""How often a partition that cannot be read is reported: clients ask again and again."""

_READ_AHEAD_BYTES = 256 * 1024
"""A cold read in a thread goes this far at least: who takes few records at a time waits for a
thread once for all of that."""


_producer_threads: Final = trio.CapacityLimiter(2)
"""Few at a time: fetches wait for the same threads."""


class ProducersNotLoaded(Exception):
    """A batch of an idempotent producer came before `Partition.load_producers`; nothing of it was
    taken."""


class EpochEntry(NamedTuple):
    """A leader epoch and the first offset that is, or would be, written in it."""

    epoch: int
    start_offset: int


class Appended(NamedTuple):
    """`log_append_time_ms` -1 unless the topic stamps its own time, or for a repeat."""

    base_offset: int
    log_append_time_ms: int


class _InFlight:
    """One queued batch and whoever waits for it. A repeat of it waits for the same commit; that it
    is written is told only where the first one asked for that."""

    __slots__ = (
        "base_offset",
        "end_offset",
        "has_producer",
        "is_control",
        "on_done",
        "on_written",
        "size_bytes",
    )

    def __init__(
        self,
        base_offset: int,
        end_offset: int,
        size_bytes: int,
        has_producer: bool,
        is_control: bool,
        on_done: OnDone,
    ) -> None:
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.size_bytes = size_bytes
        self.has_producer = has_producer
        self.is_control = is_control
        self.on_done = [on_done]
        self.on_written: list[Callable[[], None]] = []


class PartitionStatistics(NamedTuple):
    log_start_offset: int
    high_watermark: int
    next_offset: int
    in_flight_batches: int
    waiting_fetches: int
    producers: int


class Partition:
    """`read_producers(partition)` reads what the log remembers of its idempotent producers; it is
    called in a thread."""

    def __init__(
        self,
        log: LogId,
        topic_name: str,
        store: LogStore,
        commits: GroupCommit[StampedBatch],
        *,
        rules: BatchRules,
        leader_epoch: int,
        log_start_offset: int,
        epochs: Sequence[EpochEntry],
        read_producers: Callable[[Partition], ProducerStates],
        metrics: TopicMetrics | None = None,
    ) -> None:
        self.log = log
        self.topic_name = topic_name
        self.metrics = metrics or TopicMetrics()
        self.rules = rules
        self.leader_epoch = leader_epoch
        self.epochs = list(epochs)
        self.waiters = Waiters()
        self.deleted = False
        self.moving_log_start = trio.Lock()
        self.bytes_since_snapshot = 0
        self.appended_bytes = 0
        self.control_from: int | None = None
        """From here on the log has nothing but control batches; None: not known to be so."""
        self._next_report_s = -math.inf
        self._store = store
        self._tail_offset = store.tail_offset
        self._commits = commits
        bounds = store.bounds(log)
        self.high_watermark = self.next_offset = bounds.end_offset
        self.written_from: Final = bounds.end_offset
        """Batches before this offset are an earlier broker life's: no write of this one has brought
        them into the page cache."""
        self._warm = range(0)
        """The offsets that were read in a thread last."""
        self.log_start_offset = min(max(bounds.start_offset, log_start_offset), bounds.end_offset)
        self._in_flight: deque[_InFlight] = deque()
        self.producers: ProducerStates | None = None
        """Loaded before the first batch of an idempotent producer: most partitions of a broker life
        see none."""
        self._loading_producers = trio.Lock()
        self._read_producers = read_producers

    def statistics(self) -> PartitionStatistics:
        producers = 0 if self.producers is None else len(self.producers)
        in_flight = len(self._in_flight)
        return PartitionStatistics(
            self.log_start_offset,
            self.high_watermark,
            self.next_offset,
            in_flight,
            len(self.waiters),
            producers,
        )

    # -- writing
    # ----------------------------------------------------------------------------------------------

    async def load_producers(self) -> ProducerStates:
        """Read what the log remembers of its producers, in a thread, unless that is known. Other
        appends do not wait."""
        async with self._loading_producers:
            if self.producers is None:
                self.producers = await trio.to_thread.run_sync(
                    self._read_producers, self, limiter=_producer_threads
                )
            return self.producers

    @property
    def settled(self) -> bool:
        return not self._in_flight

    def append(
        self,
        records: bytes | memoryview | None,
        now_ms: int,
        on_done: OnDone,
        on_written: Callable[[], None] | None = None,
        *,
        start: bool = True,
        header: BatchHeader | None = None,
    ) -> Appended:
        """Validate, stamp and queue one produced batch. Raises KafkaError, mostly BadBatch, when it
        is refused, and ProducersNotLoaded; then no callback is called. `records` is copied, unless
        it may be written to: then it is stamped in place, and the log's from here on. `header`:
        what validate() has said of it, if that was asked before.

        `on_done` is told when the batch counts (or NoSpace, StoreFailed); both callbacks run after
        this call has returned, except for a repeat of a batch that counts already. Who says
        `start=False` starts the group commit before it waits for anything.
        """
        if self.deleted:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        if header is None:
            header = validate(records, self.rules, now_ms)
        assert records is not None
        if self._commits.failed:
            raise KafkaError(ErrorCode.kafka_storage_error, "the log store has failed; restart the broker")
        has_producer = header.has_producer
        if has_producer:
            if self.producers is None:
                raise ProducersNotLoaded
            if (repeat := self.producers.check(header)) is not None:
                # As in Kafka a repeat is told its own time where the topic stamps none: the same
                # one, as its records are the same.
                append_time_ms = (
                    repeat.timestamp_ms if self.rules.log_append_time else header.max_timestamp_ms
                )
                return self._answer_repeat(Appended(repeat.base_offset, append_time_ms), on_done, on_written)
        view = memoryview(records)[: header.batch_length + LENGTH_END]
        batch = bytearray(view) if view.readonly else view
        return self._queue(batch, header, has_producer, now_ms, on_done, on_written, start=start)

    def append_control(self, batch: bytes, on_done: OnDone) -> int:
        """Stamp and queue a batch of the broker's own control records, without timestamp or
        producer: clients never see them, so that no waiting fetch is woken, and max.message.bytes
        is not asked. Gives its base offset; on_done and errors as in `append`."""
        if self.deleted:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        if self._commits.failed:
            raise KafkaError(ErrorCode.kafka_storage_error, "the log store has failed; restart the broker")
        header = read_header(batch)
        assert header.is_control, "the broker's own batches are control batches"
        return self._queue(bytearray(batch), header, False, 0, on_done, None).base_offset

    def _queue(
        self,
        batch: bytearray | memoryview,
        header: BatchHeader,
        has_producer: bool,
        now_ms: int,
        on_done: OnDone,
        on_written: Callable[[], None] | None,
        *,
        start: bool = True,
    ) -> Appended:
        base_offset = self.next_offset
        stamp(batch, base_offset=base_offset, leader_epoch=self.leader_epoch)
        append_time_ms = -1
        max_timestamp_ms = header.max_timestamp_ms
        is_control = header.attributes & CONTROL != 0
        if is_control:
            self.control_from = base_offset if self.control_from is None else self.control_from
        else:
            self.control_from = None
        if self.rules.log_append_time and not is_control:
            append_time_ms = max_timestamp_ms = now_ms
            stamp_log_append_time(batch, now_ms)
        elif header.attributes & LOG_APPEND_TIME:
            stamp_create_time(batch)
        last_offset = base_offset + header.last_offset_delta
        size_bytes = len(batch)
        in_flight = _InFlight(base_offset, last_offset + 1, size_bytes, has_producer, is_control, on_done)
        if on_written is not None:
            in_flight.on_written.append(on_written)
        if has_producer and self.producers is not None:
            self.producers.append(header, base_offset, now_ms)
        self._in_flight.append(in_flight)
        self.next_offset = last_offset + 1
        self.bytes_since_snapshot += size_bytes
        self.appended_bytes += size_bytes
        self._commits.submit(
            (StampedBatch(self.log, base_offset, last_offset, max_timestamp_ms, batch),),
            partial(self._committed, in_flight),
            None if on_written is None else partial(self._written, in_flight),
            start=start,
        )
        return Appended(base_offset, append_time_ms)

    def _answer_repeat(
        self, appended: Appended, on_done: OnDone, on_written: Callable[[], None] | None
    ) -> Appended:
        for in_flight in self._in_flight:
            if in_flight.base_offset == appended.base_offset:
                in_flight.on_done.append(on_done)
                if on_written is not None:
                    in_flight.on_written.append(on_written)
                break
        else:
            if on_written is not None:
                on_written()
            on_done(None)
        return appended

    @staticmethod
    def _written(in_flight: _InFlight) -> None:
        for callback in in_flight.on_written:
            callback()
        in_flight.on_written = []

    def _committed(self, in_flight: _InFlight, error: Exception | None) -> None:
        assert self._in_flight[0] is in_flight, "commits finish in offset order"
        self._in_flight.popleft()
        if error is None:
            if in_flight.has_producer and self.producers is not None:
                self.producers.confirm()
            self.high_watermark = in_flight.end_offset
            if not in_flight.is_control:
                self.metrics.records_in += in_flight.end_offset - in_flight.base_offset
                self.metrics.bytes_in += in_flight.size_bytes
                self.waiters.wake_all()
        elif in_flight.base_offset < self.next_offset:
            # Everything stamped on top of this batch is refused in the same turn: the first refusal
            # takes all of it back.
            self.next_offset = in_flight.base_offset
            if self.producers is not None:
                self.producers.undo()
        for callback in in_flight.on_done:
            callback(error)

    # -- reading
    # ----------------------------------------------------------------------------------------------

    async def read(self, offset: int, *, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        """Whole batches of [offset, end_offset) as LogReader.read gives them; from a thread where a
        cold read may block.

        Nothing is read from a deleted partition, also where it is deleted meanwhile: whoever asks
        again hears that it is gone. Raises KAFKA_STORAGE_ERROR for what the store cannot read,
        CORRUPT_MESSAGE where it finds no batch that could be one.
        """
        found = self.read_if_warm(offset, max_bytes, end_offset)
        if found is not None:
            return found
        end_offset = min(end_offset, self.high_watermark)
        return await trio.to_thread.run_sync(lambda: self._read_cold(offset, max_bytes, end_offset))

    def read_if_warm(self, offset: int, max_bytes: int, end_offset: int) -> Sequence[memoryview] | None:
        """`read` without waiting; None where that may block."""
        if end_offset > self.high_watermark:
            end_offset = self.high_watermark
        if offset >= end_offset or self.deleted:
            return ()
        if self._store.may_block and (offset < self.written_from or offset < self._tail_offset(self.log)):
            if offset not in self._warm:
                return None
            end_offset = min(end_offset, self._warm.stop)
        return self._read(offset, max_bytes, end_offset)

    def _read_cold(self, offset: int, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        """In a thread; the partition may be dropped meanwhile."""
        visible = self.high_watermark
        try:
            ahead = self._read(offset, max(max_bytes, _READ_AHEAD_BYTES), visible)
            warm_until = offset
            for _, _, header in iter_possible(ahead, visible):
                warm_until = header.last_offset + 1
            self._warm = range(offset, warm_until)
            return self._read(offset, max_bytes, end_offset)
        except KeyError:
            if not self.deleted:
                raise
            return ()

    def _read(self, offset: int, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        try:
            return checked(
                self._store.read(self.log, offset, max_bytes=max_bytes, end_offset=end_offset),
                offset,
                end_offset,
            )
        except KafkaError as error:
            self.report_unreadable(offset, error)
            raise
        except StoreFailed as error:
            self.report_unreadable(offset, error)
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error

    def report_unreadable(self, offset: int, error: Exception) -> None:
        """Log that a read at `offset` failed; at most once a minute, as clients repeat such
        reads."""
        now_s = time.monotonic()
        if now_s >= self._next_report_s:
            self._next_report_s = now_s + _REPORT_EVERY_S
            logger.error(
                "%s-%d cannot be read at offset %d: %s", self.topic_name, self.log.partition, offset, error
            )

    def is_in_older_segment(self, offset: int) -> bool:
        return offset < self._tail_offset(self.log)

    def read_now(self, offset: int, *, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        """`read` without waiting, for small look-ups. Raises StoreFailed and CORRUPT_MESSAGE."""
        return () if self.deleted else self.read_stored(offset, max_bytes=max_bytes, end_offset=end_offset)

    def read_stored(self, offset: int, *, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        """`read_now` also while the topic is being deleted, which a full disk may refuse yet: for
        readers that keep what they find. Raises KeyError when the log is gone."""
        return self._read(offset, max_bytes, min(end_offset, self.high_watermark))

    def segments(self) -> Sequence[SegmentInfo]:
        return self._store.segments(self.log)

    def find_by_timestamp(self, timestamp_ms: int) -> int | None:
        return None if self.deleted else self._store.find_by_timestamp(self.log, timestamp_ms)

    def check_readable(self, offset: int) -> None:
        """Raises OFFSET_OUT_OF_RANGE below the log start and above the high watermark."""
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise KafkaError(ErrorCode.offset_out_of_range)

    def check_leader_epoch(self, epoch: int) -> None:
        """Fencing of KIP-320: a client that knows another epoch must look at the metadata first.
        -1: the client does not say."""
        if epoch == -1 or epoch == self.leader_epoch:
            return
        raise KafkaError(
            ErrorCode.fenced_leader_epoch if epoch < self.leader_epoch else ErrorCode.unknown_leader_epoch
        )

    def epoch_of(self, offset: int) -> int:
        """The leader epoch in which the record at `offset` was written, or would be; -1 where that
        is unknown."""
        if offset >= self.next_offset:
            return self.leader_epoch
        return next((entry.epoch for entry in reversed(self.epochs) if entry.start_offset <= offset), -1)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the newest epoch that is not newer than `epoch`
        (OffsetForLeaderEpoch).

        An epoch older than all that wrote something ended where the first of them began, or now
        begins: a client that has read nothing since must not take its position for truncated. (-1,
        -1) for -1, and for an epoch that never was.
        """
        if epoch == self.leader_epoch:
            return epoch, self.high_watermark
        if epoch == -1 or epoch > self.leader_epoch:
            return -1, -1
        end = self.high_watermark
        for entry in reversed(self.epochs):
            if entry.epoch <= epoch:
                return entry.epoch, end
            end = max(entry.start_offset, self.log_start_offset)
            if end == self.log_start_offset:
                break  # What is older went with its records.
        return epoch, end
