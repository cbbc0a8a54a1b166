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

from collections.abc import Mapping, Sequence

from kbroker.share import ordering, returning
from kbroker.share.acquire import Batches, Control, runs_of
from kbroker.share.effects import Persist
from kbroker.share.in_flight import MAX_SPAN, InFlightWindow
from kbroker.share.ordering import Keys
from kbroker.share.parked import Lane, Parked
from kbroker.share.record_state import AVAILABLE, HOLE, WAITING, RecordState
from kbroker.share.rules import Event, decide
from kbroker.share.runs import joined_runs
from kbroker.share.runs import runs_of as offset_runs
from kbroker.share.share_partition import SharePartition

_AT_ONCE = 2000
_ENOUGH = 20_000
"""With this many undelivered records, members have enough to fetch."""


def scan_from(engine: SharePartition) -> int | None:
    """Where to read for the next scanned(). None: there is nothing to scan now."""
    window, settings, order = engine.window, engine.settings, engine.key_order
    if order is not None:
        if (offset := ordering.learn_at(window, order)) is not None:
            return offset
        if not order.room():
            return None
    offset = _not_scanned(window)
    is_full = not settings.limits_undecided and window.in_flight >= settings.max_record_locks
    return None if offset is None or (is_full and offset >= window.unread_from) else offset


def _not_scanned(window: InFlightWindow) -> int | None:
    """The first offset that has not been scanned. None: no scan is needed now."""
    if window.undelivered >= _ENOUGH:
        return None
    if window.gap_open:
        hole = window.states.find(HOLE, max(window.gap_start, window.start_offset) - window.base)
        if hole >= 0:
            return window.base + hole
    return None if window.end_offset - window.start_offset + 1 >= MAX_SPAN else window.unread_from


def has_to_scan(engine: SharePartition, end_offset: int) -> bool:
    """True if a scan of a log that ends there would find something to do, or keys have to be looked
    up."""
    order = engine.key_order
    if order is not None and (order.asked or not order.has_learnt or engine.has_unsaved):
        return True
    offset = scan_from(engine)
    return offset is not None and offset < end_offset


def scanned(
    engine: SharePartition,
    offset: int,
    batches: Batches,
    control: Sequence[Control],
    scheduled: Sequence[tuple[int, int]],
    *,
    now_ms: float,
    wall_ms: float,
    keys: Keys | None = None,
) -> Persist | None:
    """A read at `offset` returned these batches. None: nothing to save.

    - `control`: the batches between them that members never get.
    - `scheduled`: (offset, due time on the wall clock) of records that are due later. The others
      can be acquired now, or once their keys are free.
    - `keys`: the keys of these records, where the group keeps their order.
    """
    window, order = engine.window, engine.key_order
    learns = order is not None and not order.has_learnt
    for run, is_finished in runs_of(batches, control) if not learns or window.gap_open else ():
        if is_finished is not None:
            for first, last in joined_runs([(batch[0], batch[1]) for batch in run]):
                engine.pass_over(first, last, is_finished=is_finished)
        else:
            _place(window, offset, run)
    if not learns and window.gap_open and not window.has_gap:
        window.gap_end = -1  # The whole gap window is scanned: no hole in it holds back the SPSO.
    found = [] if order is None or keys is None else ordering.know(window, order, keys.hashes)
    to_park, soon = _put_off(engine, scheduled, now_ms, wall_ms)
    if order is not None and keys is not None:
        order.found(keys.parked)
        put_off = {*(parked.offset for parked in to_park), *soon}
        ordering.join(window, order, engine.waits, found, put_off)
        if learns:
            order.learn_from = max(order.learn_from, keys.up_to + 1)
    engine.advance()
    return engine.saves.begin_best_effort(engine.parking, [], to_park) if to_park else None


def _put_off(
    engine: SharePartition, scheduled: Sequence[tuple[int, int]], now_ms: float, wall_ms: float
) -> tuple[list[Parked], list[int]]:
    """Records that are due later. Returns those to park, and the offsets of those that wait in the
    window."""
    window, parking = engine.window, engine.parking
    assert parking is not None
    park_from_ms = wall_ms + (engine.settings.park_from_ms or 0)
    to_park, soon = [], []
    for offset, due_ms in scheduled:
        if window.code_at(offset) != AVAILABLE or window.counts[offset - window.base]:
            continue
        if due_ms < park_from_ms:
            window.wait(offset)
            engine.waits.begin_until(offset, due_ms, now_ms=now_ms, wall_ms=wall_ms)
            soon.append(offset)
        else:
            window.move_out(offset)
            to_park.append(parking.new(offset, Lane.SCHEDULE, due_ms, 0))
    return to_park, soon


