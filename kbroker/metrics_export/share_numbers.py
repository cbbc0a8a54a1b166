"""Numbers of share groups and share-partitions: lag, age of the oldest unfinished record, records
in flight, deliveries and their outcome.

Numbers of a loaded share-partition come from memory. For the others the persister returns their
progress (ReadShareGroupStateSummary), some at a time and within a limited time: nothing is loaded,
and no writer is fenced. As for DescribeShareGroupOffsets, the default persister reads such a state
from the store once and keeps it in memory (about a kilobyte each).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeAlias
from uuid import UUID

import trio

from kbroker.broker.broker import Broker
from kbroker.broker.logs.partition import Partition
from kbroker.broker.queues.dead_letter_counters import GroupDeadLetters
from kbroker.broker.queues.parked_left import kept_batch, parked_left
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import NO_TIMESTAMP, iter_headers, read_header, stored_records
from kbroker.formats.compacted_batches import delete_horizon_ms
from kbroker.formats.compression import CorruptPayload
from kbroker.groups.share.messages import PartitionOffset
from kbroker.metrics import ACK_TYPES, ENGINE_COUNTERS, ShareGroupMetrics
from kbroker.metrics_export.scrape import Labels, Scrape
from kbroker.settings.queue import QUEUE_RETENTION
from kbroker.share.lag import UNKNOWN, Left, what_is_left, with_parked
from kbroker.share.persister import TopicPartition
from kbroker.share.share_partition import SharePartition, SharePartitionStatistics

logger = logging.getLogger(__name__)

SUMMARIES_AT_ONCE = 20
PATIENCE_S = 5.0
"""How long a scrape waits for the persister, and for cold parts of logs, in all: Prometheus gives
up after ten seconds."""

_CONTROL_READ_BYTES = 64 << 10
_KEPT = 100_000
"""Timestamps kept from cancelled scrapes; a complete scrape leaves only those that it needed."""

_COUNTERS = {
    "acquired_records": "kbroker_share_partition_deliveries_total",
    "redeliveries": "kbroker_share_partition_redeliveries_total",
    "lock_timeouts": "kbroker_share_partition_lock_timeouts_total",
    "prolonged_locks": "kbroker_share_partition_prolonged_locks_total",
    "delayed_deliveries": "kbroker_share_partition_delayed_deliveries_total",
    "failed_writes": "kbroker_share_partition_failed_saves_total",
    "dead_lettered": "kbroker_share_partition_dead_lettered_total",
    "look_ahead_stops": "kbroker_share_partition_look_ahead_stops_total",
}
_CAUSES = ("rejected", "exhausted", "expired")
_TROUBLE = frozenset({*_CAUSES, "lock_timeouts", "failed_writes"})
_UNUSED = ShareGroupMetrics()
_NO_LETTERS = GroupDeadLetters()

_RecordId: TypeAlias = tuple[UUID, int, int]
"""Topic id, partition, offset."""


async def add_groups(scrape: Scrape, broker: Broker) -> None:
    """The groups' own counters, apart from their share-partitions. A group that exists and was not
    used yet has counters of 0, so that their first increase shows, and no histograms."""
    used = dict(broker.share_partitions.metrics)
    known = _existing(broker)
    for group_id in dict.fromkeys([*known, *used]):
        labels, counted = {"group": group_id}, used.get(group_id, _UNUSED)
        for name, count in zip(ACK_TYPES, counted.acknowledged, strict=True):
            scrape.add("kbroker_share_group_acknowledged_records_total", count, {**labels, "type": name})
        scrape.add("kbroker_share_group_removed_records_total", counted.removed_records, labels)
        for reason, count in counted.odd_schedules.items():
            scrape.add("kbroker_share_group_odd_schedules_total", count, {**labels, "reason": reason})
        if counted is not _UNUSED:
            scrape.add_histogram("kbroker_share_group_load_seconds", counted.load_seconds, labels)
            scrape.add_histogram("kbroker_share_group_fetch_percent", counted.fetch_ratio, labels)
            scrape.add_histogram("kbroker_share_group_acquired_records", counted.acquired_ranges, labels)
        await scrape.pace.rest()
    held_bytes: Counter[str] = Counter()
    for topic in broker.topics:
        for partition in topic.partitions if topic.config[QUEUE_RETENTION] != "time" else ():
            held_bytes.update(broker.held_logs.known(partition).held_bytes)
    for group_id, size_bytes in held_bytes.items():
        scrape.add("kbroker_share_group_held_log_bytes", size_bytes, {"group": group_id})
    scrape.add("kbroker_kept_records_total", broker.kept_records.statistics().kept)
    dead_letters = broker.dead_letters.statistics()
    scrape.add("kbroker_dead_letter_partitions", dead_letters.share_partitions)
    for group_id, size_bytes in dead_letters.waiting_bytes.items():
        scrape.add("kbroker_share_group_dead_letter_waiting_bytes", size_bytes, {"group": group_id})
    for group_id in dict.fromkeys([*known, *dead_letters.groups]):
        labels, letters = {"group": group_id}, dead_letters.groups.get(group_id, _NO_LETTERS)
        scrape.add("kbroker_share_group_dead_letters_total", letters.records, labels)
        scrape.add("kbroker_share_group_dead_letter_writes_total", letters.produce_requests, labels)
        scrape.add("kbroker_share_group_dead_letter_failures_total", letters.failed_requests, labels)
        scrape.add("kbroker_share_group_dead_letters_refused_total", letters.refused, labels)
        scrape.add("kbroker_share_group_dead_letters_without_copy_total", letters.without_copy, labels)
        await scrape.pace.rest()


def _existing(broker: Broker) -> list[str]:
    """All share groups."""
    return [group.group_id for group in broker.share_group_service.coordinator.listed()]


class _Place(NamedTuple):
    """An existing share-partition, loaded or not."""

    group_id: str
    topic: str
    partition: Partition

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.partition.log.topic_id, self.partition.log.partition)

    @property
    def labels(self) -> Labels:
        return {"group": self.group_id, "topic": self.topic, "partition": str(self.partition.log.partition)}


class SharePartitionNumbers:
    """Keeps the timestamps of records from one scrape to the next: each is read from the log once,
    as long as its record is the oldest."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._timestamps: dict[_RecordId, int] = {}

    async def add(self, scrape: Scrape) -> None:
        turn = _Turn(self._broker, scrape, self._timestamps)
        try:
            await turn.run()
        except BaseException:  # The scrape was cancelled: keep the timestamps read so far.
            self._timestamps = (self._timestamps if len(self._timestamps) < _KEPT else {}) | turn.timestamps
            raise
        self._timestamps = turn.timestamps


