"""A share-partition: the queue that one share group has over one topic partition (KIP-932). Decides, and gives back effects.

    log       ... | terminal | in flight: available, acquired, acknowledged, archived ... | not read yet ...
                             SPSO                                                       SPEO

    acquire ----------> ACQUIRED until its lock's deadline
    acknowledge ------> pending --persisted--> final, SPSO moves     (persist_failed: back to its holder, or to everybody
    release_member ---> pending --persisted--> AVAILABLE              if the lock has run out meanwhile)
    expire -----------> AVAILABLE at once; saving that is best effort

With a dead letter queue (KIP-1191) rejected and exhausted records become ARCHIVING, and once that is saved

    take_dead_letters -> the broker writes them there -> dead_lettered -> ARCHIVED at once, SPSO moves; saving is best effort

Everything is synchronous and pure: no bytes, no clock (`now_ms` is any monotonic milliseconds), no I/O. A method that must be
saved returns a Persist; the broker saves it and then calls persisted() or persist_failed() with its token, exactly once. Any
number may be under way at a time and they may end in any order. The caller keeps one reader per share-partition between
next_fetch_offset() and acquire(), or at least hands to acquire() what it really read at the offset it names.

Better than Kafka where no client can tell: what a failed best-effort write left unsaved, and records found missing from the log,
go along with the next Persist; a refused acknowledgement list leaves no lock renewed; nothing becomes a dead letter before it is
saved that it is to be one, because a crash would forget that, and there would be a second one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import random
from typing import NamedTuple, TypeAlias

from kbroker.share import acknowledge, archiving
from kbroker.share.acquire import AcquireMode, Acquisition, Batches, runs_of
from kbroker.share.effects import AckBatch, AcquiredRange, DeadLetter, Persist, ShareSettings, StateBatch
from kbroker.share.held import HeldHere, HeldRecords
from kbroker.share.in_flight import AVAILABLE, MAX_SPAN, InFlightWindow
from kbroker.share.in_flight_view import InFlightView, batch_count, in_flight_view
from kbroker.share.lag import Standing
from kbroker.share.locks import Lock
from kbroker.share.record_state import (
    ARCHIVING_CODES,
    CONTROL,
    DEAD_LETTER_CODES,
    HOLE,
    MAX_DELIVERY_COUNT,
    PENDING_ARCHIVING_CODES,
    PENDING_CODES,
    STATE,
    TERMINAL_OR_PENDING,
    UNSAVED_ARCHIVING,
    WAITING,
    RecordState,
    given_back,
    given_back_pending,
)
from kbroker.share.redelivery import Waits

__all__ = ["AcquireMode", "SharePartition", "SharePartitionStatistics"]

Runs = list[tuple[int, int]]
_UNDECIDED = frozenset((RecordState.ACQUIRED, HOLE, *PENDING_CODES))
_new_persist: Callable[[tuple[int, int, int, tuple[StateBatch, ...], int, int]], Persist] = partial(tuple.__new__, Persist)
"""A Persist without two calls: there is one for each acknowledgement list."""


@dataclass(frozen=True, slots=True)
class SharePartitionStatistics:
    """`in_flight` counts offsets from SPSO to SPEO, in cached `batches`; the seven after it count records by state (`waiting`: for
    their redelivery; `pending`: being persisted, not counted elsewhere). From `acquired_records` on they count since the
    share-partition was loaded: `rejected` by clients and `exhausted`, the delivery limit reached, when that happens, even if saving
    it fails and it happens again; `dead_lettered` what dead_lettered() has ended."""

    start_offset: int
    end_offset: int
    in_flight: int
    batches: int
    available: int
    waiting: int
    acquired: int
    pending: int
    acknowledged: int
    archiving: int
    archived: int
    delivery_complete_count: int
    locks: int
    writes_under_way: int
    acquired_records: int
    redeliveries: int
    lock_timeouts: int
    prolonged_locks: int
    failed_writes: int
    rejected: int
    exhausted: int
    dead_lettered: int


class RanOut(NamedTuple):
    """Since the share-partition was loaded: records whose locks ran out, records that reached the delivery limit, and of the former
    those whose holder was alive, but had them for as long as the broker prolongs a lock."""

    timeouts: int
    exhausted: int
    at_lock_max: int


_Write: TypeAlias = tuple[Runs, Sequence[StateBatch], Sequence[tuple[int, int]], str | None]
"""A Persist under way: pending, decided, passed, the holder of what is pending. What was pending is final if it succeeds. The others
are so in any case and go with the next one if it fails: `decided` is what it says beside the pending runs, `passed` what the SPSO
that it says has left behind."""


class SharePartition:
    """`settings` may be replaced at any time: the lock duration counts for later locks, the limits at once.

    `state_epoch` and `leader_epoch` go with every Persist.
    """

    def __init__(self, settings: ShareSettings, *, start_offset: int, state_epoch: int, leader_epoch: int) -> None:
        self.state_epoch = state_epoch
        self.leader_epoch = leader_epoch
        self._settings = settings
        self._window = InFlightWindow(start_offset)
        self._writes: dict[int, _Write] = {}
        self._last_token = 0
        self._unsaved: Runs = []  # final, but not known to be saved; in order, also what the SPSO has passed since
        self._waits = Waits()
        self._held: HeldHere | None = None
        self._acquired_records = self._redeliveries = self._lock_timeouts = self._failed_writes = self._dead_lettered = 0
        self._prolonged = self._at_lock_max = 0

    @classmethod
    def load(
        cls, settings: ShareSettings, *, start_offset: int, state_batches: Sequence[StateBatch], state_epoch: int, leader_epoch: int
    ) -> SharePartition:
        """From what the Persister gave; `start_offset` is resolved already (not -1). Raises ValueError for state that makes no
        sense: the share-partition cannot be served then."""
        share_partition = cls(settings, start_offset=start_offset, state_epoch=state_epoch, leader_epoch=leader_epoch)
        batches = sorted(state_batches)
        _check_state(start_offset, batches)
        share_partition._window.load(batches)
        archiving.load(share_partition._window, batches, settings.delivery_count_limit)
        share_partition._advance()
        return share_partition

    @property
    def settings(self) -> ShareSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: ShareSettings) -> None:
        self._settings = settings
        self._advance()

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
        """KIP-1226: offsets from the SPSO on that are acknowledged or archived, those being persisted included."""
        return self._window.complete

    def unfinished(self, first: int, end: int) -> int:
        """How many offsets from `first` to `end` - 1 are not done with. Those that will be done once that
        is saved do not count, nor do control batches."""
        window = self._window
        first = max(first, window.start_offset)
        if first >= end:
            return 0
        last = min(end - 1, window.end_offset)
        if not window.states or first > last:
            return end - first
        return end - first - window.count_of((*TERMINAL_OR_PENDING, CONTROL), first, last)

    @property
    def unread_from(self) -> int:
        """The first offset that was not read for a member yet."""
        return self._window.end_offset + 1 if self._window.states else self._window.start_offset

    def acquirable_in(self, first: int, last: int) -> int:
        """How many offsets of first..last a member could be given now, if there were no limits:
        available ones, holes of the gap window, and those that were not read for a member yet."""
        window = self._window
        first, unread_from = max(first, window.start_offset), self.unread_from
        unread = max(0, last + 1 - max(first, unread_from))
        if first >= unread_from:
            return unread
        last = min(last, window.end_offset)
        available = window.count_of((AVAILABLE,), first, last)
        if window.gap_open and last >= window.gap_start:
            available += window.count_of((HOLE,), max(first, window.gap_start), last)
        return available + unread

    def stands_from(self, offset: int) -> Standing:
        """What is done from `offset` > SPSO on, where the log begins there by now and no fetch has noticed it: then log_start_moved()
        makes that the state. Nothing changes."""
        return self._window.stands_from(offset)

    def next_fetch_offset(self) -> int:
        """Where to read for the next acquire()."""
        return self._window.next_fetch_offset()

    def offset_to_acquire(self) -> int | None:
        """next_fetch_offset(); None if there is nothing to deliver again and no room under the lock limit: reading would be for nothing."""
        window = self._window
        offset = window.next_fetch_offset()
        return offset if offset != window.end_offset + 1 or window.in_flight < self._settings.max_record_locks else None

    def acquirable(self, end_offset: int) -> int:
        """How many records could be acquired now, of a log that ends there."""
        window = self._window
        new = max(0, end_offset - self.unread_from) if window.in_flight < self._settings.max_record_locks else 0
        return new + (window.count_of((RecordState.AVAILABLE,), window.start_offset, window.end_offset) if window.states else 0)

    def next_deadline_ms(self) -> float | None:
        """When expire() and end_waits() should be called next; there may turn out to be nothing to do. None: no lock is held and
        nothing waits."""
        by_deadline = self._window.locks.by_deadline
        lock_ms = by_deadline[0].deadline_ms if by_deadline else None
        if not self._waits or (due_ms := self._waits.next_ms()) is None:
            return lock_ms
        return due_ms if lock_ms is None else min(lock_ms, due_ms)

    @property
    def ran_out(self) -> RanOut:
        return RanOut(self._lock_timeouts, self._window.exhausted, self._at_lock_max)

    @property
    def is_settled(self) -> bool:
        """Nobody holds a record, nobody has or waits for a dead letter, nothing is being saved or waits to be: loaded again from
        the Persister it would be the same."""
        return not (self._writes or self._unsaved or self._has(RecordState.ACQUIRED, WAITING, *ARCHIVING_CODES))

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
        for pending, _, _, member_id in self._writes.values():
            if member_id is not None:
                self._held.add(member_id, _size(pending))

    # ---- the life of a record --------------------------------------------------------------------------------------

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
        """Lock records for the member. `batches` are base and last offset of the record batches that a read at `fetch_offset`
        gave, all of them up to the last; BATCH_OPTIMIZED may give more than `max_records`. Empty: nothing for this member now.

        `control`: what was read between them of control batches. Nobody gets those: they are not in flight, and next_fetch_offset()
        is never one of them once they are told of."""
        deadline_ms = now_ms + self._settings.lock_duration_ms
        ranges: list[AcquiredRange] = []
        room = max_records
        for run, is_control in runs_of(batches, control):
            if is_control:
                for first, last in _joined([(batch[0], batch[1]) for batch in run]):
                    self._window.pass_over(first, last)
                continue
            if room <= 0 or not run:
                break
            turn = Acquisition(self._window, self._settings, member_id, mode, batch_size, room, deadline_ms, run)
            turn.run(fetch_offset)
            if turn.discarded:
                self._unsaved = _joined(self._unsaved + turn.discarded)
            ranges += turn.ranges
            room -= turn.taken
            self._redeliveries += turn.redelivered
            self._acquired_records += turn.taken
            if self._held is not None:
                self._held.add(member_id, turn.taken)
            fetch_offset = run[-1][1] + 1
            if control and self._window.next_fetch_offset() < fetch_offset:
                break  # There is more of it: what comes behind is not next.
        if not ranges:  # if only discarded records or control batches hold the SPSO, no acknowledgement will move it
            self._advance()
        return ranges

    def acknowledge(self, member_id: str, batches: Sequence[AckBatch], *, now_ms: float) -> Persist | None:
        """Acknowledge records that the member holds: all batches or none. None: nothing to save, it is done.

        Raises KafkaError(invalid_record_state or invalid_request) with a message, and then nothing has changed.
        """
        checked = acknowledge.check(self._window, self._settings, member_id, batches)
        pending = acknowledge.apply(self._window, self._settings, member_id, checked, now_ms=now_ms)
        if self._settings.redelivery is not None:
            self._begin_waits(pending, now_ms)
        return self._persist(pending, member_id) if pending else None

    def release_member(self, member_id: str, *, delayed_at_ms: float | None = None) -> Persist | None:
        """The member's session is over (or it forgot the partition): what it holds comes back, with its delivery count. It waits for
        its redelivery from `delayed_at_ms` on, or not at all if that is None: the session has ended in order."""
        window, settings = self._window, self._settings
        waits = settings.redelivery is not None and delayed_at_ms is not None
        by_count = given_back_pending(settings.delivery_count_limit, settings.dead_letter_queue, waits)
        runs = _joined([run for lock in window.locks.of_member(member_id) for run in window.held_runs(lock)])
        for first, last in runs:
            window.exhausted += window.give_back(first, last, by_count)
        if delayed_at_ms is not None:
            self._begin_waits(runs, delayed_at_ms)
        return self._persist(runs, member_id) if runs else None

    def expire(self, now_ms: float, alive_ms: Callable[[str], float] | None = None) -> Persist | None:
        """Take back what has been locked for too long. It is available (or waits) at once, whatever becomes of the Persist.

        `alive_ms(member_id)`: for how long the member is known to live from now on. Locks of those that live are prolonged, up
        to `lock_max_ms` in all."""
        window, settings, runs = self._window, self._settings, []
        by_count = given_back(settings.delivery_count_limit, settings.dead_letter_queue, settings.redelivery is not None)
        for lock in list(window.locks.due(now_ms)):
            held = list(window.held_runs(lock))
            if settings.lock_max_ms and held and alive_ms is not None and self._prolong(lock, held, now_ms, alive_ms(lock.member_id)):
                continue
            for first, last in held:
                window.exhausted += window.give_back(first, last, by_count)
            self._lock_timeouts += _size(held)
            if self._held is not None:
                self._held.add(lock.member_id, -_size(held))
            runs += held
        self._begin_waits(runs, now_ms)
        return self._persist_best_effort(runs) if runs else None

    def _prolong(self, lock: Lock, held: Runs, now_ms: float, alive_ms: float) -> bool:
        """Whether the holder may go on."""
        settings = self._settings
        since_ms = lock.deadline_ms - settings.lock_duration_ms if lock.since_ms is None else lock.since_ms
        until_ms = since_ms + settings.lock_max_ms
        if alive_ms <= 0 or until_ms <= now_ms:
            self._at_lock_max += _size(held) if alive_ms > 0 else 0
            return False
        deadline_ms = min(now_ms + min(settings.lock_duration_ms, alive_ms), until_ms)
        for first, last in held:
            self._window.renew(lock.member_id, first, last, deadline_ms, since_ms)
        self._prolonged += _size(held)
        return True

    def _begin_waits(self, runs: Runs, now_ms: float) -> None:
        """What came back in these runs is due some time after now."""
        window, redelivery = self._window, self._settings.redelivery
        if redelivery is None:
            return
        for first, last in runs:
            i, j = first - window.base, last + 1 - window.base
            for offset, code, count in zip(range(first, last + 1), window.states[i:j], window.counts[i:j], strict=True):
                if code & WAITING:
                    self._waits.begin(offset, now_ms + redelivery.wait_ms(count, random()))

    def end_waits(self, now_ms: float) -> int:
        """Records whose redelivery is due can be acquired from now on. How many there are of those that are saved as returned; the
        others can be as soon as they are."""
        return sum(map(self._window.end_wait, self._waits.take_due(now_ms)))

    def log_start_moved(self, new_start_offset: int) -> Persist | None:
        """The log begins later now (retention, DeleteRecords): what is below is done with, without a dead letter.

        None if the SPSO is there already. The Persist carries the new start offset; if it fails the next one does.
        """
        start_offset = self._window.start_offset
        if new_start_offset <= start_offset:
            return None
        if self._held is not None:
            for lock in self._window.locks.by_deadline:
                held = self._window.held_runs(lock)
                gone = [(first, min(last, new_start_offset - 1)) for first, last in held if first < new_start_offset]
                self._held.add(lock.member_id, -_size(gone))
        self._window.drop_below(new_start_offset)
        self._waits.forget_below(new_start_offset)
        return self._persist_best_effort([(start_offset, new_start_offset - 1)])

    # ---- dead letters (KIP-1191) -----------------------------------------------------------------------------------

    @property
    def has_dead_letters(self) -> bool:
        """True if take_dead_letters() would give some."""
        return self._has(*DEAD_LETTER_CODES)

    def take_dead_letters(self) -> list[DeadLetter]:
        """Hand out what is ARCHIVING, saved, and was not handed out before, in offset order. Whoever takes it says what became of
        it with dead_lettered() or give_back_dead_letters()."""
        return archiving.take(self._window)

    def dead_lettered(self, runs: Sequence[tuple[int, int]]) -> Persist | None:
        """These offsets, handed out before, are durable in the dead letter queue, or will never be: they are ARCHIVED. What the log
        start has passed meanwhile is skipped; None if nothing else is there. If the Persist fails they go with the next one.

        Raises ValueError for an offset that is not handed out, and then nothing has changed.
        """
        ended = archiving.end(self._window, _joined(runs))
        if not ended:
            return None
        self._dead_lettered += sum(last - first + 1 for first, last in ended)
        persist = self._persist_best_effort(ended)
        self._advance()
        return persist

    def give_back_dead_letters(self, runs: Sequence[tuple[int, int]]) -> None:
        """These offsets, handed out before, were not written: take_dead_letters() gives them again."""
        archiving.give_back(self._window, runs)

    @property
    def has_unsaved_archiving(self) -> bool:
        """True if a failed write left records ARCHIVING that are not saved as that: time for retry_unsaved()."""
        return any(self._window.has((UNSAVED_ARCHIVING,), first, last) for first, last in self._unsaved)

    def retry_unsaved(self) -> Persist | None:
        """What failed best-effort writes left unsaved, once more, without waiting for the next Persist. None: nothing is."""
        return self._persist([]) if self._unsaved else None

    @property
    def has_archiving(self) -> bool:
        """True while a record is or becomes ARCHIVING, or is still saved as that although it is ARCHIVED here: what was noted about
        its way into the dead letter queue may be needed. Then, with nothing else left to do, retry_unsaved()."""
        if self._unsaved or any(decided or passed for _, decided, passed, _ in self._writes.values()):
            return True
        return self._has(*ARCHIVING_CODES, *PENDING_ARCHIVING_CODES)

    # ---- what became of a Persist ----------------------------------------------------------------------------------

    def persisted(self, token: int) -> None:
        """The Persist with this token is saved: what it said is final, and the SPSO may move."""
        pending, decided, _, member_id = self._writes.pop(token)
        for first, last in pending:
            self._window.settle(first, last)
        if self._held is not None and member_id is not None:
            self._held.add(member_id, -_size(pending))
        for batch in decided:
            if batch.state == RecordState.ARCHIVING:
                self._window.settle(batch.first_offset, batch.last_offset)
        self._advance()

    def persist_failed(self, token: int, *, now_ms: float) -> None:
        """The Persist with this token is not saved. Records go back to their holder, or to everybody where the lock has run out."""
        pending, decided, passed, member_id = self._writes.pop(token)
        self._failed_writes += 1
        unsaved = [*self._unsaved, *passed, *((batch.first_offset, batch.last_offset) for batch in decided)]
        by_count = given_back(self._settings.delivery_count_limit, waits=self._settings.redelivery is not None)
        for first, last in pending:
            returned = self._window.roll_back(first, last, by_count, now_ms)
            self._begin_waits(returned, now_ms)
            unsaved += returned
        if self._held is not None and member_id is not None:
            still = sum(self._window.count_of((RecordState.ACQUIRED,), *run) for run in self._from_start(pending))
            self._held.add(member_id, still - _size(pending))
        self._unsaved = _joined(unsaved)
        self._advance()

    def _persist_best_effort(self, runs: Runs) -> Persist:
        """Save what these are already, and are whether that succeeds or not."""
        self._unsaved = _joined([*self._unsaved, *runs])
        return self._persist([])

    def _persist(self, pending: Runs, member_id: str | None = None) -> Persist:
        """What is pending now, held by the member, and along with it whatever waits to be saved."""
        window = self._window
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
        self._writes[token] = pending, decided, passed, member_id
        return _new_persist((token, window.start_offset, window.complete, tuple(batches), self.state_epoch, self.leader_epoch))

    def _decided(self, runs: Runs) -> Iterator[StateBatch]:
        """The present state of runs from the SPSO on, without what is on its way by other means (held, or pending)."""
        for first, last in self._from_start(runs):
            for batch in self._window.runs(first, last):
                if batch.state not in _UNDECIDED:
                    yield batch._replace(state=batch.state & STATE)

    def _from_start(self, runs: Runs) -> Runs:
        """What of the runs is not below the SPSO."""
        start_offset = self._window.start_offset
        return [(max(first, start_offset), last) for first, last in runs if last >= start_offset]

    def _has(self, *codes: int) -> bool:
        return self._window.has(codes, self._window.start_offset, self._window.end_offset)

    def _advance(self) -> None:
        window = self._window
        window.advance()
        if window.gap_end == window.end_offset and window.in_flight >= self._settings.max_record_locks and not window.has_gap:
            # Kafka would wait for data beyond the gap window, which the full window does not let in.
            window.gap_end = -1
            window.advance()

    def in_flight_view(self, now_ms: float, log_start_offset: int = 0) -> InFlightView:
        """What is in flight, in a log that begins there, and who holds it, for people."""
        return in_flight_view(self._window, self._settings.max_record_locks, now_ms, log_start_offset)

    def statistics(self) -> SharePartitionStatistics:
        window = self._window
        first, last = window.start_offset, window.end_offset

        def count(*codes: int) -> int:
            return window.count_of(codes, first, last) if window.states else 0

        return SharePartitionStatistics(
            start_offset=first,
            end_offset=last,
            in_flight=window.in_flight,
            batches=batch_count(window),
            available=count(RecordState.AVAILABLE),
            waiting=count(WAITING),
            acquired=count(RecordState.ACQUIRED),
            pending=count(*PENDING_CODES),
            acknowledged=count(RecordState.ACKNOWLEDGED),
            archiving=count(*ARCHIVING_CODES),
            archived=count(RecordState.ARCHIVED),
            delivery_complete_count=window.complete,
            locks=len(window.locks),
            writes_under_way=len(self._writes),
            acquired_records=self._acquired_records,
            redeliveries=self._redeliveries,
            lock_timeouts=self._lock_timeouts,
            prolonged_locks=self._prolonged,
            failed_writes=self._failed_writes,
            rejected=window.rejected,
            exhausted=window.exhausted,
            dead_lettered=self._dead_lettered,
        )


def _size(runs: Runs) -> int:
    return sum(last - first + 1 for first, last in runs)


def _joined(runs: Sequence[tuple[int, int]]) -> Runs:
    """Runs in offset order, neighbours joined."""
    if len(runs) < 2:
        return list(runs)
    joined: Runs = []
    for first, last in sorted(runs):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def _check_state(start_offset: int, batches: Sequence[StateBatch]) -> None:
    if start_offset < 0:
        raise ValueError(f"start offset {start_offset}")
    next_offset = start_offset
    for batch in batches:
        if batch.first_offset < next_offset or batch.last_offset < batch.first_offset:
            raise ValueError(f"{batch}: below the start offset, upside down, or overlapping the one before")
        if batch.state not in RecordState.__members__.values():
            raise ValueError(f"{batch}: unknown record state")
        if not 0 <= batch.delivery_count <= MAX_DELIVERY_COUNT:
            raise ValueError(f"{batch}: delivery count out of range")
        next_offset = batch.last_offset + 1
    if next_offset - start_offset > MAX_SPAN:
        raise ValueError(f"state for {next_offset - start_offset} offsets from {start_offset} on, more than {MAX_SPAN}")
