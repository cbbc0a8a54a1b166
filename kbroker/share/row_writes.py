"""What a write saves of parked records, and what becomes of it when it ends. Pure.

    begin()        changes for the store: by clients, from the front window, decided, and removals
    persisted()    they are final
    failed()       none is known to be saved: the next write carries them, or its removals

parking.py describes what must hold of rows, places and ghosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kbroker.share import returning
from kbroker.share.effects import ShareSettings
from kbroker.share.key_order import KeyOrder
from kbroker.share.parked import Lane, Parked, ParkingChange, Place
from kbroker.share.parking import Answered, Parking
from kbroker.share.record_state import ACQUIRED, PENDING
from kbroker.share.returned import Row


class ParkingWrite(NamedTuple):
    """What one Persist changes of parked records.

    - `pending`: by clients.
    - `new`: records from the front window, with the places where they may have stood before.
    - `decided`: changes that are final already.
    - `ghosts`: records that are no longer parked.
    - `moved`: records whose places in the front window it saves as final.
    - `keeps`: rows whose bytes it carries.
    """

    pending: Answered
    new: Sequence[tuple[Parked, Sequence[Place]]]
    decided: Sequence[tuple[Row, Parked]]
    ghosts: Mapping[int, Sequence[Place]]
    moved: Sequence[int] = ()
    keeps: Sequence[Row] = ()

    def offsets(self) -> Iterator[int]:
        """Of all records that it concerns."""
        yield from (row.offset for row, _ in (*self.pending, *self.decided))
        yield from (parked.offset for parked, _ in self.new)
        yield from self.ghosts

    def new_in(self, lane: Lane) -> dict[int, int]:
        """Records that left the front window for that lane, with their due times."""
        return {parked.offset: parked.due_ms for parked, _ in self.new if parked.lane is lane}


def begin(
    parking: Parking, pending: Answered, new: Sequence[Parked]
) -> tuple[tuple[ParkingChange, ...], ParkingWrite]:
    """One write with these changes, and with everything that waits to be saved."""
    ghosts, parking.ghosts = parking.ghosts, {}
    arriving = [(parked, ghosts.pop(parked.offset, ())) for parked in new]
    parking.waiting += len(arriving)
    parking.expiring += sum(parked.expired for parked in new)
    changes = [
        ParkingChange(parked.offset, places, parked, _no_record(parking, parked.offset))
        for parked, places in arriving
    ]
    changes += [
        ParkingChange(offset, places, None, _no_record(parking, offset)) for offset, places in ghosts.items()
    ]
    for change in changes:
        parking.leaving[change.offset] = parking.leaving.get(change.offset, 0) + 1
    decided, keeps = _take_decided(parking), []
    for row, target in (*decided, *pending):
        record = _no_record(parking, row.offset) if target is None else row.record
        changes.append(ParkingChange(row.offset, tuple(row.places), target, record))
        if target is None:
            parking.waiting -= 1
            continue
        if row.places[-1] != target.place:
            row.places.append(target.place)
        if row.record is not None:
            keeps.append(row)
            parking.maybe_kept.add(row.offset)
    moved = [change.offset for change in changes if change.offset in parking.moving] if parking.moving else ()
    for look in parking.looks:
        look.changed.update(change.offset for change in changes)
    return tuple(changes), ParkingWrite(pending, arriving, decided, ghosts, moved, keeps)


def _take_decided(parking: Parking) -> list[tuple[Row, Parked]]:
    """The changes that wait to be saved. A client's change is in its own write. A held record
    is saved as it was before it was acquired."""
    unsaved, parking.unsaved = parking.unsaved, {}
    decided = []
    for offset in unsaved:
        row = parking.rows.get(offset)
        if row is None:
            continue
        code = parking.returned.code(row) or 0
        if code & PENDING:
            if row.record is not None:
                parking.unsaved[offset] = None  # That write may fail.
        elif code != ACQUIRED or row.record is not None:
            decided.append((row, parking.returned.as_parked(row, parking.leader_epoch)))
    return decided


def _no_record(parking: Parking, offset: int) -> bytes | None:
    """The `record` of a ParkingChange for a record that is not kept."""
    return b"" if offset in parking.maybe_kept else None


def persisted(parking: Parking, write: ParkingWrite) -> None:
    """The write is saved: all of it is final."""
    if parking.key_order is not None:
        _park_keys(parking, parking.key_order, write)
    parking.moving.difference_update(write.moved)
    for row in write.keeps:
        row.record, row.kept = None, True
    for offset, places in write.ghosts.items():
        _unmark(parking, offset)
        _removed(parking, places)
        parking.over.discard(offset)
        if offset not in parking.ghosts and offset not in parking.rows:
            parking.maybe_kept.discard(offset)
    for parked, places in write.new:
        _unmark(parking, parked.offset)
        parking.expiring -= parked.expired
        _removed(parking, places, parked)
        if parked.offset < parking.floor:
            parking.needs_sweep = True
        elif parking.orders[parked.lane].saved(parked):
            parking.line_up(parking.add(parked), parked)
    for row, parked in write.decided:
        _stands(parking, row, parked, is_pending=False)
    for row, target in write.pending:
        if target is not None:
            _stands(parking, row, target, is_pending=True)
        elif parking.rows.get(row.offset) is row:
            _removed(parking, row.places)
            parking.let_go(row)
    parking.shrink()
    if parking.key_order is not None:
        parking.key_order.forget_parked(parking.rows)


def _park_keys(parking: Parking, order: KeyOrder, write: ParkingWrite) -> None:
    """Report to the order records that have left the front window, and parked ones that have
    ended."""
    for parked, _ in write.new:
        if parked.lane is Lane.ARCHIVING or parked.offset < parking.floor:
            order.end(parked.offset)
        elif parked.lane is Lane.SCHEDULE:
            order.forget(parked.offset)
        elif parked.key_hash is not None:
            order.hold(parked.offset, parked.key_hash, parked=True)
    for offset in [offset for offset in write.ghosts if offset in parking.over]:
        order.end(offset)
    for row, target in (*write.decided, *write.pending):
        if target is None or target.lane is Lane.ARCHIVING:
            order.end(row.offset)


def _removed(parking: Parking, places: Iterable[Place], parked: Parked | None = None) -> None:
    """The store has no record at these places any more, except for `parked`."""
    for place in places:
        if parked is None or place != parked.place:
            parking.orders[place.lane].removed(place)


def _stands(parking: Parking, row: Row, parked: Parked, *, is_pending: bool) -> None:
    """The record now stands there in the store, and nowhere that it was saved before."""
    if parked.place not in row.places:
        return  # A later write has ended first, and stands.
    i = row.places.index(parked.place)
    _removed(parking, row.places[:i], parked)
    del row.places[:i]
    if parking.rows.get(row.offset) is not row:
        return
    belongs = parking.orders[parked.lane].saved(parked)
    if is_pending:
        row.lane, row.due_ms = parked.lane, parked.due_ms
        parking.unsaved.pop(row.offset, None)
        if parking.is_gone(row.offset, is_kept=row.kept):
            parking.remove(row)
            return
        parking.window.settle(row.slot, row.slot)
        parking.line_up(row)
    elif parked.lane is Lane.ARCHIVING and row.lane is Lane.ARCHIVING and row.offset not in parking.unsaved:
        parking.window.settle(row.slot, row.slot)
    if not belongs and parking.can_be_forgotten(row):
        parking.let_go(row)


def failed(
    parking: Parking, write: ParkingWrite, settings: ShareSettings, now_ms: float, drawn: Callable[[], float]
) -> int:
    """No change of the write is known to be saved. Returns how many pending records their
    holders have again."""
    for offset, places in write.ghosts.items():
        _unmark(parking, offset)
        if offset in parking.rows:  # It has left the front window since.
            parking.rows[offset].places[:0] = places
        else:
            parking.ghosts[offset] = (*parking.ghosts.get(offset, ()), *places)
    for parked, places in write.new:
        _unmark(parking, parked.offset)
        parking.expiring -= parked.expired
        parking.waiting -= 1
        parking.ghosts[parked.offset] = (*parking.ghosts.get(parked.offset, ()), *places, parked.place)
    for row in (*(row for row, _ in write.decided), *write.keeps):
        if parking.rows.get(row.offset) is row:
            parking.unsaved[row.offset] = None
    still_held, pending = 0, []
    for row, target in write.pending:
        parking.waiting += target is None
        if parking.rows.get(row.offset) is not row:
            continue
        if parking.is_gone(row.offset, is_kept=row.kept):
            parking.remove(row)
        else:
            pending.append(row)
    for row in pending:
        still_held += returning.save_failed(parking, row, settings, now_ms, drawn)
    return still_held


def _unmark(parking: Parking, offset: int) -> None:
    left = parking.leaving[offset] - 1
    if left:
        parking.leaving[offset] = left
    else:
        del parking.leaving[offset]