class _Turn:
    """One scrape. `known` timestamps are those of the scrape before, `timestamps` those that this
    one needed."""

    def __init__(self, broker: Broker, scrape: Scrape, known: dict[_RecordId, int]) -> None:
        self._broker = broker
        self._scrape = scrape
        self._known = known
        self._now_ms = wall_clock_ms()
        self._patience_s = PATIENCE_S
        self._unanswered = 0
        self.timestamps: dict[_RecordId, int] = {}

    async def run(self) -> None:
        loaded: dict[str, list[TopicPartition]] = {}
        for each in self._broker.share_partitions.loaded():
            loaded.setdefault(each.key[0], []).append(each.key[1])
        for group_id in dict.fromkeys([*_existing(self._broker), *loaded]):
            unloaded = await self._add_loaded_of(group_id, loaded.get(group_id, ()))
            for first in range(0, len(unloaded), SUMMARIES_AT_ONCE):
                await self._add_unloaded(group_id, unloaded[first : first + SUMMARIES_AT_ONCE])
        self._scrape.add("kbroker_scrape_unanswered_share_partitions", self._unanswered)

    async def _add_loaded_of(self, group_id: str, loaded: Sequence[TopicPartition]) -> list[_Place]:
        """The loaded share-partitions of a group; returns the others, including those unloaded a
        moment ago."""
        places = {place.key: place for place in self._initialized(group_id)}
        for key in loaded:
            # Looked up now: it may have been unloaded meanwhile.
            each = self._broker.share_partitions.find(group_id, key)
            if each is None or each.engine is None or each.partition.deleted:
                continue
            place = places.pop(key, None) or _Place(group_id, each.partition.topic_name, each.partition)
            await self._add_loaded(place, each.engine)
            await self._scrape.pace.rest()
        return list(places.values())

    def _initialized(self, group_id: str) -> Iterator[_Place]:
        """The share-partitions of existing topics for which the group has state."""
        topics, coordinator = self._broker.topics, self._broker.share_group_service.coordinator
        for name, numbers in coordinator.described_partitions(group_id, topics).items():
            if (topic := topics.by_name(name)) is not None:
                yield from (_Place(group_id, name, topic.partitions[number]) for number in numbers)

    async def _add_loaded(self, place: _Place, engine: SharePartition) -> None:
        persister = self._broker.persister
        found, labels = engine.statistics(), place.labels
        self._add_counters(place, found)
        self._scrape.add("kbroker_share_partition_in_flight", found.in_flight, labels)
        self._scrape.add("kbroker_share_partition_in_flight_batches", found.batches, labels)
        if engine.key_order is not None:
            self._scrape.add("kbroker_share_partition_behind_keys", found.behind_keys, labels)
        for state, count in (
            ("available", found.available),
            ("waiting", found.waiting),
            ("parked", found.parked - found.parked_held),
            ("acquired", found.acquired + found.parked_held),
            ("saving", found.pending),
            ("archiving", found.archiving),
            ("done", found.acknowledged + found.archived),
        ):
            self._scrape.add("kbroker_share_partition_records", count, {**labels, "state": state})
        log_start_offset, end_offset = place.partition.log_start_offset, place.partition.high_watermark
        left = what_is_left(
            found.start_offset,
            found.delivery_complete_count,
            log_start_offset,
            end_offset,
            engine.window.stands_from,
        )
        own = await self._own(place, max(found.start_offset, log_start_offset), end_offset)
        left = left._replace(lag=left.lag - own)
        self._broker.share_group_service.check_lag(
            place.group_id, place.partition, left.lag, found.start_offset
        )
        if found.parked:
            parked = await parked_left(persister, place.group_id, place.key, log_start_offset, with_due=True)
            left = with_parked(left, parked, is_known=True)
            if parked.next_due_ms is not None:
                due_s = (parked.next_due_ms - self._now_ms) / 1000
                self._scrape.add("kbroker_share_partition_next_due_seconds", due_s, labels)
        await self._add_position(place, found.start_offset, left)

    async def _own(self, place: _Place, first: int, end: int) -> int:
        """How many of the offsets `first` to `end` - 1 are the persister's own; 0 if that cannot be
        read now."""
        own = self._broker.persister.own_records
        if own is not None and first < end:
            with self._patience(), suppress(KafkaError):  # Read errors have been logged.
                return await own.count_own(place.key, first, end)
        return 0

    async def _add_unloaded(self, group_id: str, places: Sequence[_Place]) -> None:
        """Some share-partitions that are not loaded."""
        rows = await self._ask(group_id, places)
        for place in places:
            self._add_counters(place, None)
            row = rows.get(place.key)
            if row is None:
                self._unanswered += not place.partition.deleted
            elif row.start_offset != UNKNOWN:
                await self._add_position(place, row.start_offset, Left(row.lag, row.first_open))
            await self._scrape.pace.rest()

    async def _ask(self, group_id: str, places: Sequence[_Place]) -> dict[TopicPartition, PartitionOffset]:
        wanted: dict[str, list[int]] = {}
        for place in places:
            wanted.setdefault(place.topic, []).append(place.key.partition)
        rows: dict[TopicPartition, PartitionOffset] = {}
        with self._patience():
            try:
                for topic in await self._broker.share_group_service.describe_offsets(group_id, wanted):
                    if topic.topic_id is not None:
                        rows |= {
                            TopicPartition(topic.topic_id, row.partition_index): row
                            for row in topic.partitions
                        }
            except KafkaError as error:
                logger.warning("a scrape could not ask where group %s stands: %s", group_id, error)
        return {key: row for key, row in rows.items() if row.error_code is ErrorCode.none}

    @contextmanager
    def _patience(self) -> Iterator[trio.CancelScope]:
        """Ends the waits inside once the scrape has waited long enough in all."""
        began = trio.current_time()
        with trio.move_on_after(self._patience_s) as scope:
            yield scope
        self._patience_s = max(0.0, self._patience_s - (trio.current_time() - began))

    def _add_counters(self, place: _Place, statistics: SharePartitionStatistics | None) -> None:
        """A share-partition that was not loaded since the start has only the counters of trouble,
        for alerts: their first increase is to show."""
        counted = self._broker.share_partitions.metrics.get(place.group_id, _UNUSED)
        is_used = statistics is not None or place.key in counted.unloaded
        labels = place.labels
        for name, count in zip(ENGINE_COUNTERS, counted.counters(place.key, statistics), strict=True):
            if not is_used and name not in _TROUBLE:
                continue
            if name in _CAUSES:
                self._scrape.add("kbroker_share_partition_archived_total", count, {**labels, "cause": name})
            else:
                self._scrape.add(_COUNTERS[name], count, labels)

    async def _add_position(self, place: _Place, start_offset: int, left: Left) -> None:
        lag, first_open = left
        self._scrape.add("kbroker_share_partition_start_offset", start_offset, place.labels)
        self._scrape.add("kbroker_share_partition_lag", lag, place.labels)
        timestamp_ms = await self._oldest_ms(place, first_open) if lag > 0 else None
        if lag <= 0 or timestamp_ms is not None:
            age_s = 0.0 if timestamp_ms is None else max(0, self._now_ms - timestamp_ms) / 1000
            self._scrape.add("kbroker_share_partition_oldest_unprocessed_seconds", age_s, place.labels)

    async def _oldest_ms(self, place: _Place, first_open: int) -> int | None:
        """The record may also be one that is kept beside the log."""
        rows = self._broker.persister.waiting_rows
        if rows is not None and first_open < place.partition.log_start_offset:
            with self._patience(), suppress(KafkaError):
                record = await kept_batch(rows, place.group_id, place.key, first_open)
                if record is not None:
                    return read_header(record).base_timestamp_ms
        return await self._timestamp(place.partition, first_open)

    async def _timestamp(self, partition: Partition, offset: int) -> int | None:
        """The timestamp of the record at `offset`, or of the next one; None if unknown."""
        offset = max(offset, partition.log_start_offset)
        record = (partition.log.topic_id, partition.log.partition, offset)
        timestamp_ms = self.timestamps.get(record, self._known.get(record))
        if timestamp_ms is None:
            with self._patience() as scope:
                timestamp_ms = await _read_timestamp(partition, offset)
            self._unanswered += scope.cancelled_caught
        if timestamp_ms is None or timestamp_ms == NO_TIMESTAMP:
            return None
        self.timestamps[record] = timestamp_ms
        return timestamp_ms


