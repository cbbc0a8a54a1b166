"""What a share-partition has to save: Persists under way, their outcome, and the changes that wait
for the next one. Pure.

    acknowledge, release_member   pending -.            .- persisted ------> all of it is final
                                           |-> Persist -|
    expire, and others            unsaved -'            '- persist_failed -> pending: its holder's
                                                                             unsaved: in the next

SharePartition (share_partition.py) is built from this class and its parts; only SharePartition is
instantiated.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from random import random
from typing import TypeAlias

from kbroker.makers import maker
from kbroker.share import ordering, rules
from kbroker.share.effects import Persist, ShareSettings, StateBatch
from kbroker.share.held import HeldHere
from kbroker.share.in_flight import InFlightWindow
from kbroker.share.key_order import KeyOrder
from kbroker.share.parked import Parked, ParkingChange
from kbroker.share.parked_memory import Code, Entry
from kbroker.share.parked_saving import ParkingWrite
from kbroker.share.parking import Parking
from kbroker.share.record_state import (
    ACQUIRED,
    AVAILABLE,
    BEHIND,
    HOLE,
    PASSED,
    PENDING,
    PENDING_CODES,
    STATE,
    WAITING,
    RecordState,
)
from kbroker.share.redelivery import LOOK_AT_THE_CLOCK_MS, Waits
from kbroker.share.rules import Event
from kbroker.share.runs import Runs, joined_runs, size_of
from kbroker.share.statistics import Counters

_UNDECIDED = frozenset((RecordState.ACQUIRED, HOLE, *PENDING_CODES))
_new_persist = maker(
    Persist,
    tuple[int, int, int, int, int, tuple[StateBatch, ...], tuple[ParkingChange, ...], int, tuple[()]],
)
"""One for each acknowledgement list."""

_Write: TypeAlias = tuple[
    Runs, Sequence[StateBatch], Sequence[tuple[int, int]], str | None, ParkingWrite | None
]
"""A Persist under way.

