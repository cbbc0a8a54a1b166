"""The share coordinator (KIP-932): stores the state of share-partitions as snapshots and updates in
the StateStore. Pure.

    number 0      snapshot: the whole state
    number 1..n   updates: batches that were merged since; the next snapshot removes them

Each verb decides at once and returns an outcome: changes for the StateStore, and one result per
request row, in order. A decision shows in memory immediately, so several writes to one
share-partition may be under way together (group commit). The caller keeps this order:

    outcome = coordinator.write(group_id, requests, now_ms=now_ms)
    ticket = commit.submit(outcome.changes)            no await before this: saved in order
    await the ticket                                   only if outcome.must_wait
    saved:   coordinator.states.confirm(outcome)            then answer with outcome.results
    failed:  results = coordinator.states.failed(outcome)   then answer with these

`must_wait` may be true without changes, because the results may rest on changes that are not saved
yet. Then submit the empty changes too, or wait in another way for everything submitted before.

`failed` forgets the decision: the next request for that share-partition reads the store again. So
when a save fails, everything submitted after it must fail as well. The caller calls `failed` for
all of it in the step in which the failure becomes known, before any other decision. A commit queue
that refuses everything behind a refused group does just that.

A share-partition is loaded at its first request, so a restart costs nothing. A snapshot replaces
the updates after `updates_per_snapshot` of them, or before they have more than BATCHES_PER_SNAPSHOT
batches in all: where a group acknowledges in random order, each update has hundreds. A cold
snapshot (housekeeping.py) does the same for a state that has fallen idle. No obsolete key stays
behind; how an engine compacts its own log is its own business.

This module has the verbs and their rules; states.py has the states in memory and their encoding,
outcome.py the result of a decision. It must not know who calls the verbs, nor what a delivery state
means beyond the combiner's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar
from uuid import UUID

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.share_records import UNCHANGED_OFFSET, UNKNOWN_COUNT
from kbroker.share.effects import StateBatch
from kbroker.share.in_flight import MAX_SPAN
from kbroker.share.lag import Standing, saved_standing, standing_of
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
from kbroker.share.record_state import MAX_DELIVERY_COUNT
from kbroker.share.state_batches import combine
from kbroker.share_state.housekeeping import SharePartitionKey
from kbroker.share_state.loading import NEVER_READ_LEADER_EPOCH, ShareState
from kbroker.share_state.outcome import Draft, Entry, R, ShareStateOutcome
from kbroker.share_state.parked import (
    NO_GENERATION,
    ParkingStore,
    changes_of,
    changes_of_reasons,
    check_parking,
    check_reasons,
    counter,
    not_final,
    prefix_of,
)
from kbroker.share_state.states import UPDATES_PER_SNAPSHOT, ShareStates

PERSISTED_STATES: Final = frozenset({0, 2, 3, 4})
"""AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED. An acquisition is never saved."""


class _Request(Protocol):
    @property
    def partition(self) -> TopicPartition: ...


Q = TypeVar("Q", bound=_Request)


class _Delete(NamedTuple):
    partition: TopicPartition


class ShareStateCoordinator:
    """The verbs. `states`: what they work on. The parameters are those of ShareStates."""

    def __init__(
        self,
        scan: Callable[[bytes], Iterable[tuple[bytes, bytes]]],
        partition_exists: Callable[[UUID, int], bool],
        *,
        updates_per_snapshot: int = UPDATES_PER_SNAPSHOT,
        parking: ParkingStore | None = None,
        on_generation_ended: Callable[[SharePartitionKey, int], None] = lambda key, generation: None,
    ) -> None:
        self.states = ShareStates(scan, partition_exists, updates_per_snapshot, parking, on_generation_ended)
        self._parking = parking

    def initialize(
        self, group_id: str, requests: Sequence[InitializeRequest], *, now_ms: int
    ) -> ShareStateOutcome[Result]:
        """Create a share-partition's state, or recreate it with a state epoch that is at least the
        stored one. A request with the present epoch and start offset changes nothing: a repetition
        must not erase later acknowledgements."""
        return self._decide(
            group_id, requests, Result, lambda draft, request: self._initialize(draft, request, now_ms)
        )

    def read(
        self, group_id: str, requests: Sequence[ReadRequest], *, now_ms: int
    ) -> ShareStateOutcome[ReadResult]:
        """The state for a leader. Its epoch is stored, which fences older leaders from then on."""
        return self._decide(
            group_id, requests, ReadResult, lambda draft, request: self._read(draft, request, now_ms)
        )

    def write(
        self, group_id: str, requests: Sequence[WriteRequest], *, now_ms: int
    ) -> ShareStateOutcome[Result]:
        """Merge batches into the state and move its start offset up. Never changes the stored
        epochs."""
        return self._decide(group_id, requests, Result, partial(self._write, now_ms))

    def delete(self, group_id: str, partitions: Sequence[TopicPartition]) -> ShareStateOutcome[Result]:
        """Forget share-partitions, whatever their epochs. Unknown ones are accepted."""
        return self._decide(group_id, [_Delete(partition) for partition in partitions], Result, self._delete)

    def read_summary(
        self, group_id: str, requests: Sequence[ReadRequest]
    ) -> ShareStateOutcome[SummaryResult]:
        """The saved state of share-partitions in brief, without waiting for unsaved changes. Fences
        no leader, and ignores the leader epoch in the request."""
        return self._decide(group_id, requests, SummaryResult, self._read_summary)

    def _decide(
        self, group_id: str, requests: Sequence[Q], result: type[R], decide: Callable[[Draft[R], Q], R]
    ) -> ShareStateOutcome[R]:
        draft: Draft[R] = Draft(group_id)
        if not group_id:
            return draft.outcome()
        for request in requests:
            try:
                row = decide(draft, request)
            except KafkaError as refusal:
                row = result(request.partition, refusal.code, refusal.message)
            draft.results.append(row)
        return draft.outcome()

    # ---- one row each; refusals in Kafka's order -------------------------------------------------

    def _initialize(self, draft: Draft[Result], request: InitializeRequest, now_ms: int) -> Result:
        partition, state_epoch, start_offset = request.partition, request.state_epoch, request.start_offset
        check_partition(partition)
        check_epoch(state_epoch, "state epoch")
        check_start_offset(start_offset)
        entry = self.states.entry(draft.group_id, partition, draft)
        old = entry.state
        if old and state_epoch < old.state_epoch:
            raise fenced_state(state_epoch, old)
        self.states.check_exists(partition)
        if old and (old.state_epoch, old.start_offset) == (state_epoch, start_offset):
            return Result(partition)
        if not (old and request.keeps_parked):
            self.states.forget_given_up(draft, entry)
        entry.state = ShareState(
            snapshot_epoch=old.snapshot_epoch + 1 if old else 0,
            state_epoch=state_epoch,
            leader_epoch=NEVER_READ_LEADER_EPOCH,
            start_offset=start_offset,
            delivery_complete_count=UNKNOWN_COUNT if start_offset == UNCHANGED_OFFSET else 0,
            updates=old.updates if old else 0,
            leader_fence=old.leader_fence if old else NEVER_READ_LEADER_EPOCH,
            written_in=request.written_in,
            given_up=0,
        )
        if old and request.keeps_parked:
            entry.state.generation, entry.state.waiting = old.generation, old.waiting
            entry.state.given_up = old.given_up
        self.states.put_snapshot(draft, entry, entry.state, now_ms)
        return Result(partition)

    def _read(self, draft: Draft[ReadResult], request: ReadRequest, now_ms: int) -> ReadResult:
        partition, leader_epoch = request
        check_partition(partition)
        check_epoch(leader_epoch, "leader epoch")
        entry = self.states.entry(draft.group_id, partition, draft)
        state = entry.state
        if state is None:
            raise KafkaError(
                ErrorCode.invalid_request, "Read operation on uninitialized share partition not allowed."
            )
        if leader_epoch < state.leader_fence:
            raise fenced_leader(leader_epoch, state)
        self.states.check_exists(partition)
        if leader_epoch != state.leader_epoch:
            state.leader_epoch = state.leader_fence = leader_epoch
            self.states.put_update(draft, entry, state, (), now_ms)
        return ReadResult(
            partition,
            state_epoch=state.state_epoch,
            start_offset=state.start_offset,
            batches=state.merged_batches(),
            written_in=state.written_in,
            waiting=state.waiting,
        )

    def _write(self, now_ms: int, draft: Draft[Result], request: WriteRequest) -> Result:
        partition, batches, start_offset = request.partition, request.batches, request.start_offset
        leader_epoch, state_epoch = request.leader_epoch, request.state_epoch
        if partition.partition < 0 or leader_epoch < 0 or state_epoch < 0:
            check_partition(partition)
            check_epoch(leader_epoch, "leader epoch")
            check_epoch(state_epoch, "state epoch")
        last_offset = check_batches(batches)
        if request.parking or request.reasons:
            self._check_parking(request)
        entry = self.states.entry(draft.group_id, partition, draft)
        state = entry.state
        if state is None:
            raise KafkaError(
                ErrorCode.invalid_request, "Write operation on uninitialized share partition not allowed."
            )
        if leader_epoch < state.leader_fence:
            raise fenced_leader(leader_epoch, state)
        if state_epoch < state.state_epoch:
            raise fenced_state(state_epoch, state)
        self.states.check_exists(partition)
        rises, counted = state.start_offset < start_offset != UNCHANGED_OFFSET, state.delivery_complete_count
        if batches:
            check_span(last_offset, start_offset if rises else state.start_offset)
        if request.given_up:
            self.states.give_up(draft, entry, state, request.given_up)
        if rises:
            state.start_offset = start_offset
            state.delivery_complete_count = request.delivery_complete_count
            state.written_in = state.leader_epoch
        elif (
            start_offset == state.start_offset
            and state.delivery_complete_count < request.delivery_complete_count
        ):
            state.delivery_complete_count = request.delivery_complete_count
        # Else there is nothing to combine or to cut off.
        if len(batches) != 1 or batches[0].first_offset < state.start_offset:
            batches = combine(batches, (), state.start_offset)
        if batches:
            state.written_in = state.leader_epoch
        state.recent += batches
        if request.parking or request.reasons:
            self._park(draft, entry, state, request)
            if state.is_generation_new:
                state.snapshot_epoch += 1
                self.states.put_snapshot(draft, entry, state, now_ms)
                return Result(partition)
            if not (batches or rises or state.delivery_complete_count != counted):
                return Result(partition)
        self.states.put_update(draft, entry, state, batches, now_ms)
        return Result(partition)

    def _delete(self, draft: Draft[Result], request: _Delete) -> Result:
        partition = request.partition
        check_partition(partition)
        self.states.check_exists(partition)
        entry = self.states.entry(draft.group_id, partition, draft)
        if entry.state:
            self.states.remove(draft, entry, entry.state)
        return Result(partition)

    def _read_summary(self, draft: Draft[SummaryResult], request: ReadRequest) -> SummaryResult:
        partition = request.partition
        check_partition(partition)
        self.states.check_exists(partition)
        saved = self.states.entry(draft.group_id, partition).saved
        return SummaryResult(
            partition,
            state_epoch=saved.state_epoch,
            leader_epoch=saved.leader_epoch,
            start_offset=saved.start_offset,
            delivery_complete_count=saved.delivery_complete_count,
            waiting=saved.waiting,
            stands_from=partial(self.stands_from, draft.group_id, partition),
        )

    # ---- what is left to do ----------------------------------------------------------------------

    def stands_from(
        self,
        group_id: str,
        partition: TopicPartition,
        offset: int,
        count_own: Callable[[int], int] = lambda _: 0,
    ) -> Standing:
        """The finished offsets from `offset` on, which is not below the saved start offset. Unsaved
        changes may count, but never more offsets than are saved as finished in all. `count_own`:
        how many offsets from a given one on are the persister's own, which count as finished."""
        entry = self.states.entry(group_id, partition)
        state = entry.state
        if state is None:
            return Standing(offset, count_own(offset))
        start, own = max(offset, state.start_offset), count_own(offset)
        complete = max(0, entry.saved.delivery_complete_count)
        is_saved = state.start_offset == entry.saved.start_offset
        first_open, done = saved_standing(
            state.merged_batches(), state.start_offset, complete if is_saved else 0, start
        )
        passed = start - offset - (own - count_own(start))
        return Standing(first_open, min(done + passed, complete) + own)

    def unfinished(self, group_id: str, partition: TopicPartition, first: int, end: int) -> int:
        """How many of the offsets `first` to `end` - 1 the group has not finished, by unsaved
        decisions as well. 0 without a decided start offset. Raises KafkaError for state that cannot
        be read."""
        first = self.counts_from(group_id, partition, first, end)
        state = self.states.entry(group_id, partition).state
        if state is None or first >= end:
            return 0
        batches = state.merged_batches()
        return end - first - (standing_of(batches, first).done - standing_of(batches, end).done)

    def counts_from(self, group_id: str, partition: TopicPartition, first: int, end: int) -> int:
        """The first of these offsets that unfinished() counts; at least `end` if it counts none."""
        state = self.states.entry(group_id, partition).state
        is_decided = state is not None and state.start_offset != UNCHANGED_OFFSET
        return max(first, state.start_offset) if state is not None and is_decided else end

    def in_window(self, group_id: str, partition: TopicPartition, offsets: Sequence[int]) -> list[int]:
        """Those of these rising offsets that the state does not have as given up: they cannot be
        parked."""
        return not_final(self.states.entry(group_id, partition).state, offsets)

    # ---- parked records, for persisters ----------------------------------------------------------

    def generation(self, group_id: str, partition: TopicPartition) -> int:
        """The generation of its parked records, by unsaved decisions as well; 0: there are none.
        Raises KafkaError for state that cannot be read."""
        state = self.states.entry(group_id, partition).state
        return NO_GENERATION if state is None else state.generation

    def waiting(self, group_id: str, partition: TopicPartition) -> int:
        """How many records are saved as parked."""
        return self.states.entry(group_id, partition).saved.waiting

    def generations_in_use(self, group_id: str, partition: TopicPartition) -> set[int]:
        """All others are garbage. The saved generation is in use as well: it is valid again if the
        decision is not saved."""
        entry = self.states.entry(group_id, partition)
        return {entry.saved.generation, NO_GENERATION if entry.state is None else entry.state.generation}

    def generation_to_park_in(self, group_id: str, request: WriteRequest) -> int:
        """For a persister that stores parked records before it decides the write. The generation
        may be a new one, which that decision then saves. Raises KafkaError where the write would be
        refused."""
        check_partition(request.partition)
        check_batches(request.batches)
        self._check_parking(request)
        state = self.states.entry(group_id, request.partition).state
        if state is None:
            raise KafkaError(
                ErrorCode.invalid_request, "Write operation on uninitialized share partition not allowed."
            )
        if request.leader_epoch < state.leader_fence:
            raise fenced_leader(request.leader_epoch, state)
        if request.state_epoch < state.state_epoch:
            raise fenced_state(request.state_epoch, state)
        self.states.check_exists(request.partition)
        return self._generation(state, request)

    def recount(self, group_id: str, partition: TopicPartition, waiting: int) -> None:
        """The persister has counted this many parked records."""
        entry = self.states.entry(group_id, partition)
        if entry.state is not None:
            entry.state.waiting, entry.saved = waiting, entry.saved._replace(waiting=waiting)

    def _check_parking(self, request: WriteRequest) -> None:
        if self._parking is None:
            raise KafkaError(ErrorCode.invalid_request, "The state store keeps no parked records.")
        check_parking(request.parking, request.waiting)
        check_reasons(request.reasons)

    def _generation(self, state: ShareState, request: WriteRequest) -> int:
        """The generation to park in, created with the first record that is parked, or the first
        reason."""
        if not state.generation and (
            any(change.parked is not None for change in request.parking)
            or any(change.reason is not None for change in request.reasons)
        ):
            assert self._parking is not None, "_check_parking was called"
            state.generation, state.is_generation_new = next(self._parking.generations), True
        return state.generation

    def _park(self, draft: Draft[R], entry: Entry, state: ShareState, request: WriteRequest) -> None:
        generation = self._generation(state, request)
        if request.parking:
            state.waiting = request.waiting if generation else 0
        if generation:
            prefix = prefix_of(*entry.key, generation)
            draft.changes += changes_of(prefix, request.parking).items()
            if request.parking:
                draft.changes.append(counter(prefix, request.waiting))
            draft.changes += changes_of_reasons(prefix, request.reasons)
            draft.changed[entry] = None


