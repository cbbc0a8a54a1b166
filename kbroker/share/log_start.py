"""The log's start moves: records below it are finished, or are kept beside the log. Pure.

    log before    | . . . . . . . . . . . . . . . . . . . . |
    log after                         | . . . . . . . . . . |
                    finished, or kept     as before

Retention or DeleteRecords may take records that are still in flight or parked. Without record
keeping they are finished, without dead letters. With it (`kbroker.queue.retention`), records that
are not finished are parked with their bytes before the log's start moves, and leave the window with
their whole state:

    in the window           parked as
    held                    held, by the same member until the same deadline
    returned, or waiting    due at the same time
    ARCHIVING               ARCHIVING, with its cause

Otherwise one held record, or one that has returned and is never fetched, would hold the log. The
record's place in the window becomes ARCHIVED, which is final once that is saved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kbroker.share import returning
from kbroker.share.effects import Persist
from kbroker.share.parked import Lane, Parked
from kbroker.share.parking import Look
from kbroker.share.record_state import (
    ACQUIRED,
    AVAILABLE,
    DEAD_LETTER_CODES,
    PASSABLE,
    PASSABLE_IN_GAP,
    REJECTED,
    WAITING,
)
from kbroker.share.share_partition import SharePartition

_NOT_OVER: Final = re.compile(b"[^%b]" % re.escape(PASSABLE))
_NOT_OVER_OR_HOLE: Final = re.compile(b"[^%b]" % re.escape(PASSABLE_IN_GAP))


def log_start_moved(engine: SharePartition, new_start_offset: int) -> Persist | None:
    """The log now begins at this offset (retention or DeleteRecords): records of the window below
    it are finished, without dead letters.

    None if the SPSO is already there. The Persist carries the new start offset; if it fails, the
    next one carries it.
    """
    return engine.saves.begin(engine.parking, []) if _drop_below(engine, new_start_offset) else None


def _drop_below(engine: SharePartition, new_start_offset: int) -> bool:
    """False: the SPSO is already there. Otherwise the next Persist carries the move."""
    window = engine.window
    engine.log_start = max(engine.log_start, new_start_offset)
    start_offset = window.start_offset
    if new_start_offset <= start_offset:
        return False
    if engine.held is not None:
        for lock in window.locks.by_deadline:
            gone = sum(
                min(last + 1, new_start_offset) - first
                for first, last in window.held_runs(lock)
                if first < new_start_offset
            )
            engine.held.add(lock.member_id, -gone)
    window.drop_below(new_start_offset)
    engine.waits.forget_below(new_start_offset)
    dropped = [(start_offset, new_start_offset - 1)]
    engine.lose_keys(dropped)
    engine.saves.note(dropped)
    return True


def parked_below(engine: SharePartition, log_start_offset: int) -> Persist | None:
    """The log now begins there: parked records below it are finished, without dead letters. Those
    that are not in memory have to be swept (`parking.needs_sweep`)."""
    parking = engine.parking
    if parking is None or log_start_offset <= parking.floor:
        return None
    _no_longer_held(engine, parking.drop_below(log_start_offset))
    return engine.saves.begin(parking, []) if parking.has_unsaved else None


def purge(engine: SharePartition, end_offset: int) -> Persist | None:
    """All records below the offset were deleted on purpose: parked ones are finished as well, kept
    or not. Otherwise as parked_below(). The window moves with them, as a parked record may be above
    the SPSO, with its dead letter being written: what is reported of it later then has no
    effect."""
    parking = engine.parking
    if parking is None:
        return None
    has_moved = _drop_below(engine, end_offset)
    _no_longer_held(engine, parking.purge(end_offset))
    return engine.saves.begin(parking, []) if has_moved or parking.has_unsaved else None


def _no_longer_held(engine: SharePartition, by_member: Mapping[str, int]) -> None:
    for member_id, records in by_member.items():
        if engine.held is not None:
            engine.held.add(member_id, -records)


# ---- records that are parked already -------------------------------------------------------------


def begin_look(engine: SharePartition) -> Look:
    """The caller is about to read parked records for sweep() or keep(). It calls `parking.end_look`
    afterwards."""
    assert engine.parking is not None
    writes = [write.parked for write in engine.saves.under_way.values() if write.parked is not None]
    return engine.parking.begin_look(offset for write in writes for offset in write.offsets())


def sweep(engine: SharePartition, found: Iterable[Parked], look: Look) -> Persist | None:
    """Finish the parked records of this look that lie below the log's start and are not kept."""
    return (
        engine.saves.begin(engine.parking, [])
        if engine.parking is not None and engine.parking.sweep(found, look)
        else None
    )


