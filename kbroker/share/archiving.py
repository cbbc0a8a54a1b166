"""Dead letters in the window of one share-partition (KIP-1191): records that are saved as
ARCHIVING, until they are ARCHIVED.

    ARCHIVING, saved --take--> handed out --end--> ARCHIVED
                        ^------give_back------'

Flags in the states column (record_state.py) hold the cause, and whether a record is handed out. A
log start that passes such a record removes it in every phase. The dead letter writer is not
notified; what it reports of the record afterwards has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kbroker.share.effects import DeadLetter, DeadLetterCause, ShareSettings, StateBatch
from kbroker.share.in_flight import InFlightWindow
from kbroker.share.record_state import (
    DEAD_LETTER_CODES,
    HAND_OUT,
    HANDED_OUT_CODES,
    REJECTED,
    TAKE_BACK,
    RecordState,
)
from kbroker.share.rules import cause_of_stored

_READY = re.compile(b"[%b]+" % re.escape(DEAD_LETTER_CODES))


def load(window: InFlightWindow, batches: Iterable[StateBatch], settings: ShareSettings) -> None:
    """Mark the records that are stored as ARCHIVING because they were rejected."""
    for first, last, state, delivery_count in batches:
        is_archiving = state == RecordState.ARCHIVING
        if is_archiving and cause_of_stored(delivery_count, settings) is DeadLetterCause.REJECTED:
            window.set_code(first, last, RecordState.ARCHIVING | REJECTED)


def take(window: InFlightWindow) -> list[DeadLetter]:
    """Hand out the records that are saved and not handed out yet, in offset order: a DeadLetter for
    each run with one cause and delivery count."""
    taken = []
    for i, j in [match.span() for match in _READY.finditer(window.states, window.start_offset - window.base)]:
        first, last = window.base + i, window.base + j - 1
        for run in window.runs(first, last):
            cause = DeadLetterCause.REJECTED if run.state & REJECTED else DeadLetterCause.EXHAUSTED
            taken.append(DeadLetter(run.first_offset, run.last_offset, run.delivery_count, cause))
        window.recode(first, last, HAND_OUT)
    return taken


def end(window: InFlightWindow, runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Handed out offsets are ARCHIVED. Returns the runs that the SPSO has not passed; the given
    ones must not overlap. Raises ValueError like give_back()."""
    known = _handed_out(window, runs)
    for first, last in known:
        window.set_code(first, last, RecordState.ARCHIVED)
    return known


def give_back(window: InFlightWindow, runs: Sequence[tuple[int, int]]) -> None:
    """Handed out offsets can be taken again. Raises ValueError, with nothing changed, for one that
    is not handed out."""
    for first, last in _handed_out(window, runs):
        window.recode(first, last, TAKE_BACK)


def _handed_out(window: InFlightWindow, runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The runs from the SPSO on. Raises ValueError for an offset that is not handed out."""
    known = [(max(first, window.start_offset), last) for first, last in runs if last >= window.start_offset]
    for first, last in known:
        if window.count_of(HANDED_OUT_CODES, first, last) != last - first + 1:
            raise ValueError(f"not all of the offsets {first} to {last} are handed out as dead letters")
    return known
