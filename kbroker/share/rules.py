"""Every rule of a record's life, once: what becomes of a record, by its state, its delivery count
and what happens to it.

    not read yet --ACQUIRE--> ACQUIRED --ACCEPT--> ACKNOWLEDGED
                                 |  ^---RENEW
                                 |------GAP--> ARCHIVED
                                 |------REJECT--> given up
                                 '------RELEASE, RUN_OUT, LEAVE--> AVAILABLE; at the limit given up

    AVAILABLE --ACQUIRE--> ACQUIRED, count + 1
              --EXPIRE, LIMIT--> given up           --DISCARD--> ARCHIVED
    given up: ARCHIVED, or with a dead letter queue (KIP-1191) ARCHIVING --DEAD_LETTERED--> ARCHIVED

`decide` is the rule for one record. The window applies rules to whole ranges: the byte tables
below are made with `decide`, and give a code of its states column (record_state.py). The times of
locks and of redelivery are rules too, and how many records go together near the delivery limit.

No rule lowers a count: of two writes, the one with the higher count stands (state_batches.py), and
0 means that no member ever had the record.

Nothing here holds a record, or knows an offset, a member or a clock.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from kbroker.share.effects import DeadLetterCause, ShareSettings
from kbroker.share.locks import ANSWERED
from kbroker.share.record_state import (
    MAX_DELIVERY_COUNT,
    PASSED,
    PENDING,
    REJECTED,
    UNSAVED,
    WAITING,
    RecordState,
)
from kbroker.share.redelivery import Redelivery

_NEVER: Final = MAX_DELIVERY_COUNT + 1


class Event(IntEnum):
    """What happens to a record. The first five have the ids of the protocol's acknowledge types."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    """A client gives it back, or the connection of its holder is lost."""
    REJECT = 3
    RENEW = 4
    ACQUIRE = 5
    RUN_OUT = 6
    """Its lock has run out."""
    LEAVE = 7
    """The session of its holder has ended in order."""
    LIMIT = 8
    """The delivery limit was lowered, and the record's turn has come."""
    EXPIRE = 9
    """It is past its time to live."""
    DISCARD = 10
    """The log no longer has it."""
    DEAD_LETTERED = 11
    """Its dead letter is written."""


class Fate(NamedTuple):
    """What becomes of a record.

    - `cause`: of a record that is given up. Without a dead letter queue nothing keeps it.
    - `wait_ms`: before it may be delivered again; 0: at once, behind others that wait. None: at
      once, in its old place."""

    state: RecordState
    delivery_count: int
    cause: DeadLetterCause | None = None
    wait_ms: float | None = None


_NEXT: Final = {
    (RecordState.AVAILABLE, Event.ACQUIRE): RecordState.ACQUIRED,
    (RecordState.AVAILABLE, Event.DISCARD): RecordState.ARCHIVED,
    (RecordState.ACQUIRED, Event.GAP): RecordState.ARCHIVED,
    (RecordState.ACQUIRED, Event.ACCEPT): RecordState.ACKNOWLEDGED,
    (RecordState.ACQUIRED, Event.RENEW): RecordState.ACQUIRED,
    (RecordState.ARCHIVING, Event.DEAD_LETTERED): RecordState.ARCHIVED,
}
_CAUSES: Final = {
    (RecordState.ACQUIRED, Event.REJECT): DeadLetterCause.REJECTED,
    (RecordState.AVAILABLE, Event.LIMIT): DeadLetterCause.EXHAUSTED,
    (RecordState.AVAILABLE, Event.EXPIRE): DeadLetterCause.EXPIRED,
}
_RETURNS: Final = {(RecordState.ACQUIRED, event) for event in (Event.RELEASE, Event.RUN_OUT, Event.LEAVE)}


def decide(
    state: RecordState, delivery_count: int, event: Event, settings: ShareSettings, drawn: float = 0.0
) -> Fate:
    """`drawn`: a random number in [0, 1), for the jitter of a wait. Raises KeyError for an event
    that cannot happen to a record in this state."""
    case = state, event
    if case in _RETURNS:
        if delivery_count >= settings.delivery_count_limit:
            return _given_up(delivery_count, DeadLetterCause.EXHAUSTED, settings)
        wait_ms = None if event is Event.LEAVE else redelivery_wait_ms(delivery_count, settings, drawn)
        return Fate(RecordState.AVAILABLE, delivery_count, wait_ms=wait_ms)
    if (cause := _CAUSES.get(case)) is not None:
        if event is Event.LIMIT and delivery_count < gives_up_from(settings):
            return Fate(state, delivery_count)
        return _given_up(delivery_count, cause, settings)
    count = min(delivery_count + 1, MAX_DELIVERY_COUNT) if event is Event.ACQUIRE else delivery_count
    return Fate(_NEXT[case], count)


def _given_up(delivery_count: int, cause: DeadLetterCause, settings: ShareSettings) -> Fate:
    state = RecordState.ARCHIVING if settings.dead_letter_queue else RecordState.ARCHIVED
    return Fate(state, delivery_count, cause)


