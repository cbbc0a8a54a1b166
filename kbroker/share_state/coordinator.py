"""The share coordinator (KIP-932): keeps the state of share-partitions as snapshots and updates in
the StateStore. Pure.

Every method decides at once and gives an outcome: changes for the StateStore and one result per
request row, in order. What was decided shows in memory immediately, so several writes to one
share-partition may be on their way to the disk together (group commit). The caller keeps this
order:

    outcome = coordinator.write(group_id, requests, now_ms=now_ms)
    ticket = commit.submit(outcome.changes)            no await before this: saved in order
    await the ticket                                   only if outcome.must_wait
    saved:   coordinator.confirm(outcome)              then answer with outcome.results
    failed:  results = coordinator.failed(outcome)     then answer with these

`must_wait` may be true with no changes at all: what is answered may rest on changes that are not
saved yet. Then submit the empty changes too, or wait in another way for everything submitted
before.

`failed` forgets what was decided: the next request for that share-partition reads the store again.
Therefore, when a save fails, everything submitted after it must fail as well, and `failed` must be
called for all of it in the same synchronous step in which the failure becomes known, before
anything else is decided here. (A commit queue that refuses what is behind a refused group does just
that.)

A share-partition is read from the store when it is first asked for, so a restart costs nothing. An
update is put under the next number; a snapshot, after `updates_per_snapshot` of them, replaces them
all in one write; so does a cold snapshot, when somebody asks for it (share_state/housekeeping.py).
Nothing obsolete stays behind; how an engine cleans its own log is its own business.

Where a group answers in random order each update has hundreds of batches, and to merge all updates
takes long. So a snapshot comes before they have more than BATCHES_PER_SNAPSHOT.

This module must not know who calls the five verbs, nor what a delivery state means beyond the
combiner's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from kbroker.errors import ErrorCode, KafkaError, StoreFailed
from kbroker.formats.share_records import (
    UNCHANGED_OFFSET,
    UNKNOWN_COUNT,
    UNKNOWN_EPOCH,
    encode_share_snapshot,
    encode_share_update,
)
from kbroker.formats.state import (
    MAX_GROUP_ID_BYTES,
    ShareStateKey,
    parse_key,
    share_partition_prefix,
    share_state_number,
    share_topic_prefix,
)
from kbroker.share.effects import StateBatch
from kbroker.share.lag import Standing, standing_of
from kbroker.share.parked import ParkingChange
from kbroker.share.persister import (
    InitializeRequest,
    ReadRequest,
    ReadResult,
    Result,
    SummaryResult,
    TopicPartition,
    WriteRequest,
    check_start_offset,
)
from kbroker.share.state_batches import combine
from kbroker.share_state.checks import (
    check_batches,
    check_epoch,
    check_partition,
    check_span,
    fenced_leader,
    fenced_state,
)
from kbroker.share_state.housekeeping import SharePartitionKey, is_cold
from kbroker.share_state.loading import NEVER_READ_LEADER_EPOCH, ShareState, load
from kbroker.share_state.parked import (
    NO_GENERATION,
    ParkingStore,
    changes_of,
    check_parking,
    counter,
    not_final,
    prefix_of,
    stored_count,
)
from kbroker.storage.spi import Change

UPDATES_PER_SNAPSHOT: Final = 500
"""share.coordinator.snapshot.update.records.per.snapshot."""
BATCHES_PER_SNAPSHOT: Final = 2000
"""Merged in some milliseconds, and 40 kB; a busy group that answers in order has fewer in all of
its updates."""


class _Request(Protocol):
    @property
    def partition(self) -> TopicPartition: ...


R = TypeVar("R", bound=Result)
Q = TypeVar("Q", bound=_Request)


class _Saved(NamedTuple):
    """What a summary says of a share-partition; the defaults where it has no state."""

    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = -1
    delivery_complete_count: int = UNKNOWN_COUNT
    waiting: int = 0
    generation: int = NO_GENERATION


_saved: Callable[[tuple[int, int, int, int, int, int]], _Saved] = partial(tuple.__new__, _Saved)
"""A _Saved of all its fields without two calls: each write has one."""


@dataclass(slots=True, eq=False)
class _Entry:
    """What is in memory of a share-partition. `state` None: there is none, or its removal is not
    saved yet."""

    key: SharePartitionKey
    prefix: bytes
    state: ShareState | None
    saved: _Saved
    unsaved: int = 0
    lost: bool = False


@dataclass(frozen=True, slots=True)
class ShareStateOutcome(Generic[R]):
    """See the head of this file. `results`, one per row asked for and in that order, hold once the
    changes are saved. There are none at all where the group id is empty, as in Kafka."""

    changes: tuple[Change, ...]
    results: tuple[R, ...]
    must_wait: bool
    changed: tuple[tuple[_Entry, _Saved], ...]
    """The coordinator's own: what will be saved then."""


