"""One topic partition of the broker: stamps offsets, queues batches for the group commit, moves
the high watermark.

There is no await between validating a batch and queueing it, so offsets follow the order in which
requests are handled. Four offsets matter:

    next_offset         the next batch gets it
    high_watermark      all below is durable (written, with durability `os`), and readers see no
                        more
    last_stable_offset  all below is in no open transaction, and read_committed readers see no more
    log_start_offset    all below has been removed

reading.py has the reading half, leader_epochs.py the epochs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import trio

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.commits.waiting import OnDone, Waiters
from kbroker.broker.logs.leader_epochs import LeaderEpochs
from kbroker.broker.logs.producer_state import ProducerStates
from kbroker.broker.logs.reading import ReadablePartition, end_of
from kbroker.broker.logs.validation import BatchRules, read_batch, validate
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import (
    CONTROL,
    LENGTH_END,
    LOG_APPEND_TIME,
    BatchHeader,
    ProducerInfo,
    read_header,
    stamp,
    stamp_create_time,
    stamp_log_append_time,
)
from kbroker.formats.transactions import Marker, MarkerType, build_marker
from kbroker.metrics import TopicMetrics
from kbroker.storage.spi import LogId, LogStore, StampedBatch

_producer_threads: Final = trio.CapacityLimiter(2)
"""Few at a time: fetches use the same threads."""


class ProducersNotLoaded(Exception):
    """A batch of an idempotent producer arrived before `Partition.load_producers`; nothing of it
    was queued."""


class Appended(NamedTuple):
    """`log_append_time_ms`: -1 unless the topic stamps its own time, or for a repeat."""

    base_offset: int
    log_append_time_ms: int


@dataclass(slots=True)
class TopicShared:
    """What the partitions of a topic share. `rules` follow the topic's configs."""

    name: str
    rules: BatchRules
    metrics: TopicMetrics = field(default_factory=TopicMetrics, kw_only=True)


class _InFlight:
    """One queued batch and its callbacks. A repeat of the batch waits for the same commit."""

    __slots__ = ("base_offset", "end_offset", "has_producer", "is_control", "on_done", "size_bytes")

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


class PartitionStatistics(NamedTuple):
    log_start_offset: int
    high_watermark: int
    next_offset: int
    in_flight_batches: int
    waiting_fetches: int
    producers: int