- Pending runs: final if it succeeds.
- Decided batches: final in any case; the next Persist carries them if this one fails.
- Passed runs: what its start offset has left behind; as decided.
- The holder of the pending runs.
- What it changes of parked records.
"""
ParkedPending: TypeAlias = Sequence[tuple[Entry, Parked | None]]


class SharePartitionWrites:
    def __init__(
        self, settings: ShareSettings, *, start_offset: int, state_epoch: int, leader_epoch: int
    ) -> None:
        self.state_epoch = state_epoch
        self.leader_epoch = leader_epoch
        self._settings = settings
        self._window = InFlightWindow(start_offset)
        self._writes: dict[int, _Write] = {}
        self._last_token = 0
        # Final, but not known to be saved; in order. The SPSO may have passed some of it since.
        self._unsaved: Runs = []
        self._waits = Waits()
        self.parking: Parking | None = None
        """Where records with long waits are. The caller sets it once, right after construction."""
        self.key_order: KeyOrder | None = None
        """Set where the group keeps the order of keys; see keep_order()."""
        self._held: HeldHere | None = None
        self._counters = Counters()
        self._at_lock_max = 0
        self._log_start = 0
        # Markers and aborted records that were passed over since the last Persist, in order.
        self._passed: Runs = []
        self.has_given_up = False
        """Whether records have reached a lowered delivery limit since the last Persist."""

    @property
    def has_unsaved(self) -> bool:
        """True if failed writes left something for the next write to save."""
        return bool(self._unsaved) or (self.parking is not None and self.parking.has_unsaved)

    @property
    def _locks_left(self) -> int:
        """How many more records members may hold. Those of the window and parked ones count
        together, with those that a member has answered for and whose save is under way."""
        window = self._window
        held = window.states.count(ACQUIRED, window.start_offset - window.base)
        for pending, _, _, holder, parked in self._writes.values() if self._writes else ():
            if holder is not None:
                held += size_of(pending) + (0 if parked is None else len(parked.pending))
        if self.parking is not None:
            held += self.parking.held
        return max(0, self._settings.max_record_locks - held)

    @property
    def settings(self) -> ShareSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: ShareSettings) -> None:
        self._settings = settings
        self._advance()

    def _begin_waits(self, runs: Runs, now_ms: float, *, parks: bool = True) -> list[Parked]:
        """Start the redelivery delay of the records that have returned in these runs. Returns those
        that wait too long for the window: they are parked if that is saved, and their places in the
        window are final then."""
        window, settings, to_park = self._window, self._settings, []
        if settings.redelivery is None:
            return []
        park_from_ms = settings.park_from_ms if parks else None
        for first, last in runs:
            i, j = first - window.base, last + 1 - window.base
            for offset, code, count in zip(
                range(first, last + 1), window.states[i:j], window.counts[i:j], strict=True
            ):
                if not code & WAITING:
                    continue
                wait_ms = rules.redelivery_wait_ms(count, settings, random())
                if self.parking is not None and park_from_ms is not None and wait_ms > park_from_ms:
                    window.set_code(offset, offset, RecordState.ARCHIVED | PENDING)
                    to_park.append(self.parking.park(offset, now_ms + wait_ms, count))
                else:
                    self._waits.begin(offset, now_ms + wait_ms)
        return to_park

    # ---- what became of a Persist ----------------------------------------------------------------

    def persisted(self, token: int) -> None:
        """The Persist with this token is saved: its changes are final, and the SPSO may move."""
        pending, decided, passed, member_id, parked = self._writes.pop(token)
        for first, last in pending:
            self._window.settle(first, last)
        if parked is not None and self.parking is not None:
            self.parking.persisted(parked)
            for offset in parked.moved:
                self._window.settle(offset, offset)
        if self._held is not None and member_id is not None:
            self._held.add(member_id, -size_of(pending) - (0 if parked is None else len(parked.pending)))
        for batch in decided:
            if batch.state == RecordState.ARCHIVING:
                self._window.settle(batch.first_offset, batch.last_offset)
        if self.key_order is not None:
            final = [
                (batch.first_offset, batch.last_offset)
                for batch in decided
                if batch.state != RecordState.AVAILABLE
            ]
            ordering.end_saved(self._window, self.key_order, [*pending, *final, *passed])
            self._free_keys(self.key_order)
        self._advance()

    def persist_failed(self, token: int, *, now_ms: float) -> None:
        """The Persist with this token is not saved. Its records return to their holder, or are
        available where the lock has run out meanwhile."""
        pending, decided, passed, member_id, parked = self._writes.pop(token)
        self._counters.failed_writes += 1
        still = 0
        if parked is not None and self.parking is not None:
            still = self.parking.failed(parked, now_ms, self._settings, random) - len(parked.pending)
        unsaved = [*self._unsaved, *passed, *((batch.first_offset, batch.last_offset) for batch in decided)]
        by_count = rules.returned(Event.RUN_OUT, self._settings)
        due: Mapping[int, float] = {}
        if parked is not None and self.parking is not None:
            pending = self._put_off_again(pending, self.parking.scheduled_in(parked), now_ms)
            due = self.parking.redeliveries_in(parked)
            pending = self._come_back_soon(pending, self.parking.expired_in(parked), now_ms)
        prolongs = self._settings.lock_max_ms > 0
        for first, last in pending:
            returned = self._window.roll_back(first, last, by_count, now_ms, prolongs=prolongs)
            self._begin_waits(returned, now_ms, parks=False)
            if due:
                self._wait_here(returned, due)
            unsaved += returned
        if self._held is not None and member_id is not None:
            still += sum(
                self._window.count_of((RecordState.ACQUIRED,), *run) for run in self._from_start(pending)
            )
            self._held.add(member_id, still - size_of(pending))
        self._unsaved = joined_runs(unsaved)
        if self.key_order is not None:
            ordering.gate(self._window, self.key_order, pending)
        self._advance()

    def _wait_here(self, returned: Runs, due: Mapping[int, float]) -> None:
        """Records that could not be parked wait in the window, until the due time that was drawn
        for them."""
        for first, last in returned:
            for offset in range(first, last + 1):
                if offset in due and self._window.wait(offset):
                    self._waits.begin(offset, due[offset])

    def _put_off_again(self, pending: Runs, due: Mapping[int, int], now_ms: float) -> Runs:
        """Scheduled records that could not be parked wait in the window. Returns the other pending
        runs."""
        for offset, due_ms in due.items():
            if self._window.put_off_again(offset):
                self._waits.begin_until(offset, due_ms, now_ms=now_ms, wall_ms=now_ms)
        return _without(pending, due.keys()) if due else pending

    def _come_back_soon(self, pending: Runs, expired: Sequence[int], now_ms: float) -> Runs:
        """Expired records that could not be parked as dead letters wait a moment before the next
        attempt. Returns the other pending runs."""
        for offset in expired:
            if self._window.put_off_again(offset):
                self._waits.begin_until(offset, now_ms + LOOK_AT_THE_CLOCK_MS, now_ms=now_ms, wall_ms=now_ms)
        return _without(pending, frozenset(expired)) if expired else pending

    def _pass_over(self, first: int, last: int, *, is_finished: bool) -> None:
        """No member gets first..last. Returned records may be among them: the group had
        read_uncommitted when a member got them, and they belong to an aborted transaction."""
        window = self._window
        if not is_finished:
            window.pass_over(first, last)
            return
        window.pass_over(first, last, PASSED)
        self._passed.append((first, last))
        first, last = max(first, window.start_offset), min(last, window.end_offset)
        if window.has((AVAILABLE, WAITING, BEHIND), first, last):
            self._note_discarded(window.discard_available(first, last))

    def _note_discarded(self, discarded: Runs) -> None:
        self._unsaved = joined_runs([*self._unsaved, *discarded])
        self._lose_keys(discarded)

    def save_passed(self) -> Persist | None:
        """After a read that has passed over markers and aborted records, and has found nothing for
        a member: no acknowledgement saves soon that they are finished, and lag would count them.
        And whenever records were given up: their dead letters wait for that."""
        return self._persist([]) if self._passed or self.has_given_up else None

    def _persist_best_effort(self, runs: Runs, to_park: Sequence[Parked] = ()) -> Persist:
        """Save changes that are final whether that succeeds or not, except for `to_park`: those
        records are parked only if it does."""
        self._unsaved = joined_runs([*self._unsaved, *runs])
        return self._persist(
            joined_runs([(parked.offset, parked.offset) for parked in to_park]), to_park=to_park
        )

    def _persist(
        self,
        pending: Runs,
        member_id: str | None = None,
        parked: ParkedPending = (),
        to_park: Sequence[Parked] = (),
    ) -> Persist:
        """Save what is pending, held by the member, together with everything that waits to be
        saved."""
        window, self.has_given_up = self._window, False
        if self._passed:
            self._unsaved = joined_runs([*self._unsaved, *self._passed])
            self._passed = []
        batches: list[StateBatch] = []
        for first, last in pending:
            batches += window.runs(first, last, STATE)
        decided: Sequence[StateBatch] = ()
        passed: Sequence[tuple[int, int]] = ()
        if self._unsaved:
            decided = list(self._decided(self._unsaved))
            lowest = self._unsaved[0][0]
            if lowest < window.start_offset:
                passed = ((lowest, window.start_offset - 1),)
            self._unsaved = []
            batches = sorted([*batches, *decided])
        token = self._last_token = self._last_token + 1
        changes: tuple[ParkingChange, ...] = ()
        parking, write, waiting = self.parking, None, 0
        if parking is not None and (parked or to_park or parking.has_unsaved):
            (changes, write), waiting = parking.write(parked, to_park), max(0, parking.waiting)
            if write.moved:
                places = self._from_start([(offset, offset) for offset in write.moved])
                batches = sorted(
                    [*batches, *(batch for place in places for batch in window.runs(*place, STATE))]
                )
        self._writes[token] = pending, decided, passed, member_id, write
        epochs = self.state_epoch, self.leader_epoch
        return _new_persist(
            (token, *epochs, window.start_offset, window.complete, tuple(batches), changes, waiting, ())
        )

    def _decided(self, runs: Runs) -> Iterator[StateBatch]:
        """The present state of these runs from the SPSO on, except for records that are held or
        pending. Markers and aborted records are saved as acknowledged after no delivery."""
        end_offset = self._window.end_offset if self._window.states else -1
        for first, last in self._from_start(runs):
            for batch in self._window.runs(first, min(last, end_offset)) if first <= end_offset else ():
                if batch.state == PASSED:
                    yield batch._replace(state=RecordState.ACKNOWLEDGED)
                elif batch.state not in _UNDECIDED:
                    yield batch._replace(state=batch.state & STATE)

    def _from_start(self, runs: Runs) -> Runs:
        """The parts of the runs that are not below the SPSO."""
        start_offset = self._window.start_offset
        return [(max(first, start_offset), last) for first, last in runs if last >= start_offset]

    def _advance(self) -> None:
        window = self._window
        window.advance()
        if (
            window.gap_end == window.end_offset
            and window.in_flight >= self._settings.max_record_locks
            and not window.has_gap
        ):
            # Kafka would wait for records beyond the gap window, but the full window admits none.
            window.gap_end = -1
            window.advance()

    def _has(self, *codes: int) -> bool:
        return self._window.has(codes, self._window.start_offset, self._window.end_offset)

    # ---- the order of keys (ordering.py) ---------------------------------------------------------

    @property
    def _has_learnt_keys(self) -> bool:
        order = self.key_order
        return order is None or order.has_learnt or ordering.learn_at(self._window, order) is None

    def _free_keys(self, order: KeyOrder) -> None:
        """Make the next record of each freed key available."""
        while order.freed:
            offset = order.freed.pop()
            entry = None if self.parking is None else self.parking.entries.get(offset)
            if entry is not None and entry.code == Code.BEHIND and self.parking is not None:
                self.parking.go(entry)
            elif not ordering.go(self._window, offset):
                order.end(offset)

    def _lose_keys(self, runs: Runs) -> None:
        """The log no longer has these records: they free their keys."""
        if self.key_order is not None:
            ordering.end_lost(self.key_order, runs)
            self._free_keys(self.key_order)


def _without(runs: Runs, offsets: Container[int]) -> Runs:
    return joined_runs(
        [
            (offset, offset)
            for first, last in runs
            for offset in range(first, last + 1)
            if offset not in offsets
        ]
    )