@dataclass(frozen=True, slots=True)
class ShareStateStatistics:
    """`loaded`: share-partitions in memory; `unsaved`: decisions neither confirmed nor failed. The
    others count since the start: `loads` from the store, and what was decided; `cold_snapshots` are
    `snapshots` as well, those that nobody's write made necessary."""

    loaded: int
    unsaved: int
    loads: int
    updates: int
    snapshots: int
    cold_snapshots: int


class ShareStateCoordinator:
    """`scan` is the StateStore's; `partition_exists(topic_id, partition)` asks the broker's topics.
    `parking` None: no write may park anything. `on_generation_ended` is told, once that is saved,
    whose parked records are nobody's any more."""

    def __init__(
        self,
        scan: Callable[[bytes], Iterable[tuple[bytes, bytes]]],
        partition_exists: Callable[[UUID, int], bool],
        *,
        updates_per_snapshot: int = UPDATES_PER_SNAPSHOT,
        parking: ParkingStore | None = None,
    ) -> None:
        self._scan = scan
        self._partition_exists = partition_exists
        self._updates_per_snapshot = updates_per_snapshot
        self._parking = parking
        self.on_generation_ended: Callable[[SharePartitionKey, int], None] = lambda key, generation: None
        self._entries: dict[tuple[str, TopicPartition], _Entry] = {}
        self._loads = self._updates = self._snapshots = self._snapshots_anew = 0

    # --- the five verbs, and what follows from a topic's deletion ---

    def initialize(
        self, group_id: str, requests: Sequence[InitializeRequest], *, now_ms: int
    ) -> ShareStateOutcome[Result]:
        """Start a share-partition's state, or start it anew with a state epoch that is at least the
        stored one. With the epoch and the start offset that it has already, nothing happens: a
        repeated request must not wipe what was acknowledged since."""
        return self._decide(
            group_id, requests, Result, lambda decision, request: self._initialize(decision, request, now_ms)
        )

    def read(
        self, group_id: str, requests: Sequence[ReadRequest], *, now_ms: int
    ) -> ShareStateOutcome[ReadResult]:
        """The state for a leader. Its epoch is stored: from then on older leaders are fenced."""
        return self._decide(
            group_id, requests, ReadResult, lambda decision, request: self._read(decision, request, now_ms)
        )

    def write(
        self, group_id: str, requests: Sequence[WriteRequest], *, now_ms: int
    ) -> ShareStateOutcome[Result]:
        """Merge batches into the state and move its start offset up. Never changes the stored
        epochs."""
        return self._decide(group_id, requests, Result, partial(self._write, now_ms))

    def delete(self, group_id: str, partitions: Sequence[TopicPartition]) -> ShareStateOutcome[Result]:
        """Forget share-partitions, whatever their epochs. One that is not known is fine too."""
        return self._decide(group_id, [_Delete(partition) for partition in partitions], Result, self._delete)

    def read_summary(
        self, group_id: str, requests: Sequence[ReadRequest]
    ) -> ShareStateOutcome[SummaryResult]:
        """Where a share-partition stands by what is saved, without waiting for what is not. Fences
        nobody; the leader epoch in the request is not looked at."""
        return self._decide(group_id, requests, SummaryResult, self._read_summary)

    def stands_from(
        self,
        group_id: str,
        partition: TopicPartition,
        offset: int,
        count_own: Callable[[int], int] = lambda _: 0,
    ) -> Standing:
        """What the state says to be done from `offset` on, which is not below the saved start
        offset. What is not saved yet may count, but never more than is saved as done in all.
        `count_own`: how many offsets from one on are the persister's own, which are done, too."""
        entry = self._entry(group_id, partition)
        state = entry.state
        if state is None:
            return Standing(offset, count_own(offset))
        start, own = max(offset, state.start_offset), count_own(offset)
        first_open, done = standing_of(state.merged_batches(), start)
        passed = start - offset - (own - count_own(start))
        return Standing(first_open, min(done + passed, max(0, entry.saved.delivery_complete_count)) + own)

    def unfinished(self, group_id: str, partition: TopicPartition, first: int, end: int) -> int:
        """How many of the offsets `first` to `end` - 1 the group is not done with, by unsaved
        decisions as well. 0 without a decided start offset. Raises KafkaError for state that cannot
        be read."""
        state = self._entry(group_id, partition).state
        if state is None or state.start_offset == UNCHANGED_OFFSET:
            return 0
        first = max(first, state.start_offset)
        if first >= end:
            return 0
        batches = state.merged_batches()
        return end - first - (standing_of(batches, first).done - standing_of(batches, end).done)

    # --- parked records, for persisters ---

    def generation(self, group_id: str, partition: TopicPartition) -> int:
        """Under which they lie, by unsaved decisions as well; 0: there are none. Raises KafkaError
        for state that cannot be read."""
        state = self._entry(group_id, partition).state
        return NO_GENERATION if state is None else state.generation

    def waiting(self, group_id: str, partition: TopicPartition) -> int:
        """How many are parked by what is saved."""
        return self._entry(group_id, partition).saved.waiting

    def generations_in_use(self, group_id: str, partition: TopicPartition) -> set[int]:
        """All others are garbage: the one that is saved may hold again, if what is decided is not
        saved."""
        entry = self._entry(group_id, partition)
        return {entry.saved.generation, NO_GENERATION if entry.state is None else entry.state.generation}

    def generation_to_park_in(self, group_id: str, request: WriteRequest) -> int:
        """For a persister that keeps parked records before the write that parks them is decided.
        The generation may be a new one, which that write's decision then saves. Raises KafkaError
        where the write would be refused."""
        _, state_epoch, leader_epoch, _, _, batches, parking, waiting = request
        check_partition(request.partition)
        check_batches(batches)
        self._check_parking(parking, waiting)
        state = self._entry(group_id, request.partition).state
        if state is None:
            raise KafkaError(
                ErrorCode.invalid_request, "Write operation on uninitialized share partition not allowed."
            )
        if leader_epoch < state.leader_fence:
            raise fenced_leader(leader_epoch, state)
        if state_epoch < state.state_epoch:
            raise fenced_state(state_epoch, state)
        self._check_exists(request.partition)
        return self._generation(state, parking)

    def in_window(self, group_id: str, partition: TopicPartition, offsets: Sequence[int]) -> list[int]:
        """Those, of rising offsets, whose place the state does not hold as given up: they cannot be
        parked."""
        return not_final(self._entry(group_id, partition).state, offsets)

    def recount(self, group_id: str, partition: TopicPartition, waiting: int) -> None:
        """Its persister has found that so many are parked."""
        entry = self._entry(group_id, partition)
        if entry.state is not None:
            entry.state.waiting, entry.saved = waiting, entry.saved._replace(waiting=waiting)

    def topic_deleted(self, topic_id: UUID) -> ShareStateOutcome[Result]:
        """Forget the share-partitions of all groups on that topic, with one result for each that
        there was."""
        found = dict.fromkeys(
            entry.key for entry in self._entries.values() if entry.key.partition.topic_id == topic_id
        )
        for stored, _ in self._scan(share_topic_prefix(topic_id)):
            key = parse_key(stored)
            assert isinstance(key, ShareStateKey)
            found.setdefault(SharePartitionKey(key.group_id, TopicPartition(key.topic_id, key.partition)))
        decision: _Decision[Result] = _Decision()
        for share_partition in found:
            entry = self._entry(*share_partition)
            if entry.state:
                self._remove(decision, entry, entry.state)
                decision.results.append(Result(share_partition.partition))
        return decision.outcome()

    # --- housekeeping ---

    def cold(self, *, now_ms: int, interval_ms: int) -> list[SharePartitionKey]:
        """Those in memory that are to have a cold snapshot."""
        entries = self._entries.values()
        return [
            entry.key
            for entry in entries
            if entry.state and is_cold(entry.state, now_ms=now_ms, interval_ms=interval_ms)
        ]

    def snapshot(
        self,
        share_partitions: Iterable[SharePartitionKey],
        *,
        now_ms: int,
        wanted: Callable[[ShareState], bool] = lambda _: True,
    ) -> ShareStateOutcome[Result]:
        """New snapshots of those that are `wanted`, with a result for each of these: what is there,
        and when it was created, stays."""
        decision: _Decision[Result] = _Decision()
        for key in share_partitions:
            if not self._partition_exists(*key.partition):
                continue  # The topic has been deleted meanwhile: nothing of it must come back.
            try:
                entry = self._entry(*key)
            except KafkaError as refusal:
                decision.results.append(Result(key.partition, refusal.code, refusal.message))
                continue
            state = entry.state
            if state and wanted(state):
                state.snapshot_epoch += 1
                self._put_snapshot(decision, entry, state, now_ms, create_ms=state.create_timestamp)
                self._snapshots_anew += 1
                decision.results.append(Result(key.partition))
        return decision.outcome()

    # --- after the save ---

    def confirm(self, outcome: ShareStateOutcome[R]) -> None:
        """The outcome's changes are saved."""
        for entry, saved in outcome.changed:
            assert not entry.lost, f"{entry.key} was saved although an earlier change of it had failed"
            if entry.saved.generation not in (NO_GENERATION, saved.generation):
                self.on_generation_ended(entry.key, entry.saved.generation)
            entry.saved = saved
            entry.unsaved -= 1
            if not entry.unsaved and entry.state is None:
                del self._entries[entry.key]

    def failed(
        self,
        outcome: ShareStateOutcome[R],
        code: ErrorCode = ErrorCode.coordinator_not_available,
        message: str | None = None,
    ) -> tuple[R, ...]:
        """Nothing of the outcome's changes was saved. Gives what to answer instead: `code` in every
        row that was good."""
        for entry, _ in outcome.changed:
            entry.lost = True
            if self._entries.get(entry.key) is entry:
                del self._entries[entry.key]
        return tuple(
            replace(row, code=code, message=message) if row.code is ErrorCode.none else row
            for row in outcome.results
        )

    def statistics(self) -> ShareStateStatistics:
        return ShareStateStatistics(
            loaded=len(self._entries),
            unsaved=sum(entry.unsaved for entry in self._entries.values()),
            loads=self._loads,
            updates=self._updates,
            snapshots=self._snapshots,
            cold_snapshots=self._snapshots_anew,
        )

    # --- one row each; refusals in Kafka's order ---

    def _initialize(self, decision: _Decision[Result], request: InitializeRequest, now_ms: int) -> Result:
        partition, state_epoch, start_offset, written_in, keeps_parked = request
        check_partition(partition)
        check_epoch(state_epoch, "state epoch")
        check_start_offset(start_offset)
        entry = self._entry(decision.group_id, partition, decision)
        old = entry.state
        if old and state_epoch < old.state_epoch:
            raise fenced_state(state_epoch, old)
        self._check_exists(partition)
        if old and (old.state_epoch, old.start_offset) == (state_epoch, start_offset):
            return Result(partition)
        entry.state = ShareState(
            snapshot_epoch=old.snapshot_epoch + 1 if old else 0,
            state_epoch=state_epoch,
            leader_epoch=NEVER_READ_LEADER_EPOCH,
            start_offset=start_offset,
            delivery_complete_count=UNKNOWN_COUNT if start_offset == UNCHANGED_OFFSET else 0,
            updates=old.updates if old else 0,
            leader_fence=old.leader_fence if old else NEVER_READ_LEADER_EPOCH,
            written_in=written_in,
        )
        if old and keeps_parked:
            entry.state.generation, entry.state.waiting = old.generation, old.waiting
        self._put_snapshot(decision, entry, entry.state, now_ms)
        return Result(partition)

    def _read(self, decision: _Decision[ReadResult], request: ReadRequest, now_ms: int) -> ReadResult:
        partition, leader_epoch = request
        check_partition(partition)
        check_epoch(leader_epoch, "leader epoch")
        entry = self._entry(decision.group_id, partition, decision)
        state = entry.state
        if state is None:
            raise KafkaError(
                ErrorCode.invalid_request, "Read operation on uninitialized share partition not allowed."
            )
        if leader_epoch < state.leader_fence:
            raise fenced_leader(leader_epoch, state)
        self._check_exists(partition)
        if leader_epoch != state.leader_epoch:
            state.leader_epoch = state.leader_fence = leader_epoch
            self._put_update(decision, entry, state, (), now_ms)
        return ReadResult(
            partition,
            state_epoch=state.state_epoch,
            start_offset=state.start_offset,
            batches=state.merged_batches(),
            written_in=state.written_in,
            waiting=state.waiting,
        )

    def _write(self, now_ms: int, decision: _Decision[Result], request: WriteRequest) -> Result:
        (
            partition,
            state_epoch,
            leader_epoch,
            start_offset,
            delivery_complete_count,
            batches,
            parking,
            waiting,
        ) = request
        if partition.partition < 0 or leader_epoch < 0 or state_epoch < 0:
            check_partition(partition)
            check_epoch(leader_epoch, "leader epoch")
            check_epoch(state_epoch, "state epoch")
        last_offset = check_batches(batches)
        if parking:
            self._check_parking(parking, waiting)
        entry = self._entry(decision.group_id, partition, decision)
        state = entry.state
        if state is None:
            raise KafkaError(
                ErrorCode.invalid_request, "Write operation on uninitialized share partition not allowed."
            )
        if leader_epoch < state.leader_fence:
            raise fenced_leader(leader_epoch, state)
        if state_epoch < state.state_epoch:
            raise fenced_state(state_epoch, state)
        self._check_exists(partition)
        rises, counted = state.start_offset < start_offset != UNCHANGED_OFFSET, state.delivery_complete_count
        if batches:
            check_span(last_offset, start_offset if rises else state.start_offset)
        if rises:
            state.start_offset = start_offset
            state.delivery_complete_count = delivery_complete_count
            state.written_in = state.leader_epoch
        elif start_offset == state.start_offset and state.delivery_complete_count < delivery_complete_count:
            state.delivery_complete_count = delivery_complete_count
        # Else there is nothing to combine or to cut off.
        if len(batches) != 1 or batches[0].first_offset < state.start_offset:
            batches = combine(batches, (), state.start_offset)
        if batches:
            state.written_in = state.leader_epoch
        state.recent += batches
        if parking:
            self._park(decision, entry, state, parking, waiting)
            if state.is_generation_new:
                state.snapshot_epoch += 1
                self._put_snapshot(decision, entry, state, now_ms)
                return Result(partition)
            if not (batches or rises or state.delivery_complete_count != counted):
                return Result(partition)
        self._put_update(decision, entry, state, batches, now_ms)
        return Result(partition)

    def _delete(self, decision: _Decision[Result], request: _Delete) -> Result:
        partition = request.partition
        check_partition(partition)
        self._check_exists(partition)
        entry = self._entry(decision.group_id, partition, decision)
        if entry.state:
            self._remove(decision, entry, entry.state)
        return Result(partition)

    def _read_summary(self, decision: _Decision[SummaryResult], request: ReadRequest) -> SummaryResult:
        partition = request.partition
        check_partition(partition)
        self._check_exists(partition)
        state_epoch, leader_epoch, start_offset, delivery_complete_count, waiting, _ = self._entry(
            decision.group_id, partition
        ).saved
        return SummaryResult(
            partition,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=delivery_complete_count,
            waiting=waiting,
        )

    # --- how the state is kept ---

    def _decide(
        self, group_id: str, requests: Sequence[Q], result: type[R], decide: Callable[[_Decision[R], Q], R]
    ) -> ShareStateOutcome[R]:
        decision: _Decision[R] = _Decision(group_id)
        if not group_id:
            return decision.outcome()
        for request in requests:
            try:
                row = decide(decision, request)
            except KafkaError as refusal:
                row = result(request.partition, refusal.code, refusal.message)
            decision.results.append(row)
        return decision.outcome()

    def _entry(
        self, group_id: str, partition: TopicPartition, decision: _Decision[R] | None = None
    ) -> _Entry:
        """From memory or from the store. One without state is not kept: asking for unknown names
        must not cost memory."""
        entry = self._entries.get((group_id, partition))
        if entry is None:
            key = SharePartitionKey(group_id, partition)
            if len(group_id.encode()) > MAX_GROUP_ID_BYTES:
                raise KafkaError(
                    ErrorCode.invalid_request,
                    f"The group id must not be longer than {MAX_GROUP_ID_BYTES} bytes.",
                )
            prefix = share_partition_prefix(group_id, *partition)
            try:
                state = load(self._scan(prefix))
                if state is not None and state.generation and self._parking is not None:
                    state.waiting = stored_count(
                        self._parking.get, prefix_of(group_id, partition, state.generation)
                    )
            # One row's: what was decided for the rows before it is still to be saved.
            except (ValueError, StoreFailed) as error:
                raise KafkaError(
                    ErrorCode.unknown_server_error, f"The stored state cannot be read: {error}"
                ) from error
            self._loads += state is not None
            entry = _Entry(key, prefix, state, _to_be_saved(state))
            if entry.state:
                self._entries[key] = entry
        elif entry.unsaved and decision:
            decision.must_wait = True
        return entry

    def _check_exists(self, partition: TopicPartition) -> None:
        if not self._partition_exists(*partition):
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition."
            )

    def _put_update(
        self,
        decision: _Decision[R],
        entry: _Entry,
        state: ShareState,
        batches: Sequence[StateBatch],
        now_ms: int,
    ) -> None:
        """Save what changed: as an update, or as a snapshot when there are enough of those."""
        if (
            state.updates >= self._updates_per_snapshot
            or state.update_batches + len(batches) > BATCHES_PER_SNAPSHOT
        ):
            state.snapshot_epoch += 1
            self._put_snapshot(decision, entry, state, now_ms)
            return
        state.updates += 1
        state.update_batches += len(batches)
        value = encode_share_update(
            state.snapshot_epoch,
            state.leader_epoch,
            state.start_offset,
            state.delivery_complete_count,
            batches,
        )
        decision.change(entry, state.updates, value)
        self._updates += 1

    def _put_snapshot(
        self,
        decision: _Decision[R],
        entry: _Entry,
        state: ShareState,
        now_ms: int,
        *,
        create_ms: int | None = None,
    ) -> None:
        state.create_timestamp = now_ms if create_ms is None else create_ms
        state.write_timestamp = now_ms
        value = encode_share_snapshot(
            state.snapshot_epoch,
            state.state_epoch,
            state.leader_epoch,
            state.start_offset,
            state.create_timestamp,
            now_ms,
            state.delivery_complete_count,
            UNKNOWN_EPOCH if state.written_in is None else state.written_in,
            state.merged_batches(),
            state.generation,
        )
        state.is_generation_new = False
        decision.change(entry, 0, value)
        for number in range(1, state.updates + 1):
            decision.change(entry, number, None)
        state.updates = state.update_batches = 0
        self._snapshots += 1
        self._entries[entry.key] = entry

    def _check_parking(self, parking: Sequence[ParkingChange], waiting: int) -> None:
        if self._parking is None:
            raise KafkaError(ErrorCode.invalid_request, "The state store keeps no parked records.")
        check_parking(parking, waiting)

    def _generation(self, state: ShareState, parking: Sequence[ParkingChange]) -> int:
        """That of what is parked, begun with the first that is."""
        if not state.generation and any(change.parked is not None for change in parking):
            assert self._parking is not None, "_check_parking was asked"
            state.generation, state.is_generation_new = next(self._parking.generations), True
        return state.generation

    def _park(
        self,
        decision: _Decision[R],
        entry: _Entry,
        state: ShareState,
        parking: Sequence[ParkingChange],
        waiting: int,
    ) -> None:
        generation = self._generation(state, parking)
        state.waiting = waiting if generation else 0
        if generation:
            prefix = prefix_of(*entry.key, generation)
            decision.changes += changes_of(prefix, parking).items()
            decision.changes.append(counter(prefix, waiting))
            decision.changed[entry] = None

    def _remove(self, decision: _Decision[R], entry: _Entry, state: ShareState) -> None:
        """Tombstones. The entry stays, without state, until they are saved: the store still has
        what they remove."""
        for number in range(state.updates + 1):
            decision.change(entry, number, None)
        entry.state = None


class _Delete(NamedTuple):
    partition: TopicPartition


class _Decision(Generic[R]):
    """An outcome in the making."""

    def __init__(self, group_id: str = "") -> None:
        self.group_id = group_id
        self.changes: list[Change] = []
        self.changed: dict[_Entry, None] = {}
        self.results: list[R] = []
        self.must_wait = False

    def change(self, entry: _Entry, number: int, value: bytes | None) -> None:
        self.changes.append((entry.prefix + share_state_number(number), value))
        self.changed[entry] = None

    def outcome(self) -> ShareStateOutcome[R]:
        changed = []
        for entry in self.changed:
            entry.unsaved += 1
            changed.append((entry, _to_be_saved(entry.state)))
        return ShareStateOutcome(
            tuple(self.changes), tuple(self.results), self.must_wait or bool(self.changes), tuple(changed)
        )


def _to_be_saved(state: ShareState | None) -> _Saved:
    if state is None:
        return _Saved()
    epochs = state.state_epoch, state.leader_epoch
    return _saved(
        (*epochs, state.start_offset, state.delivery_complete_count, state.waiting, state.generation)
    )