def code_of_stored(state: int, delivery_count: int, settings: ShareSettings) -> int:
    """The code of a record that is loaded. A record that is stored as acknowledged after no
    delivery was PASSED. The cause of one that is ARCHIVING is not stored, but follows from the
    count: below the limit it can only be a rejection."""
    if state == RecordState.ACKNOWLEDGED and not delivery_count:
        return PASSED
    if state == RecordState.ARCHIVING and delivery_count < settings.delivery_count_limit:
        return state | REJECTED
    return state


# ---- time ----------------------------------------------------------------------------------------


def redelivery_wait_ms(delivery_count: int, settings: ShareSettings, drawn: float) -> float:
    """The wait after this many deliveries."""
    return 0.0 if settings.redelivery is None else settings.redelivery.wait_ms(delivery_count, drawn)


def longest_wait_ms(settings: ShareSettings) -> float:
    """The upper bound of all these waits; 0: there are none."""
    return 0.0 if settings.redelivery is None else settings.redelivery.longest_ms


def prolonged_until(since_ms: float, settings: ShareSettings, now_ms: float, alive_ms: float) -> float | None:
    """The new deadline of a lock that has run out. None: the broker does not prolong it.

    - `since_ms`: when its holder acquired or renewed it; ANSWERED if the holder no longer works.
    - `alive_ms`: how long the holder is known to live from now on.
    """
    until_ms = since_ms + settings.lock_max_ms
    if since_ms == ANSWERED or alive_ms <= 0 or until_ms <= now_ms:
        return None
    return min(now_ms + min(settings.lock_duration_ms, alive_ms), until_ms)


# ---- near the delivery limit (KAFKA-17541) -------------------------------------------------------


def suspect_from(settings: ShareSettings) -> int:
    """The delivery count from which on a record goes with few others. With a limit of 2, no
    AVAILABLE record ever has it, except in a queue."""
    limit = settings.delivery_count_limit
    return 1 if settings.is_queue and limit == 2 else max(2, (limit + 1) // 2)


def alone_from(settings: ShareSettings) -> int:
    """The delivery count from which on a record is delivered alone: the last attempt is next. With
    a limit of 2, Kafka does not do that."""
    limit = settings.delivery_count_limit
    return limit - 1 if settings.is_queue or limit > 2 else _NEVER


def gives_up_from(settings: ShareSettings) -> int:
    """The delivery count from which on a record that returned below a higher limit is given up
    instead of delivered. Kafka delivers it once more."""
    return settings.delivery_count_limit if settings.is_queue else _NEVER


# ---- the byte tables of the window ---------------------------------------------------------------


def returned(event: Event, settings: ShareSettings) -> bytes:
    """bytes.translate table from delivery counts to the codes of records to which the event
    happens: RELEASE, RUN_OUT, LEAVE or LIMIT. What a client or a session does is PENDING, until it
    is saved."""
    waits = settings.redelivery is not None
    return _returned(event, settings.delivery_count_limit, settings.dead_letter_queue, waits)


@lru_cache(maxsize=256)
def _returned(event: Event, limit: int, dead_letter_queue: bool, waits: bool) -> bytes:
    settings = ShareSettings(
        delivery_count_limit=limit,
        dead_letter_queue=dead_letter_queue,
        redelivery=Redelivery(1, 1.0, 1, 0.0) if waits else None,
        is_queue=event is Event.LIMIT,
    )
    state = RecordState.AVAILABLE if event is Event.LIMIT else RecordState.ACQUIRED
    is_saved_first = event is Event.RELEASE or event is Event.LEAVE
    return bytes(
        _code(decide(state, count, event, settings), is_saved_first=is_saved_first) for count in range(256)
    )


def _code(fate: Fate, *, is_saved_first: bool) -> int:
    code = int(fate.state)
    if fate.wait_ms:
        code |= WAITING
    if fate.state is RecordState.ARCHIVING and fate.cause is DeadLetterCause.REJECTED:
        code |= REJECTED
    if is_saved_first:
        return code | PENDING
    return code | UNSAVED if fate.state is RecordState.ARCHIVING else code


def _acknowledged(dead_letter_queue: bool) -> bytes:
    settings = ShareSettings(dead_letter_queue=dead_letter_queue)
    events = Event.GAP, Event.ACCEPT, Event.RELEASE, Event.REJECT
    fates = (decide(RecordState.ACQUIRED, 1, event, settings) for event in events)
    return bytes(_code(fate, is_saved_first=True) for fate in fates).ljust(256, b"\0")


ACKNOWLEDGED: Final = (_acknowledged(dead_letter_queue=False), _acknowledged(dead_letter_queue=True))
"""Without and with a dead letter queue: bytes.translate table from acknowledge types to codes.
`returned` has those of RELEASE; RENEW has no code."""

COUNT_UP: Final = bytes(
    decide(RecordState.AVAILABLE, count, Event.ACQUIRE, ShareSettings()).delivery_count
    for count in range(256)
)
"""bytes.translate table of the delivery counts: one more delivery."""
