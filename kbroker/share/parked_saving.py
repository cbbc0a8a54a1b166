"""What a write saves of parked records, and what becomes of them when it ends. Pure.

    write()        changes for the store: by clients, from the window, decided, and removals
    persisted()    they are final
    failed()       none is known to be saved: the next write carries them, or its removals

A failed write may still have reached the store, wholly or in part. So a record keeps a list of the
`places` where it may stand, and the places of a record that is not parked are `ghosts`. The next
write removes the ghosts, and all places of a record but its present one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappush
from math import ceil
from typing import NamedTuple

from kbroker.share import rules
from kbroker.share.effects import DeadLetterCause, ShareSettings
from kbroker.share.key_order import KeyOrder
from kbroker.share.locks import ANSWERED
from kbroker.share.parked import Lane, Parked, ParkingChange, Place
from kbroker.share.parked_keeping import ParkedKeeping
from kbroker.share.parked_memory import Code, Entry
from kbroker.share.record_state import RecordState
from kbroker.share.rules import Event


class ParkingWrite(NamedTuple):
    """What one Persist changes of parked records.

    - `pending`: by clients.
    - `new`: records from the window, with the places where they may have stood before.
    - `decided`: changes that are final already.
    - `ghosts`: records that are no longer parked.
    - `moved`: records whose places in the window it saves as final.
    - `keeps`: records whose bytes it carries.
    """

    pending: Sequence[tuple[Entry, Parked | None]]
    new: Sequence[tuple[Parked, Sequence[Place]]]
    decided: Sequence[tuple[Entry, Parked]]
    ghosts: Mapping[int, Sequence[Place]]
    moved: Sequence[int] = ()
    keeps: Sequence[Entry] = ()

    def offsets(self) -> Iterator[int]:
        """Of all records that it concerns."""
        yield from (entry.offset for entry, _ in (*self.pending, *self.decided))
        yield from (parked.offset for parked, _ in self.new)
        yield from self.ghosts


class ParkedSaving(ParkedKeeping):
    def write(
        self, pending: Sequence[tuple[Entry, Parked | None]], new: Sequence[Parked]
    ) -> tuple[tuple[ParkingChange, ...], ParkingWrite]:
        """One write with these changes, and with everything that waits to be saved."""
        ghosts, self._ghosts = self._ghosts, {}
        arriving = [(parked, ghosts.pop(parked.offset, ())) for parked in new]
        self.waiting += len(arriving)
        self._expiring += sum(parked.expired for parked in new)
        changes = [
            ParkingChange(parked.offset, places, parked, self._no_record(parked.offset))
            for parked, places in arriving
        ]
        changes += [
            ParkingChange(offset, places, None, self._no_record(offset)) for offset, places in ghosts.items()
        ]
        for change in changes:
            self._leaving[change.offset] = self._leaving.get(change.offset, 0) + 1
        decided, keeps = self._take_decided(), []
        for entry, target in (*decided, *pending):
            record = self._no_record(entry.offset) if target is None else entry.record
            changes.append(ParkingChange(entry.offset, tuple(entry.places), target, record))
            if target is None:
                self.waiting -= 1
                continue
            if entry.places[-1] != target.place:
                entry.places.append(target.place)
            if entry.record is not None:
                keeps.append(entry)
                self._may_be_kept.add(entry.offset)
        moved = [change.offset for change in changes if change.offset in self._moving] if self._moving else ()
        for look in self._looks:
            look.changed.update(change.offset for change in changes)
        return tuple(changes), ParkingWrite(pending, arriving, decided, ghosts, moved, keeps)

    def _take_decided(self) -> list[tuple[Entry, Parked]]:
        """The changes that wait to be saved. A client's change is in its own write. A held record
        is saved as it was before it was acquired."""
        unsaved, self._unsaved = self._unsaved, {}
        decided = []
        for offset in unsaved:
            entry = self.entries.get(offset)
            if entry is None:
                continue
            if entry.code == Code.PENDING and entry.record is not None:
                self._unsaved[offset] = None  # That write may fail.
            elif entry.code != Code.PENDING and (entry.code != Code.HELD or entry.record is not None):
                decided.append((entry, entry.as_parked(self._leader_epoch)))
        return decided

    def _no_record(self, offset: int) -> bytes | None:
        """The `record` of a ParkingChange for a record that is not kept."""
        return b"" if offset in self._may_be_kept else None

    def persisted(self, write: ParkingWrite) -> None:
        """The write is saved: all of it is final."""
        if self.key_order is not None:
            self._park_keys(self.key_order, write)
        self._moving.difference_update(write.moved)
        for entry in write.keeps:
            entry.record, entry.kept = None, True
        for offset, places in write.ghosts.items():
            self._unmark(offset)
            self._removed(places)
            self._over.discard(offset)
            if offset not in self._ghosts and offset not in self.entries:
                self._may_be_kept.discard(offset)
        for parked, places in write.new:
            self._unmark(parked.offset)
            self._expiring -= parked.expired
            self._removed(places, parked)
            if parked.offset < self.floor:
                self.needs_sweep = True
            elif self._orders[parked.lane].saved(parked):
                entry = self.entries[parked.offset] = Entry(parked)
                self._line_up(entry)
        for entry, parked in write.decided:
            self._stands(entry, parked, is_pending=False)
        for entry, target in write.pending:
            if target is not None:
                self._stands(entry, target, is_pending=True)
            elif self.entries.get(entry.offset) is entry:
                self._removed(entry.places)
                self._let_go(entry)
        self._shrink()
        if self.key_order is not None:
            self.key_order.forget_parked(self.entries)

    def _park_keys(self, order: KeyOrder, write: ParkingWrite) -> None:
        """Report to the order records that have left the window, and parked ones that have
        ended."""
        for parked, _ in write.new:
            if parked.lane is Lane.SCHEDULE:
                order.forget(parked.offset)
            elif parked.lane is Lane.ARCHIVING:
                order.end(parked.offset)
            elif parked.key_hash is not None:
                order.hold(parked.offset, parked.key_hash, parked=True)
        for offset in [offset for offset in write.ghosts if offset in self._over]:
            order.end(offset)
        for entry, target in (*write.decided, *write.pending):
            if target is None or target.lane is Lane.ARCHIVING:
                order.end(entry.offset)

    def _removed(self, places: Iterable[Place], parked: Parked | None = None) -> None:
        """The store has no record at these places any more, except for `parked`."""
        for place in places:
            if parked is None or place != parked.place:
                self._orders[place.lane].removed(place)

    def _stands(self, entry: Entry, parked: Parked, *, is_pending: bool) -> None:
        """The record now stands there in the store, and nowhere that it was saved before."""
        if parked.place in entry.places:
            i = entry.places.index(parked.place)
            self._removed(entry.places[:i], parked)
            del entry.places[:i]
        if self.entries.get(entry.offset) is not entry:
            return
        belongs = self._orders[parked.lane].saved(parked)
        if is_pending:
            entry.member_id = None
            entry.lane, entry.due_ms, entry.rejected = parked.lane, parked.due_ms, parked.rejected
            self._unsaved.pop(entry.offset, None)
            if self._is_gone(entry.offset, is_kept=entry.kept):
                self._remove(entry)
                return
            self._line_up(entry)
        elif (
            entry.code == Code.UNSAVED_ARCHIVING
            and parked.lane is Lane.ARCHIVING
            and entry.offset not in self._unsaved
        ):
            entry.code = Code.ARCHIVING
        if not belongs and self._can_be_forgotten(entry):
            self._let_go(entry)

    def failed(
        self, write: ParkingWrite, now_ms: float, settings: ShareSettings, drawn: Callable[[], float]
    ) -> int:
        """No change of the write is known to be saved. Returns how many pending records their
        holders have again."""
        for offset, places in write.ghosts.items():
            self._unmark(offset)
            if offset in self.entries:  # It has left the window since.
                self.entries[offset].places[:0] = places
            else:
                self._ghosts[offset] = (*self._ghosts.get(offset, ()), *places)
        for parked, places in write.new:
            self._unmark(parked.offset)
            self._expiring -= parked.expired
            self.waiting -= 1
            self._ghosts[parked.offset] = (*self._ghosts.get(parked.offset, ()), *places, parked.place)
        for entry in (*(entry for entry, _ in write.decided), *write.keeps):
            if self.entries.get(entry.offset) is entry:
                self._unsaved[entry.offset] = None
        still_held = 0
        for entry, target in write.pending:
            if target is None:
                self.waiting += 1
            if self.entries.get(entry.offset) is not entry:
                continue
            if self._is_gone(entry.offset, is_kept=entry.kept):
                self._remove(entry)
            elif entry.deadline_ms > now_ms:
                entry.code, entry.since_ms = Code.HELD, ANSWERED
                self.held += 1
                still_held += 1
                heappush(self._locks, (entry.deadline_ms, entry.offset))
            else:
                self._return(entry, now_ms, settings, drawn())
        return still_held

    def scheduled_in(self, write: ParkingWrite) -> dict[int, int]:
        """Never delivered, scheduled records of a write, with their due times."""
        return {parked.offset: parked.due_ms for parked, _ in write.new if parked.lane is Lane.SCHEDULE}

    def expired_in(self, write: ParkingWrite) -> list[int]:
        """Records of a write that left the window because they are past their time to live."""
        return [parked.offset for parked, _ in write.new if parked.expired]

    def redeliveries_in(self, write: ParkingWrite) -> dict[int, float]:
        """Records of a write that left the window for their redelivery, with their due times on the
        engine's clock."""
        ahead_ms = self._ahead_ms[Lane.REDELIVERY]
        return {
            parked.offset: parked.due_ms - ahead_ms
            for parked, _ in write.new
            if parked.lane is Lane.REDELIVERY
        }

    def _unmark(self, offset: int) -> None:
        left = self._leaving[offset] - 1
        if left:
            self._leaving[offset] = left
        else:
            del self._leaving[offset]

    # ---- what comes back -------------------------------------------------------------------------

    def _return(self, entry: Entry, now_ms: float, settings: ShareSettings, drawn: float) -> None:
        """A held record returns at once; the next write saves that."""
        if entry.code == Code.HELD:
            self.held -= 1
            entry.code = Code.PENDING
        entry.member_id = None
        target = self._after(entry, Event.RUN_OUT, settings, now_ms, drawn)
        if target is None:
            self._remove(entry)
            return
        entry.lane, entry.due_ms = target.lane, target.due_ms
        self._line_up(entry)
        if entry.lane is Lane.ARCHIVING:
            entry.code = Code.UNSAVED_ARCHIVING
        self._unsaved[entry.offset] = None

    def _after(
        self, entry: Entry, event: Event, settings: ShareSettings, now_ms: float, drawn: float
    ) -> Parked | None:
        """The new state of a held record. None: it is no longer parked."""
        fate = rules.decide(RecordState.ACQUIRED, entry.count, event, settings, drawn)
        self.rejected += fate.cause is DeadLetterCause.REJECTED
        self.exhausted += fate.cause is DeadLetterCause.EXHAUSTED
        lane, due_ms = Lane.REDELIVERY, entry.due_ms
        if fate.state is RecordState.ARCHIVING:
            lane, due_ms = Lane.ARCHIVING, 0
        elif fate.state is not RecordState.AVAILABLE:
            return None
        elif fate.wait_ms is not None:
            due_ms = now_ms + self._ahead_ms[Lane.REDELIVERY] + fate.wait_ms
        is_rejected = lane is Lane.ARCHIVING and fate.cause is DeadLetterCause.REJECTED
        what = entry.offset, lane, ceil(due_ms), fate.delivery_count, self._leader_epoch, is_rejected
        return Parked(*what, key_hash=entry.key_hash, kept=entry.is_kept)
