"""Dead letters of one share-partition (KIP-1191): records that are saved as ARCHIVING, until they
are ARCHIVED. They are in the window, or parked (parking.py). Pure.

    ARCHIVING, saved --take--> handed out --dead_lettered--> ARCHIVED at once, the SPSO moves;
                        ^----- give_back -----'              saving that is best effort

Flags in the states column (record_state.py) hold the cause, and whether a record is handed out. A
log start that passes such a record removes it in every phase. The dead letter writer is not
notified; what it reports of the record afterwards has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from kbroker.share.effects import DeadLetter, DeadLetterCause, Persist, StateBatch
from kbroker.share.in_flight import InFlightWindow
from kbroker.share.record_state import (
    ARCHIVING_CODES,
    DEAD_LETTER_CODES,
    HAND_OUT,
    HANDED_OUT_CODES,
    PASSABLE,
    PENDING_ARCHIVING_CODES,
    REJECTED,
    TAKE_BACK,
    UNSAVED_ARCHIVING,
)
from kbroker.share.returned import Row
from kbroker.share.runs import Runs, joined_runs, runs_of, size_of
from kbroker.share.share_partition import SharePartition

_READY: Final = re.compile(b"[%b]+" % re.escape(DEAD_LETTER_CODES))
_FIRST_OFFSET: Final = attrgetter("first_offset")
_FINISHED_BY_LETTERS: Final = PASSABLE + DEAD_LETTER_CODES + HANDED_OUT_CODES


def has_dead_letters(engine: SharePartition) -> bool:
    """True if take() would return some."""
    parking = engine.parking
    if parking is not None and not parking.knows_archiving:
        return False
    return any(window.has_any(*DEAD_LETTER_CODES) for window in engine.windows)


def waits_for_letters(engine: SharePartition, first: int, end_offset: int) -> bool:
    """Whether at least half of these offsets are finished, or will be with their dead letters."""
    window = engine.window
    finished = min(window.start_offset, end_offset) - first
    finished += window.count_of(_FINISHED_BY_LETTERS, max(first, window.start_offset), end_offset - 1)
    return 2 * finished >= end_offset - first


def take(engine: SharePartition) -> list[DeadLetter]:
    """Hand out the records that are saved as ARCHIVING and not handed out yet, in offset order: a
    DeadLetter for each run with one cause and delivery count. The caller reports each of them with
    dead_lettered() or give_back()."""
    parking = engine.parking
    if parking is not None and not parking.knows_archiving:
        return []
    taken = [
        DeadLetter(run.first_offset, run.last_offset, run.delivery_count, _cause(run.state))
        for run in _hand_out(engine.window)
    ]
    if parking is None:
        return taken
    for run in _hand_out(parking.window):
        for row in map(parking.returned.at, range(run.first_offset, run.last_offset + 1)):
            cause = DeadLetterCause.EXPIRED if row.expired else _cause(run.state)
            taken.append(DeadLetter(row.offset, row.offset, run.delivery_count, cause))
    return sorted(taken, key=_FIRST_OFFSET)


def _hand_out(window: InFlightWindow) -> list[StateBatch]:
    found = []
    for i, j in [match.span() for match in _READY.finditer(window.states, window.start_offset - window.base)]:
        first, last = window.base + i, window.base + j - 1
        found += window.runs(first, last)
        window.recode(first, last, HAND_OUT)
    return found


def _cause(code: int) -> DeadLetterCause:
    return DeadLetterCause.REJECTED if code & REJECTED else DeadLetterCause.EXHAUSTED


def dead_lettered(engine: SharePartition, runs: Sequence[tuple[int, int]]) -> Persist | None:
    """These offsets, handed out before, are durable in the dead letter queue, or never will be:
    they are ARCHIVED. Offsets that the log's start has passed meanwhile are skipped; None if no
    other is left. If the Persist fails, the next one carries them.

    Raises ValueError for an offset that is not handed out; nothing has changed then.
    """
    rows, runs = _parked_of(engine, runs)
    ended = _handed_out(engine.window, joined_runs(runs))
    for first, last in ended:
        engine.window.dead_lettered(first, last)
    if engine.parking is not None:
        for row in rows:
            engine.parking.remove(row)
    if not ended and not rows:
        return None
    engine.counters.dead_lettered += len(rows) + size_of(ended)
    engine.window.given_up += len(rows)
    persist = engine.saves.begin_best_effort(engine.parking, ended)
    engine.advance()
    return persist


def give_back(engine: SharePartition, runs: Sequence[tuple[int, int]]) -> None:
    """These offsets, handed out before, were not written: take() returns them again. Raises
    ValueError, with nothing changed, for one that is not handed out."""
    rows, runs = _parked_of(engine, runs)
    for first, last in _handed_out(engine.window, runs):
        engine.window.recode(first, last, TAKE_BACK)
    if engine.parking is not None:
        for row in rows:
            engine.parking.window.recode(row.slot, row.slot, TAKE_BACK)


def _parked_of(
    engine: SharePartition, runs: Sequence[tuple[int, int]]
) -> tuple[list[Row], Sequence[tuple[int, int]]]:
    """Splits these offsets into parked records and runs of the front window."""
    parking = engine.parking
    rows = [] if parking is None else [row for first, last in runs for row in parking.rows_in(first, last)]
    rows = [
        row for row in rows if parking is not None and (parking.returned.code(row) or 0) in HANDED_OUT_CODES
    ]
    if not rows:
        return [], runs
    known = {row.offset for row in rows}
    rest = [offset for first, last in runs for offset in range(first, last + 1) if offset not in known]
    return rows, runs_of(rest)


def _handed_out(window: InFlightWindow, runs: Sequence[tuple[int, int]]) -> Runs:
    """The runs from the SPSO on. Raises ValueError for an offset that is not handed out."""
    known = [(max(first, window.start_offset), last) for first, last in runs if last >= window.start_offset]
    for first, last in known:
        if window.count_of(HANDED_OUT_CODES, first, last) != last - first + 1:
            raise ValueError(f"not all of the offsets {first} to {last} are handed out as dead letters")
    return known


def has_unsaved_archiving(engine: SharePartition) -> bool:
    """True if a failed write left records ARCHIVING in memory only: time for retry_unsaved()."""
    if engine.parking is not None and engine.parking.has_unsaved_archiving:
        return True
    return any(engine.window.has((UNSAVED_ARCHIVING,), first, last) for first, last in engine.saves.unsaved)


def has_archiving(engine: SharePartition) -> bool:
    """True while a record is ARCHIVING, is becoming so, or is still saved as ARCHIVING although it
    is ARCHIVED here. Notes about its way into the dead letter queue must be kept until then. With
    nothing else left to do, retry_unsaved() ends it."""
    saves = engine.saves
    if saves.unsaved or any(write.decided or write.passed for write in saves.under_way.values()):
        return True
    if engine.parking is not None and engine.parking.has_archiving:
        return True
    return engine.window.has_any(*ARCHIVING_CODES, *PENDING_ARCHIVING_CODES)
