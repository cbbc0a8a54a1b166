"""The life of a record in a share-partition: its states, what can happen to it, and the one table that says what follows.

    not read yet --ACQUIRE--> ACQUIRED --ACCEPT--> ACKNOWLEDGED
                                 |  ^---RENEW
                                 |------GAP, REJECT, EXHAUST--> ARCHIVED
                                 |------RELEASE--> AVAILABLE --ACQUIRE--> ACQUIRED again, delivery count + 1
                                 '------DEAD_LETTER--> ARCHIVING --DEAD_LETTERED--> ARCHIVED

RELEASE stands for everything that gives a record back: the client's RELEASE, the end of its session, a lock that timed out.
At the delivery limit the same thing is EXHAUST instead, and the record is not delivered again. DISCARD is the broker's own
decision about a record that nobody holds (log start moved, compaction took it).

The engine never asks this table record by record: it builds byte tables from it (see the end of this file) and applies them to
whole ranges. Nothing here knows offsets, members or time.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache


class RecordState(IntEnum):
    """KIP-932's record states with the ids that are persisted. ACQUIRED is never persisted by this broker."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class Event(IntEnum):
    """What happens to a record. The first five have the ids of the acknowledge types of the protocol."""

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


# The states column of the in-flight window holds one byte per offset: a RecordState id, or one of the following.

HOLE = 5
"""Nothing is known of this offset: not read yet (inside the gap window), or the log has no record there."""

PENDING = 8
"""Added to the id of the state that an ACQUIRED record will have once its Persist effect has succeeded. Until then it is
neither acquirable nor acknowledgeable, does not count as terminal, and goes back to ACQUIRED if the write fails."""

TERMINAL_CODES = bytes(sorted(TERMINAL))
TERMINAL_OR_PENDING = frozenset(TERMINAL_CODES) | {code | PENDING for code in TERMINAL_CODES}

SETTLE = bytes(code & ~PENDING if code >= PENDING else code for code in range(256))
"""bytes.translate table: pending codes to the states they stand for."""

COUNT_UP = bytes(min(count + 1, 255) for count in range(256))
"""bytes.translate table of the delivery counts: one more delivery."""


@lru_cache(maxsize=64)
def given_back(delivery_limit: int) -> bytes:
    """bytes.translate table from delivery counts to the states of ACQUIRED records that come back: RELEASE or, at the limit,
    EXHAUST. With a dead-letter queue (KIP-1191) the latter, and REJECT, become DEAD_LETTER: this and `ACK_CODES` is the place."""
    return bytes(TRANSITIONS[RecordState.ACQUIRED, Event.RELEASE if count < delivery_limit else Event.EXHAUST] for count in range(256))


@lru_cache(maxsize=64)
def given_back_pending(delivery_limit: int) -> bytes:
    """The same for records whose return is persisted first."""
    return bytes(state | PENDING for state in given_back(delivery_limit))


ACK_CODES = bytes(TRANSITIONS[RecordState.ACQUIRED, event] | PENDING for event in (Event.GAP, Event.ACCEPT, Event.RELEASE, Event.REJECT))
"""Pending code by acknowledge type. RELEASE is overruled by `given_back_pending`, and RENEW changes no state."""
