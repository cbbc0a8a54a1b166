"""The default Persister: the share coordinator in this process, with its changes in the state
store's group commit.

A result with code none is as durable as --durability makes it. A call that is cancelled while it
waits is still saved.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from time import perf_counter
from typing import NamedTuple, TypeVar
from uuid import UUID

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.commits.waiting import Pending
from kbroker.broker.logs.topics import Topics
from kbroker.broker.persisters.parked_reader import ParkedReader
from kbroker.clock import wall_clock_ms
from kbroker.metrics import SECONDS, Histogram
from kbroker.settings.altering import BrokerConfig
from kbroker.share.persister import (
    InitializeRequest,
    Persister,
    ReadRequest,
    ReadResult,
    Result,
    SummaryResult,
    TopicPartition,
    WriteRequest,
)
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.housekeeping import SharePartitionKey, is_cold
from kbroker.share_state.outcome import ShareStateOutcome
from kbroker.share_state.parked import ParkingStore
from kbroker.share_state.states import ShareStateStatistics
from kbroker.storage.spi import Change, StampedBatch, StateReader

R = TypeVar("R", bound=Result)


OnGenerationEnded = Callable[[SharePartitionKey, int], None]


def _ignore_ended(key: SharePartitionKey, generation: int) -> None: ...


class PersisterContext(NamedTuple):
    """The argument of an entry point of the group `kbroker.persister`. The topics are not loaded
    yet."""

    local: Persister
    config: BrokerConfig
    topics: Topics
    logs: GroupCommit[StampedBatch]
    state: GroupCommit[Change]
    state_store: StateReader
    generation: int = 0
    """Unique to this broker life."""
    generation_ended: OnGenerationEnded = _ignore_ended
    """To be called for waiting rows in the state store, once the end of a generation is saved; the
    broker then removes its rows."""


def parking_store(store: StateReader, generation: int) -> ParkingStore | None:
    """The parameters with which a share coordinator keeps parked records in this store; None if the
    store cannot.

    A generation of parked records is numbered by the broker life and a counter, so numbers are
    unique although none is stored."""
    if not store.keeps_keys_on_disk:
        return None
    return ParkingStore(store.get, count((generation << 32) + 1))


class CountsShareState(Persister):
    """A persister whose numbers appear in statistics and metrics. `write_seconds`: how long writes
    took."""

    write_seconds: Histogram

    @abstractmethod
    def statistics(self) -> ShareStateStatistics: ...


class LocalPersister(CountsShareState):
    writes_to_the_end = True

    def __init__(
        self,
        coordinator: ShareStateCoordinator,
        commits: GroupCommit[Change],
        store: StateReader | None = None,
    ) -> None:
        """`store`: where waiting rows are read from."""
        self.coordinator = coordinator
        self._commits = commits
        self._parked = None
        if store is not None and store.keeps_keys_on_disk:
            self.waiting_rows = self._parked = ParkedReader(store, coordinator)
        self.write_seconds = Histogram(SECONDS)

    def statistics(self) -> ShareStateStatistics:
        return self.coordinator.states.statistics()

    async def initialize(self, group_id: str, requests: Sequence[InitializeRequest]) -> list[Result]:
        return await self._save(self.coordinator.initialize(group_id, requests, now_ms=wall_clock_ms()))

    async def read(self, group_id: str, requests: Sequence[ReadRequest]) -> list[ReadResult]:
        return await self._save(self.coordinator.read(group_id, requests, now_ms=wall_clock_ms()))

    async def write(self, group_id: str, requests: Sequence[WriteRequest]) -> list[Result]:
        began = perf_counter()
        results = await self._save(
            self.coordinator.write(group_id, requests, now_ms=wall_clock_ms()), to_the_end=True
        )
        for request in requests:
            if request.parking and self._parked is not None:
                self._parked.written(group_id, request.partition)
        self.write_seconds.observe(perf_counter() - began)
        return results

    async def delete(self, group_id: str, partitions: Sequence[TopicPartition]) -> list[Result]:
        return await self._save(self.coordinator.delete(group_id, partitions))

    async def read_summary(self, group_id: str, requests: Sequence[ReadRequest]) -> list[SummaryResult]:
        return await self._save(self.coordinator.read_summary(group_id, requests))

    async def count_unfinished(self, group_id: str, partition: TopicPartition, first: int, end: int) -> int:
        rows = self._parked
        parked = 0 if rows is None else await rows.count(group_id, partition, first, end, kept=False)
        return parked + self.coordinator.unfinished(group_id, partition, first, end)

    async def topic_deleted(self, topic_id: UUID) -> None:
        """Forget the share-partitions of all groups on a deleted topic."""
        await self._save(self.coordinator.states.topic_deleted(topic_id))

    async def snapshot_cold(
        self, share_partitions: Sequence[SharePartitionKey], *, now_ms: int, interval_ms: int
    ) -> list[Result]:
        """Make cold snapshots where they are still needed, with a result for each."""
        wanted, states = partial(is_cold, now_ms=now_ms, interval_ms=interval_ms), self.coordinator.states
        return await self._save(states.snapshot(share_partitions, now_ms=now_ms, wanted=wanted))

    async def aclose(self) -> None:
        """Nothing to close: the broker owns the state store."""

    async def _save(self, outcome: ShareStateOutcome[R], *, to_the_end: bool = False) -> list[R]:
        results = list(outcome.results)
        if outcome.must_wait:
            pending = Pending(1, self._commits.start)
            done = partial(self._saved, outcome, results, pending)
            self._commits.enqueue(outcome.changes, done)
            await pending.wait(to_the_end=to_the_end)
        return results

    def _saved(
        self, outcome: ShareStateOutcome[R], results: list[R], pending: Pending, error: Exception | None
    ) -> None:
        if error is None:
            self.coordinator.states.confirm(outcome)
        else:
            results[:] = self.coordinator.states.failed(outcome, message=str(error))
        pending.part_done()


def open_local(context: PersisterContext) -> Persister:
    return context.local


PERSISTER = open_local
