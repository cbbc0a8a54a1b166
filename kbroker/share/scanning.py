"""Scanning: records are examined before members get them, and those scheduled for later are parked.
Pure.

Where a group has `scans`, members get only scanned records. A scan reads the log behind the window
(and the holes of the window, after a restart). The records it finds are AVAILABLE. They count as in
flight only once they were delivered, so they hold back no other record. Scheduled records leave the
window: a million of them may lie in front of one that is due now.

Parking takes time. Where a long part of the log is not scanned yet, batches with records to deliver
now are therefore placed ahead of the scan. The offsets before them are holes until the scan has
filled them:

    SPSO | scanned | hole hole hole | placed ahead | hole hole | placed ahead | SPEO
                   scan_from                                                    look ahead from here
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.share.acquire import Batches
from kbroker.share.effects import ShareSettings
from kbroker.share.in_flight import MAX_SPAN, InFlightWindow
from kbroker.share.parked import Parked
from kbroker.share.parking import Parking
from kbroker.share.record_state import AVAILABLE, HOLE, PENDING, WAITING, RecordState
from kbroker.share.redelivery import Waits
from kbroker.share.rules import Event, decide

_AT_ONCE = 2000
_ENOUGH = 20_000
"""With this many undelivered records, members have enough to fetch."""


def scan_from(window: InFlightWindow) -> int | None:
    """The first offset that has not been scanned. None: no scan is needed now."""
    if window.undelivered >= _ENOUGH:
        return None
    if window.gap_open:
        hole = window.states.find(HOLE, max(window.gap_start, window.start_offset) - window.base)
        if hole >= 0:
            return window.base + hole
    return None if window.end_offset - window.start_offset + 1 >= MAX_SPAN else window.unread_from


def may_look_ahead(window: InFlightWindow) -> bool:
    """True if members have hardly any records to fetch, and the window has room."""
    return window.undelivered < _AT_ONCE and window.end_offset - window.start_offset + 1 < MAX_SPAN


def place_ahead(window: InFlightWindow, first: int, last: int) -> bool:
    """Place AVAILABLE records behind the SPEO, ahead of the scan. The unscanned offsets before them
    become a hole of the gap window. False: the window already has them, or cannot reach so far."""
    unread = window.unread_from
    if first < unread or last >= window.start_offset + MAX_SPAN:
        return False
    has_gap, missing, size = window.has_gap, first - unread, last - first + 1
    if not has_gap:
        window.gap_start = unread
    window.states += bytes([HOLE]) * missing + bytes(size)
    window.counts += bytes(missing + size)
    window.marks += (b"\1" + bytes(missing - 1) if missing else b"") + b"\1" + bytes(size - 1)
    window.lock_numbers.frombytes(bytes(4 * (missing + size)))
    window.undelivered += size
    window.available_from = min(window.available_from, first)
    window.end_offset = last
    window.gap_end = last if missing or has_gap else -1
    return True


def place(window: InFlightWindow, offset: int, batches: Batches) -> None:
    """The records that a read at `offset` returned are AVAILABLE. Offsets between the batches are
    holes that the log does not have."""
    for first, last, *_ in batches:
        first = max(first, offset, window.start_offset)
        # An empty window begins with the first record, whatever hole is before it.
        last = min(last, (window.start_offset if window.states else first) + MAX_SPAN - 1)
        if window.states and first <= window.end_offset:
            _fill_holes(window, first, min(last, window.end_offset))
            first = window.end_offset + 1
        if first <= last:
            window.place(first, last, first - 1, 0)
    if batches and window.gap_open:
        window.gap_start = max(window.gap_start, min(batches[-1][1], window.end_offset) + 1)


def close_gap(window: InFlightWindow) -> None:
    """The scan has seen the whole gap window: no hole in it holds back the SPSO any more."""
    if window.gap_open and not window.has_gap:
        window.gap_end = -1


def _fill_holes(window: InFlightWindow, first: int, last: int) -> None:
    i, j = first - window.base, last + 1 - window.base
    while (i := window.states.find(HOLE, i, j)) >= 0:
        size = len(window.states[i:j]) - len(window.states[i:j].lstrip(bytes([HOLE])))
        window.place(window.base + i, window.base + i + size - 1, window.base + i - 1, 0)
        i += size


def park_again(window: InFlightWindow, parking: Parking, waits: Waits, park_from_ms: float) -> list[Parked]:
    """Records that wait in the window because they could not be parked."""
    to_park = []
    for offset, due_ms in waits.scheduled_from(park_from_ms)[:_AT_ONCE]:
        if (
            window.start_offset <= offset <= window.end_offset
            and window.states[offset - window.base] == WAITING
        ):
            window.set_code(offset, offset, RecordState.ARCHIVED | PENDING)
            waits.end(offset)
            to_park.append(parking.schedule(offset, due_ms))
    return to_park


def give_up(
    window: InFlightWindow, parking: Parking, offsets: Sequence[int], settings: ShareSettings
) -> tuple[list[int], list[Parked]]:
    """Those of these records that can be acquired are past their time to live. Returns the ones
    that are ARCHIVED now, and those to park as dead letters."""
    archived, to_park = [], []
    for offset in offsets:
        i = offset - window.base
        if (
            not window.states
            or not window.start_offset <= offset <= window.end_offset
            or window.states[i] != AVAILABLE
        ):
            continue
        count = window.counts[i]
        window.undelivered -= not count
        if decide(RecordState.AVAILABLE, count, Event.EXPIRE, settings).state is RecordState.ARCHIVING:
            window.set_code(offset, offset, RecordState.ARCHIVED | PENDING)
            to_park.append(parking.expire_new(offset, count))
        else:
            window.set_code(offset, offset, RecordState.ARCHIVED)
            archived.append(offset)
    return archived, to_park


def put_off(
    window: InFlightWindow, parking: Parking, scheduled: Sequence[tuple[int, int]], park_from_ms: float
) -> tuple[list[Parked], list[tuple[int, int]]]:
    """`scheduled`: (offset, due time) of placed records that are due later. Returns those to park,
    due at `park_from_ms` of the wall clock or later, and those that wait in the window."""
    to_park, soon = [], []
    for offset, due_ms in scheduled:
        i = offset - window.base
        if (
            not window.start_offset <= offset <= window.end_offset
            or window.states[i] != AVAILABLE
            or window.counts[i]
        ):
            continue
        window.undelivered -= 1
        if due_ms < park_from_ms:
            window.states[i] = AVAILABLE | WAITING
            soon.append((offset, due_ms))
        else:
            window.set_code(offset, offset, RecordState.ARCHIVED | PENDING)
            to_park.append(parking.schedule(offset, due_ms))
    return to_park, soon
