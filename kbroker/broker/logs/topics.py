"""The topics: their ids, configs and partitions. Creating, growing and deleting them survives a
crash at any point.

- Create: the logs are made first, then the topic record is committed. A crash in between leaves
  empty logs, which recovery removes. The record is synced even with durability `os`: a power cut
  must not remove it and leave logs with records.
- Delete: a tombstone (state `deleting`) is committed first, then the logs are dropped, then the
  records removed. Recovery finishes tombstoned deletions and nothing else. On a full disk the
  tombstone uses the reserved space (space_reserve.py).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias
from uuid import UUID, uuid4

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.logs.leader_epochs import EpochEntry, LeaderEpochs
from kbroker.broker.logs.partition import Partition, TopicShared
from kbroker.broker.logs.producer_recovery import (
    SNAPSHOT_BYTES,
    can_replay_from,
    is_long_replay,
    read_producers,
    snapshot_changes,
)
from kbroker.broker.logs.producer_state import ProducerStates
from kbroker.broker.logs.recompression import stored_codec
from kbroker.broker.logs.space_reserve import SpaceReserve
from kbroker.broker.logs.topic_records import first_epochs, removal_of, stored_epochs, stored_log_start
from kbroker.broker.logs.validation import BatchRules
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError, NoSpace
from kbroker.formats.state import (
    Config,
    ConfigKey,
    LogStart,
    LogStartKey,
    ResourceType,
    TopicKey,
    TopicState,
)
from kbroker.formats.state import Topic as TopicRecord
from kbroker.protocol.topic_names import is_legal, why_illegal
from kbroker.settings.altering import BrokerConfig, TopicConfig
from kbroker.settings.definition import ARRAY_MAX
from kbroker.settings.queue import QUEUE_RETENTION, QUEUE_RETENTION_MAX_BYTES
from kbroker.settings.topic import is_compacted
from kbroker.settings.topic_configs import DEAD_LETTERS
from kbroker.storage.spi import Change, LogId, LogSettings, LogStore, StampedBatch, StateStore

logger = logging.getLogger(__name__)

_LOGS_AT_ONCE = 16
NO_COMPACTION = (
    "cleanup.policy=compact needs a storage engine that can replace the contents of segments, and this one "
    "cannot: choose another at start (--storage)"
)
NOT_WITH_OWN_RECORDS = (
    "cleanup.policy=compact cannot be combined with kbroker.persister={}, which keeps share state in the "
    "logs of topics: choose another persister at start"
)
"""Creating or dropping a log takes several syncs: between two steps of this many logs, other writes
are committed."""
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__share_group_state", "__transaction_state"})


LogStartWatcher: TypeAlias = Callable[[Partition, int, str], Awaitable[Callable[[], None] | None]]
"""Called with a partition, its next log start and the cause before the log start moves. The result
is called when it has moved. Raises NoSpace or StoreFailed to keep the log start."""


@dataclass(slots=True)
class Topic(TopicShared):
    """A live topic. `configs`: the values set for it; `config`: those in effect, with defaults."""

    topic_id: UUID
    created_ms: int
    configs: Mapping[str, str]
    config: TopicConfig
    partitions: list[Partition] = field(default_factory=list)

    @property
    def record(self) -> TopicRecord:
        return TopicRecord(self.name, len(self.partitions), self.created_ms)

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


class TopicsStatistics(NamedTuple):
    """`unfinished_deletions`: topics that clients no longer see, but whose space is not freed yet
    as the disk is full. `has_reserve`: see space_reserve.py."""

    topics: int
    partitions: int
    unfinished_deletions: int
    has_reserve: bool


def check_name(name: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION for a name that Kafka refuses."""
    if not is_legal(name):
        raise KafkaError(ErrorCode.invalid_topic_exception, why_illegal(name))


def _flat(name: str) -> str:
    return name.replace(".", "_")


