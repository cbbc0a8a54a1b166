"""The parked records of one share-partition (parked.py): which are due, which members hold, which
changes are to be saved.

                      .--------------------- due: make_ready() ---.
                      v                                           |
    window --park--> QUEUED --> (due) --> READY --acquire--> HELD |
                      ^                                       |   |
                      '---- released, timed out ---- PENDING <'   |
                                                        |
                         accepted: gone     rejected: ARCHIVING --dead letter--> gone

Only the records that are due next are in memory (parked_order.py). An acquisition changes nothing
in the store: after a crash the record is parked as it was. A client's acknowledgement is PENDING
until it is saved. Changes without a client (a lock runs out) are final at once, and the next write
saves them.

The class is put together from parts:

    parked_memory.py     which records are in memory, and which are due
    parked_keeping.py    records whose bytes are kept beside the log
    parked_saving.py     what a write saves, and what becomes of it
    parking.py           members, time, the log's start, dead letters

Times: `now_ms` is the engine's, monotonic. Due times are milliseconds since 1970, `ahead_ms` of the
lane ahead of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop
from itertools import islice
from math import ceil
from operator import attrgetter
from typing import NamedTuple

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share import rules
from kbroker.share.effects import AckBatch, AcquiredRange, DeadLetter, DeadLetterCause, ShareSettings
from kbroker.share.locks import ANSWERED
from kbroker.share.parked import Lane, Parked
from kbroker.share.parked_keeping import Look
from kbroker.share.parked_memory import DEAD, SETTLED, Code, Entry
from kbroker.share.parked_saving import ParkedSaving
from kbroker.share.record_state import RecordState
from kbroker.share.rules import Event

_offset = attrgetter("offset")
_GIVEN_UP_AT_ONCE = 300
"""Parked records at a lowered limit that one fetch gives up."""


class RanOutHere(NamedTuple):
    """Records whose locks ran out, by former holder; of these, those of a live holder; and records
    whose locks were prolonged."""

    by_member: Mapping[str, int]
    at_lock_max: int
    prolonged: int


class Parking(ParkedSaving):
    """`waiting`: how many records are parked, by all decisions so far. `life_ahead_ms`: added to
    `now_ms`, it gives the time since 1970, for the whole life of the broker."""

    # ---- questions -------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """True if reloading would give the same state."""
        return not (self.held or self._unsaved or self._ghosts or self._leaving or self.needs_sweep) and all(
            entry.code in SETTLED for entry in self.entries.values()
        )

    @property
    def has_unsaved(self) -> bool:
        return bool(self._unsaved or self._ghosts)

    @property
    def has_unsaved_archiving(self) -> bool:
        return any(
            self.entries[offset].code == Code.UNSAVED_ARCHIVING
            for offset in self._unsaved
            if offset in self.entries
        )

    def held_by(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for entry in self.entries.values():
            if entry.code == Code.HELD and entry.member_id is not None:
                found[entry.member_id] = found.get(entry.member_id, 0) + 1
        return found

    def next_deadline_ms(self) -> float | None:
        """When to call expire() and make_ready() next; they may then find nothing to do."""
        while self._locks and not self._is_lock(*self._locks[0]):
            heappop(self._locks)
        due_ms = self._next_due_ms()
        if not self._locks:
            return due_ms
        return self._locks[0][0] if due_ms is None else min(due_ms, self._locks[0][0])

    # ---- time ------------------------------------------------------------------------------------

    def first_lock_ms(self, member_id: str) -> float | None:
        """When the first lock of the member ends; None: it holds none of these records."""
        locks = (lock for lock in self._locks if self._is_lock(*lock))
        held = (ends_ms for ends_ms, offset in locks if self.entries[offset].member_id == member_id)
        return min(held, default=None)

    def _is_lock(self, deadline_ms: float, offset: int) -> bool:
        entry = self.entries.get(offset)
        return entry is not None and entry.code == Code.HELD and entry.deadline_ms == deadline_ms

    def expire(
        self,
        now_ms: float,
        settings: ShareSettings,
        alive_ms: Callable[[str], float] | None,
        drawn: Callable[[], float],
    ) -> RanOutHere:
        """Take back records whose locks have run out, as SharePartition.expire() does."""
        by_member: dict[str, int] = {}
        at_lock_max = prolonged = 0
        while self._locks and self._locks[0][0] <= now_ms:
            entry = self.entries.get(self._locks[0][1])
            if not self._is_lock(*heappop(self._locks)) or entry is None or entry.member_id is None:
                continue
            alive = alive_ms(entry.member_id) if settings.lock_max_ms and alive_ms is not None else 0
            until_ms = rules.prolonged_until(entry.since_ms, settings, now_ms, alive)
            if until_ms is not None:
                self._lock(entry, until_ms)
                prolonged += 1
                continue
            at_lock_max += alive > 0 and entry.since_ms != ANSWERED
            by_member[entry.member_id] = by_member.get(entry.member_id, 0) + 1
            self._return(entry, now_ms, settings, drawn())
        return RanOutHere(by_member, at_lock_max, prolonged)

    # ---- members ---------------------------------------------------------------------------------

    def park(self, offset: int, due_ms: float, delivery_count: int) -> Parked:
        """A record of the window, to be parked until that time of the engine's clock."""
        due_ms += self._ahead_ms[Lane.REDELIVERY]
        return Parked(
            offset,
            Lane.REDELIVERY,
            ceil(due_ms),
            delivery_count,
            self._leader_epoch,
            key_hash=self._key_hash(offset),
        )

    def _key_hash(self, offset: int) -> int | None:
        return None if self.key_order is None else self.key_order.hash_of(offset)

    def schedule(self, offset: int, due_ms: int) -> Parked:
        """A record that was never delivered, to be parked until that time since 1970."""
        return Parked(offset, Lane.SCHEDULE, due_ms, 0, self._leader_epoch, key_hash=self._key_hash(offset))

    @property
    def archiving(self) -> int:
        """How many dead letters are to be written, or will be once that is saved. All of them are
        in memory."""
        return self._orders[Lane.ARCHIVING].size + self._expiring

    def expire_new(self, offset: int, delivery_count: int) -> Parked:
        """A record of the window that is not held and past its time to live: a dead letter is to be
        written."""
        return Parked(
            offset,
            Lane.ARCHIVING,
            0,
            delivery_count,
            self._leader_epoch,
            expired=True,
            key_hash=self._key_hash(offset),
        )

    def expire_ready(self, offsets: Iterable[int], settings: ShareSettings) -> int:
        """Those of these records that are due and not held are past their time to live. Returns
        their number."""
        entries = [self._ready[offset] for offset in offsets if offset in self._ready]
        for entry in entries:
            self._give_up_ready(entry, Event.EXPIRE, settings)
        return len(entries)

    def _give_up_exhausted(self, settings: ShareSettings) -> None:
        """Not only those that were about to be delivered, as each turn is a write."""
        gives_up_from = rules.gives_up_from(settings)
        exhausted = (entry for entry in self._ready.values() if entry.count >= gives_up_from)
        for entry in list(islice(exhausted, _GIVEN_UP_AT_ONCE)):
            self._give_up_ready(entry, Event.LIMIT, settings)
            self.exhausted += 1

    def _give_up_ready(self, entry: Entry, event: Event, settings: ShareSettings) -> None:
        fate = rules.decide(RecordState.AVAILABLE, entry.count, event, settings)
        if fate.state is not RecordState.ARCHIVING:
            self._remove(entry)
            return
        self._leave_line(entry)
        entry.expired = fate.cause is DeadLetterCause.EXPIRED
        entry.lane, entry.due_ms = Lane.ARCHIVING, 0
        self._line_up(entry)
        entry.code = Code.UNSAVED_ARCHIVING
        self._unsaved[entry.offset] = None

    def acquire(
        self,
        member_id: str,
        offsets: Sequence[int],
        now_ms: float,
        settings: ShareSettings,
        room: int,
        *,
        follows: int,
    ) -> list[AcquiredRange]:
        """Lock those of these records that are still ready, in offset order, and `room` at most.
        The first is taken before all others; one near its delivery limit is taken alone
        (KAFKA-17541), and not where the response has others before it (`follows`). In a queue,
        records that have reached the limit, because it was lowered, end as if they had returned
        now."""
        ranges: list[AcquiredRange] = []
        gives_up_from, suspect_from = rules.gives_up_from(settings), rules.suspect_from(settings)
        entries = [self._ready[offset] for offset in offsets if offset in self._ready]
        if any(entry.count >= gives_up_from for entry in entries):
            self._give_up_exhausted(settings)
            entries = [entry for entry in entries if entry.count < gives_up_from]
        if entries and entries[0].count < suspect_from:
            entries = [entry for entry in entries if entry.count < suspect_from]
        else:
            del entries[0 if follows else 1 :]
        del entries[room:]
        for entry in sorted(entries, key=_offset):
            offset = entry.offset
            self._leave_line(entry)
            self.held += 1
            entry.code, entry.member_id, entry.since_ms = Code.HELD, member_id, now_ms
            entry.count = rules.COUNT_UP[entry.count]
            self._lock(entry, now_ms + settings.lock_duration_ms)
            if ranges and ranges[-1].last_offset + 1 == offset and ranges[-1].delivery_count == entry.count:
                ranges[-1] = ranges[-1]._replace(last_offset=offset)
            else:
                ranges.append(AcquiredRange(offset, offset, entry.count))
        return ranges

    def split(
        self, member_id: str, batches: Sequence[AckBatch]
    ) -> tuple[list[AckBatch], list[tuple[Entry, list[int]]]]:
        """Splits an acknowledgement list into batches of the window, and parked records with their
        types in order.

        Raises KafkaError(invalid_record_state) for a parked record that the member does not hold;
        nothing has changed then.
        """
        rest: list[AckBatch] = []
        named: dict[int, list[int]] = {}
        for batch in batches:
            first, last, types = batch
            offsets = [
                offset
                for offset in self._within(first, last)
                if not self._is_gone(offset, is_kept=self.entries[offset].kept)
            ]
            if not offsets:
                rest.append(batch)
                continue
            for offset in offsets:
                entry, before = self.entries[offset], named.setdefault(offset, [])
                if (
                    entry.code != Code.HELD
                    or entry.member_id != member_id
                    or any(each != Event.RENEW for each in before)
                ):
                    raise KafkaError(
                        ErrorCode.invalid_record_state, f"Offset {offset} is not acquired by this member."
                    )
                before.append(types[0] if len(types) == 1 else types[offset - first])
            rest += _without(batch, offsets)
        return rest, [(self.entries[offset], types) for offset, types in named.items()]

    def end_prolonging(self, member_id: str, runs: Iterable[tuple[int, int]]) -> None:
        """The member has finished with these records although it holds them: their locks are no
        longer prolonged."""
        for first, last in runs:
            for entry in map(self.entries.__getitem__, self._within(first, last)):
                if entry.code == Code.HELD and entry.member_id == member_id:
                    entry.since_ms = ANSWERED

    def _within(self, first: int, last: int) -> list[int]:
        if last - first < len(self.entries):
            return [offset for offset in range(first, last + 1) if offset in self.entries]
        return sorted(offset for offset in self.entries if first <= offset <= last)

    def apply(
        self,
        named: Sequence[tuple[Entry, list[int]]],
        settings: ShareSettings,
        now_ms: float,
        drawn: Callable[[], float],
    ) -> list[tuple[Entry, Parked | None]]:
        """Carry out the result of split(). Returns the pending records and their new states."""
        pending: list[tuple[Entry, Parked | None]] = []
        for entry, types in named:
            if types[0] == Event.RENEW:
                entry.since_ms = now_ms
                self._lock(entry, now_ms + settings.lock_duration_ms)
            ack_type = types[-1]
            if ack_type == Event.RENEW:
                continue
            target = self._after(entry, Event(ack_type), settings, now_ms, drawn())
            pending.append(self._await(entry, target))
        return pending

    def release_member(
        self, member_id: str, settings: ShareSettings, delayed_at_ms: float | None, drawn: Callable[[], float]
    ) -> list[tuple[Entry, Parked | None]]:
        """The member's records return. Without a delay they keep their due times, which have
        passed."""
        pending = []
        for entry in [
            each for each in self.entries.values() if each.code == Code.HELD and each.member_id == member_id
        ]:
            event = Event.LEAVE if delayed_at_ms is None else Event.RELEASE
            target = self._after(entry, event, settings, delayed_at_ms or 0.0, drawn())
            pending.append(self._await(entry, target))
        return pending

    def _await(self, entry: Entry, target: Parked | None) -> tuple[Entry, Parked | None]:
        entry.code = Code.PENDING
        self.held -= 1
        return entry, target

    # ---- what is gone ----------------------------------------------------------------------------

    def lost(self, offsets: Iterable[int]) -> int:
        """The log has no records there: those that are ready are no longer parked. Returns their
        number."""
        entries = [self._ready[offset] for offset in offsets if offset in self._ready]
        for entry in entries:
            self._remove(entry)
        return len(entries)

    def drop_below(self, new_start_offset: int) -> dict[str, int]:
        """The log now begins there. Returns how many records below it each member held."""
        self.floor = new_start_offset
        self.needs_sweep = self.needs_sweep or self.waiting > 0
        held: dict[str, int] = {}
        for entry in [
            entry for entry in self.entries.values() if self._is_gone(entry.offset, is_kept=entry.kept)
        ]:
            if entry.code == Code.HELD and entry.member_id is not None:
                held[entry.member_id] = held.get(entry.member_id, 0) + 1
            if entry.code == Code.PENDING:
                continue  # A sweep after its write finds what that has left.
            self._remove(entry)
        return held

    def purge(self, end_offset: int) -> dict[str, int]:
        """No record below it may be delivered, kept or not. Returns how many each member held."""
        self.purged = max(self.purged, end_offset)
        self.kept_from = max(self.kept_from, end_offset)
        return self.drop_below(max(self.floor, end_offset))

    def is_pending_below(self, end_offset: int) -> bool:
        """True if a write under way concerns a record there: a client's change, which may park it
        again, or a removal."""
        is_said = any(
            entry.code == Code.PENDING and entry.offset < end_offset for entry in self.entries.values()
        )
        return is_said or any(offset < end_offset for offset in self._leaving)

    def sweep(self, found: Iterable[Parked], look: Look) -> int:
        """Those of these records of the look that lie below the log's start and are not kept are no
        longer parked. Returns their number. A record that the log's start has passed since the look
        began may be kept by now."""
        gone = 0
        for parked in found:
            offset = parked.offset
            is_here = (
                offset in self.entries
                or offset in self._ghosts
                or offset in self._leaving
                or offset in look.changed
            )
            if offset < look.floor and not is_here and self._is_gone(offset, is_kept=parked.kept):
                if parked.kept:
                    self._may_be_kept.add(offset)
                self._give_up(parked)
                gone += 1
        return gone

    # ---- dead letters ----------------------------------------------------------------------------

    @property
    def has_dead_letters(self) -> bool:
        return self._orders[Lane.ARCHIVING].size > 0 and any(
            entry.code == Code.ARCHIVING for entry in self.entries.values()
        )

    @property
    def has_archiving(self) -> bool:
        """True if a record may be saved as ARCHIVING."""
        if self._ghosts or self._leaving or not self.knows_archiving:
            return True
        return any(entry.code in DEAD or entry.code == Code.PENDING for entry in self.entries.values())

    def take_dead_letters(self) -> list[DeadLetter]:
        """Hand out the records that are ARCHIVING, by offset."""
        taken = []
        for entry in sorted(
            (each for each in self.entries.values() if each.code == Code.ARCHIVING), key=_offset
        ):
            entry.code = Code.HANDED_OUT
            cause = DeadLetterCause.REJECTED if entry.rejected else DeadLetterCause.EXHAUSTED
            if entry.expired:
                cause = DeadLetterCause.EXPIRED
            taken.append(DeadLetter(entry.offset, entry.offset, entry.count, cause))
        return taken

    def handed_out(self, runs: Iterable[tuple[int, int]]) -> list[int]:
        """Which of these offsets are parked records that are handed out as dead letters."""
        found = [offset for first, last in runs for offset in self._within(first, last)]
        return [offset for offset in found if self.entries[offset].code == Code.HANDED_OUT]

    def dead_lettered(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self._remove(self.entries[offset])

    def give_back_dead_letters(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self.entries[offset].code = Code.ARCHIVING


def _without(batch: AckBatch, offsets: Sequence[int]) -> Iterator[AckBatch]:
    """The batch in pieces, without these offsets, which lie in it in order."""
    first, last, types = batch
    at = first
    for offset in (*offsets, last + 1):
        if at < offset:
            yield AckBatch(at, offset - 1, types if len(types) == 1 else types[at - first : offset - first])
        at = offset + 1