async def _read_timestamp(partition: Partition, offset: int) -> int:
    """The timestamp from the batch header: that of its first record, which may be a little older
    than the record at `offset`, or the append time if the topic uses that. Control batches and
    batches without records are skipped. NO_TIMESTAMP if there is none, or if the batch cannot be
    read."""
    max_bytes = 1
    while True:
        try:
            views = await partition.read(offset, max_bytes=max_bytes, end_offset=partition.high_watermark)
        except KafkaError:  # Logged already, once a minute.
            return NO_TIMESTAMP
        batches = [(view, *each) for view in views for each in iter_headers(view)]
        headers = [header for _, _, header in batches]
        for view, position, header in batches:
            if not header.is_control and header.record_count:
                if header.is_log_append_time:
                    return header.max_timestamp_ms
                if delete_horizon_ms(header) is not None:
                    return await trio.to_thread.run_sync(_first_timestamp, view, position)
                return header.base_timestamp_ms
        if not headers:
            return NO_TIMESTAMP
        offset, max_bytes = headers[-1].last_offset + 1, _CONTROL_READ_BYTES
        await trio.lowlevel.checkpoint()


def _first_timestamp(view: memoryview, position: int) -> int:
    """Of a batch whose base timestamp is something else (compaction). Opens it."""
    try:
        return next((record.timestamp_ms for record in stored_records(view, position)), NO_TIMESTAMP)
    except CorruptPayload:
        return NO_TIMESTAMP
