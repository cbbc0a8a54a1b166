"""A share-partition: the queue that one share group has over one topic partition (KIP-932).

    log   ... terminal | in flight: available, acquired, acknowledged, archived | not read yet ...
                       SPSO                                                  SPEO

    acquire ----------> ACQUIRED until its lock's deadline
    acknowledge ------> pending --persisted--> final, SPSO moves
    release_member ---> pending --persisted--> AVAILABLE
                                --persist_failed--> its holder's again, or AVAILABLE if the lock
                                                    has run out meanwhile
    expire -----------> AVAILABLE at once; saving that is best effort

The engine is pure: each function is synchronous, changes the state in memory and returns its
effects. It reads no clock (`now_ms` is any monotonic time in milliseconds), no bytes, and does no
I/O.

A Persist is what the caller has to save. Then it calls persisted() or persist_failed() with its
token, exactly once. Several may be under way, and they may end in any order. The caller has one
reader per share-partition between next_fetch_offset() and acquire(); what it passes to acquire()
must be what it read at that offset.

A SharePartition has parts, and modules of functions work on it:

    window      in_flight.py     the front window: the records in flight
    waits       redelivery.py    when those that wait are due
    saves       saves.py         writes under way, and what waits for the next one
    parking     parking.py       records that wait outside of it; those that are due: returned.py
    key_order   key_order.py     which record of each key is first

    offers.py       what a member could get now
    scanning.py     records that are examined before members get them
    archiving.py    dead letters (KIP-1191)
    log_start.py    the log's start moves
    statistics.py   its numbers

Stricter than Kafka where no client can tell the difference:

- The next Persist carries what a failed best-effort write left unsaved, and records that are
  missing from the log.
- A refused acknowledgement list renews no lock.
- A record becomes a dead letter only after its state ARCHIVING is saved. Otherwise a crash would
  forget that state, and write a second dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from math import ceil
from random import random

from kbroker.errors import KafkaError
from kbroker.share import acknowledge, ordering, returning, row_writes, rules
from kbroker.share.acquire import AcquireMode, Acquisition, Batches, Control, runs_of
from kbroker.share.effects import AckBatch, AcquiredRange, Persist, ShareSettings, StateBatch
from kbroker.share.held import HeldHere, HeldRecords
from kbroker.share.in_flight import InFlightWindow
from kbroker.share.in_flight_view import InFlightView, in_flight_view
from kbroker.share.key_order import KeyOrder
from kbroker.share.locks import ANSWERED, Lock
from kbroker.share.parked import Lane, Parked
from kbroker.share.parking import Answered, Parking
from kbroker.share.record_state import (
    ACQUIRED,
    ARCHIVING_CODES,
    AVAILABLE,
    BEHIND,
    PASSED,
    WAITING,
    RecordState,
)
from kbroker.share.redelivery import LOOK_AT_THE_CLOCK_MS, Waits
from kbroker.share.rules import Event
from kbroker.share.runs import Runs, check_state, joined_runs, size_of
from kbroker.share.saves import Saves
from kbroker.share.statistics import Counters, RanOut, SharePartitionStatistics, statistics_of

__all__ = ["AcquireMode", "SharePartition", "SharePartitionStatistics"]


class SharePartition:
    """See the head of this file.

    - `settings`: altered by use().
    - `parking`: where records with long waits are. The caller sets it once, right after
      construction, and calls keep_order().
    - `key_order`: set where the group keeps the order of keys.
    - `log_start`: where the log begins, as far as log_start_moved() was called.
    """

    def __init__(
        self, settings: ShareSettings, *, start_offset: int, state_epoch: int, leader_epoch: int
    ) -> None:
        self.settings = settings
        self.window = InFlightWindow(start_offset)
        self.waits = Waits()
        self.saves = Saves(self.window, state_epoch=state_epoch, leader_epoch=leader_epoch)
        self.parking: Parking | None = None
        self.key_order: KeyOrder | None = None
        self.held: HeldHere | None = None
        self.counters = Counters()
        self.log_start = 0

    @classmethod
    def load(
        cls,
        settings: ShareSettings,
        *,
        start_offset: int,
        state_batches: Sequence[StateBatch],
        state_epoch: int,
        leader_epoch: int,
    ) -> SharePartition:
        """From the state that the Persister returned; the caller has resolved `start_offset`
        already (not -1). Raises ValueError for an inconsistent state: the share-partition cannot be
        served then."""
        share_partition = cls(
            settings, start_offset=start_offset, state_epoch=state_epoch, leader_epoch=leader_epoch
        )
        batches = sorted(state_batches)
        check_state(start_offset, batches)
        share_partition.window.load(batches, settings)
        share_partition.advance()
        return share_partition

    def use(self, settings: ShareSettings) -> None:
        """From now on. A new lock duration applies to later locks, new limits apply at once."""
        for window in self.windows:
            window.locks.note_since(self.settings.lock_duration_ms)
        self.settings = settings
        self.advance()

    @property
    def windows(self) -> Sequence[InFlightWindow]:
        """The front window, and that of returned records, where there is one."""
        return (self.window,) if self.parking is None else (self.window, self.parking.window)

    def count_held(self, of_group: HeldRecords | None) -> None:
        """From now on, add the records that members hold here to the counts of the group. None:
        stop counting."""
        if self.held is not None:
            self.held.clear()
        if of_group is None:
            self.held = None
            return
        self.held = HeldHere(of_group)
        counts = [each for window in self.windows for each in window.held_by()]
        counts += [(each.holder, each.held) for each in self.saves.under_way.values() if each.holder]
        for member_id, records in counts:
            self.held.add(member_id, records)

    @property
    def start_offset(self) -> int:
        """SPSO: the first offset that is not finished."""
        return self.window.start_offset

    @property
    def end_offset(self) -> int:
        """SPEO: the last offset in flight; equal to the SPSO if none is."""
        return self.window.end_offset

    # ---- the life of a record --------------------------------------------------------------------

    def acquire(
        self,
        member_id: str,
        *,
        mode: AcquireMode,
        batch_size: int,
        max_records: int,
        fetch_offset: int,
        batches: Batches,
        control: Sequence[Control] = (),
        now_ms: float,
        follows: int = 0,
    ) -> list[AcquiredRange]:
        """Lock records for the member. An empty result means that there is nothing for it now. The
        caller then looks at `has_given_up`.

        - `batches`: base and last offset of every record batch that the read at `fetch_offset`
          returned.
        - `control`: the batches between them that members never get. They are not in flight, and
          next_fetch_offset() skips them from now on.
        - `max_records`: in mode BATCH_OPTIMIZED the last batch may exceed it.
        - `follows`: how many records the response already has, if it must not have a record near
          its delivery limit behind them.
        """
        if self.key_order is not None and not self.has_learnt_keys:
            return []
        deadline_ms = now_ms + self.settings.lock_duration_ms
        ranges: list[AcquiredRange] = []
        taken = 0
        room = max_records if self.parking is None else min(max_records, self.locks_left)
        for run, is_finished in runs_of(batches, control):
            if is_finished is not None:
                for first, last in joined_runs([(batch[0], batch[1]) for batch in run]):
                    self.pass_over(first, last, is_finished=is_finished)
                continue
            if room <= 0 or not run:
                break
            turn = Acquisition(self.window, self.settings, member_id, mode, batch_size, room, deadline_ms)
            turn.run(fetch_offset, run, follows + taken)
            if turn.discarded:
                self._note_discarded(turn.discarded)
            if turn.given_up:
                self.saves.note(turn.given_up)
                self.saves.has_given_up = True
            ranges += turn.ranges
            room -= turn.taken
            taken += turn.taken
            self.counters.redeliveries += turn.redelivered
            self.counters.acquired_records += turn.taken
            if self.held is not None:
                self.held.add(member_id, turn.taken)
            fetch_offset = run[-1][1] + 1
            if turn.throttled or (control and self.window.next_fetch_offset() < fetch_offset):
                break  # This run has more to deliver, or nothing may follow it.
        # No acknowledgement moves an SPSO that only such records or control batches hold.
        if not ranges:
            self.advance()
        return ranges

    def acknowledge(self, member_id: str, batches: Sequence[AckBatch], *, now_ms: float) -> Persist | None:
        """Acknowledge records that the member holds: all batches or none. None: nothing needs
        saving, and the list is carried out.

        Raises KafkaError (invalid_record_state or invalid_request) with a message. A refused list
        changes only one thing: the locks of the records it names are no longer prolonged, because
        the client has finished with them.
        """
        try:
            return self._acknowledge(member_id, batches, now_ms)
        except KafkaError:
            if self.settings.lock_max_ms:
                self._end_prolonging(member_id, acknowledge.runs_without_renewals(batches))
            raise

    def _acknowledge(self, member_id: str, batches: Sequence[AckBatch], now_ms: float) -> Persist | None:
        parking, named = self.parking, None
        if parking is not None and parking.rows:
            acknowledge.check_renewals(self.settings, batches)
            batches, named = returning.split(parking, member_id, batches)
        if parking is not None:
            lowest = min(max(self.log_start, parking.floor), parking.kept_from)
            acknowledge.check_passed(batches, lowest, self.window.start_offset)
        checked = acknowledge.check(self.window, self.settings, member_id, batches)
        pending = acknowledge.apply(self.window, self.settings, member_id, checked, now_ms=now_ms)
        parked = (
            returning.apply(parking, member_id, named, self.settings, now_ms, random)
            if parking is not None and named
            else ()
        )
        to_park = self._begin_waits(pending, now_ms) if self.settings.redelivery is not None else ()
        return (
            self.saves.begin(self.parking, pending, member_id, parked, to_park) if pending or parked else None
        )

    def _end_prolonging(self, member_id: str, runs: Runs) -> None:
        self.window.end_prolonging(member_id, runs)
        if self.parking is not None:
            self.parking.end_prolonging(member_id, runs)

    def acquire_parked(
        self, member_id: str, offsets: Sequence[int], *, now_ms: float, follows: int = 0
    ) -> list[AcquiredRange]:
        """Lock parked records that are ready for the member. `offsets`: the longest due comes
        first. `follows`, and what the caller looks at: as for acquire()."""
        parking = self.parking
        if parking is None or not self.has_learnt_keys:
            return []
        exhausted = parking.window.exhausted
        ranges = returning.acquire(
            parking, member_id, offsets, self.settings, self.locks_left, now_ms=now_ms, follows=follows
        )
        self.saves.has_given_up = self.saves.has_given_up or parking.window.exhausted > exhausted
        taken = sum(last - first + 1 for first, last, _ in ranges)
        self.counters.redeliveries += sum(last - first + 1 for first, last, count in ranges if count > 1)
        self.counters.acquired_records += taken
        self.counters.delayed_deliveries += taken
        if self.held is not None and taken:
            self.held.add(member_id, taken)
        return ranges

    def release_member(self, member_id: str, *, delayed_at_ms: float | None = None) -> Persist | None:
        """The member's session has ended: its records return with their delivery counts. They wait
        for redelivery from `delayed_at_ms` on; None: it ended in order, and they are available at
        once."""
        event = Event.LEAVE if delayed_at_ms is None else Event.RELEASE
        by_count, parking = rules.returned(event, self.settings), self.parking
        runs = _release(self.window, member_id, by_count)
        to_park = self._begin_waits(runs, delayed_at_ms) if delayed_at_ms is not None else ()
        parked: Answered = ()
        if parking is not None and parking.window.states:
            slots = _release(parking.window, member_id, by_count)
            parked = returning.answered(parking, slots, self.settings, delayed_at_ms, random)
        return self.saves.begin(parking, runs, member_id, parked, to_park) if runs or parked else None

    def expire(self, now_ms: float, alive_ms: Callable[[str], float] | None = None) -> Persist | None:
        """Take back the records whose locks have run out. They are available (or wait) at once,
        whether the Persist succeeds or not.

        `alive_ms(member_id)`: for how long the member is known to live from now on. The locks of
        live members are prolonged, up to `lock_max_ms` in all.
        """
        parking, runs = self.parking, self._run_out(self.window, now_ms, alive_ms)
        to_park = self._begin_waits(runs, now_ms)
        if self.key_order is not None:
            ordering.gate(self.window, self.key_order, runs)
        slots = [] if parking is None else self._run_out(parking.window, now_ms, alive_ms)
        if parking is not None:
            returning.came_back(parking, slots, self.settings, now_ms, random)
        return self.saves.begin_best_effort(parking, runs, to_park) if runs or slots else None

    def _run_out(
        self, window: InFlightWindow, now_ms: float, alive_ms: Callable[[str], float] | None
    ) -> Runs:
        """The runs of this window that have returned."""
        settings, runs = self.settings, []
        by_count = rules.returned(Event.RUN_OUT, settings)
        for lock in list(window.locks.due(now_ms)):
            held = list(window.held_runs(lock))
            if (
                settings.lock_max_ms
                and held
                and alive_ms is not None
                and self._prolong(window, lock, held, now_ms, alive_ms(lock.member_id))
            ):
                continue
            for first, last in held:
                window.exhausted += window.give_back(first, last, by_count)
            self.counters.lock_timeouts += size_of(held)
            if self.held is not None:
                self.held.add(lock.member_id, -size_of(held))
            runs += held
        return runs

    def _prolong(
        self, window: InFlightWindow, lock: Lock, held: Runs, now_ms: float, alive_ms: float
    ) -> bool:
        """True if the holder keeps the records."""
        settings, since_ms = self.settings, lock.since_ms
        since_ms = lock.deadline_ms - settings.lock_duration_ms if since_ms is None else since_ms
        deadline_ms = rules.prolonged_until(since_ms, settings, now_ms, alive_ms)
        if deadline_ms is None:
            self.counters.at_lock_max += size_of(held) if alive_ms > 0 and since_ms != ANSWERED else 0
            return False
        for first, last in held:
            window.renew(lock.member_id, first, last, deadline_ms, since_ms)
        self.counters.prolonged_locks += size_of(held)
        return True

    def end_waits(self, now_ms: float, wall_ms: float = 0) -> int:
        """Make the records available whose redelivery or schedule is due. Returns how many can be
        acquired now; a record whose return is still being saved follows when that is done.
        `wall_ms`: the wall clock, for scheduled records."""
        ready = 0 if self.parking is None else self.parking.make_ready(now_ms, wall_ms)
        due, order = self.waits.take_due(now_ms, wall_ms), self.key_order
        if order is None:
            return ready + sum(map(self.window.end_wait, due))
        knows_all = order.has_learnt and (self.parking is None or self.parking.knows_redeliveries)
        return ready + sum(
            self.window.end_wait(offset)
            and ordering.admit_due(self.window, order, offset, knows_all=knows_all)
            for offset in due
        )

    def _begin_waits(self, runs: Runs, now_ms: float, *, parks: bool = True) -> list[Parked]:
        """Start the redelivery delay of the records that have returned in these runs. Returns those
        that wait too long for the window: they are parked if that is saved, and their places in the
        window are final then."""
        window, settings, to_park = self.window, self.settings, []
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
                    window.move_out(offset)
                    due_ms = self.parking.due_at(now_ms + wait_ms)
                    to_park.append(self.parking.new(offset, Lane.REDELIVERY, due_ms, count))
                else:
                    self.waits.begin(offset, now_ms + wait_ms)
        return to_park

    # ---- questions -------------------------------------------------------------------------------

    def first_lock_ms(self, member_id: str) -> float | None:
        """When the first lock ends under which the member holds a record; None: it holds none."""
        found = (window.first_lock_ms(member_id) for window in self.windows)
        return min((lock_ms for lock_ms in found if lock_ms is not None), default=None)

    def next_deadline_ms(self) -> float | None:
        """When to call expire() and end_waits() next; they may then find nothing to do. None: no
        lock is held and nothing waits."""
        by_deadline = self.window.locks.by_deadline
        lock_ms = by_deadline[0].deadline_ms if by_deadline else None
        if self.parking is not None and (parked_ms := self.parking.next_deadline_ms()) is not None:
            lock_ms = parked_ms if lock_ms is None else min(lock_ms, parked_ms)
        if not self.waits or (due_ms := self.waits.next_ms()) is None:
            return lock_ms
        return due_ms if lock_ms is None else min(lock_ms, due_ms)

    def statistics(self) -> SharePartitionStatistics:
        return statistics_of(
            self.window, self.parking, self.key_order, self.counters, len(self.saves.under_way)
        )

    def in_flight_view(self, now_ms: float, log_start_offset: int = 0) -> InFlightView:
        """The records in flight and their holders, for people. `log_start_offset`: where the log
        begins."""
        return in_flight_view(self.window, self.settings.max_record_locks, now_ms, log_start_offset)

    @property
    def ran_out(self) -> RanOut:
        exhausted = sum(window.exhausted for window in self.windows)
        return RanOut(self.counters.lock_timeouts, exhausted, self.counters.at_lock_max)

    # ---- what becomes of a Persist ---------------------------------------------------------------

    def persisted(self, token: int) -> None:
        """The Persist with this token is saved: its changes are final, and the SPSO may move."""
        window, write = self.window, self.saves.under_way.pop(token)
        for first, last in write.pending:
            window.settle(first, last)
        if write.parked is not None and self.parking is not None:
            row_writes.persisted(self.parking, write.parked)
            for offset in write.parked.moved:
                window.settle(offset, offset)
        if self.held is not None and write.holder is not None:
            self.held.add(write.holder, -write.held)
        for batch in write.decided:
            if batch.state == RecordState.ARCHIVING:
                window.settle(batch.first_offset, batch.last_offset)
        if self.key_order is not None:
            final = [
                (batch.first_offset, batch.last_offset)
                for batch in write.decided
                if batch.state != RecordState.AVAILABLE
            ]
            ordering.end_saved(window, self.key_order, [*write.pending, *final, *write.passed])
            self._free_keys(self.key_order)
        self.advance()

    def persist_failed(self, token: int, *, now_ms: float) -> None:
        """It is not saved: its records return to their holder, or where its lock has run out."""
        window, saves, write = self.window, self.saves, self.saves.under_way.pop(token)
        self.counters.failed_writes += 1
        pending, parked = write.pending, write.parked
        still, due = 0, dict[int, float]()
        saves.note_again(write)
        if parked is not None and self.parking is not None:
            still = row_writes.failed(self.parking, parked, self.settings, now_ms, random)
            still -= len(parked.pending)
            again = parked.new_in(Lane.SCHEDULE)
            again |= dict.fromkeys(parked.new_in(Lane.ARCHIVING), ceil(now_ms) + LOOK_AT_THE_CLOCK_MS)
            pending = self._put_off_again(pending, again, now_ms)
            redeliveries = parked.new_in(Lane.REDELIVERY)
            due = {offset: self.parking.engine_time(due_ms) for offset, due_ms in redeliveries.items()}
        by_count = rules.returned(Event.RUN_OUT, self.settings)
        for first, last in pending:
            returned = window.roll_back(first, last, by_count, now_ms)
            self._begin_waits(returned, now_ms, parks=False)
            self._wait_here(returned, due)
            saves.note(returned)
        if self.held is not None and write.holder is not None:
            still += sum(window.count_of((ACQUIRED,), *run) for run in saves.from_start(pending))
            self.held.add(write.holder, still - size_of(pending))
        if self.key_order is not None:
            ordering.gate(window, self.key_order, pending)
        self.advance()

    def _wait_here(self, returned: Runs, due: Mapping[int, float]) -> None:
        """Records that could not be parked wait in the window, until the due time that was drawn
        for them."""
        for first, last in returned if due else ():
            for offset in range(first, last + 1):
                if offset in due and self.window.wait(offset):
                    self.waits.begin(offset, due[offset])

    def _put_off_again(self, pending: Runs, due: Mapping[int, int], now_ms: float) -> Runs:
        """Scheduled records that could not be parked wait in the window, and expired ones a moment,
        before the next attempt. Returns the other pending runs."""
        for offset, due_ms in due.items():
            if self.window.put_off_again(offset):
                self.waits.begin_until(offset, due_ms, now_ms=now_ms, wall_ms=now_ms)
        return _without(pending, due.keys()) if due else pending

    def save_passed(self) -> Persist | None:
        """After a read that has passed over markers and aborted records, and has found nothing for
        a member: no acknowledgement saves soon that they are finished, and lag would count them.
        And whenever records were given up: their dead letters wait for that."""
        return self.saves.begin(self.parking, []) if self.saves.passed or self.saves.has_given_up else None

    def retry_unsaved(self) -> Persist | None:
        """Save now what failed best-effort writes left unsaved. None: nothing is unsaved."""
        return self.saves.begin(self.parking, []) if self.has_unsaved else None

    @property
    def has_unsaved(self) -> bool:
        """True if failed writes left something for the next write to save."""
        return bool(self.saves.unsaved) or (self.parking is not None and self.parking.has_unsaved)

    @property
    def is_settled(self) -> bool:
        """True if reloading from the Persister would give the same state: no record is held, no
        dead letter is pending, and no change is unsaved."""
        if self.parking is not None and not self.parking.is_settled:
            return False
        has_to_save = self.saves.under_way or self.saves.unsaved
        return not (has_to_save or self.window.has_any(ACQUIRED, WAITING, *ARCHIVING_CODES))

    # ---- the window ------------------------------------------------------------------------------

    def advance(self) -> None:
        window = self.window
        window.advance()
        if (
            window.gap_end == window.end_offset
            and window.in_flight >= self.settings.max_record_locks
            and not window.has_gap
        ):
            # Kafka would wait for records beyond the gap window, but the full window admits none.
            window.gap_end = -1
            window.advance()

    @property
    def locks_left(self) -> int:
        """How many more records members may hold. Those of the window and parked ones count
        together, with those that a member has answered for and whose save is under way."""
        window = self.window
        held = window.states.count(ACQUIRED, window.start_offset - window.base)
        if self.saves.under_way:
            held += sum(write.held for write in self.saves.under_way.values())
        if self.parking is not None:
            held += self.parking.window.states.count(ACQUIRED)
        return max(0, self.settings.max_record_locks - held)

    def pass_over(self, first: int, last: int, *, is_finished: bool) -> None:
        """No member gets first..last. Returned records may be among them: the group had
        read_uncommitted when a member got them, and they belong to an aborted transaction."""
        window = self.window
        if not is_finished:
            window.pass_over(first, last)
            return
        window.pass_over(first, last, PASSED)
        self.saves.passed.append((first, last))
        first, last = max(first, window.start_offset), min(last, window.end_offset)
        if window.has((AVAILABLE, WAITING, BEHIND), first, last):
            self._note_discarded(window.discard_available(first, last))

    def _note_discarded(self, discarded: Runs) -> None:
        self.saves.note(discarded)
        self.lose_keys(discarded)

    # ---- the order of keys (ordering.py) ---------------------------------------------------------

    @property
    def has_learnt_keys(self) -> bool:
        order = self.key_order
        return order is None or order.has_learnt or ordering.learn_at(self.window, order) is None

    def _free_keys(self, order: KeyOrder) -> None:
        """Make the next record of each freed key available."""
        while order.freed:
            offset = order.freed.pop()
            row = None if self.parking is None else self.parking.rows.get(offset)
            has_gone = row is not None and self.parking is not None and self.parking.go(row)
            if not has_gone and not self.window.go(offset):
                order.end(offset)

    def lose_keys(self, runs: Runs) -> None:
        """The log no longer has these records: they free their keys."""
        if self.key_order is not None:
            ordering.end_lost(self.key_order, runs)
            self._free_keys(self.key_order)


def _release(window: InFlightWindow, member_id: str, by_count: bytes) -> Runs:
    """All that the member holds returns. Returns its runs."""
    locks = window.locks.of_member(member_id)
    runs = joined_runs([run for lock in locks for run in window.held_runs(lock)])
    for first, last in runs:
        window.exhausted += window.give_back(first, last, by_count)
    return runs


def _without(runs: Runs, offsets: Container[int]) -> Runs:
    return joined_runs(
        [
            (offset, offset)
            for first, last in runs
            for offset in range(first, last + 1)
            if offset not in offsets
        ]
    )
