"""The states of a record in a share-partition, and the codes of the window's states column. What
becomes of a record is in rules.py.

The column holds one byte per offset: a RecordState id, HOLE, CONTROL or PASSED in the low three
bits, and flags. This module knows no offsets, members or times.
"""

from __future__ import annotations

from enum import IntEnum


class RecordState(IntEnum):
    """KIP-932's record states with the ids that are saved. This broker never saves ACQUIRED."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


TERMINAL = frozenset((RecordState.ACKNOWLEDGED, RecordState.ARCHIVED))
"""No event follows, so the start offset may move past them."""

STATE = 7
"""The bits of a code that are the state."""

AVAILABLE = int(RecordState.AVAILABLE)
ACQUIRED = int(RecordState.ACQUIRED)

HOLE = 5
"""No record is known at this offset: it is unread (inside the gap window), or the log has none."""

CONTROL = 6
"""The log has a control batch here. It is not delivered, not in flight, and blocks nothing."""

PASSED = 7
"""As CONTROL, but finished for the group: the marker of a transaction, or an aborted record. It is
saved as ACKNOWLEDGED with a delivery count of 0, so that stored state shows what is finished."""

PENDING = 8
"""With the state that an ACQUIRED record gets when its Persist succeeds. Until then it can be
neither acquired nor acknowledged, and is not terminal. If the write fails it is ACQUIRED again."""

REJECTED = 16
"""With ARCHIVING: a client rejected the record. Without this flag the delivery limit was
reached."""

UNSAVED = 32
"""With ARCHIVING: the result of an expired lock, and not known to be saved. Written now, the dead
letter could be written twice after a crash."""

HANDED_OUT = 64
"""With ARCHIVING: handed out to be written as a dead letter."""

WAITING = 128
"""With AVAILABLE: delivered no earlier than its redelivery or schedule is due (redelivery.py)."""

BEHIND = 64
"""As a whole code, instead of AVAILABLE: another record of the key is delivered first
(key_order.py)."""

TERMINAL_CODES = bytes(sorted(TERMINAL))
PASSABLE_IN_GAP = TERMINAL_CODES + bytes((CONTROL, PASSED))
PASSABLE = PASSABLE_IN_GAP + bytes((HOLE,))
"""What the start offset moves past; a hole of the gap window may still have a record."""
TERMINAL_OR_PENDING = frozenset(TERMINAL_CODES) | {code | PENDING for code in TERMINAL_CODES}

DEAD_LETTER_CODES = bytes((RecordState.ARCHIVING, RecordState.ARCHIVING | REJECTED))
"""ARCHIVING, saved, and not handed out yet."""
HANDED_OUT_CODES = bytes(code | HANDED_OUT for code in DEAD_LETTER_CODES)
UNSAVED_ARCHIVING = RecordState.ARCHIVING | UNSAVED
ARCHIVING_CODES = DEAD_LETTER_CODES + HANDED_OUT_CODES + bytes([UNSAVED_ARCHIVING])

PENDING_ARCHIVING_CODES = bytes(code | PENDING for code in DEAD_LETTER_CODES)
PENDING_CODES = bytes(
    sorted(
        {state | PENDING for state in RecordState}
        | set(PENDING_ARCHIVING_CODES)
        | {RecordState.AVAILABLE | WAITING | PENDING}
    )
)

SETTLE = bytes(code & ~(PENDING | UNSAVED) for code in range(256))
"""bytes.translate table: codes whose save was under way to the saved ones."""

HAND_OUT = bytes(code | HANDED_OUT if code in DEAD_LETTER_CODES else code for code in range(256))
TAKE_BACK = bytes(code & ~HANDED_OUT if code in HANDED_OUT_CODES else code for code in range(256))
"""bytes.translate tables for dead letters that are handed out, and that are returned."""

MAX_DELIVERY_COUNT = 255
"""Counts stop here: the column has one byte per offset."""
