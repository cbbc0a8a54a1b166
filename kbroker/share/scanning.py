"""Records that are looked at before anybody gets them: those that are scheduled for later are parked.

Where a group has `scans`, members are given nothing but what was scanned. A scan goes through the log
behind the window (and through its holes, after a restart): what it finds is AVAILABLE, and in nobody's
way, since it counts as in flight only once it was delivered. What is scheduled for later leaves the
window: a million of those stand before nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.share.acquire import Batches
from kbroker.share.in_flight import AVAILABLE, MAX_SPAN, InFlightWindow
from kbroker.share.parked import Parked
from kbroker.share.parking import Parking
from kbroker.share.record_state import HOLE, PENDING, WAITING, RecordState
from kbroker.share.redelivery import Waits

_AT_ONCE = 2000
_ENOUGH = 20_000
"""So many that nobody has had yet: members have enough to do."""


def scan_from(window: InFlightWindow) -> int | None:
    """The first offset that nobody has looked at. None: there is no need to go on now."""
    if window.undelivered >= _ENOUGH or window.end_offset - window.start_offset + 1 >= MAX_SPAN:
        return None
    if window.gap_open:
        hole = window.states.find(HOLE, max(window.gap_start, window.start_offset) - window.base)
        if hole >= 0:
            return window.base + hole
    return window.unread_from


def place(window: InFlightWindow, offset: int, batches: Batches) -> None:
    """What a read at `offset` gave is AVAILABLE. What is between is a hole that the log does not have."""
    last_allowed = window.start_offset + MAX_SPAN - 1
    for first, last, *_ in batches:
        first, last = max(first, offset, window.start_offset), min(last, last_allowed)
        if window.states and first <= window.end_offset:
            _fill_holes(window, first, min(last, window.end_offset))
            first = window.end_offset + 1
        if first <= last:
            window.place(first, last, first - 1, 0)
    if batches and window.gap_open:
        window.gap_start = max(window.gap_start, min(batches[-1][1], window.end_offset) + 1)


def _fill_holes(window: InFlightWindow, first: int, last: int) -> None:
    i, j = first - window.base, last + 1 - window.base
    while (i := window.states.find(HOLE, i, j)) >= 0:
        size = len(window.states[i:j]) - len(window.states[i:j].lstrip(bytes([HOLE])))
        window.place(window.base + i, window.base + i + size - 1, window.base + i - 1, 0)
        i += size


def park_again(window: InFlightWindow, parking: Parking, waits: Waits, park_from_ms: float) -> list[Parked]:
    """Records that wait in the window since they could not be parked."""
    to_park = []
    for offset, due_ms in waits.scheduled_from(park_from_ms)[:_AT_ONCE]:
        if window.start_offset <= offset <= window.end_offset and window.states[offset - window.base] == WAITING:
            window.set_code(offset, offset, RecordState.ARCHIVED | PENDING)
            waits.end(offset)
            to_park.append(parking.schedule(offset, due_ms))
    return to_park


def put_off(
    window: InFlightWindow, parking: Parking, scheduled: Sequence[tuple[int, int]], park_from_ms: float
) -> tuple[list[Parked], list[tuple[int, int]]]:
    """Of what was placed, (offset, due) of what is due later: what is to be parked, if it is due at `park_from_ms` of the wall clock
    or later, and what waits in the window."""
    to_park, soon = [], []
    for offset, due_ms in scheduled:
        i = offset - window.base
        if not window.start_offset <= offset <= window.end_offset or window.states[i] != AVAILABLE or window.counts[i]:
            continue
        window.undelivered -= 1
        if due_ms < park_from_ms:
            window.states[i] = AVAILABLE | WAITING
            soon.append((offset, due_ms))
        else:
            window.set_code(offset, offset, RecordState.ARCHIVED | PENDING)
            to_park.append(parking.schedule(offset, due_ms))
    return to_park, soon
