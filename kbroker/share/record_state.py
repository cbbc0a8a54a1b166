"""The life of a record in a share-partition: its states, what can happen to it, and the one table
that says what follows.

    not read yet --ACQUIRE--> ACQUIRED --ACCEPT--> ACKNOWLEDGED
                                 |  ^---RENEW
                                 |------GAP, REJECT, EXHAUST--> ARCHIVED
                                 |------RELEASE--> AVAILABLE --ACQUIRE--> ACQUIRED, count + 1
                                 '------DEAD_LETTER--> ARCHIVING --DEAD_LETTERED--> ARCHIVED

RELEASE stands for everything that gives a record back: the client's RELEASE, the end of its
session, a lock that timed out. At the delivery limit the same thing is EXHAUST instead, and the
record is not delivered again. Where the group has a dead letter queue (KIP-1191), REJECT and
EXHAUST are DEAD_LETTER. DISCARD is the broker's own decision about a record that nobody holds (log
start moved, compaction took it).

The engine never asks this table record by record: it builds byte tables from it (see the end of
this file) and applies them to whole ranges. Nothing here knows offsets, members or time.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache


class RecordState(IntEnum):
    """KIP-932's record states with the ids that are persisted. ACQUIRED is never persisted by this
    broker."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class Event(IntEnum):
    """What happens to a record. The first five have the ids of the acknowledge types of the
    protocol."""

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
"""ACKNOWLEDGED and ARCHIVED: nothing follows, so the start offset may move past them."""


# The states column of the in-flight window holds one byte per offset: a RecordState id, HOLE or
# CONTROL in the low three bits, and flags.

STATE = 7
"""What of a code is the state."""

AVAILABLE = int(RecordState.AVAILABLE)
ACQUIRED = int(RecordState.ACQUIRED)

HOLE = 5
"""Nothing is known of this offset: not read yet (inside the gap window), or the log has no record
there."""

CONTROL = 6
"""The log has a control batch here, which nobody gets: neither in flight nor in anybody's way."""

PENDING = 8
"""With the state that an ACQUIRED record will have once its Persist effect has succeeded. Until
then it is neither acquirable nor acknowledgeable, does not count as terminal, and goes back to
ACQUIRED if the write fails."""

REJECTED = 16
"""With ARCHIVING: a client rejected the record. Without this flag the delivery limit was
reached."""

UNSAVED = 32
"""With ARCHIVING: decided by a lock that ran out, and not known to be saved. A dead letter now
could become two after a crash."""

HANDED_OUT = 64
"""With ARCHIVING: whoever writes the dead letters has it."""

WAITING = 128
"""With AVAILABLE: the record came back, and is not delivered before its redelivery is due
(redelivery.py)."""

BEHIND = 64
"""As a whole code, AVAILABLE: another record of the same key goes first (key_order.py)."""

TERMINAL_CODES = bytes(sorted(TERMINAL))
PASSABLE_IN_GAP = TERMINAL_CODES + bytes((CONTROL,))
PASSABLE = PASSABLE_IN_GAP + bytes((HOLE,))
"""What the start offset moves past; a hole of the gap window may still have a record."""
TERMINAL_OR_PENDING = frozenset(TERMINAL_CODES) | {code | PENDING for code in TERMINAL_CODES}

DEAD_LETTER_CODES = bytes((RecordState.ARCHIVING, RecordState.ARCHIVING | REJECTED))
"""ARCHIVING, saved, and nobody has it: what is to be handed out."""
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
"""bytes.translate table: codes that were being saved to what they are once they are."""

HAND_OUT = bytes(code | HANDED_OUT if code in DEAD_LETTER_CODES else code for code in range(256))
TAKE_BACK = bytes(code & ~HANDED_OUT if code in HANDED_OUT_CODES else code for code in range(256))
"""bytes.translate tables for dead letters that are handed out, and that come back."""

MAX_DELIVERY_COUNT = 255
"""Counted up to here, and no further: one byte per offset."""

COUNT_UP = bytes(min(count + 1, MAX_DELIVERY_COUNT) for count in range(256))
"""bytes.translate table of the delivery counts: one more delivery."""


@lru_cache(maxsize=64)
def given_back(delivery_limit: int, dead_letter_queue: bool = False, waits: bool = False) -> bytes:
    """bytes.translate table from delivery counts to the codes of ACQUIRED records that come back:
    RELEASE or, at the limit, EXHAUST. With a dead letter queue (KIP-1191) the latter is
    DEAD_LETTER. `waits`: what is released is WAITING."""
    exhausted = UNSAVED_ARCHIVING if dead_letter_queue else TRANSITIONS[RecordState.ACQUIRED, Event.EXHAUST]
    released = TRANSITIONS[RecordState.ACQUIRED, Event.RELEASE] | (WAITING if waits else 0)
    return bytes(released if count < delivery_limit else exhausted for count in range(256))


@lru_cache(maxsize=64)
def given_back_pending(delivery_limit: int, dead_letter_queue: bool = False, waits: bool = False) -> bytes:
    """The same for records whose return is persisted first."""
    return bytes(
        code & (STATE | WAITING) | PENDING for code in given_back(delivery_limit, dead_letter_queue, waits)
    )


ACK_CODES = bytes(
    TRANSITIONS[RecordState.ACQUIRED, event] | PENDING
    for event in (Event.GAP, Event.ACCEPT, Event.RELEASE, Event.REJECT)
)
"""Pending code by acknowledge type. RELEASE is overruled by `given_back_pending`, and RENEW changes
no state."""

DEAD_LETTER_ACK_CODES = ACK_CODES[: Event.REJECT] + bytes(
    [TRANSITIONS[RecordState.ACQUIRED, Event.DEAD_LETTER] | REJECTED | PENDING]
)
"""The same where the group has a dead letter queue."""
