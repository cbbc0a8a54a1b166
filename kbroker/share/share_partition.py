"""A share-partition: the queue that one share group has over one topic partition (KIP-932).
Decides, and gives back effects.

    log   ... terminal | in flight: available, acquired, acknowledged, archived | not read yet ...
                       SPSO                                                  SPEO

    acquire ----------> ACQUIRED until its lock's deadline
    acknowledge ------> pending --persisted--> final, SPSO moves
    release_member ---> pending --persisted--> AVAILABLE
                                --persist_failed--> its holder's again, or AVAILABLE if the lock
                                                    has run out meanwhile
    expire -----------> AVAILABLE at once; saving that is best effort

With a dead letter queue (KIP-1191) rejected and exhausted records become ARCHIVING, and once that
is saved

    take_dead_letters -> the broker writes them there -> dead_lettered
        -> ARCHIVED at once, SPSO moves; saving that is best effort

Everything is synchronous and pure: no bytes, no clock (`now_ms` is any monotonic milliseconds), no
I/O. A method that must be saved returns a Persist; the broker saves it and then calls persisted()
or persist_failed() with its token, exactly once. Any number may be under way at a time and they may
end in any order. The caller keeps one reader per share-partition between next_fetch_offset() and
acquire(), or at least hands to acquire() what it really read at the offset it names.

Better than Kafka where no client can tell: what a failed best-effort write left unsaved, and
records found missing from the log, go along with the next Persist; a refused acknowledgement list
leaves no lock renewed; nothing becomes a dead letter before it is saved that it is to be one,
because a crash would forget that, and there would be a second one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from random import random
from typing import NamedTuple

from kbroker.errors import KafkaError
from kbroker.share import acknowledge, archiving, leaving, ordering
from kbroker.share.acquire import AcquireMode, Acquisition, Batches, runs_of
from kbroker.share.effects import AckBatch, AcquiredRange, DeadLetter, Persist, ShareSettings, StateBatch
from kbroker.share.held import HeldHere, HeldRecords
from kbroker.share.in_flight_view import InFlightView, in_flight_view
from kbroker.share.lag import Standing
from kbroker.share.leaving import Leavers
from kbroker.share.locks import ANSWERED, Lock
from kbroker.share.parked import Parked
from kbroker.share.parked_keeping import Look
from kbroker.share.parking import Parking
from kbroker.share.record_state import (
    ARCHIVING_CODES,
    DEAD_LETTER_CODES,
    PENDING_ARCHIVING_CODES,
    UNSAVED_ARCHIVING,
    WAITING,
    RecordState,
    given_back,
    given_back_pending,
)
from kbroker.share.runs import Runs, check_state, joined_runs, size_of
from kbroker.share.share_scans import SharePartitionScans
from kbroker.share.share_writes import ParkedPending
from kbroker.share.statistics import SharePartitionStatistics, statistics_of

__all__ = ["AcquireMode", "SharePartition", "SharePartitionStatistics"]

_FIRST_OFFSET = attrgetter("first_offset")
_READ_BETWEEN = 1000


class RanOut(NamedTuple):
    """Since the share-partition was loaded: records whose locks ran out, records that reached the
    delivery limit, and of the former those whose holder was alive, but had them for as long as the
    broker prolongs a lock."""

    timeouts: int
    exhausted: int
    at_lock_max: int


class SharePartition(SharePartitionScans):
    """`settings` may be replaced at any time: the lock duration counts for later locks, the limits
    at once.

    `state_epoch` and `leader_epoch` go with every Persist.
    """

    def __init__(
        self, settings: ShareSettings, *, start_offset: int, state_epoch: int, leader_epoch: int
    ) -> None:
        super().__init__(
            settings, start_offset=start_offset, state_epoch=state_epoch, leader_epoch=leader_epoch
        )
        self._at_lock_max = 0
        self._log_start = 0

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
        """From what the Persister gave; `start_offset` is resolved already (not -1). Raises
        ValueError for state that makes no sense: the share-partition cannot be served then."""
        share_partition = cls(
            settings, start_offset=start_offset, state_epoch=state_epoch, leader_epoch=leader_epoch
        )
        batches = sorted(state_batches)
        check_state(start_offset, batches)
        share_partition._window.load(batches)
        archiving.load(share_partition._window, batches, settings.delivery_count_limit)
        share_partition._advance()
        return share_partition

    @property
    def start_offset(self) -> int:
        """SPSO: the first offset that is not known to be done with."""
        return self._window.start_offset

    @property
    def end_offset(self) -> int:
        """SPEO: the last offset in flight; equal to the SPSO if nothing is."""
        return self._window.end_offset

    @property
    def delivery_complete_count(self) -> int:
        """KIP-1226: offsets from the SPSO on that are acknowledged or archived, those being
        persisted included."""
        return self._window.complete

    def unfinished(self, first: int, end: int) -> int:
        """How many offsets from `first` to `end` - 1 are not done with. Those that will be done
        once that is saved do not count, nor do control batches."""
        return self._window.unfinished(first, end)

    @property
    def unread_from(self) -> int:
        """The first offset that was not read for a member yet."""
        return self._window.unread_from

    def acquirable_in(self, first: int, last: int) -> int:
        """How many offsets of first..last a member could be given now, if there were no limits:
        available ones; where nothing is scanned before, holes of the gap window, and those that
        were not read for a member yet."""
        if self._settings.scans:
            return self._window.count_available(first, last)
        return self._window.acquirable_in(first, last)

    def stands_from(self, offset: int) -> Standing:
        """What is done from `offset` > SPSO on, where the log begins there by now and no fetch has
        noticed it: then log_start_moved() makes that the state. Nothing changes."""
        return self._window.stands_from(offset)

    def next_fetch_offset(self) -> int:
        """Where to read for the next acquire()."""
        return self._window.next_fetch_offset()

    def offset_to_acquire(self) -> int | None:
        """next_fetch_offset(); None if there is nothing to deliver again and no room under the lock
        limit: reading would be for nothing."""
        window, settings = self._window, self._settings
        if self.key_order is not None and not self._has_learnt_keys:
            return None
        if settings.limits_undecided and window.undecided >= settings.max_record_locks:
            return window.next_given_back()
        if settings.scans:
            return window.next_available()
        offset = window.next_fetch_offset()
        if (
            offset != window.end_offset + 1
            or settings.limits_undecided
            or window.in_flight < settings.max_record_locks
        ):
            return offset
        return None

    def offsets_to_read(self, fetch_offset: int, most: int) -> int:
        """From there on, for a member that wants at most so many records, where all of them were
        scanned before: what lies between free records may be thousands that are not, and behind
        them lie thousands that are."""
        last = self._window.available_within(fetch_offset, most)
        return 1 if last is None else max(1, min(last - fetch_offset + 1, most + _READ_BETWEEN))

    def acquirable(self, end_offset: int) -> int:
        """How many records could be acquired now, of a log that ends there."""
        window = self._window
        if self.key_order is not None and not self._has_learnt_keys:
            return 0
        limit, undecided = self._settings.max_record_locks, self._settings.limits_undecided
        has_room = (window.undecided if undecided else window.in_flight) < limit and not self._settings.scans
        new = max(0, end_offset - self.unread_from) if has_room else 0
        new += self.parked_ready
        return new + (
            window.count_of((RecordState.AVAILABLE,), window.start_offset, window.end_offset)
            if window.states
            else 0
        )

    @property
    def parked_ready(self) -> int:
        """How many parked records could be acquired now."""
        if self.parking is None or (self.key_order is not None and not self._has_learnt_keys):
            return 0
        return max(0, min(self.parking.ready, self._settings.max_record_locks - self.parking.held))

    def next_deadline_ms(self) -> float | None:
        """When expire() and end_waits() should be called next; there may turn out to be nothing to
        do. None: no lock is held and nothing waits."""
        by_deadline = self._window.locks.by_deadline
        lock_ms = by_deadline[0].deadline_ms if by_deadline else None
        if self.parking is not None and (parked_ms := self.parking.next_deadline_ms()) is not None:
            lock_ms = parked_ms if lock_ms is None else min(lock_ms, parked_ms)
        if not self._waits or (due_ms := self._waits.next_ms()) is None:
            return lock_ms
        return due_ms if lock_ms is None else min(lock_ms, due_ms)

    @property
    def ran_out(self) -> RanOut:
        return RanOut(self._counters.lock_timeouts, self._exhausted, self._at_lock_max)

    @property
    def is_settled(self) -> bool:
        """Nobody holds a record, nobody has or waits for a dead letter, nothing is being saved or
        waits to be: loaded again from the Persister it would be the same."""
        if self.parking is not None and not self.parking.is_settled:
            return False
        return not (
            self._writes or self._unsaved or self._has(RecordState.ACQUIRED, WAITING, *ARCHIVING_CODES)
        )

    def count_held(self, of_group: HeldRecords | None) -> None:
        """Count from now on what members hold, as a part of `of_group`; None: no more."""
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
        control: Sequence[tuple[int, int]] = (),
        now_ms: float,
    ) -> list[AcquiredRange]:
        """Lock records for the member. `batches` are base and last offset of the record batches
        that a read at `fetch_offset` gave, all of them up to the last; BATCH_OPTIMIZED may give
        more than `max_records`. Empty: nothing for this member now.

        `control`: what was read between them of control batches. Nobody gets those: they are not in
        flight, and next_fetch_offset() is never one of them once they are told of."""
        if self.key_order is not None and not self._has_learnt_keys:
            return []
        deadline_ms = now_ms + self._settings.lock_duration_ms
        ranges: list[AcquiredRange] = []
        room = max_records
        for run, is_control in runs_of(batches, control):
            if is_control:
                for first, last in joined_runs([(batch[0], batch[1]) for batch in run]):
                    self._window.pass_over(first, last)
                continue
            if room <= 0 or not run:
                break
            turn = Acquisition(
                self._window, self._settings, member_id, mode, batch_size, room, deadline_ms, run
            )
            turn.run(fetch_offset)
            if turn.discarded:
                self._unsaved = joined_runs(self._unsaved + turn.discarded)
                self._lose_keys(turn.discarded)
            ranges += turn.ranges
            room -= turn.taken
            self._counters.redeliveries += turn.redelivered
            self._counters.acquired_records += turn.taken
            if self._held is not None:
                self._held.add(member_id, turn.taken)
            fetch_offset = run[-1][1] + 1
            if control and self._window.next_fetch_offset() < fetch_offset:
                break  # There is more of it: what comes behind is not next.
        # if only discarded records or control batches hold the SPSO, no acknowledgement will move
        # it
        if not ranges:
            self._advance()
        return ranges

    def acknowledge(self, member_id: str, batches: Sequence[AckBatch], *, now_ms: float) -> Persist | None:
        """Acknowledge records that the member holds: all batches or none. None: nothing to save, it
        is done.

        Raises KafkaError(invalid_record_state or invalid_request) with a message, and then nothing
        has changed but that locks of records that the list names are not prolonged: clients are
        done with them.
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

    def acquire_parked(self, member_id: str, offsets: Sequence[int], *, now_ms: float) -> list[AcquiredRange]:
        """Lock parked records that are ready for the member. `offsets`: the one whose turn it is
        comes first."""
        parking = self.parking
        ranges = (
            []
            if parking is None or not self._has_learnt_keys
            else parking.acquire(member_id, offsets, now_ms, self._settings)
        )
        taken = sum(last - first + 1 for first, last, _ in ranges)
        self._counters.redeliveries += sum(last - first + 1 for first, last, count in ranges if count > 1)
        self._counters.acquired_records += taken
        self._counters.delayed_deliveries += taken
        if self._held is not None and taken:
            self._held.add(member_id, taken)
        return ranges

    def parked_lost(self, offsets: Iterable[int]) -> Persist | None:
        """The log has no records there any more."""
        return self._persist([]) if self.parking is not None and self.parking.lost(offsets) else None

    def release_member(self, member_id: str, *, delayed_at_ms: float | None = None) -> Persist | None:
        """The member's session is over (or it forgot the partition): what it holds comes back, with
        its delivery count. It waits for its redelivery from `delayed_at_ms` on, or not at all if
        that is None: the session has ended in order."""
        window, settings = self._window, self._settings
        waits = settings.redelivery is not None and delayed_at_ms is not None
        by_count = given_back_pending(settings.delivery_count_limit, settings.dead_letter_queue, waits)
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
        """Take back what has been locked for too long. It is available (or waits) at once, whatever
        becomes of the Persist.

        `alive_ms(member_id)`: for how long the member is known to live from now on. Locks of those
        that live are prolonged, up to `lock_max_ms` in all."""
        window, settings, runs = self._window, self._settings, []
        by_count = given_back(
            settings.delivery_count_limit, settings.dead_letter_queue, settings.redelivery is not None
        )
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
        if self.parking is not None and self._expire_parked(self.parking, now_ms, alive_ms):
            return self._persist_best_effort(runs, to_park)
        return self._persist_best_effort(runs, to_park) if runs else None

    def _expire_parked(
        self, parking: Parking, now_ms: float, alive_ms: Callable[[str], float] | None
    ) -> bool:
        """Whether some came back."""
        ran_out = parking.expire(now_ms, self._settings, alive_ms, random)
        self._counters.prolonged_locks += ran_out.prolonged
        self._at_lock_max += ran_out.at_lock_max
        for member_id, records in ran_out.by_member.items():
            self._counters.lock_timeouts += records
            if self._held is not None:
                self._held.add(member_id, -records)
        return bool(ran_out.by_member)

    def _prolong(self, lock: Lock, held: Runs, now_ms: float, alive_ms: float) -> bool:
        """Whether the holder may go on."""
        settings = self._settings
        if lock.since_ms == ANSWERED:
            return False
        since_ms = lock.deadline_ms - settings.lock_duration_ms if lock.since_ms is None else lock.since_ms
        until_ms = since_ms + settings.lock_max_ms
        if alive_ms <= 0 or until_ms <= now_ms:
            self._at_lock_max += size_of(held) if alive_ms > 0 else 0
            return False
        deadline_ms = min(now_ms + min(settings.lock_duration_ms, alive_ms), until_ms)
        for first, last in held:
            self._window.renew(lock.member_id, first, last, deadline_ms, since_ms)
        self._counters.prolonged_locks += size_of(held)
        return True

    def end_waits(self, now_ms: float, wall_ms: float = 0) -> int:
        """Records whose redelivery is due can be acquired from now on. How many there are of those
        that are saved as returned; the others can be as soon as they are. `wall_ms`: the wall
        clock, which scheduled records go by."""
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

    def log_start_moved(self, new_start_offset: int) -> Persist | None:
        """The log begins later now (retention, DeleteRecords): what is below is done with, without
        a dead letter.

        None if the SPSO is there already. The Persist carries the new start offset; if it fails the
        next one does.
        """
        self._log_start = max(self._log_start, new_start_offset)
        start_offset = self._window.start_offset
        if new_start_offset <= start_offset:
            return None
        if self._held is not None:
            for lock in self._window.locks.by_deadline:
                held = self._window.held_runs(lock)
                gone = [
                    (first, min(last, new_start_offset - 1))
                    for first, last in held
                    if first < new_start_offset
                ]
                self._held.add(lock.member_id, -size_of(gone))
        self._window.drop_below(new_start_offset)
        self._waits.forget_below(new_start_offset)
        self._lose_keys([(start_offset, new_start_offset - 1)])
        return self._persist_best_effort([(start_offset, new_start_offset - 1)])

    def parked_below(self, log_start_offset: int) -> Persist | None:
        """The log begins there now: parked records below it are done with, without dead letters.
        Those that are not in memory are swept (`parking.needs_sweep`)."""
        parking = self.parking
        if parking is None or log_start_offset <= parking.floor:
            return None
        for member_id, records in parking.drop_below(log_start_offset).items():
            if self._held is not None:
                self._held.add(member_id, -records)
        return self._persist([]) if parking.has_unsaved else None

    def purge_parked(self, end_offset: int) -> Persist | None:
        """Somebody has deleted all records below: parked ones are done with as well, kept or not.
        As parked_below()."""
        parking = self.parking
        if parking is None:
            return None
        for member_id, records in parking.purge(end_offset).items():
            if self._held is not None:
                self._held.add(member_id, -records)
        return self._persist([]) if parking.has_unsaved else None

    def begin_look(self) -> Look:
        """Parked records are about to be read for sweep_parked() or keep_parked(); then
        `parking.end_look`."""
        assert self.parking is not None
        writes = (write for *_, write in self._writes.values() if write is not None)
        return self.parking.begin_look(offset for write in writes for offset in write.offsets())

    def sweep_parked(self, found: Iterable[Parked], look: Look) -> Persist | None:
        """Of the parked records that the look has found those below the log's start are done with,
        but for what is kept."""
        return self._persist([]) if self.parking is not None and self.parking.sweep(found, look) else None

    # ---- kept where the log goes (parked_keeping.py, leaving.py) ---------------------------------

    def leavers(self, end_offset: int, limit: int) -> Leavers:
        """What of the window below `end_offset` is not over, and could be parked and kept. Nothing
        while the order of keys is not known yet: a parked record has its key with it."""
        if not self._has_learnt_keys:
            return Leavers((), min(end_offset, self.start_offset))
        return leaving.leavers(self._window, self._waits, end_offset, limit)

    def leave_log(self, records: Mapping[int, bytes], *, now_ms: float) -> Persist | None:
        """Park these records of the window, as far as leavers() would still say so, and keep them.
        They count as parked at once, and go on as they are: held until their deadline, or due. If
        the Persist fails the next one says it again; the log has to stay until one is saved.
        `records`: each as a batch of its own."""
        assert self.parking is not None
        if not self._has_learnt_keys:
            return None
        number = leaving.leave(
            self._window,
            self.parking,
            self._waits,
            records,
            leader_epoch=self.leader_epoch,
            lock_duration_ms=self._settings.lock_duration_ms,
            now_ms=now_ms,
        )
        return self._persist([]) if number else None

    def keep_parked(
        self, found: Iterable[Parked], records: Mapping[int, bytes], look: Look
    ) -> Persist | None:
        """Keep parked records that the look has found, as leave_log() does."""
        return (
            self._persist([])
            if self.parking is not None and self.parking.keep(found, records, look)
            else None
        )

    # ---- dead letters (KIP-1191) -----------------------------------------------------------------

    @property
    def has_dead_letters(self) -> bool:
        """True if take_dead_letters() would give some."""
        if self.parking is not None and (not self.parking.knows_archiving or self.parking.has_dead_letters):
            return self.parking.knows_archiving
        return self._has(*DEAD_LETTER_CODES)

    def take_dead_letters(self) -> list[DeadLetter]:
        """Hand out what is ARCHIVING, saved, and was not handed out before, in offset order.
        Whoever takes it says what became of it with dead_lettered() or give_back_dead_letters()."""
        if self.parking is not None and not self.parking.knows_archiving:
            return []
        taken = archiving.take(self._window)
        parked = [] if self.parking is None else self.parking.take_dead_letters()
        return sorted([*taken, *parked], key=_FIRST_OFFSET) if parked else taken

    def dead_lettered(self, runs: Sequence[tuple[int, int]]) -> Persist | None:
        """These offsets, handed out before, are durable in the dead letter queue, or will never be:
        they are ARCHIVED. What the log start has passed meanwhile is skipped; None if nothing else
        is there. If the Persist fails they go with the next one.

        Raises ValueError for an offset that is not handed out, and then nothing has changed.
        """
        parked, runs = self._handed_out(runs)
        ended = archiving.end(self._window, joined_runs(runs))
        if self.parking is not None:
            self.parking.dead_lettered(parked)
        if not ended and not parked:
            return None
        self._counters.dead_lettered += len(parked) + sum(last - first + 1 for first, last in ended)
        persist = self._persist_best_effort(ended)
        self._advance()
        return persist

    def _handed_out(self, runs: Sequence[tuple[int, int]]) -> tuple[list[int], Sequence[tuple[int, int]]]:
        """Which of these offsets are parked, and the rest."""
        parked = [] if self.parking is None else self.parking.handed_out(runs)
        if not parked:
            return [], runs
        known = set(parked)
        rest = [offset for first, last in runs for offset in range(first, last + 1) if offset not in known]
        return parked, joined_runs([(offset, offset) for offset in rest])

    def give_back_dead_letters(self, runs: Sequence[tuple[int, int]]) -> None:
        """These offsets, handed out before, were not written: take_dead_letters() gives them
        again."""
        parked, runs = self._handed_out(runs)
        archiving.give_back(self._window, runs)
        if self.parking is not None:
            self.parking.give_back_dead_letters(parked)

    @property
    def has_unsaved_archiving(self) -> bool:
        """True if a failed write left records ARCHIVING that are not saved as that: time for
        retry_unsaved()."""
        if self.parking is not None and self.parking.has_unsaved_archiving:
            return True
        return any(self._window.has((UNSAVED_ARCHIVING,), first, last) for first, last in self._unsaved)

    def retry_unsaved(self) -> Persist | None:
        """What failed best-effort writes left unsaved, once more, without waiting for the next
        Persist. None: nothing is."""
        return self._persist([]) if self.has_unsaved else None

    @property
    def has_archiving(self) -> bool:
        """True while a record is or becomes ARCHIVING, or is still saved as that although it is
        ARCHIVED here: what was noted about its way into the dead letter queue may be needed. Then,
        with nothing else left to do, retry_unsaved()."""
        if self._unsaved or any(decided or passed for _, decided, passed, _, _ in self._writes.values()):
            return True
        if self.parking is not None and self.parking.has_archiving:
            return True
        return self._has(*ARCHIVING_CODES, *PENDING_ARCHIVING_CODES)

    def in_flight_view(self, now_ms: float, log_start_offset: int = 0) -> InFlightView:
        """What is in flight, in a log that begins there, and who holds it, for people."""
        return in_flight_view(self._window, self._settings.max_record_locks, now_ms, log_start_offset)

    def statistics(self) -> SharePartitionStatistics:
        return statistics_of(self._window, self.parking, self.key_order, self._counters, len(self._writes))

    @property
    def _exhausted(self) -> int:
        return self._window.exhausted + (0 if self.parking is None else self.parking.exhausted)
