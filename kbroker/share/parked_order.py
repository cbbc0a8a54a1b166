"""How much of one lane of parked records is in memory: the next ones to be due. Pure.

    store      | due 5 | due 7 | due 7 | due 9 | due 12 | due 12 | ... a million more
    in memory  |-------------------------------|
                                               horizon

Up to the horizon every saved record is in memory, behind it none. When few are left, the next ones
are read. When too many were added in between, the last ones are forgotten, and the horizon falls.

The lane changes while a read is under way. Records saved behind the horizon since the read began
are added to its result, and those removed since then are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kbroker.share.parked import Lane, Parked, Place

READ_AT_ONCE: Final = 125
"""A turn of the loop decodes them: up to 50 µs each, with the persister control-records."""
FEW: Final = 250
MANY: Final = 4000

_NOTHING: Final = (-1, -1)
_EVERYTHING: Final = (1 << 63, 0)


class LaneOrder:
    """How far the records in memory reach. The caller has the records, and keeps `size` right."""

    __slots__ = ("_gone", "_horizon", "_is_reading", "_late", "few", "lane", "many", "size")

    def __init__(self, lane: Lane, *, is_empty: bool, few: int = FEW, many: int = MANY) -> None:
        self.lane = lane
        self.few = few
        self.many = many
        self.size = 0
        self._horizon = _EVERYTHING if is_empty else _NOTHING
        self._is_reading = False
        self._late: dict[int, Parked] = {}
        self._gone: set[Place] = set()

    @property
    def is_complete(self) -> bool:
        """True if the whole lane is in memory."""
        return self._horizon == _EVERYTHING

    def reaches(self, place: Place) -> bool:
        return (place.due_ms, place.offset) <= self._horizon

    @property
    def wants_read(self) -> bool:
        """True if begin_read() would return a place."""
        return not self._is_reading and not self.is_complete and self.size < self.few

    def begin_read(self) -> tuple[int, int] | None:
        """The place behind which to read now. None: there is nothing to read, enough is in memory,
        or a read is under way."""
        if not self.wants_read:
            return None
        self._is_reading = True
        return self._horizon

    def saved(self, parked: Parked) -> bool:
        """The record now stands in the store. True if it belongs into memory."""
        if self._is_reading:
            self._gone.discard(parked.place)
        if self.reaches(parked.place):
            return True
        if self._is_reading:
            self._late[parked.offset] = parked
        return False

    def removed(self, place: Place) -> None:
        """The store has no record at this place any more."""
        if self._is_reading:
            self._gone.add(place)
            late = self._late.get(place.offset)
            if late is not None and late.place == place:
                del self._late[place.offset]

    def end_read(self, found: Iterable[Parked], *, is_last: bool) -> list[Parked]:
        """The read has returned these records; `is_last`: there are no more. Returns those that
        belong into memory now."""
        given = [parked for parked in found if parked.place not in self._gone]
        places = [(parked.due_ms, parked.offset) for parked in found]
        self._horizon = _EVERYTHING if is_last else max(places, default=self._horizon)
        late = [parked for parked in self._late.values() if self.reaches(parked.place)]
        self._stop_reading()
        known = {parked.place for parked in late}
        return [*(parked for parked in given if parked.place not in known), *late]

    def fail_read(self) -> None:
        self._stop_reading()

    def _stop_reading(self) -> None:
        self._is_reading = False
        self._late, self._gone = {}, set()

    def shrink(self, places: Iterable[Place]) -> Place | None:
        """Too many are in memory. Returns the last of these places that stays; the rest lies behind
        the horizon from now on. None: not now."""
        if self._is_reading or self.size <= self.many:
            return None
        kept = sorted(places)[: self.many // 2]
        if not kept:
            return None
        self._horizon = kept[-1].due_ms, kept[-1].offset
        return kept[-1]
