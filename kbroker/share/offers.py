"""What a member could get of a share-partition now. Nothing here changes it. Pure."""

from __future__ import annotations

from typing import Final

from kbroker.share.record_state import AVAILABLE
from kbroker.share.share_partition import SharePartition

_READ_BETWEEN: Final = 1000


def offset_to_acquire(engine: SharePartition) -> int | None:
    """Where to read for the next acquire(). None where a read would be useless: there is nothing to
    redeliver, and the lock limit leaves no room."""
    window, settings = engine.window, engine.settings
    if engine.key_order is not None and not engine.has_learnt_keys:
        return None
    if engine.parking is not None and not engine.locks_left:
        return None
    if settings.limits_undecided and window.undecided >= settings.max_record_locks:
        return window.next_given_back()
    if settings.scans:
        return window.next_available()
    offset = window.next_fetch_offset()
    if (
        offset != window.end_offset + 1
        or settings.limits_undecided
        or window.in_flight < settings.max_record_locks
    ):
        return offset
    return None


def offsets_to_read(engine: SharePartition, fetch_offset: int, most: int) -> int:
    """How many offsets to read from there for a member that wants at most `most` records, where all
    records were scanned before. Thousands of records that are not free may lie between free ones,
    and thousands behind them."""
    last = engine.window.available_within(fetch_offset, most)
    return 1 if last is None else max(1, min(last - fetch_offset + 1, most + _READ_BETWEEN))


def acquirable(engine: SharePartition, end_offset: int) -> int:
    """How many records could be acquired now, of a log that ends there."""
    window = engine.window
    if engine.key_order is not None and not engine.has_learnt_keys:
        return 0
    limit, undecided = engine.settings.max_record_locks, engine.settings.limits_undecided
    has_room = (window.undecided if undecided else window.in_flight) < limit and not engine.settings.scans
    new = max(0, end_offset - window.unread_from) if has_room else 0
    if window.states:
        new += window.count_of((AVAILABLE,), window.start_offset, window.end_offset)
    return new if engine.parking is None else min(new + parked_ready(engine), engine.locks_left)


def parked_ready(engine: SharePartition) -> int:
    """How many parked records are due and can be acquired now."""
    if engine.parking is None or (engine.key_order is not None and not engine.has_learnt_keys):
        return 0
    return min(engine.parking.ready, engine.locks_left) if engine.parking.ready else 0


def acquirable_in(engine: SharePartition, first: int, last: int) -> int:
    """How many offsets of first..last a member could acquire now, limits aside. Without scans,
    unread offsets and holes of the gap window count as well."""
    if engine.settings.scans:
        return engine.window.count_available(first, last)
    return engine.window.acquirable_in(first, last)