# ---- requests that are refused -------------------------------------------------------------------


def check_partition(partition: TopicPartition) -> None:
    if partition.partition < 0:
        raise KafkaError(ErrorCode.invalid_request, "The partition must not be negative.")


def check_epoch(epoch: int, name: str) -> None:
    if epoch < 0:
        raise KafkaError(ErrorCode.invalid_request, f"The {name} must not be negative.")


def check_batches(batches: Iterable[StateBatch]) -> int:
    """Returns the last offset. Kafka stores any batches, and can then never load the
    share-partition again; kbroker refuses bad ones."""
    last_offset = -1
    for first, last, state, count in batches:
        if not 0 <= first <= last or state not in PERSISTED_STATES or not 0 <= count <= MAX_DELIVERY_COUNT:
            message = (
                f"Not a state batch: {first}-{last}, state {state}, delivery count {count} (0 to "
                f"{MAX_DELIVERY_COUNT})."
            )
            raise KafkaError(ErrorCode.invalid_request, message)
        if last > last_offset:
            last_offset = last
    return last_offset


def check_span(last_offset: int, start_offset: int) -> None:
    """No more offsets than a share-partition has in memory. Without a decided start offset this is
    unknown."""
    if last_offset - start_offset >= MAX_SPAN and start_offset >= 0:
        message = (
            f"State batches may span {MAX_SPAN} offsets from the start offset {start_offset} on, not "
            f"up to {last_offset}."
        )
        raise KafkaError(ErrorCode.invalid_request, message)


def fenced_leader(leader_epoch: int, state: ShareState) -> KafkaError:
    return KafkaError(
        ErrorCode.fenced_leader_epoch, f"Leader epoch {leader_epoch} is older than {state.leader_fence}."
    )


def fenced_state(state_epoch: int, state: ShareState) -> KafkaError:
    return KafkaError(
        ErrorCode.fenced_state_epoch, f"State epoch {state_epoch} is older than {state.state_epoch}."
    )
