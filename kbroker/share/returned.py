"""The window of returned records: parked ones that are due, held, being saved, or on their way to
the dead letter queue. Pure.

    slots         0           1          2       3          4
    states        available   acquired   (free)  archiving  acquired     as in in_flight.py
    rows          12 004      3          -       88         12 001       offsets, in no order

It is an InFlightWindow over slots in place of offsets: a record gets a slot when it is due, with
its delivery count, and leaves it when it is parked again or finished. So members, locks, dead
letters and failed saves are the code of the front window. Nothing is saved by slot, and slots are
reused.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from kbroker.share.in_flight import InFlightWindow
from kbroker.share.parked import Lane, Parked, Place
from kbroker.share.record_state import ACQUIRED, AVAILABLE, REJECTED

NO_SLOT: Final = -1


class Row:
    """A parked record in memory.

    - `slot`: NO_SLOT while it waits for its time. The window has its count while it has a slot.
    - `places`: where it may stand in the store; the present one is last.
    - `kept`: the record itself is stored as well, and outlives the log's start.
    - `record`: the bytes to keep, while they are not known to be saved.
    """

    __slots__ = (
        "count", "due_ms", "expired", "kept", "key_hash", "lane", "offset", "places", "record", "slot",
    )  # fmt: skip

    def __init__(self, parked: Parked) -> None:
        self.offset = parked.offset
        self.count = parked.delivery_count
        self.lane = parked.lane
        self.due_ms: float = parked.due_ms
        self.expired = parked.expired
        self.key_hash = parked.key_hash
        self.places: list[Place] = [parked.place]
        self.kept = parked.kept
        self.record: bytes | None = None
        self.slot = NO_SLOT

    @property
    def is_kept(self) -> bool:
        """By all decisions so far; `kept` goes by what is saved."""
        return self.kept or self.record is not None


class Returned:
    """`rows`: by slot. `ready`: rows that can be acquired, by offset, the longest due first."""

    __slots__ = ("_free", "ready", "rows", "window")

    def __init__(self) -> None:
        self.window = InFlightWindow(0)
        self.rows: list[Row | None] = []
        self.ready: dict[int, Row] = {}
        self._free: list[int] = []

    def code(self, row: Row) -> int | None:
        """Of the states column; None: it waits for its time."""
        return None if row.slot == NO_SLOT else self.window.states[row.slot]

    def at(self, slot: int) -> Row:
        row = self.rows[slot]
        assert row is not None
        return row

    def place(self, row: Row, code: int) -> None:
        """Give the row a slot."""
        if self._free:
            row.slot = self._free.pop()
            self.rows[row.slot] = row
        else:
            row.slot = len(self.rows)
            self.rows.append(row)
        self.window.put(row.slot, code, row.count)
        if code == AVAILABLE:
            self.ready[row.offset] = row

    def vacate(self, row: Row) -> None:
        """The row leaves its slot, if it has one."""
        if row.slot == NO_SLOT:
            return
        self.ready.pop(row.offset, None)
        row.count = self.window.vacate(row.slot)
        self.rows[row.slot] = None
        self._free.append(row.slot)
        row.slot = NO_SLOT
        if len(self._free) == len(self.rows):  # Do not stay as large as the largest rush was.
            self.rows.clear()
            self._free.clear()
            self.window.clear(0)

    def as_parked(self, row: Row, leader_epoch: int) -> Parked:
        """As it is stored. A delivery under way does not count."""
        code = self.code(row)
        count = row.count if code is None else self.window.counts[row.slot] - (code == ACQUIRED)
        is_rejected = row.lane is Lane.ARCHIVING and code is not None and code & REJECTED != 0
        what = row.offset, row.lane, ceil(row.due_ms), count, leader_epoch, is_rejected, row.expired
        return Parked(*what, row.key_hash, row.is_kept)
