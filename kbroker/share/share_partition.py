"""A share-partition: the queue that one share group has over one topic partition (KIP-932).

    log   ... terminal | in flight: available, acquired, acknowledged, archived | not read yet ...
                       SPSO                                                  SPEO

    acquire ----------> ACQUIRED until its lock's deadline
    acknowledge ------> pending --persisted--> final, SPSO moves
    release_member ---> pending --persisted--> AVAILABLE
                                --persist_failed--> its holder's again, or AVAILABLE if the lock
                                                    has run out meanwhile
    expire -----------> AVAILABLE at once; saving that is best effort

With a dead letter queue (KIP-1191), rejected and exhausted records become ARCHIVING. Once that is
saved:

    take_dead_letters -> the broker writes them there -> dead_lettered
        -> ARCHIVED at once, SPSO moves; saving that is best effort

The class is pure: each method is synchronous, changes the state in memory and returns its effects.
It reads no clock (`now_ms` is any monotonic time in milliseconds), no bytes, and does no I/O.

A method whose change must be saved returns a Persist. The caller saves it, and then calls
persisted() or persist_failed() with its token, exactly once. Several may be under way, and they may
end in any order. The caller has one reader per share-partition between next_fetch_offset() and
acquire(); what it passes to acquire() must be what it read at that offset.

The class is put together from parts, which share the attributes of share_writes.py:

    share_queries.py        what a share-partition answers about itself
    share_scans.py          records that are examined before members get them; the order of keys
    share_log_start.py      the log's start moves
    share_dead_letters.py   records on their way to the dead letter queue
    share_writes.py         what is to be saved, and what becomes of each write

Stricter than Kafka where no client can tell the difference:

- The next Persist carries what a failed best-effort write left unsaved, and records that are
  missing from the log.
- A refused acknowledgement list renews no lock.
- A record becomes a dead letter only after its state ARCHIVING is saved. Otherwise a crash would
  forget that state, and write a second dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import random

from kbroker.errors import KafkaError
from kbroker.share import acknowledge, archiving, ordering, rules
from kbroker.share.acquire import AcquireMode, Acquisition, Batches, Control, runs_of
from kbroker.share.effects import AckBatch, AcquiredRange, Persist, ShareSettings, StateBatch
from kbroker.share.held import HeldHere, HeldRecords
from kbroker.share.locks import ANSWERED, Lock
from kbroker.share.parking import Parking
from kbroker.share.rules import Event
from kbroker.share.runs import Runs, check_state, joined_runs, size_of
from kbroker.share.share_dead_letters import SharePartitionDeadLetters
from kbroker.share.share_log_start import SharePartitionLogStart
from kbroker.share.share_queries import SharePartitionQueries
from kbroker.share.share_scans import SharePartitionScans
from kbroker.share.share_writes import ParkedPending
from kbroker.share.statistics import SharePartitionStatistics

__all__ = ["AcquireMode", "SharePartition", "SharePartitionStatistics"]


class SharePartition(
    SharePartitionQueries, SharePartitionScans, SharePartitionLogStart, SharePartitionDeadLetters
):
    """See the head of this file. `settings` may be replaced at any time: a new lock duration
    applies to later locks, new limits apply at once. Every Persist carries `state_epoch` and
    `leader_epoch`."""

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
        share_partition._window.load(batches)
        archiving.load(share_partition._window, batches, settings)
        share_partition._advance()
        return share_partition

    def count_held(self, of_group: HeldRecords | None) -> None:
        """From now on, add the records that members hold here to the counts of the group. None:
        stop counting."""
        if self._held is not None:
            self._held.clear()
        if of_group is None:
            self._held = None
            return
        self._held = HeldHere(of_group)
        for lock in self._window.locks.by_deadline:
            for first, last in self._window.held_runs(lock):
                self._held.add(lock.member_id, last - first + 1)
        for member_id, records in self.parking.held_by().items() if self.parking is not None else ():
            self._held.add(member_id, records)
        for pending, _, _, holder, parked in self._writes.values():
            if holder is not None:
                self._held.add(holder, size_of(pending) + (0 if parked is None else len(parked.pending)))

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
        if self.key_order is not None and not self._has_learnt_keys:
            return []
        deadline_ms = now_ms + self._settings.lock_duration_ms
        ranges: list[AcquiredRange] = []
        taken = 0
        room = max_records if self.parking is None else min(max_records, self._locks_left)
        for run, is_finished in runs_of(batches, control):
            if is_finished is not None:
                for first, last in joined_runs([(batch[0], batch[1]) for batch in run]):
                    self._pass_over(first, last, is_finished=is_finished)
                continue
            if room <= 0 or not run:
                break
            turn = Acquisition(self._window, self._settings, member_id, mode, batch_size, room, deadline_ms)
            turn.run(fetch_offset, run, follows + taken)
            if turn.discarded:
                self._note_discarded(turn.discarded)
            if turn.given_up:
                self._unsaved = joined_runs([*self._unsaved, *turn.given_up])
                self.has_given_up = True
            ranges += turn.ranges
            room -= turn.taken
            taken += turn.taken
            self._counters.redeliveries += turn.redelivered
            self._counters.acquired_records += turn.taken
            if self._held is not None:
                self._held.add(member_id, turn.taken)
            fetch_offset = run[-1][1] + 1
            if turn.throttled or (control and self._window.next_fetch_offset() < fetch_offset):
                break  # This run has more to deliver, or nothing may follow it.
        # No acknowledgement moves an SPSO that only such records or control batches hold.
        if not ranges:
            self._advance()
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
            if self._settings.lock_max_ms:
                self._end_prolonging(member_id, acknowledge.runs_without_renewals(batches))
            raise

    def _acknowledge(self, member_id: str, batches: Sequence[AckBatch], now_ms: float) -> Persist | None:
        parking, named = self.parking, None
        if parking is not None and parking.entries:
            acknowledge.check_renewals(self._settings, batches)
            batches, named = parking.split(member_id, batches)
        if parking is not None:
            lowest = min(max(self._log_start, parking.floor), parking.kept_from)
            acknowledge.check_passed(batches, lowest, self._window.start_offset)
        checked = acknowledge.check(self._window, self._settings, member_id, batches)
        pending = acknowledge.apply(self._window, self._settings, member_id, checked, now_ms=now_ms)
        parked = parking.apply(named, self._settings, now_ms, random) if parking is not None and named else ()
        to_park = self._begin_waits(pending, now_ms) if self._settings.redelivery is not None else ()
        return self._persist(pending, member_id, parked, to_park) if pending or parked else None

    def _end_prolonging(self, member_id: str, runs: Runs) -> None:
        window = self._window
        held = [
            (run, lock)
            for lock in window.locks.of_member(member_id)
            if lock.since_ms != ANSWERED
            for run in window.held_runs(lock)
        ]
        for (held_first, held_last), lock in held:
            for first, last in runs:
                if first <= held_last and last >= held_first:
                    window.renew(
                        member_id, max(first, held_first), min(last, held_last), lock.deadline_ms, ANSWERED
                    )
        if self.parking is not None:
            self.parking.end_prolonging(member_id, runs)

    def acquire_parked(
        self, member_id: str, offsets: Sequence[int], *, now_ms: float, follows: int = 0
    ) -> list[AcquiredRange]:
        """Lock parked records that are ready for the member. `offsets`: the longest due comes
        first. `follows`, and what the caller looks at: as for acquire()."""
        parking = self.parking
        if parking is None or not self._has_learnt_keys:
            return []
        exhausted = parking.exhausted
        ranges = parking.acquire(
            member_id, offsets, now_ms, self._settings, self._locks_left, follows=follows
        )
        self.has_given_up = self.has_given_up or parking.exhausted > exhausted
        taken = sum(last - first + 1 for first, last, _ in ranges)
        self._counters.redeliveries += sum(last - first + 1 for first, last, count in ranges if count > 1)
        self._counters.acquired_records += taken
        self._counters.delayed_deliveries += taken
        if self._held is not None and taken:
            self._held.add(member_id, taken)
        return ranges

    def parked_lost(self, offsets: Iterable[int]) -> Persist | None:
        """The log no longer has the records at these offsets."""
        return self._persist([]) if self.parking is not None and self.parking.lost(offsets) else None

    def release_member(self, member_id: str, *, delayed_at_ms: float | None = None) -> Persist | None:
        """The member's session has ended, or it has forgotten the partition: its records return
        with their delivery counts. They wait for redelivery from `delayed_at_ms` on; None: the
        session ended in order, and they are available at once."""
        window, settings = self._window, self._settings
        event = Event.LEAVE if delayed_at_ms is None else Event.RELEASE
        by_count = rules.returned(event, settings)
        runs = joined_runs(
            [run for lock in window.locks.of_member(member_id) for run in window.held_runs(lock)]
        )
        for first, last in runs:
            window.exhausted += window.give_back(first, last, by_count)
        to_park = self._begin_waits(runs, delayed_at_ms) if delayed_at_ms is not None else ()
        parked: ParkedPending = ()
        if self.parking is not None and self.parking.held:
            parked = self.parking.release_member(member_id, settings, delayed_at_ms, random)
        return self._persist(runs, member_id, parked, to_park) if runs or parked else None

    def expire(self, now_ms: float, alive_ms: Callable[[str], float] | None = None) -> Persist | None:
        """Take back the records whose locks have run out. They are available (or wait) at once,
        whether the Persist succeeds or not.

        `alive_ms(member_id)`: for how long the member is known to live from now on. The locks of
        live members are prolonged, up to `lock_max_ms` in all.
        """
        window, settings, runs = self._window, self._settings, []
        by_count = rules.returned(Event.RUN_OUT, settings)
        for lock in list(window.locks.due(now_ms)):
            held = list(window.held_runs(lock))
            if (
                settings.lock_max_ms
                and held
                and alive_ms is not None
                and self._prolong(lock, held, now_ms, alive_ms(lock.member_id))
            ):
                continue
            for first, last in held:
                window.exhausted += window.give_back(first, last, by_count)
            self._counters.lock_timeouts += size_of(held)
            if self._held is not None:
                self._held.add(lock.member_id, -size_of(held))
            runs += held
        to_park = self._begin_waits(runs, now_ms)
        if self.key_order is not None:
            ordering.gate(window, self.key_order, runs)
        has_parked = self.parking is not None and self._expire_parked(self.parking, now_ms, alive_ms)
        return self._persist_best_effort(runs, to_park) if runs or has_parked else None

    def _expire_parked(
        self, parking: Parking, now_ms: float, alive_ms: Callable[[str], float] | None
    ) -> bool:
        """True if parked records have returned."""
        ran_out = parking.expire(now_ms, self._settings, alive_ms, random)
        self._counters.prolonged_locks += ran_out.prolonged
        self._at_lock_max += ran_out.at_lock_max
        for member_id, records in ran_out.by_member.items():
            self._counters.lock_timeouts += records
            if self._held is not None:
                self._held.add(member_id, -records)
        return bool(ran_out.by_member)

    def _prolong(self, lock: Lock, held: Runs, now_ms: float, alive_ms: float) -> bool:
        """True if the holder keeps the records."""
        settings, since_ms = self._settings, lock.since_ms
        since_ms = lock.deadline_ms - settings.lock_duration_ms if since_ms is None else since_ms
        deadline_ms = rules.prolonged_until(since_ms, settings, now_ms, alive_ms)
        if deadline_ms is None:
            self._at_lock_max += size_of(held) if alive_ms > 0 and since_ms != ANSWERED else 0
            return False
        for first, last in held:
            self._window.renew(lock.member_id, first, last, deadline_ms, since_ms)
        self._counters.prolonged_locks += size_of(held)
        return True

    def end_waits(self, now_ms: float, wall_ms: float = 0) -> int:
        """Make the records available whose redelivery or schedule is due. Returns how many can be
        acquired now; a record whose return is still being saved follows when that is done.
        `wall_ms`: the wall clock, for scheduled records."""
        ready = 0 if self.parking is None else self.parking.make_ready(now_ms, wall_ms)
        due, order = self._waits.take_due(now_ms, wall_ms), self.key_order
        if order is None:
            return ready + sum(map(self._window.end_wait, due))
        knows_all = order.has_learnt and (self.parking is None or self.parking.knows_redeliveries)
        return ready + sum(
            self._window.end_wait(offset)
            and ordering.admit_due(self._window, order, offset, knows_all=knows_all)
            for offset in due
        )

    def retry_unsaved(self) -> Persist | None:
        """Save again what failed best-effort writes left unsaved, without waiting for the next
        Persist. None: nothing is unsaved."""
        return self._persist([]) if self.has_unsaved else None
