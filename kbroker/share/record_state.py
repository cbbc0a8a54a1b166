"""The life of a record in a share-partition: its states, its events, and the one transition table.

    not read yet --ACQUIRE--> ACQUIRED --ACCEPT--> ACKNOWLEDGED
                                 |  ^---RENEW
                                 |------GAP, REJECT, EXHAUST--> ARCHIVED
                                 |------RELEASE--> AVAILABLE --ACQUIRE--> ACQUIRED, count + 1
                                 '------DEAD_LETTER--> ARCHIVING --DEAD_LETTERED--> ARCHIVED

RELEASE stands for every return of a record: the client releases it, its session ends, or its lock
runs out. At the delivery limit this is EXHAUST instead, and the record is not redelivered. Where
the group has a dead letter queue (KIP-1191), REJECT and EXHAUST are DEAD_LETTER. DISCARD is the
broker's own decision about a record that is not held (the log's start has moved, or compaction has
removed it).

The engine does not look up single records in the table. The byte tables at the end of this file are
built from it, and apply to whole ranges. This module knows no offsets, members or times.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache


class RecordState(IntEnum):
    """KIP-932's record states with the ids that are saved. This broker never saves ACQUIRED."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class Event(IntEnum):
    """The events of a record's life. The first five have the ids of the protocol's acknowledge
    types."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    ACQUIRE = 5
    EXHAUST = 6
    DISCARD = 7
    DEAD_LETTER = 8
    DEAD_LETTERED = 9


TRANSITIONS: dict[tuple[RecordState, Event], RecordState] = {
    (RecordState.AVAILABLE, Event.ACQUIRE): RecordState.ACQUIRED,
    (RecordState.AVAILABLE, Event.DISCARD): RecordState.ARCHIVED,
    (RecordState.ACQUIRED, Event.GAP): RecordState.ARCHIVED,
    (RecordState.ACQUIRED, Event.ACCEPT): RecordState.ACKNOWLEDGED,
    (RecordState.ACQUIRED, Event.RELEASE): RecordState.AVAILABLE,
    (RecordState.ACQUIRED, Event.REJECT): RecordState.ARCHIVED,
    (RecordState.ACQUIRED, Event.RENEW): RecordState.ACQUIRED,
    (RecordState.ACQUIRED, Event.EXHAUST): RecordState.ARCHIVED,
    (RecordState.ACQUIRED, Event.DEAD_LETTER): RecordState.ARCHIVING,
    (RecordState.ARCHIVING, Event.DEAD_LETTERED): RecordState.ARCHIVED,
}

TERMINAL = frozenset(state for state in RecordState if not any(before is state for before, _ in TRANSITIONS))
"""ACKNOWLEDGED and ARCHIVED: no event follows, so the start offset may move past them."""


# The states column of the in-flight window holds one byte per offset: a RecordState id, HOLE,
# CONTROL or PASSED in the low three bits, and flags.

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

COUNT_UP = bytes(min(count + 1, MAX_DELIVERY_COUNT) for count in range(256))
"""bytes.translate table of the delivery counts: one more delivery."""


@lru_cache(maxsize=64)
def given_back(delivery_limit: int, dead_letter_queue: bool = False, waits: bool = False) -> bytes:
    """bytes.translate table from delivery counts to the codes of ACQUIRED records that return:
    RELEASE or, at the limit, EXHAUST. With a dead letter queue (KIP-1191) the latter is
    DEAD_LETTER. `waits`: a released record is WAITING."""
    exhausted = UNSAVED_ARCHIVING if dead_letter_queue else TRANSITIONS[RecordState.ACQUIRED, Event.EXHAUST]
    released = TRANSITIONS[RecordState.ACQUIRED, Event.RELEASE] | (WAITING if waits else 0)
    return bytes(released if count < delivery_limit else exhausted for count in range(256))


@lru_cache(maxsize=64)
def given_back_pending(delivery_limit: int, dead_letter_queue: bool = False, waits: bool = False) -> bytes:
    """The same for records whose return is saved first."""
    return bytes(
        code & (STATE | WAITING) | PENDING for code in given_back(delivery_limit, dead_letter_queue, waits)
    )


ACK_CODES = bytes(
    TRANSITIONS[RecordState.ACQUIRED, event] | PENDING
    for event in (Event.GAP, Event.ACCEPT, Event.RELEASE, Event.REJECT)
)
"""Pending code by acknowledge type. `given_back_pending` replaces RELEASE; RENEW has no code."""

DEAD_LETTER_ACK_CODES = ACK_CODES[: Event.REJECT] + bytes(
    [TRANSITIONS[RecordState.ACQUIRED, Event.DEAD_LETTER] | REJECTED | PENDING]
)
"""The same where the group has a dead letter queue."""