def lost(engine: SharePartition, offsets: Iterable[int]) -> Persist | None:
    """The log no longer has these parked records, which were due."""
    has_lost = engine.parking is not None and returning.lost(engine.parking, offsets)
    return engine.saves.begin(engine.parking, []) if has_lost else None


def keep(
    engine: SharePartition, found: Iterable[Parked], records: Mapping[int, bytes], look: Look
) -> Persist | None:
    """Keep these parked records of the look, as leave() does."""
    has_kept = engine.parking is not None and engine.parking.keep(found, records, look)
    return engine.saves.begin(engine.parking, []) if has_kept else None


# ---- records of the window -----------------------------------------------------------------------


class Leavers(NamedTuple):
    """`offsets` can leave the window. `stuck_at`: the first offset at which a record cannot, at the
    moment."""

    offsets: Sequence[int]
    stuck_at: int


def leavers(engine: SharePartition, end_offset: int, limit: int) -> Leavers:
    """Of the unfinished records of the window below `end_offset`, at most `limit` that could be
    parked and kept. Records that were never delivered stay, and so do those that are behind another
    of their key or are being saved. None can before the order of keys is known: a parked record
    carries its key."""
    window, found = engine.window, list[int]()
    if not engine.has_learnt_keys or not window.states:
        return Leavers(found, min(end_offset, window.start_offset))
    pattern = _NOT_OVER_OR_HOLE if window.gap_open else _NOT_OVER
    end = min(end_offset, window.end_offset + 1)
    for match in pattern.finditer(
        window.states, window.start_offset - window.base, max(0, end - window.base)
    ):
        offset = window.base + match.start()
        if len(found) == limit or not _can_leave(engine, offset):
            return Leavers(found, offset)
        found.append(offset)
    return Leavers(found, end)


def leave(engine: SharePartition, records: Mapping[int, bytes], *, now_ms: float) -> Persist | None:
    """Park and keep these records of the window, as far as leavers() would still name them.
    `records`: each as a batch of its own, by offset. They are parked at once and keep their state:
    held until the same deadline, or due at the same time. If the Persist fails the next one carries
    them; the log must stay until one is saved."""
    window = engine.window
    if not engine.has_learnt_keys:
        return None
    has_left = False
    for offset, record in records.items():
        if (
            window.states
            and window.start_offset <= offset <= window.end_offset
            and _can_leave(engine, offset)
        ):
            _leave(engine, offset, record, now_ms)
            has_left = True
    return engine.saves.begin(engine.parking, []) if has_left else None


def _leave(engine: SharePartition, offset: int, record: bytes, now_ms: float) -> None:
    window, parking, order = engine.window, engine.parking, engine.key_order
    assert parking is not None
    i = offset - window.base
    code, count = window.states[i], window.counts[i]
    lane, due_ms = Lane.REDELIVERY, parking.due_at(now_ms)
    if code in DEAD_LETTER_CODES:
        lane, due_ms = Lane.ARCHIVING, 0
    elif code & WAITING:
        due_ms = parking.due_at(engine.waits.due_ms(offset) or now_ms)
        engine.waits.end(offset)
    is_held, key_hash = code == ACQUIRED, None if order is None else order.hash_of(offset)
    what = offset, lane, due_ms, count - is_held, engine.saves.leader_epoch, bool(code & REJECTED)
    entry = parking.move_in(Parked(*what, key_hash=key_hash), record)
    if is_held:
        lock = window.locks.by_number[window.lock_numbers[i]]
        began_ms = lock.deadline_ms - engine.settings.lock_duration_ms
        parking.hold(entry, lock, began_ms if lock.since_ms is None else lock.since_ms)
    if order is not None:
        order.park(offset)
    window.move_out(offset)


def _can_leave(engine: SharePartition, offset: int) -> bool:
    window = engine.window
    i = offset - window.base
    code = window.states[i]
    if code == ACQUIRED:
        return window.lock_numbers[i] in window.locks.by_number
    if code == AVAILABLE:
        return window.counts[i] > 0
    if code == WAITING:
        return window.counts[i] > 0 and engine.waits.due_ms(offset) is not None
    return code in DEAD_LETTER_CODES