def _place(window: InFlightWindow, offset: int, batches: Batches) -> None:
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


def _fill_holes(window: InFlightWindow, first: int, last: int) -> None:
    i, j = first - window.base, last + 1 - window.base
    while (i := window.states.find(HOLE, i, j)) >= 0:
        size = len(window.states[i:j]) - len(window.states[i:j].lstrip(bytes([HOLE])))
        window.place(window.base + i, window.base + i + size - 1, window.base + i - 1, 0)
        i += size


def park_again(engine: SharePartition, wall_ms: float) -> Persist | None:
    """Park the records once more that a failed write of scanned() left in the window. None: there
    are none."""
    window, to_park = engine.window, []
    if engine.parking is None:
        return None
    for offset, due_ms in engine.waits.scheduled_from(wall_ms + (engine.settings.park_from_ms or 0))[
        :_AT_ONCE
    ]:
        if window.code_at(offset) == WAITING:
            window.move_out(offset)
            engine.waits.end(offset)
            to_park.append(engine.parking.new(offset, Lane.SCHEDULE, due_ms, 0))
    return engine.saves.begin_best_effort(engine.parking, [], to_park) if to_park else None


# ---- ahead of the scan ---------------------------------------------------------------------------


def may_look_ahead(engine: SharePartition) -> bool:
    """True if place_ahead() would help where the scan is far from the log's end: members have
    hardly any records to fetch, and the window has room. It does not help where the limit counts
    the span of the window, or where the order of keys is kept."""
    window = engine.window
    if engine.key_order is not None or not engine.settings.limits_undecided:
        return False
    return window.undelivered < _AT_ONCE and window.end_offset - window.start_offset + 1 < MAX_SPAN


def place_ahead(engine: SharePartition, first: int, last: int) -> None:
    """Place AVAILABLE records behind the SPEO, ahead of the scan: they are not scheduled. The
    unscanned offsets before them become a hole of the gap window, which the scan still visits. No
    effect if the window already has them, or cannot reach so far."""
    if first >= engine.window.unread_from and last < engine.window.start_offset + MAX_SPAN:
        engine.window.place_ahead(first, last)


# ---- the order of keys (ordering.py) -------------------------------------------------------------


def keep_order(engine: SharePartition) -> None:
    """Start or stop keeping the order of keys, as the settings say. Call it when they were altered,
    and once `parking` is set, which the order needs. Members keep what they hold. The records in
    the window are scanned first; no member gets records before that is done."""
    order, parking = engine.key_order, engine.parking
    if parking is None or engine.settings.ordered == (order is not None):
        return
    if order is not None:
        engine.counters.look_ahead_stops += order.stops
        engine.window.end_order()
    engine.key_order = ordering.begin(engine.window) if order is None else None
    parking.order_keys(engine.key_order)


def keys_found(engine: SharePartition, asked: Sequence[int], parked: Mapping[int, Sequence[int]]) -> None:
    """The store has answered which keys of due records (`key_order.asked`) are blocked; `parked` as
    in Keys."""
    order, parking = engine.key_order, engine.parking
    if order is None or parking is None:
        return
    order.found(parked)
    for offset in [each for each in asked if each in order.asked and each not in parking.rows]:
        del order.asked[offset]
        if order.admit(offset):
            engine.window.go(offset)
    parking.end_asking(asked)


# ---- records that are past their time ------------------------------------------------------------


def expire_records(engine: SharePartition, offsets: Sequence[int]) -> Persist | None:
    """These records are past their time to live. Those that could be acquired now become ARCHIVED,
    or dead letters. None: there are none."""
    window, parking, settings = engine.window, engine.parking, engine.settings
    assert parking is not None
    archived, to_park = [], []
    for offset in offsets:
        if window.code_at(offset) != AVAILABLE:
            continue
        count = window.counts[offset - window.base]
        if decide(RecordState.AVAILABLE, count, Event.EXPIRE, settings).state is RecordState.ARCHIVING:
            window.move_out(offset)
            to_park.append(parking.new(offset, Lane.ARCHIVING, 0, count, is_expired=True))
        else:
            window.archive(offset)
            archived.append(offset)
    expired = len(archived) + len(to_park) + returning.expire(parking, offsets, settings)
    if not expired:
        return None
    engine.counters.expired += expired
    persist = engine.saves.begin_best_effort(parking, offset_runs(archived), to_park)
    engine.advance()
    return persist