class Topics:
    """All live topics of the broker. `version` grows with every change that is visible in
    Metadata."""

    def __init__(
        self,
        config: BrokerConfig,
        log_store: LogStore,
        state_store: StateStore,
        logs: GroupCommit[StampedBatch],
        state: GroupCommit[Change],
        *,
        leader_epoch: int,
        reserve: SpaceReserve,
        queue_segment_bytes: int | None = None,
    ) -> None:
        """`queue_segment_bytes`: bounds segments of queues and dead letters; None: nothing."""
        self._config = config
        self._log_store = log_store
        self._state_store = state_store
        self._logs = logs
        self._state = state
        self.leader_epoch = leader_epoch
        self.reserve = reserve
        self._queue_segment_bytes = queue_segment_bytes
        self.log_start_watchers: list[LogStartWatcher] = []
        self.version = 0
        self._no_compaction: str | None = None
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[int, Topic] = {}
        """By UUID.int: UUIDs are hashed and compared in Python, which every request would pay."""
        self._taken: dict[str, str] = {}
        """Names of existing topics and of those being created, by their form in metric names."""
        self._unfinished: dict[UUID, int] = {}
        self._unapplied: set[UUID] = set()
        """Topics whose settings the engine could not save on a full disk."""

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def statistics(self) -> TopicsStatistics:
        partitions = sum(len(topic.partitions) for topic in self._by_name.values())
        return TopicsStatistics(len(self._by_name), partitions, len(self._unfinished), self.reserve.is_there)

    def by_name(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID | None) -> Topic | None:
        return None if topic_id is None else self._by_id.get(topic_id.int)

    def by_id_number(self, number: int) -> Topic | None:
        """`number`: UUID.int of the topic id."""
        return self._by_id.get(number)

    def partition(self, topic_id: UUID, index: int) -> Partition | None:
        topic = self._by_id.get(topic_id.int)
        return topic.partitions[index] if topic is not None and 0 <= index < len(topic.partitions) else None

    def partitions(self) -> Iterator[Partition]:
        for topic in self:
            yield from topic.partitions

    # -- start-up
    # ----------------------------------------------------------------------------------------------

    def add_recovered(self, topic_id: UUID, record: TopicRecord, configs: Mapping[str, str]) -> None:
        """Add a topic of the state store. Its logs get their settings again, which an engine need
        not save."""
        topic = self._make(topic_id, record.name, record.created_ms, configs)
        for index in range(record.partitions):
            self._log_store.create(LogId(topic_id, index), self._log_settings(topic.config))
        self._add_partitions(topic, record.partitions, is_new=False)
        self._publish(topic)

    # -- changes
    # ----------------------------------------------------------------------------------------------

    def check_creatable(self, name: str) -> None:
        """Raises KafkaError: invalid name, existing topic, or one whose name collides ('.' and '_'
        are the same in metric names)."""
        check_name(name)
        other = self._taken.get(_flat(name))
        if other == name:
            raise KafkaError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        if other is not None:
            raise KafkaError(
                ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {other}"
            )

    def refuse_compaction(self, reason: str) -> None:
        """Have check_policy() refuse compaction from now on."""
        self._no_compaction = reason

    def check_policy(self, configs: Mapping[str, str]) -> None:
        """Raises KafkaError if these settings want compaction, and this broker has none."""
        if not is_compacted(TopicConfig(configs, self._config)):
            return
        if not self._log_store.replaces:
            raise KafkaError(ErrorCode.invalid_config, NO_COMPACTION)
        if self._no_compaction is not None:
            raise KafkaError(ErrorCode.invalid_config, self._no_compaction)

    async def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """A new topic, durable on return. Raises KafkaError (see check_creatable), NoSpace,
        StoreFailed."""
        self.check_creatable(name)
        self.check_policy(configs)
        topic = self._make(uuid4(), name, wall_clock_ms(), configs)
        self._taken[_flat(name)] = name
        try:
            record = TopicRecord(name, partitions, topic.created_ms)
            changes: list[Change] = [(TopicKey(topic.topic_id).encode(), record.encode())]
            # A leftover config of an earlier topic of this name must not apply to the new one.
            changes.append(
                (ConfigKey(ResourceType.TOPIC, name).encode(), Config(configs).encode() if configs else None)
            )
            changes += first_epochs(topic.topic_id, range(partitions), self.leader_epoch)
            await self._create_logs_and_save(topic, range(partitions), changes)
            self._add_partitions(topic, partitions, is_new=True)
            self._publish(topic)
        except BaseException:
            del self._taken[_flat(name)]
            raise
        logger.info("topic %s created: %d partitions, id %s", name, partitions, topic.topic_id)
        return topic

    async def grow(self, topic: Topic, partitions: int) -> None:
        """Add partitions up to `partitions` in all; durable on return. The caller makes sure
        that nothing else changes the topic."""
        added = range(len(topic.partitions), partitions)
        record = TopicRecord(topic.name, partitions, topic.created_ms)
        changes: list[Change] = [
            (TopicKey(topic.topic_id).encode(), record.encode()),
            *first_epochs(topic.topic_id, added, self.leader_epoch),
        ]
        await self._create_logs_and_save(topic, added, changes)
        self._add_partitions(topic, partitions, is_new=True)
        self.version += 1

    async def set_configs(self, topic: Topic, configs: Mapping[str, str]) -> None:
        """Replace the topic's configs (validated by the caller); durable and in force on return.

        Raises KafkaError (see check_policy), NoSpace and StoreFailed; then nothing has changed. One
        exception: on a full disk the engine may be unable to save the new segment size; `catch_up`
        retries that.
        """
        self.check_policy(configs)
        value = Config(configs).encode() if configs else None
        await self._state.commit([(ConfigKey(ResourceType.TOPIC, topic.name).encode(), value)])
        topic.configs = dict(configs)
        topic.config = TopicConfig(configs, self._config)
        topic.rules = batch_rules(topic.config)
        await self._apply_settings(topic)

    async def _apply_settings(self, topic: Topic) -> None:
        settings = self._log_settings(topic.config)

        def apply(log: LogId) -> None:
            if not topic.partitions[log.partition].deleted:  # Otherwise this would recreate the log.
                self._log_store.create(log, settings)

        try:
            await self._for_logs(topic.topic_id, range(len(topic.partitions)), apply)
        except NoSpace as error:
            self._unapplied.add(topic.topic_id)
            logger.warning("topic %s: new segment settings have to wait: %s", topic.name, error)
        else:
            self._unapplied.discard(topic.topic_id)

    async def delete(self, topic: Topic) -> None:
        """Delete a topic. Once the tombstone is committed, clients no longer see the topic, and it
        stays deleted after a power cut. Then the logs are dropped and the records removed. Raises
        NoSpace, StoreFailed; after NoSpace the topic may be deleted nevertheless."""
        if topic.partitions and topic.partitions[0].deleted:
            return
        for partition in topic.partitions:
            partition.deleted = True
        tombstone = TopicRecord(topic.name, len(topic.partitions), topic.created_ms, TopicState.DELETING)
        config_key = ConfigKey(ResourceType.TOPIC, topic.name).encode()
        try:
            await self._commit_from_reserve(
                [(TopicKey(topic.topic_id).encode(), tombstone.encode()), (config_key, None)]
            )
        except Exception:
            for partition in topic.partitions:
                partition.deleted = False
                partition.waiters.wake_all()
            raise
        del self._by_name[topic.name]
        del self._by_id[topic.topic_id.int]
        del self._taken[_flat(topic.name)]
        self.version += 1
        for partition in topic.partitions:
            partition.waiters.wake_all()
        makes_room = any(
            partition.log_start_offset < partition.high_watermark for partition in topic.partitions
        )
        if makes_room:
            self.reserve.give_up_if_short()
        try:
            await self._finish_deletion(topic.topic_id, len(topic.partitions))
        except NoSpace:
            self._unfinished[topic.topic_id] = len(topic.partitions)
            raise
        self.reserve.take(from_little=not makes_room)
        logger.info("topic %s deleted, id %s", topic.name, topic.topic_id)

    async def catch_up(self) -> None:
        """Retry deletions and segment settings that a full disk has interrupted. Raises NoSpace,
        StoreFailed."""
        for topic_id, partitions in list(self._unfinished.items()):
            await self._finish_deletion(topic_id, partitions)
            del self._unfinished[topic_id]
        for topic_id in list(self._unapplied):
            topic = self.by_id(topic_id)
            if topic is None:
                self._unapplied.discard(topic_id)
            else:
                await self._apply_settings(topic)

    async def _commit_from_reserve(self, changes: Sequence[Change]) -> None:
        """Commit changes that will free space, using the reserve if necessary. Synced even with
        durability `os`. Raises NoSpace, StoreFailed."""
        try:
            await self._state.commit(changes)
            await self._state.flush()
        except NoSpace:
            if not self.reserve.is_there:
                raise

            def write_instead() -> None:
                self.reserve.give_up()
                self._state_store.write(changes)
                self._state_store.sync()

            try:
                await self._state.perform(write_instead)
            except NoSpace:  # This store needs more space than the reserve.
                self.reserve.take()
                raise

    async def _finish_deletion(self, topic_id: UUID, partitions: int) -> None:
        """Find and remove the topic's state in one step, after all writes submitted while it
        existed. A task that submits state for a partition checks in the same step that it is not
        deleted."""
        await self._drop_logs(topic_id, range(partitions))
        await self._state.perform(
            lambda: self._state_store.write(removal_of(self._state_store, topic_id, partitions))
        )

    def _why_removed(self, partition: Partition) -> str:
        """Which setting removes unfinished records: where share groups hold a log, only the hard
        limit does."""
        topic = self.by_id(partition.log.topic_id)
        is_held = topic is not None and topic.config[QUEUE_RETENTION] != "time"
        return QUEUE_RETENTION_MAX_BYTES if is_held else "retention"

    async def move_log_start(self, partition: Partition, offset: int, *, to_free_space: bool = False) -> None:
        """Remove everything below `offset`, durably on return; whole segments below it are deleted.
        The producer state is saved with the new start, since it can no longer be read from the log.

        `to_free_space` (retention): `offset` is the beginning of a segment. Then the segments are
        removed even if a full disk cannot take the record of the new start: the log itself shows
        where it begins.
        """
        async with partition.moving_log_start:
            if offset <= partition.log_start_offset:
                return
            cause = self._why_removed(partition) if to_free_space else "DeleteRecords"
            moved = [await watcher(partition, offset, cause) for watcher in self.log_start_watchers]
            log = partition.log
            changes: list[Change] = [
                (LogStartKey(log.topic_id, log.partition).encode(), LogStart(offset).encode())
            ]
            changes += await self._producers_without(partition, offset)
            # First sync the log: a power cut that keeps the new log start but not the records
            # before it would leave a start beyond the log's end.
            await self._logs.flush()
            if partition.deleted:  # During the wait.
                return
            try:
                # Synced: the removal is durable, so the producer state must be durable first.
                if to_free_space:
                    await self._commit_from_reserve(changes)
                else:
                    await self._state.commit(changes)
                    await self._state.flush()
            except NoSpace:
                if not to_free_space:
                    raise
                partition.bytes_since_snapshot += SNAPSHOT_BYTES  # Save as soon as there is space.
            partition.log_start_offset = offset
            for notify in filter(None, moved):
                notify()
            if not partition.deleted:
                await self._logs.perform(lambda: self._log_store.trim(log, offset))

    async def _producers_without(self, partition: Partition, offset: int) -> list[Change]:
        """The changes that save producer state which only the records below `offset` contain."""
        if can_replay_from(partition, self._state_store, offset):
            return []
        if partition.producers is None and is_long_replay(partition, self._state_store):
            return []
        await partition.load_producers()
        return await snapshot_changes(
            partition, self._state_store, wall_clock_ms() - self._config["producer.id.expiration.ms"]
        )

    # -- parts
    # ----------------------------------------------------------------------------------------------

    def _make(self, topic_id: UUID, name: str, created_ms: int, configs: Mapping[str, str]) -> Topic:
        config = TopicConfig(configs, self._config)
        return Topic(name, batch_rules(config), topic_id, created_ms, dict(configs), config)

    def _log_settings(self, config: TopicConfig) -> LogSettings:
        segment_bytes, segment_ms = config["segment.bytes"], config["segment.ms"]
        if is_compacted(config):  # Only closed segments are compacted.
            segment_ms = min(segment_ms, config["max.compaction.lag.ms"])
        if config[QUEUE_RETENTION] != "time" or config[DEAD_LETTERS]:
            segment_bytes = min(segment_bytes, self._queue_segment_bytes or segment_bytes)
        return LogSettings(segment_bytes, segment_ms)

    def _publish(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id.int] = topic
        self._taken[_flat(topic.name)] = topic.name
        self.version += 1

    async def _create_logs_and_save(self, topic: Topic, indexes: range, changes: list[Change]) -> None:
        """On a full disk the logs are dropped again. After StoreFailed it is unknown what was
        saved, and recovery cleans up."""
        settings = self._log_settings(topic.config)
        try:
            await self._for_logs(topic.topic_id, indexes, lambda log: self._log_store.create(log, settings))
            await self._state.commit(changes)
        except NoSpace:
            await self._drop_logs(topic.topic_id, indexes)
            raise
        await self._state.flush()

    async def _drop_logs(self, topic_id: UUID, indexes: range) -> None:
        await self._for_logs(topic_id, indexes, self._log_store.drop)

    async def _for_logs(self, topic_id: UUID, indexes: range, change: Callable[[LogId], None]) -> None:
        for first in range(indexes.start, indexes.stop, _LOGS_AT_ONCE):
            logs = [
                LogId(topic_id, index) for index in range(first, min(first + _LOGS_AT_ONCE, indexes.stop))
            ]

            def change_all(logs: Sequence[LogId] = logs) -> None:
                for log in logs:
                    change(log)

            await self._logs.perform(change_all)

    def _add_partitions(self, topic: Topic, count: int, *, is_new: bool) -> None:
        for index in range(len(topic.partitions), count):
            log = LogId(topic.topic_id, index)
            entries = [EpochEntry(self.leader_epoch, 0)] if is_new else stored_epochs(self._state_store, log)
            partition = Partition(
                log,
                topic,
                self._log_store,
                self._logs,
                epochs=LeaderEpochs(self.leader_epoch, entries),
                log_start_offset=stored_log_start(self._state_store, log),
                read_producers=partial(read_producers, store=self._state_store),
            )
            if is_new:
                partition.producers = ProducerStates()
            topic.partitions.append(partition)


def batch_rules(config: TopicConfig) -> BatchRules:
    """The rules for produced batches that the settings of a topic make."""
    codec, codec_level = stored_codec(config)
    max_record_bytes = config["max.decompressed.message.bytes"]
    return BatchRules(
        max_message_bytes=config["max.message.bytes"],
        # internal.segment.bytes is lower, and cuts segments only.
        segment_bytes=max(config["segment.bytes"], 1 << 20),
        log_append_time=config["message.timestamp.type"] == "LogAppendTime",
        timestamp_before_max_ms=config["message.timestamp.before.max.ms"],
        timestamp_after_max_ms=config["message.timestamp.after.max.ms"],
        check_payload=(
            config["kbroker.payload.check"]
            or is_compacted(config)
            or codec is not None
            or max_record_bytes < ARRAY_MAX
        ),
        max_record_bytes=max_record_bytes,
        needs_keys=is_compacted(config),
        codec=codec,
        codec_level=codec_level,
    )
