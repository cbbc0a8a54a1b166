"""The task that compacts the logs of topics with cleanup.policy=compact.

Every log.cleaner.backoff.ms it looks at all of them. The log with the highest part of new bytes is
cleaned first, one at a time, until none is due. A log with a batch that cannot be read is left
alone until the broker restarts, and counted (`uncleanable`).

A pass needs room for a segment beside the old one. It takes none of the space that producers must
leave free (broker/logs/disk_floor.py). A log whose pass had no room waits until more is free than
before that pass, because each attempt reads the log.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import trio

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.compaction.log_pass import LogPass, LogRemoved, PassLimits, PassResult
from kbroker.broker.logs.disk_floor import DiskFloor
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.producer_recovery import can_replay_from, snapshot_changes
from kbroker.broker.logs.topics import Topic, Topics
from kbroker.clock import wall_clock_ms
from kbroker.compaction.choice import Cleanable, CompactionSettings, cleanable
from kbroker.errors import KafkaError, NoSpace, StoreFailed
from kbroker.formats.batches import HEADER_SIZE, read_header
from kbroker.formats.compression import CorruptPayload
from kbroker.formats.state import Cleaned, CleanedKey
from kbroker.formats.transactions import AbortedKey
from kbroker.settings.altering import BrokerConfig, TopicConfig
from kbroker.settings.queue import QUEUE_RETENTION
from kbroker.settings.topic import is_compacted
from kbroker.storage.spi import Change, LogStore, SegmentInfo, StampedBatch, StateStore

logger = logging.getLogger(__name__)

_LEAST_WAIT_S: Final = 0.01
"""Between two passes over a log, so that one that always fails leaves time for others."""
_MORE_BYTES: Final = 1 << 20
_NO_ROOM_WAIT_S: Final = 600.0
"""A log whose pass had no room waits until so much more is free, or so long: what the pass leaves
may have become less."""


class LogCleanerStatistics(NamedTuple):
    """Counted since the start, except `uncleanable` (logs that cannot be cleaned) and `dirty_ratio`
    (the highest part of new bytes of a log, when the cleaner last looked). `passes` have ended;
    `read_bytes` is also that of others."""

    passes: int = 0
    read_bytes: int = 0
    removed_bytes: int = 0
    removed_records: int = 0
    uncleanable: int = 0
    dirty_ratio: float = 0.0


class _Candidate(NamedTuple):
    partition: Partition
    cleanable: Cleanable
    settings: CompactionSettings


class _NoRoom(NamedTuple):
    """Of a pass that failed: what was free before it, and when another one may begin anyway."""

    free_bytes: int
    until_s: float


class Stores(NamedTuple):
    logs: LogStore
    state: StateStore
    log_commits: GroupCommit[StampedBatch]
    state_commits: GroupCommit[Change]


class LogCleaner:
    def __init__(
        self,
        topics: Topics,
        config: BrokerConfig,
        stores: Stores,
        disk_floor: DiskFloor,
        holders: Callable[[Partition], Awaitable[Mapping[str, int]]],
        raise_format: Callable[[], None],
    ) -> None:
        """- `holders(partition)`: the share groups that hold the log, and from which offsets on
        - `raise_format`: has earlier versions of kbroker refuse the data directory"""
        self._raise_format = raise_format
        self._topics, self._config, self._holders = topics, config, holders
        self._log_store, self._state_store, self._log_commits, self._state_commits = stores
        self._disk_floor = disk_floor
        self._no_room: WeakKeyDictionary[Partition, _NoRoom] = WeakKeyDictionary()
        self._waiting: WeakSet[Partition] = WeakSet()
        """Their last pass failed, which was logged."""
        self._uncleanable: WeakKeyDictionary[Partition, str] = WeakKeyDictionary()
        self._counts = LogCleanerStatistics()

    def statistics(self) -> LogCleanerStatistics:
        return self._counts._replace(uncleanable=len(self._uncleanable))

    async def run(self) -> None:
        while True:
            await trio.sleep(self._config["log.cleaner.backoff.ms"] / 1000)
            if self._log_store.replaces:  # The broker's default policy may ask for more.
                await self.clean_all()

    async def clean_all(self) -> None:
        """Passes over all logs that are due, until none is. Each waits for log.cleaner.backoff.ms
        after its pass, however long those of others take."""
        done: dict[Partition, float] = {}
        while (chosen := await self._choose(done)) is not None:
            wait_s = max(_LEAST_WAIT_S, self._config["log.cleaner.backoff.ms"] / 1000)
            done[chosen.partition] = trio.current_time() + wait_s
            with self._errors_of(chosen.partition):
                await self._clean(chosen)

    @contextmanager
    def _errors_of(self, partition: Partition) -> Iterator[None]:
        """An error concerns one log, and must not end the broker."""
        try:
            yield
        except LogRemoved:
            pass
        except (KafkaError, NoSpace, StoreFailed) as error:
            if not partition.deleted:
                level = logging.DEBUG if partition in self._waiting else logging.WARNING
                self._waiting.add(partition)
                logger.log(level, "compaction of %s has to wait: %s", _name(partition), error)
        except CorruptPayload as error:
            self._uncleanable[partition] = str(error)
            logger.error("%s is not compacted any more: %s", _name(partition), error)
        except Exception as error:
            if not partition.deleted:
                self._uncleanable[partition] = str(error)
                logger.exception("%s is not compacted any more", _name(partition))

    async def _choose(self, done: Mapping[Partition, float]) -> _Candidate | None:
        """`done`: when the next pass may begin."""
        now_ms, now_s, due = wall_clock_ms(), trio.current_time(), list[_Candidate]()
        ratio = 0.0
        for topic in list(self._topics):
            if not is_compacted(topic.config):
                continue
            settings = compaction_settings(topic.config)
            for partition in topic.partitions:
                if partition.deleted or partition in self._uncleanable:
                    continue
                with self._errors_of(partition):
                    found = await self._cleanable(topic, partition, settings, now_ms)
                    ratio = max(ratio, found.dirty_ratio)
                    may_begin = done.get(partition, 0.0) <= now_s and not self._has_no_room(partition)
                    if may_begin and found.is_due(settings, now_ms):
                        due.append(_Candidate(partition, found, settings))
        self._counts = self._counts._replace(dirty_ratio=ratio)
        return max(due, key=lambda each: each.cleanable.dirty_ratio, default=None)

    async def _cleanable(
        self, topic: Topic, partition: Partition, settings: CompactionSettings, now_ms: int
    ) -> Cleanable:
        if partition.must_load_transactions:
            await partition.load_producers()
        held_from = await self._held_from(topic, partition)
        stored = self._state_store.get(CleanedKey(*partition.log).encode())
        return cleanable(
            partition.segments(),
            settings,
            cleaned_to=0 if stored is None else Cleaned.decode(stored).offset,
            protected_from=min(held_from, partition.last_stable_offset),
            now_ms=now_ms,
            first_time_ms=partial(_first_time_ms, partition),
        )

    async def _held_from(self, topic: Topic, partition: Partition) -> int:
        """The lowest offset that a share group has not finished, if the topic protects it."""
        if topic.config[QUEUE_RETENTION] == "time":
            return partition.high_watermark
        return min((partition.high_watermark, *(await self._holders(partition)).values()))

    def _has_no_room(self, partition: Partition) -> bool:
        last = self._no_room.get(partition)
        if last is None or trio.current_time() >= last.until_s:
            return False
        return self._disk_floor.free_bytes() < last.free_bytes + _MORE_BYTES

    async def _clean(self, chosen: _Candidate) -> None:
        partition = chosen.partition
        self._disk_floor.check_room()
        limits = PassLimits(
            self._config["log.cleaner.dedupe.buffer.size"],
            self._config["log.cleaner.io.max.bytes.per.second"],
            self._disk_floor.check_room,
        )
        one = LogPass(
            partition,
            self._log_store,
            self._log_commits,
            chosen.cleanable,
            limits,
            partial(self._before_markers_go, partition),
        )
        await self._state_commits.perform(self._raise_format)
        result = await self._run(one, partition, chosen.settings.delete_retention_ms)
        if not partition.deleted:
            key = CleanedKey(*partition.log).encode()
            await self._state_commits.commit([(key, Cleaned(result.cleaned_to).encode())])
        self._report(partition, result)

    async def _run(self, one: LogPass, partition: Partition, delete_retention_ms: int) -> PassResult:
        free_bytes = self._disk_floor.free_bytes()
        try:
            result = await one.run(wall_clock_ms(), delete_retention_ms)
        except NoSpace:
            self._no_room[partition] = _NoRoom(free_bytes, trio.current_time() + _NO_ROOM_WAIT_S)
            self._disk_floor.look()  # What the pass had written is gone.
            raise
        finally:
            self._counts = self._counts._replace(read_bytes=self._counts.read_bytes + one.read_bytes)
        self._no_room.pop(partition, None)
        self._waiting.discard(partition)
        return result

    async def _before_markers_go(self, partition: Partition, markers: Sequence[int]) -> None:
        """Durable on return, before the markers of these offsets go:

        - Their aborted transactions are forgotten. A client that learns of one, and finds no
          marker, takes all later records of the producer for aborted.
        - A snapshot of the producers follows them. A replay that misses a marker would leave its
          transaction open."""
        log, store = partition.log, self._state_store
        async with partition.moving_log_start:  # No snapshot may store a forgotten one again.
            states = await partition.load_producers()
            changes: list[Change] = []
            if not can_replay_from(partition, store, max(markers) + 1):
                oldest_ms = wall_clock_ms() - self._config["producer.id.expiration.ms"]
                changes += await snapshot_changes(partition, store, oldest_ms)
                await self._log_commits.flush()
            if partition.deleted:
                raise LogRemoved
            keys = [AbortedKey(log.topic_id, log.partition, each).encode() for each in markers]
            await self._state_commits.commit([*changes, *((key, None) for key in keys)])
            await self._state_commits.flush()
            states.transactions.forget(markers)

    def _report(self, partition: Partition, result: PassResult) -> None:
        counts = self._counts
        self._counts = counts._replace(
            passes=counts.passes + 1,
            removed_bytes=counts.removed_bytes + result.bytes_before - result.bytes_after,
            removed_records=counts.removed_records + result.removed_records,
        )
        logger.info(
            "compacted %s up to offset %d: %d records removed, %d bytes before, %d after, %d segments "
            "rewritten",
            _name(partition), result.cleaned_to, result.removed_records, result.bytes_before,
            result.bytes_after, result.rewritten_segments,
        )  # fmt: skip


def compaction_settings(config: TopicConfig) -> CompactionSettings:
    return CompactionSettings(
        config["min.cleanable.dirty.ratio"],
        config["min.compaction.lag.ms"],
        config["max.compaction.lag.ms"],
        config["delete.retention.ms"],
    )


def _first_time_ms(partition: Partition, segment: SegmentInfo) -> int:
    """The time of the segment's first batch, -1 without one. Raises KafkaError, KeyError."""
    views = partition.read_now(segment.base_offset, max_bytes=1, end_offset=segment.end_offset)
    return next((read_header(view).max_timestamp_ms for view in views if len(view) >= HEADER_SIZE), -1)


def _name(partition: Partition) -> str:
    return f"{partition.topic_name}-{partition.log.partition}"
