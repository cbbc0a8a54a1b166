"""Dead letters of one share-partition (KIP-1191): ARCHIVING records that are saved as that, until
they are ARCHIVED.

    ARCHIVING, saved --take--> handed out --end--> ARCHIVED
                        ^------give_back------'

The flags in the window's states column (record_state.py) tell why a record is one, and who has it.
A log start that moves past them takes them away in every phase: whoever has them is told nothing,
and what it says of them afterwards does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kbroker.share.effects import DeadLetter, DeadLetterCause, StateBatch
from kbroker.share.in_flight import InFlightWindow
from kbroker.share.record_state import (
    DEAD_LETTER_CODES,
    HAND_OUT,
    HANDED_OUT_CODES,
    REJECTED,
    TAKE_BACK,
    RecordState,
)

_READY = re.compile(b"[%b]+" % re.escape(DEAD_LETTER_CODES))


def load(window: InFlightWindow, batches: Iterable[StateBatch], delivery_limit: int) -> None:
    """Why loaded records are ARCHIVING is not stored, but the count tells: below the limit it can
    only be a rejection."""
    for first, last, state, delivery_count in batches:
        if state == RecordState.ARCHIVING and delivery_count < delivery_limit:
            window.set_code(first, last, RecordState.ARCHIVING | REJECTED)


def take(window: InFlightWindow) -> list[DeadLetter]:
    """Hand out what is saved and not handed out yet, in offset order: one for each run with one
    cause and delivery count."""
    taken = []
    for i, j in [match.span() for match in _READY.finditer(window.states, window.start_offset - window.base)]:
        first, last = window.base + i, window.base + j - 1
        for run in window.runs(first, last):
            cause = DeadLetterCause.REJECTED if run.state & REJECTED else DeadLetterCause.EXHAUSTED
            taken.append(DeadLetter(run.first_offset, run.last_offset, run.delivery_count, cause))
        window.recode(first, last, HAND_OUT)
    return taken


def end(window: InFlightWindow, runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Handed out offsets are ARCHIVED; the runs that are left of these, which must not overlap.
    Raises ValueError like give_back()."""
    known = _handed_out(window, runs)
    for first, last in known:
        window.set_code(first, last, RecordState.ARCHIVED)
    return known


def give_back(window: InFlightWindow, runs: Sequence[tuple[int, int]]) -> None:
    """Handed out offsets can be taken again. Raises ValueError, before anything is changed, for one
    that is not handed out."""
    for first, last in _handed_out(window, runs):
        window.recode(first, last, TAKE_BACK)


def _handed_out(window: InFlightWindow, runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The runs from the SPSO on."""
    known = [(max(first, window.start_offset), last) for first, last in runs if last >= window.start_offset]
    for first, last in known:
        if window.count_of(HANDED_OUT_CODES, first, last) != last - first + 1:
            raise ValueError(f"not all of the offsets {first} to {last} are handed out as dead letters")
    return known
