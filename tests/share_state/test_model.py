"""The share coordinator against a plain model: commands in any order, several saves under way,
failed saves, restarts.

The model keeps one (delivery count, state) per offset. Saves under way are a list of (outcome,
model after it): saving takes the oldest, failing takes all, and a restart drops all. After every
step, replaying the store gives the saved model. Replaying the store with the saves under way gives
the decided model, which is the state in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.errors import ErrorCode
from kbroker.formats.parked_records import ParkedCount, generation_prefix, parked_prefix, read_parked_entries
from kbroker.formats.state import GivenUp, GivenUpKey, share_partition_prefix
from kbroker.share.effects import StateBatch
from kbroker.share.parked import Lane, Parked, ParkingChange
from kbroker.share.persister import InitializeRequest, ReadRequest, TopicPartition, WriteRequest
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.housekeeping import SharePartitionKey
from kbroker.share_state.loading import ShareState, load
from kbroker.share_state.outcome import ShareStateOutcome
from kbroker.share_state.parked import ParkingStore, parked_of
from kbroker.storage.memory_store import MemoryStateStore

TOPICS = (UUID(int=1), UUID(int=2))
GROUPS = ("g", "gg")
PARTITIONS = [TopicPartition(topic_id, number) for topic_id in TOPICS for number in (0, 1)]
MISSING = TopicPartition(TOPICS[1], 1)

Key = tuple[str, TopicPartition]


@dataclass
class ModelState:
    state_epoch: int
    start: int
    dcc: int
    leader: int = 0
    fence: int = 0
    written: int | None = None
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    parked: dict[int, Parked] = field(default_factory=dict)
    given_up: int = 0

    def take(self, batches: Iterable[StateBatch]) -> None:
        for batch in batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                self.offsets[offset] = max(
                    self.offsets.get(offset, (-1, -1)), (batch.delivery_count, batch.state)
                )
        self.offsets = {offset: value for offset, value in self.offsets.items() if offset >= self.start}

    def seen(self) -> tuple[Any, ...]:
        return (self.state_epoch, self.start, self.dcc, self.leader, self.written, self.offsets)

    def park(self, changes: Iterable[tuple[int, Parked | None]]) -> list[ParkingChange]:
        made = []
        for offset, new in changes:
            old = self.parked.pop(offset, None)
            if new is not None:
                self.parked[offset] = new
            made.append(ParkingChange(offset, () if old is None else (old.place,), new))
        return made


def stored_parked(
    scan: Callable[[bytes], Iterable[tuple[bytes, bytes]]], key: Key, generation: int
) -> tuple[dict[int, Parked], int]:
    """The entries of a generation, and its counter; both keys of each record agree."""
    by_offset, by_place, number = {}, {}, 0
    for parsed, value in read_parked_entries(
        scan(generation_prefix(parked_prefix(key[0], *key[1]), generation))
    ):
        if isinstance(value, ParkedCount):
            number = value.number
        else:
            (by_offset if parsed.kind == 1 else by_place)[value.offset] = parked_of(value)
    assert by_offset == by_place
    return by_offset, number


def seen(state: ShareState | None) -> tuple[Any, ...] | None:
    if state is None:
        return None
    offsets = {
        offset: (batch.delivery_count, batch.state)
        for batch in state.merged_batches()
        for offset in range(batch.first_offset, batch.last_offset + 1)
    }
    return (
        state.state_epoch,
        state.start_offset,
        state.delivery_complete_count,
        state.leader_epoch,
        state.written_in,
        offsets,
    )


epochs = st.integers(-1, 4)
starts = st.integers(-1, 12)
batches = st.lists(
    st.builds(
        lambda first, length, state, count: StateBatch(first, first + length, state, count),
        st.integers(0, 14),
        st.integers(0, 5),
        st.sampled_from((0, 2, 3, 4)),
        st.integers(0, 3),
    ),
    max_size=4,
)
parkings = st.lists(
    st.tuples(
        st.integers(0, 14),
        st.none()
        | st.builds(
            lambda lane, due_ms, count: (lane, due_ms, count),
            st.sampled_from(Lane),
            st.integers(0, 3),
            st.integers(0, 5),
        ),
    ),
    max_size=4,
    unique_by=lambda change: change[0],
).map(lambda found: [(offset, None if new is None else Parked(offset, *new, 1)) for offset, new in found])
groups = st.sampled_from(GROUPS)
partitions = st.sampled_from(PARTITIONS)


class ShareStateMachine(RuleBasedStateMachine):
    @initialize(updates_per_snapshot=st.integers(0, 4))
    def start(self, updates_per_snapshot: int) -> None:
        self.updates_per_snapshot = updates_per_snapshot
        self.store = MemoryStateStore({})
        self.model: dict[Key, ModelState] = {}
        self.saved: dict[Key, ModelState] = {}
        self.flying: list[tuple[ShareStateOutcome[Any], dict[Key, ModelState]]] = []
        self.ended: list[tuple[Key, int]] = []
        self.lives = 0
        self.new_life()

    def new_life(self) -> None:
        self.lives += 1
        self.coordinator = ShareStateCoordinator(
            self.store.scan,
            lambda topic_id, number: (topic_id, number) != MISSING,
            updates_per_snapshot=self.updates_per_snapshot,
            parking=ParkingStore(self.store.get, count((self.lives << 32) + 1)),
            on_generation_ended=lambda key, generation: self.ended.append((key, generation)),
        )
        for state in self.model.values():
            state.fence = state.leader

    # --- commands ---

    @rule(
        group=groups,
        partition=partitions,
        state_epoch=epochs,
        start=starts,
        written=st.none() | epochs.filter(lambda epoch: epoch >= 0),
        keeps=st.booleans(),
    )
    def initialize_state(
        self,
        group: str,
        partition: TopicPartition,
        state_epoch: int,
        start: int,
        written: int | None,
        keeps: bool,
    ) -> None:
        outcome = self.coordinator.initialize(
            group, [InitializeRequest(partition, state_epoch, start, written, keeps)], now_ms=1
        )
        old = self.model.get((group, partition))
        if state_epoch < 0:
            expected = ErrorCode.invalid_request
        elif old and state_epoch < old.state_epoch:
            expected = ErrorCode.fenced_state_epoch
        elif partition == MISSING:
            expected = ErrorCode.unknown_topic_or_partition
        else:
            expected = ErrorCode.none
            if not old or (old.state_epoch, old.start) != (state_epoch, start):
                fence = old.fence if old else 0
                new = ModelState(state_epoch, start, -1 if start == -1 else 0, fence=fence, written=written)
                if old and keeps:
                    new.parked, new.given_up = old.parked, old.given_up
                self.model[group, partition] = new
        assert outcome.results[0].code is expected
        self.fly(outcome)

    @rule(group=groups, partition=partitions, leader_epoch=epochs)
    def read(self, group: str, partition: TopicPartition, leader_epoch: int) -> None:
        outcome = self.coordinator.read(group, [ReadRequest(partition, leader_epoch)], now_ms=2)
        (result,) = outcome.results
        state = self.model.get((group, partition))
        if leader_epoch < 0 or state is None:
            assert result.code is ErrorCode.invalid_request
        elif leader_epoch < state.fence:
            assert result.code is ErrorCode.fenced_leader_epoch
        else:
            state.leader = state.fence = leader_epoch
            assert (result.code, result.state_epoch, result.start_offset) == (
                ErrorCode.none,
                state.state_epoch,
                state.start,
            )
            assert result.waiting == len(state.parked)
            found = ModelState(0, state.start, 0)
            found.take(result.batches)
            assert found.offsets == state.offsets
        self.fly(outcome)

    @rule(
        group=groups,
        partition=partitions,
        epoch=epochs,
        leader=epochs,
        start=starts,
        dcc=st.integers(-1, 5),
        found=batches,
        parking=parkings,
        given_up=st.integers(0, 2),
    )
    def write(
        self,
        group: str,
        partition: TopicPartition,
        epoch: int,
        leader: int,
        start: int,
        dcc: int,
        found: list[StateBatch],
        parking: list[tuple[int, Parked | None]],
        given_up: int,
    ) -> None:
        state = self.model.get((group, partition))
        after = deepcopy(state) if state else ModelState(0, 0, 0)
        changes = after.park(parking)
        request = WriteRequest(
            partition, epoch, leader, start, dcc, found, changes, len(after.parked), given_up=given_up
        )
        outcome = self.coordinator.write(group, [request], now_ms=3)
        if leader < 0 or epoch < 0 or state is None:
            expected = ErrorCode.invalid_request
        elif leader < state.fence:
            expected = ErrorCode.fenced_leader_epoch
        elif epoch < state.state_epoch:
            expected = ErrorCode.fenced_state_epoch
        else:
            expected = ErrorCode.none
            state.dcc = {True: max(dcc, state.dcc), False: dcc if start > state.start else state.dcc}[
                start == state.start
            ]
            if start > state.start or any(batch.last_offset >= state.start for batch in found):
                state.written = state.leader
            state.start = max(start, state.start)
            state.take(found)
            state.parked = after.parked
            state.given_up += given_up
        assert outcome.results[0].code is expected
        self.fly(outcome)

    @rule(group=groups, partition=partitions)
    def delete(self, group: str, partition: TopicPartition) -> None:
        outcome = self.coordinator.delete(group, [partition])
        assert outcome.results[0].code is (
            ErrorCode.unknown_topic_or_partition if partition == MISSING else ErrorCode.none
        )
        self.model.pop((group, partition), None)
        self.fly(outcome)

    @rule(topic_id=st.sampled_from(TOPICS))
    def delete_topic(self, topic_id: UUID) -> None:
        outcome = self.coordinator.states.topic_deleted(topic_id)
        gone = [key for key in self.model if key[1].topic_id == topic_id]
        assert sorted(result.partition for result in outcome.results) == sorted(key[1] for key in gone)
        for key in gone:
            del self.model[key]
        self.fly(outcome)

    @rule(group=groups, partition=partitions)
    def read_summary(self, group: str, partition: TopicPartition) -> None:
        outcome = self.coordinator.read_summary(group, [ReadRequest(partition, 0)])
        (result,) = outcome.results
        state = self.saved.get((group, partition), ModelState(0, -1, -1))
        if partition != MISSING:
            found = (
                result.state_epoch,
                result.start_offset,
                result.delivery_complete_count,
                result.leader_epoch,
            )
            assert found == (state.state_epoch, state.start, state.dcc, state.leader)
            assert result.waiting == len(state.parked)
        assert not outcome.must_wait

    @rule()
    def snapshot(self) -> None:  # SC-51: no visible difference
        keys = [SharePartitionKey(group, partition) for group in GROUPS for partition in PARTITIONS]
        outcome = self.coordinator.states.snapshot(keys, now_ms=4)
        assert {result.code for result in outcome.results} <= {ErrorCode.none}
        assert self.coordinator.states.cold(now_ms=4, interval_ms=0) == []
        self.fly(outcome)

    # --- saving ---

    def fly(self, outcome: ShareStateOutcome[Any]) -> None:
        assert outcome.must_wait or not outcome.changes
        self.flying.append((outcome, deepcopy(self.model)))

    @precondition(lambda self: self.flying)
    @rule(count=st.integers(1, 3))
    def save(self, count: int) -> None:
        for outcome, model in self.flying[:count]:
            self.store.write(outcome.changes)
            self.coordinator.states.confirm(outcome)
            self.saved = model
        del self.flying[:count]

    @precondition(lambda self: self.flying)
    @rule()
    def fail(self) -> None:
        touched = {entry.key for outcome, _ in self.flying for entry, _ in outcome.changed}
        for outcome, _ in self.flying:
            for result, before in zip(self.coordinator.states.failed(outcome), outcome.results, strict=True):
                assert result.code is (
                    ErrorCode.coordinator_not_available if before.code is ErrorCode.none else before.code
                )
        self.flying.clear()
        self.model = deepcopy(self.saved)
        for key, state in self.model.items():
            if key in touched:
                state.fence = state.leader
        self.saved = deepcopy(self.model)

    @rule()
    def restart(self) -> None:
        self.flying.clear()
        self.model = deepcopy(self.saved)
        self.new_life()
        self.saved = deepcopy(self.model)

    # --- invariants ---

    @invariant()
    def replay_is_memory(self) -> None:
        if not hasattr(self, "store"):
            return
        decided = MemoryStateStore(dict(self.store.scan(b"")))
        for outcome, _ in self.flying:
            decided.write(outcome.changes)
        self.compare(self.store.scan, self.saved)
        self.compare(decided.scan, self.model)
        for entry in self.coordinator.states._entries.values():
            state = self.model.get((entry.key.group_id, entry.key.partition))
            assert seen(entry.state) == (state.seen() if state else None)
            assert entry.state is None or state is None or entry.state.leader_fence == state.fence
        assert self.coordinator.states.statistics().unsaved == sum(
            len(outcome.changed) for outcome, _ in self.flying
        )

    def compare(
        self, scan: Callable[[bytes], Iterable[tuple[bytes, bytes]]], model: dict[Key, ModelState]
    ) -> None:
        for group in GROUPS:
            for partition in PARTITIONS:
                state = model.get((group, partition))
                records = list(scan(share_partition_prefix(group, *partition)))
                loaded = load(records)
                assert seen(loaded) == (state.seen() if state else None)
                generation = loaded.generation if loaded else 0
                parked = stored_parked(scan, (group, partition), generation) if generation else ({}, 0)
                assert parked == ((state.parked, len(state.parked)) if state else ({}, 0))
                counts = [GivenUp.decode(value) for _, value in scan(GivenUpKey(*partition, group).encode())]
                assert counts == ([GivenUp(state.given_up)] if state and state.given_up else [])
                assert generation not in [
                    number for key, number in self.ended if key == (group, partition)
                ], "none comes back"
                assert len(records) <= self.updates_per_snapshot + 1


ShareStateMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestShareState = ShareStateMachine.TestCase


@pytest.mark.full
class TestShareStateLong(ShareStateMachine.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=1000, stateful_step_count=60, deadline=None)
