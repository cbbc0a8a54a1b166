"""A share coordinator over a memory store, and the share-partitions that its tests name."""

from __future__ import annotations

from uuid import UUID, uuid4

from kbroker.formats.share_records import ShareSnapshot, ShareUpdate
from kbroker.formats.state import (
    ShareStateKey,
    parse_key,
)
from kbroker.share.effects import StateBatch
from kbroker.share.persister import (
    InitializeRequest,
    ReadRequest,
    ReadResult,
    Result,
    SummaryResult,
    TopicPartition,
    WriteRequest,
)
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.outcome import ShareStateOutcome
from kbroker.storage.memory_store import MemoryStateStore

A, K, R = 0, 2, 4
TOPIC = uuid4()
P = TopicPartition(TOPIC, 0)
Q = TopicPartition(TOPIC, 1)
GONE = TopicPartition(TOPIC, 9)
NULL = TopicPartition(UUID(int=0), 0)
NEGATIVE = TopicPartition(TOPIC, -1)


class Share:
    """A coordinator over a memory store whose group "g" initialises P at state epoch 5, start 100,
    read by leader 7."""

    def __init__(self, updates_per_snapshot: int = 500) -> None:
        self.store = MemoryStateStore({})
        self.updates_per_snapshot = updates_per_snapshot
        self.restart()

    def restart(self) -> None:
        self.coordinator = ShareStateCoordinator(
            self.store.scan,
            lambda topic_id, partition: topic_id == TOPIC and 0 <= partition < 3,
            updates_per_snapshot=self.updates_per_snapshot,
        )

    def save(self, outcome: ShareStateOutcome[Result]) -> ShareStateOutcome[Result]:
        self.store.write(outcome.changes)
        self.coordinator.states.confirm(outcome)
        return outcome

    def initialize(self, state_epoch: int, start_offset: int, partition: TopicPartition = P) -> Result:
        outcome = self.coordinator.initialize(
            "g", [InitializeRequest(partition, state_epoch, start_offset)], now_ms=1000
        )
        return self.save(outcome).results[0]

    def read(self, leader_epoch: int, partition: TopicPartition = P) -> ReadResult:
        outcome = self.coordinator.read("g", [ReadRequest(partition, leader_epoch)], now_ms=2000)
        self.save(outcome)
        return outcome.results[0]

    def write(
        self,
        *batches: StateBatch,
        state: int = 5,
        leader: int = 7,
        start: int = 100,
        dcc: int = 0,
        partition: TopicPartition = P,
    ) -> Result:
        outcome = self.coordinator.write(
            "g", [WriteRequest(partition, state, leader, start, dcc, batches)], now_ms=3000
        )
        return self.save(outcome).results[0]

    def delete(self, partition: TopicPartition = P) -> Result:
        return self.save(self.coordinator.delete("g", [partition])).results[0]

    def summary(self, partition: TopicPartition = P) -> SummaryResult:
        outcome = self.coordinator.read_summary("g", [ReadRequest(partition, 0)])
        assert (outcome.changes, outcome.must_wait) == ((), False)
        return outcome.results[0]

    def records(self) -> list[tuple[int, ShareSnapshot | ShareUpdate]]:
        found = []
        for key, value in self.store.scan(ShareStateKey.namespace):
            parsed = parse_key(key)
            assert isinstance(parsed, ShareStateKey)
            record = parsed.decode_value(value)
            assert isinstance(record, ShareSnapshot | ShareUpdate)
            found.append((parsed.number, record))
        return found
