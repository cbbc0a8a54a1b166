"""Records leave the window so that the log can be removed: they are parked with their whole state.
Pure.

    in the window           parked as
    held                    held, by the same member until the same deadline
    returned, or waiting    due at the same time
    ARCHIVING               ARCHIVING, with its cause

Otherwise one held record, or one that has returned and is never fetched, would hold the log. The
record's place in the window becomes ARCHIVED, which is final once that is saved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.share.in_flight import InFlightWindow
from kbroker.share.parked import Lane, Parked
from kbroker.share.parking import Parking
from kbroker.share.record_state import (
    ACQUIRED,
    AVAILABLE,
    DEAD_LETTER_CODES,
    PASSABLE,
    PASSABLE_IN_GAP,
    PENDING,
    REJECTED,
    WAITING,
    RecordState,
)
from kbroker.share.redelivery import Waits

_NOT_OVER = re.compile(b"[^%b]" % re.escape(PASSABLE))
_NOT_OVER_OR_HOLE = re.compile(b"[^%b]" % re.escape(PASSABLE_IN_GAP))


class Leavers(NamedTuple):
    """`offsets` can leave the window. `stuck_at`: the first offset at which a record cannot, at the
    moment."""

    offsets: Sequence[int]
    stuck_at: int


def leavers(window: InFlightWindow, waits: Waits, end_offset: int, limit: int) -> Leavers:
    """Of the unfinished records below `end_offset`, at most `limit` that can leave. Records that
    were never delivered stay, and so do those that are behind another of their key or are being
    saved."""
    found: list[int] = []
    if not window.states:
        return Leavers(found, min(end_offset, window.start_offset))
    pattern = _NOT_OVER_OR_HOLE if window.gap_open else _NOT_OVER
    end = min(end_offset, window.end_offset + 1)
    for match in pattern.finditer(
        window.states, window.start_offset - window.base, max(0, end - window.base)
    ):
        offset = window.base + match.start()
        if len(found) == limit or not _can_leave(window, waits, offset):
            return Leavers(found, offset)
        found.append(offset)
    return Leavers(found, end)


def leave(
    window: InFlightWindow,
    parking: Parking,
    waits: Waits,
    records: Mapping[int, bytes],
    *,
    leader_epoch: int,
    lock_duration_ms: int,
    now_ms: float,
) -> int:
    """Park and keep those that still can leave. Returns their number. `records`: the bytes to keep,
    by offset."""
    number = 0
    for offset, record in records.items():
        if (
            not window.states
            or not window.start_offset <= offset <= window.end_offset
            or not _can_leave(window, waits, offset)
        ):
            continue
        code, count = window.states[offset - window.base], window.counts[offset - window.base]
        lane, due_ms = Lane.REDELIVERY, parking.due_at(now_ms)
        if code in DEAD_LETTER_CODES:
            lane, due_ms = Lane.ARCHIVING, 0
        elif code & WAITING:
            due_ms = parking.due_at(waits.due_ms(offset) or now_ms)
            waits.end(offset)
        is_held = code == ACQUIRED
        what = offset, lane, due_ms, count - is_held, leader_epoch, bool(code & REJECTED)
        parked = Parked(
            *what, key_hash=None if parking.key_order is None else parking.key_order.hash_of(offset)
        )
        entry = parking.move_in(parked, record)
        if is_held:
            lock = window.locks.by_number[window.lock_numbers[offset - window.base]]
            parking.hold(
                entry, lock, lock.deadline_ms - lock_duration_ms if lock.since_ms is None else lock.since_ms
            )
        if parking.key_order is not None:
            parking.key_order.park(offset)
        window.set_code(offset, offset, RecordState.ARCHIVED | PENDING)
        number += 1
    return number


def _can_leave(window: InFlightWindow, waits: Waits, offset: int) -> bool:
    i = offset - window.base
    code = window.states[i]
    if code == ACQUIRED:
        return window.lock_numbers[i] in window.locks.by_number
    if code == AVAILABLE:
        return window.counts[i] > 0
    if code == WAITING:
        return window.counts[i] > 0 and waits.due_ms(offset) is not None
    return code in DEAD_LETTER_CODES