class Partition(ReadablePartition):
    """`read_producers(partition)` reads the state of the idempotent producers from the log; it is
    called in a thread."""

    def __init__(
        self,
        log: LogId,
        topic: TopicShared,
        store: LogStore,
        commits: GroupCommit[StampedBatch],
        *,
        epochs: LeaderEpochs,
        log_start_offset: int,
        read_producers: Callable[[Partition], ProducerStates],
    ) -> None:
        super().__init__(log, topic.name, store, log_start_offset)
        self.topic = topic
        self.metrics = topic.metrics
        self.epochs = epochs
        self.leader_epoch = epochs.current
        self.waiters = Waiters()
        self.moving_log_start = trio.Lock()
        self.bytes_since_snapshot = 0
        self.appended_bytes = 0
        self.retention_checks = 0
        """How often retention has looked at the whole log."""
        self.has_transactions = False
        """Whether the log may have transactions; stored before the first one (TransactionalLog). A
        marker alone is none: it ends nothing."""
        self.control_from: int | None = None
        """From this offset on the log holds nothing but control batches. None: not known."""
        self._commits = commits
        self.next_offset = self.high_watermark
        self._in_flight: deque[_InFlight] = deque()
        self.producers: ProducerStates | None = None
        """Loaded before the first batch of an idempotent producer: most partitions see none during
        a broker life."""
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

    async def load_producers(self) -> ProducerStates:
        """Read the producers' state in a thread, unless it is loaded. Other appends do not wait."""
        async with self._loading_producers:
            if self.producers is None:
                self.producers = await trio.to_thread.run_sync(
                    self._read_producers, self, limiter=_producer_threads
                )
            return self.producers

    @property
    def last_stable_offset(self) -> int:
        """Where the first open transaction begins. Not valid while `must_load_transactions`."""
        if self.producers is None or (first := self.producers.transactions.first_offset) is None:
            return self.high_watermark
        return max(min(first, self.high_watermark), self.log_start_offset)

    @property
    def must_load_transactions(self) -> bool:
        """Whether `load_producers` must be called before the last stable offset is known."""
        return self.has_transactions and self.producers is None

    def aborted_in(self, offset: int, views: Sequence[memoryview]) -> Sequence[tuple[int, int]]:
        """Producer id and first offset of each aborted transaction in the batches that a read from
        `offset` has returned."""
        if not views or self.producers is None or not self.producers.transactions.aborted:
            return ()
        end_offset = end_of(views, offset, self.high_watermark)
        found = self.producers.transactions.aborted_in(offset, end_offset)
        return [(each.producer_id, each.first_offset) for each in found]

    @property
    def settled(self) -> bool:
        return not self._in_flight

    def append(
        self,
        records: bytes | memoryview | None,
        now_ms: int,
        on_done: OnDone,
        *,
        header: BatchHeader | None = None,
    ) -> Appended:
        """`enqueue`, and have the committer begin: for writers that are not requests."""
        appended = self.enqueue(records, now_ms, on_done, header=header)
        self._commits.wake()
        return appended

    def enqueue(
        self,
        records: bytes | memoryview | None,
        now_ms: int,
        on_done: OnDone,
        *,
        header: BatchHeader | None = None,
    ) -> Appended:
        """Validate, stamp and queue one produced batch. The caller must start the group commit
        before it waits.

        - `records` is copied unless it is writable. A writable buffer is stamped in place and
          belongs to the log from here on.
        - `on_done` is called when the batch is durable (written, with durability `os`), or with
          NoSpace or StoreFailed. It runs after this call has returned, except for a repeat of a
          batch that is durable already.
        - `header`: the result of validate(), if the caller has called it.

        Raises KafkaError, mostly BadBatch, for a batch that is refused, ProducersNotLoaded, and
        MustOpen without `header`; then `on_done` is not called.
        """
        if self.deleted:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        if header is None:
            header = validate(records, self.topic.rules, now_ms)
        assert records is not None
        if self._commits.failed:
            raise KafkaError(ErrorCode.kafka_storage_error, "the log store has failed; restart the broker")
        has_producer = header.has_producer
        if has_producer:
            if self.producers is None:
                raise ProducersNotLoaded
            if (repeat := self.producers.check(header)) is not None:
                # As in Kafka, a repeat is answered with its own time if the topic stamps none. It
                # is the stored one, as the records are the same.
                append_time_ms = (
                    repeat.timestamp_ms if self.topic.rules.log_append_time else header.max_timestamp_ms
                )
                return self._answer_repeat(Appended(repeat.base_offset, append_time_ms), on_done)
        view = memoryview(records)[: header.batch_length + LENGTH_END]
        batch = bytearray(view) if view.readonly else view
        return self._stamped(batch, header, has_producer, now_ms, on_done)

    def note_refused(self, records: bytes | memoryview, now_ms: int) -> None:
        """Note that a batch was refused for lack of space: a producer that is still unknown must
        repeat it before it sends others. Raises BadBatch."""
        header = read_batch(records, transactional=True)
        if header.has_producer and self.producers is not None:
            self.producers.note_refused(header, now_ms)

    def append_marker(
        self,
        kind: MarkerType,
        producer: ProducerInfo,
        *,
        coordinator_epoch: int,
        version: int,
        now_ms: int,
        on_done: OnDone,
    ) -> int:
        """`enqueue_marker`, and have the committer begin."""
        offset = self.enqueue_marker(
            kind,
            producer,
            coordinator_epoch=coordinator_epoch,
            version=version,
            now_ms=now_ms,
            on_done=on_done,
        )
        self._commits.wake()
        return offset

    def enqueue_marker(
        self,
        kind: MarkerType,
        producer: ProducerInfo,
        *,
        coordinator_epoch: int,
        version: int,
        now_ms: int,
        on_done: OnDone,
    ) -> int:
        """Stamp and queue the marker that ends a producer's transaction; `version` is the client's
        transaction version (producer_state.py). The caller must start the group commit before it
        waits. Returns the marker's offset; `on_done` as in `enqueue`.
        Raises KafkaError for a marker that comes too late, and ProducersNotLoaded."""
        self._check_writable()
        if self.producers is None:
            raise ProducersNotLoaded
        producer_id, epoch = producer.producer_id, producer.producer_epoch
        self.producers.check_marker(producer_id, epoch, coordinator_epoch, version=version)
        batch = build_marker(kind, producer_id, epoch, coordinator_epoch, now_ms)
        marker = Marker(kind, coordinator_epoch)
        appended = self._stamped(bytearray(batch), read_header(batch), True, now_ms, on_done, marker=marker)
        return appended.base_offset

    def append_control(self, batch: bytes, on_done: OnDone) -> int:
        """Stamp and queue a batch of the broker's own control records, without timestamp or
        producer. Clients never see them, so no waiting fetch is woken and max.message.bytes does
        not apply. Returns the base offset; on_done and errors as in `append`."""
        self._check_writable()
        header = read_header(batch)
        assert header.is_control, "the broker's own batches are control batches"
        appended = self._stamped(bytearray(batch), header, False, 0, on_done)
        self._commits.wake()
        return appended.base_offset

    def _check_writable(self) -> None:
        if self.deleted:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        if self._commits.failed:
            raise KafkaError(ErrorCode.kafka_storage_error, "the log store has failed; restart the broker")

    def _stamped(
        self,
        batch: bytearray | memoryview,
        header: BatchHeader,
        has_producer: bool,
        now_ms: int,
        on_done: OnDone,
        *,
        marker: Marker | None = None,
    ) -> Appended:
        base_offset = self.next_offset
        stamp(batch, base_offset=base_offset, leader_epoch=self.leader_epoch)
        append_time_ms = -1
        max_timestamp_ms = header.max_timestamp_ms
        is_control = header.attributes & CONTROL != 0
        if is_control and marker is None:
            self.control_from = base_offset if self.control_from is None else self.control_from
        else:
            self.control_from = None
        if self.topic.rules.log_append_time and (marker is not None or not is_control):
            append_time_ms = max_timestamp_ms = now_ms
            stamp_log_append_time(batch, now_ms)
        elif header.attributes & LOG_APPEND_TIME:
            stamp_create_time(batch)
        last_offset = base_offset + header.last_offset_delta
        size_bytes = len(batch)
        in_flight = _InFlight(base_offset, last_offset + 1, size_bytes, has_producer, is_control, on_done)
        if has_producer and self.producers is not None:
            if marker is None:
                self.has_transactions = self.has_transactions or header.is_transactional
                self.producers.append(header, base_offset, now_ms, max_timestamp_ms)
            else:
                self.producers.append_marker(header, marker, base_offset, now_ms)
        self._in_flight.append(in_flight)
        self.next_offset = last_offset + 1
        self.bytes_since_snapshot += size_bytes
        self.appended_bytes += size_bytes
        self._commits.enqueue(
            (StampedBatch(self.log, base_offset, last_offset, max_timestamp_ms, batch),),
            partial(self._committed, in_flight),
        )
        return Appended(base_offset, append_time_ms)

    def _answer_repeat(self, appended: Appended, on_done: OnDone) -> Appended:
        for in_flight in self._in_flight:
            if in_flight.base_offset == appended.base_offset:
                in_flight.on_done.append(on_done)
                break
        else:
            on_done(None)
        return appended

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
            elif in_flight.has_producer:
                self.waiters.wake_all()  # A marker moves the last stable offset.
        elif in_flight.base_offset < self.next_offset:
            # All batches stamped on top of this one are refused in the same turn: the first refusal
            # rolls all of them back.
            self.next_offset = in_flight.base_offset
            if self.producers is not None:
                self.producers.undo()
        for callback in in_flight.on_done:
            callback(error)
