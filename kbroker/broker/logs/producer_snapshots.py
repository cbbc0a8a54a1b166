"""Saves what partitions remember of idempotent producers, so that a start need not replay the log.

A snapshot is saved after SNAPSHOT_BYTES of appends. Every ten minutes producers expire, and all
partitions with appends since their last snapshot get one.
"""

from __future__ import annotations

import itertools
import logging

import trio

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.producer_recovery import SNAPSHOT_BYTES, is_long_replay, snapshot_changes
from kbroker.broker.logs.topics import Topics
from kbroker.clock import wall_clock_ms
from kbroker.errors import KafkaError, NoSpace, StoreFailed
from kbroker.settings.altering import BrokerConfig
from kbroker.storage.spi import Change, StampedBatch, StateStore

logger = logging.getLogger(__name__)

_CHECK_S = 10.0
_CHECKS_PER_SNAPSHOT = 60


class ProducerSnapshots:
    def __init__(
        self,
        topics: Topics,
        config: BrokerConfig,
        state_store: StateStore,
        log_commits: GroupCommit[StampedBatch],
        state_commits: GroupCommit[Change],
    ) -> None:
        self._topics = topics
        self._config = config
        self._state_store = state_store
        self._log_commits = log_commits
        self._state_commits = state_commits

    async def run(self) -> None:
        for check in itertools.count(1):
            await trio.sleep(_CHECK_S)
            await self.save(least_bytes=SNAPSHOT_BYTES if check % _CHECKS_PER_SNAPSHOT else 1)

    async def save(self, *, least_bytes: int, may_replay: bool = True) -> None:
        """Save the producers of partitions with at least `least_bytes` of appends since the last
        snapshot, or with producers that expire. `may_replay`: read the log where the producers are
        not loaded. The next start replays what could not be saved."""
        oldest_ms = wall_clock_ms() - self._config["producer.id.expiration.ms"]
        for partition in list(self._topics.partitions()):
            appended_bytes = partition.bytes_since_snapshot
            has_expired = (
                least_bytes <= 1
                and partition.producers is not None
                and partition.producers.expire(oldest_ms) > 0
            )
            if partition.deleted or (appended_bytes < least_bytes and not has_expired):
                continue
            try:
                if await self._save(partition, oldest_ms, may_replay):
                    partition.bytes_since_snapshot -= appended_bytes
            except KafkaError:
                continue  # The topic is being deleted.
            except (NoSpace, StoreFailed) as error:
                logger.warning("producer state was not saved: %s", error)
                return

    async def _save(self, partition: Partition, oldest_ms: int, may_replay: bool) -> bool:
        """Whether the partition's producers are known, and saved."""
        async with partition.moving_log_start:
            offset = partition.high_watermark
            changes = await snapshot_changes(partition, self._state_store, oldest_ms)
            if not changes and may_replay and not is_long_replay(partition, self._state_store):
                await partition.load_producers()
                offset = partition.high_watermark
                changes = await snapshot_changes(partition, self._state_store, oldest_ms)
            if not changes:
                return False
            # The snapshot replaces one that is durable, so the records that it describes must be
            # durable first.
            await self._log_commits.flush()
            if partition.deleted:
                return False
            await self._state_commits.commit(changes)
            if partition.producers is not None:
                partition.producers.transactions.saved_below(offset)
            return True
