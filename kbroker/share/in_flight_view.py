"""The in-flight window as people see it: runs of offsets in one state, with their holders and the
time left to them.

Kafka has no request for this, and does not even save which records are acquired. The view is built
from the columns (columns.py) on request and never kept. Neighbours with equal state, delivery
count, holder and deadline form one range.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple, TypeAlias

from kbroker.share.in_flight import InFlightWindow
from kbroker.share.parking import Parking
from kbroker.share.record_state import (
    ACQUIRED,
    BEHIND,
    CONTROL,
    HOLE,
    PASSED,
    PENDING,
    STATE,
    UNSAVED,
    WAITING,
    RecordState,
)

STATE_NAMES = {
    **{int(state): state.name.lower() for state in RecordState},
    WAITING: "waiting",
    HOLE: "gap",
    CONTROL: "gap",
    PASSED: "gap",
}
"""`waiting`: for its redelivery, or for another record of its key. `gap`: no record is known at the
offset. It is unread, or the log has no record there, or one of the broker's own."""

_SHOWN = bytes(
    WAITING if code == BEHIND else code & (STATE | WAITING) | (PENDING if code & (PENDING | UNSAVED) else 0)
    for code in range(256)
)
"""bytes.translate table without the flags that tell why a record is ARCHIVING and whether it is
handed out."""

_Held: TypeAlias = tuple[str | None, float | None]
"""Member id and deadline."""
_NOBODY: _Held = (None, None)


class InFlightRange(NamedTuple):
    """Offsets first..last. `is_saving`: `state` is being saved; if that fails, the records are
    their holder's again. Only acquired records have a holder. `lock_ms_left` is at least 0."""

    first_offset: int
    last_offset: int
    state: str
    is_saving: bool
    delivery_count: int
    member_id: str | None
    lock_ms_left: int | None


class InFlightView(NamedTuple):
    """SPSO, SPEO, the lock limit (share.partition.max.record.locks) and the ranges between the
    offsets. An empty window has no ranges, and both offsets at the next one to read."""

    start_offset: int
    end_offset: int
    lock_limit: int
    ranges: tuple[InFlightRange, ...]


def in_flight_view(
    window: InFlightWindow, lock_limit: int, now_ms: float, log_start_offset: int
) -> InFlightView:
    """`now_ms` is the engine's time, as in acquire() and expire(). Records below the log's start
    are gone, even before a fetch has noticed it."""
    start = max(window.start_offset, log_start_offset)
    if not window.states or start > window.end_offset:
        return InFlightView(start, start, lock_limit, ())
    return InFlightView(start, window.end_offset, lock_limit, tuple(_ranges(window, start, now_ms)))


def _ranges(window: InFlightWindow, start: int, now_ms: float) -> Iterator[InFlightRange]:
    first, i = start, start - window.base
    columns = zip(window.states[i:].translate(_SHOWN), window.counts[i:], _holders(window, i), strict=True)
    for (code, count, (member_id, deadline_ms)), run in groupby(columns):
        last = first + sum(1 for _ in run) - 1
        left = None if deadline_ms is None else max(0, round(deadline_ms - now_ms))
        yield InFlightRange(
            first, last, STATE_NAMES[code & ~PENDING], bool(code & PENDING), count, member_id, left
        )
        first = last + 1


def _holders(window: InFlightWindow, i: int) -> Iterator[_Held]:
    held: dict[int, _Held] = {
        number: (lock.member_id, lock.deadline_ms) for number, lock in window.locks.by_number.items()
    }
    for code, number in zip(window.states[i:], window.lock_numbers[i:], strict=True):
        yield held.get(number, _NOBODY) if code == ACQUIRED else _NOBODY


def batch_count(window: InFlightWindow) -> int:
    """Cached batches from SPSO to SPEO."""
    if not window.states:
        return 0
    i = window.start_offset - window.base
    if window.states.find(HOLE, i) < 0:
        return window.marks.count(1, i + 1) + 1  # The first one may begin below the SPSO.
    starts = zip(window.marks[i:], window.states[i:], strict=True)
    is_first_known = window.states[i] != HOLE and not window.marks[i]
    return is_first_known + sum(1 for mark, code in starts if mark and code != HOLE)


def parked_view(parking: Parking, now_ms: float, log_start_offset: int) -> tuple[InFlightRange, ...]:
    """Parked records in memory that do more than wait: they are held, due (`available`), on their
    way to the dead letter queue, or their state is being saved."""
    shown: list[tuple[int, InFlightRange]] = []
    for found in _ranges(parking.window, 0, now_ms) if parking.window.states else ():
        if found.state != STATE_NAMES[WAITING]:
            rows = parking.returned.rows[found.first_offset : found.last_offset + 1]
            shown += [
                (row.offset, found)
                for row in rows
                if row is not None and (row.offset >= log_start_offset or row.kept)
            ]
    ranges: list[InFlightRange] = []
    for offset, found in sorted(shown):
        first = offset
        if ranges and ranges[-1].last_offset + 1 == offset and ranges[-1][2:] == found[2:]:
            first = ranges.pop().first_offset
        ranges.append(found._replace(first_offset=first, last_offset=offset))
    return tuple(ranges)
