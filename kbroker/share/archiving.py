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

from kbroker.share.effects import DeadLetter, DeadLetterCause, Persist
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
    RecordState,
)
from kbroker.share.runs import Runs, joined_runs, runs_of, size_of
from kbroker.share.share_partition import SharePartition

_READY: Final = re.compile(b"[%b]+" % re.escape(DEAD_LETTER_CODES))
_FIRST_OFFSET: Final = attrgetter("first_offset")
_FINISHED_BY_LETTERS: Final = PASSABLE + DEAD_LETTER_CODES + HANDED_OUT_CODES


def has_dead_letters(engine: SharePartition) -> bool:
    """True if take() would return some."""
    if engine.parking is not None and (not engine.parking.knows_archiving or engine.parking.has_dead_letters):
        return engine.parking.knows_archiving
    return engine.window.has_any(*DEAD_LETTER_CODES)


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
    window, parking = engine.window, engine.parking
    if parking is not None and not parking.knows_archiving:
        return []
    taken = []
    for i, j in [match.span() for match in _READY.finditer(window.states, window.start_offset - window.base)]:
        first, last = window.base + i, window.base + j - 1
        for run in window.runs(first, last):
            cause = DeadLetterCause.REJECTED if run.state & REJECTED else DeadLetterCause.EXHAUSTED
            taken.append(DeadLetter(run.first_offset, run.last_offset, run.delivery_count, cause))
        window.recode(first, last, HAND_OUT)
    parked = [] if parking is None else parking.take_dead_letters()
    return sorted([*taken, *parked], key=_FIRST_OFFSET) if parked else taken


def dead_lettered(engine: SharePartition, runs: Sequence[tuple[int, int]]) -> Persist | None:
    """These offsets, handed out before, are durable in the dead letter queue, or never will be:
    they are ARCHIVED. Offsets that the log's start has passed meanwhile are skipped; None if no
    other is left. If the Persist fails, the next one carries them.

    Raises ValueError for an offset that is not handed out; nothing has changed then.
    """
    parked, runs = _parked_of(engine, runs)
    ended = _handed_out(engine.window, joined_runs(runs))
    for first, last in ended:
        engine.window.set_code(first, last, RecordState.ARCHIVED)
    if engine.parking is not None:
        engine.parking.dead_lettered(parked)
    if not ended and not parked:
        return None
    engine.counters.dead_lettered += len(parked) + size_of(ended)
    persist = engine.saves.begin_best_effort(engine.parking, ended)
    engine.advance()
    return persist


def give_back(engine: SharePartition, runs: Sequence[tuple[int, int]]) -> None:
    """These offsets, handed out before, were not written: take() returns them again. Raises
    ValueError, with nothing changed, for one that is not handed out."""
    parked, runs = _parked_of(engine, runs)
    for first, last in _handed_out(engine.window, runs):
        engine.window.recode(first, last, TAKE_BACK)
    if engine.parking is not None:
        engine.parking.give_back_dead_letters(parked)


def _parked_of(
    engine: SharePartition, runs: Sequence[tuple[int, int]]
) -> tuple[list[int], Sequence[tuple[int, int]]]:
    """Splits these offsets into parked records and runs of the window."""
    parked = [] if engine.parking is None else engine.parking.handed_out(runs)
    if not parked:
        return [], runs
    known = set(parked)
    rest = [offset for first, last in runs for offset in range(first, last + 1) if offset not in known]
    return parked, runs_of(rest)


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
