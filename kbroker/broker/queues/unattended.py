"""Keeps share-partitions in memory that have work to do even while their group has no members.

    schedules   a scheduled job is parked, so that the log can be trimmed and its due time shows
    ttl         a job that expires becomes a dead letter

Other share-partitions are loaded for the first member, and dropped from memory with the last one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable

import trio

from kbroker.broker.queues.share_partitions import SharePartitions
from kbroker.errors import KafkaError
from kbroker.share.persister import TopicPartition

logger = logging.getLogger(__name__)


class Unattended:
    """`groups()`: the share groups. `partitions_of(group_id)`: the topic partitions for which a
    group has share state."""

    def __init__(
        self,
        share_partitions: SharePartitions,
        groups: Callable[[], Iterable[str]],
        partitions_of: Callable[[str], Iterable[TopicPartition]],
    ) -> None:
        self._share_partitions = share_partitions
        self._groups = groups
        self._partitions_of = partitions_of
        self._to_load: deque[str] = deque()
        self._woken = trio.Event()

    async def run(self) -> None:
        """Load the groups that exist at start, then those passed to look(). One at a time, because
        members wait for other share-partitions."""
        self._to_load.extend(self._groups())
        while True:
            while self._to_load:
                await self._load(self._to_load.popleft())
            await self._woken.wait()
            self._woken = trio.Event()

    def look(self, group_id: str) -> None:
        """Look at a group again, after its settings or its share state were altered."""
        if group_id not in self._to_load:
            self._to_load.append(group_id)
        self._woken.set()

    async def _load(self, group_id: str) -> None:
        if not self._share_partitions.settings(group_id).works_alone:
            return
        for partition in self._partitions_of(group_id):
            if partition not in self._partitions_of(group_id):
                # Its state was deleted while another one was loaded. A load would recreate it.
                continue
            try:
                loaded = await self._share_partitions.load(group_id, partition)
            # Its topic is being deleted, or its state cannot be read: members get the error.
            except KafkaError as error:
                logger.debug("share-partition %s:%s-%d was not loaded: %s", group_id, *partition, error)
            else:
                self._share_partitions.retire_unless_used(loaded)
