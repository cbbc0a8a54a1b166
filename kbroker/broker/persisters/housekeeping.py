"""Keeps the stored share state small, by cold snapshots (share_state/housekeeping.py) at intervals,
a few at a time.

Share-partitions without a request since the start are not in memory. The first round searches the
store for them, in a thread and one partition's share state at a time, because there may be much. If
a full disk or a failed store prevents a snapshot, a later round makes it. Nothing is lost
meanwhile; the state only takes more room.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import trio

from kbroker.broker.logs.topics import Topics
from kbroker.broker.persisters.local import LocalPersister
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, StoreFailed
from kbroker.share.persister import OwnRecords, Result, TopicPartition
from kbroker.share_state.housekeeping import SharePartitionKey, state_prefix, with_updates
from kbroker.storage.spi import StateReader

logger = logging.getLogger(__name__)

_AT_ONCE = 8
"""Cold snapshots in one commit: each may remove some hundred updates, and other writes wait for the
commit."""


class StateHousekeepingStatistics(NamedTuple):
    rounds: int
    failures: int


class StateHousekeeping:
    """
    - `interval_ms`: share.coordinator.cold.partition.snapshot.interval.ms, the age at which a
      snapshot is cold, and the interval of rounds
    - `own`: of the broker's persister, which may be another one than `persister`
    """

    def __init__(
        self,
        persister: LocalPersister,
        store: StateReader,
        topics: Topics,
        *,
        interval_ms: int,
        own: OwnRecords | None,
    ) -> None:
        self._persister = persister
        self._own = own
        self._store = store
        self._topics = topics
        self._interval_ms = interval_ms
        self._has_searched = False
        self._rounds = self._failures = 0

    def statistics(self) -> StateHousekeepingStatistics:
        return StateHousekeepingStatistics(self._rounds, self._failures)

    async def run(self) -> None:
        while True:
            await trio.sleep(self._interval_ms / 1000)
            await self.work(wall_clock_ms())

    async def work(self, now_ms: int) -> None:
        """One round. Raises nothing."""
        self._rounds += 1
        cold = self._persister.coordinator.states.cold(now_ms=now_ms, interval_ms=self._interval_ms)
        await self._snapshot(cold, now_ms)
        if self._own is not None:
            self._report(await self._own.keep_house(now_ms, self._interval_ms))
        if self._has_searched:
            return
        try:
            for partition in list(self._topics.partitions()):
                prefix = state_prefix(TopicPartition(*partition.log))
                await self._snapshot(await trio.to_thread.run_sync(self._search, prefix), now_ms)
        except StoreFailed as error:
            self._failures += 1
            logger.warning(
                "share state could not be searched, next attempt in %d ms: %s", self._interval_ms, error
            )
        else:
            self._has_searched = True

    def _search(self, prefix: bytes) -> Sequence[SharePartitionKey]:
        return with_updates(self._store.scan(prefix))

    async def _snapshot(self, share_partitions: Sequence[SharePartitionKey], now_ms: int) -> None:
        for first in range(0, len(share_partitions), _AT_ONCE):
            some = share_partitions[first : first + _AT_ONCE]
            self._report(
                await self._persister.snapshot_cold(some, now_ms=now_ms, interval_ms=self._interval_ms)
            )

    def _report(self, results: Sequence[Result]) -> None:
        failed = [result for result in results if result.code is not ErrorCode.none]
        if failed:
            self._failures += len(failed)
            logger.warning(
                "%d cold snapshots of share state were not saved: %s", len(failed), failed[0].message
            )
