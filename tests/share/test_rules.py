"""The rules of a record's life (share groups, record states), and the tables made of them."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import pytest

from kbroker.share.effects import DeadLetterCause, ShareSettings
from kbroker.share.locks import ANSWERED
from kbroker.share.record_state import (
    PASSED,
    PENDING,
    PENDING_CODES,
    REJECTED,
    SETTLE,
    STATE,
    TERMINAL,
    UNSAVED,
    WAITING,
    RecordState,
)
from kbroker.share.redelivery import Redelivery
from kbroker.share.rules import (
    ACKNOWLEDGED,
    COUNT_UP,
    Event,
    Fate,
    alone_from,
    code_of_stored,
    decide,
    gives_up_from,
    prolonged_until,
    returned,
    suspect_from,
)

A, H, K, G, R = RecordState
REDELIVERY = Redelivery(delay_ms=100, multiplier=2.0, max_ms=300, jitter=0.5)
RETURNS = (Event.RELEASE, Event.RUN_OUT, Event.LEAVE)

MAY_FOLLOW: dict[RecordState, set[RecordState]] = {
    A: {A, H, G, R},  # A: below the limit that was lowered; G, R: past its time, or the log lost it
    H: {A, H, K, G, R},  # H: a renewal
    K: set(),
    G: {R},
    R: set(),
}
ALL_SETTINGS = [
    ShareSettings(delivery_count_limit=limit, dead_letter_queue=letters, redelivery=wait, is_queue=queue)
    for limit, letters, wait, queue in product((2, 5), (False, True), (None, REDELIVERY), (False, True))
]


def possible(settings: ShareSettings) -> dict[tuple[RecordState, Event], set[RecordState]]:
    """Which states follow, by state and event; counts up to 6."""
    found: dict[tuple[RecordState, Event], set[RecordState]] = {}
    for state, event, count in product(RecordState, Event, range(7)):
        with suppress(KeyError):
            after = decide(state, count, event, settings).state
            found.setdefault((state, event), set()).add(after)
    return found


@pytest.mark.parametrize("before", RecordState)
def test_only_the_known_states_follow(before: RecordState) -> None:  # REC-2..5
    after = {
        state
        for settings in ALL_SETTINGS
        for (of, _), states in possible(settings).items()
        for state in states
        if of is before
    }
    assert after == MAY_FOLLOW[before]


def test_nothing_follows_a_terminal_state() -> None:  # REC-5
    assert {state for state in RecordState if not MAY_FOLLOW[state]} == TERMINAL == {K, R}


@pytest.mark.parametrize("settings", ALL_SETTINGS)
def test_every_event_happens_to_one_state(settings: ShareSettings) -> None:
    assert sorted(event for _, event in possible(settings)) == list(Event)


@pytest.mark.parametrize(
    ("event", "after"),
    [(Event.GAP, R), (Event.ACCEPT, K), (Event.RELEASE, A), (Event.REJECT, R), (Event.RENEW, H)],
)
def test_acknowledge_types(event: Event, after: RecordState) -> None:  # ACK-1
    fate = decide(H, 1, event, ShareSettings())
    assert fate[:2] == (after, 1)
    if event is not Event.RENEW:
        assert ACKNOWLEDGED[False][event] == after | PENDING


def test_acknowledge_types_with_a_dead_letter_queue() -> None:  # ACK-2
    codes = ACKNOWLEDGED[True][: Event.RENEW]
    assert [code & STATE for code in codes] == [R, K, A, G]
    assert codes[Event.REJECT] == G | PENDING | REJECTED
    assert set(codes) <= set(PENDING_CODES)


@pytest.mark.parametrize("event", RETURNS)
@pytest.mark.parametrize("limit", [2, 5, 25])
def test_the_limit_is_reached_by_the_count_itself(event: Event, limit: int) -> None:  # REC-6, REC-7
    """Limit 5 means five deliveries: a record released after the fifth is given up."""
    for letters, end in ((False, R), (True, G)):
        settings = ShareSettings(delivery_count_limit=limit, dead_letter_queue=letters)
        fates = [decide(H, count, event, settings) for count in range(1, limit + 2)]
        assert [fate.state for fate in fates] == [A] * (limit - 1) + [end] * 2
        assert {fate.cause for fate in fates[limit - 1 :]} == {DeadLetterCause.EXHAUSTED}


@pytest.mark.parametrize("settings", ALL_SETTINGS)
@pytest.mark.parametrize("event", [*RETURNS, Event.LIMIT])
def test_tables_are_what_the_rules_say(event: Event, settings: ShareSettings) -> None:
    """Where no record is given up for a lowered limit, nobody asks for its table."""
    is_limit = event is Event.LIMIT
    table, before = returned(event, settings), A if is_limit else H
    for count, code in enumerate(table if settings.is_queue or not is_limit else b""):
        fate = decide(before, count, event, settings)
        assert code & STATE == fate.state
        assert bool(code & WAITING) == bool(fate.wait_ms)
        assert bool(code & PENDING) == (event in (Event.RELEASE, Event.LEAVE))
        assert bool(code & UNSAVED) == (fate.state is G and not code & PENDING), "saved before its letter"
        assert SETTLE[code] & ~WAITING == fate.state
        assert not code & PENDING or code in PENDING_CODES


def test_counts_rise_by_one_and_stay_in_a_byte() -> None:  # REC-9
    assert [COUNT_UP[count] for count in (0, 4, 254, 255)] == [1, 5, 255, 255]


def test_the_wait_grows_and_is_drawn_once() -> None:
    settings = ShareSettings(redelivery=REDELIVERY)
    waits = [decide(H, count, Event.RELEASE, settings).wait_ms for count in (1, 2, 3, 4)]
    assert waits == [100, 200, 300, 300]
    assert decide(H, 1, Event.RUN_OUT, settings, 0.5).wait_ms == 125
    assert decide(H, 1, Event.RELEASE, ShareSettings()).wait_ms == 0, "behind those that wait"
    assert decide(H, 1, Event.LEAVE, settings).wait_ms is None, "in its old place"


def test_records_past_their_time_or_the_limit() -> None:
    queue = ShareSettings(delivery_count_limit=3, dead_letter_queue=True, is_queue=True)
    assert decide(A, 0, Event.EXPIRE, queue) == Fate(G, 0, DeadLetterCause.EXPIRED)
    assert decide(A, 0, Event.EXPIRE, ShareSettings()).state is R
    assert decide(A, 2, Event.LIMIT, queue) == Fate(A, 2)
    assert decide(A, 3, Event.LIMIT, queue) == Fate(G, 3, DeadLetterCause.EXHAUSTED)
    assert gives_up_from(ShareSettings(delivery_count_limit=3)) > 255, "Kafka delivers it once more"


@pytest.mark.parametrize(
    ("limit", "suspect", "alone"), [(2, 2, 256), (3, 2, 2), (4, 2, 3), (5, 3, 4), (6, 3, 5), (10, 5, 9)]
)
def test_near_the_limit(limit: int, suspect: int, alone: int) -> None:  # THR-1
    plain, queue = (ShareSettings(delivery_count_limit=limit, is_queue=of) for of in (False, True))
    assert (suspect_from(plain), alone_from(plain)) == (suspect, alone)
    assert (suspect_from(queue), alone_from(queue)) == (min(suspect, limit - 1), limit - 1)


def test_the_cause_of_a_stored_record() -> None:
    settings = ShareSettings(delivery_count_limit=3)
    archiving = RecordState.ARCHIVING
    assert code_of_stored(archiving, 2, settings) == archiving | REJECTED
    assert code_of_stored(archiving, 3, settings) == archiving
    assert code_of_stored(RecordState.ACKNOWLEDGED, 0, settings) == PASSED
    assert code_of_stored(RecordState.ACKNOWLEDGED, 1, settings) == RecordState.ACKNOWLEDGED
    assert code_of_stored(RecordState.AVAILABLE, 2, settings) == RecordState.AVAILABLE


def test_how_long_a_lock_is_prolonged() -> None:
    settings = ShareSettings(lock_duration_ms=100, lock_max_ms=250)
    assert prolonged_until(0, settings, 100, 1000) == 200
    assert prolonged_until(0, settings, 100, 30) == 130, "as long as the member is known to live"
    assert prolonged_until(0, settings, 200, 1000) == 250, "no longer than the maximum"
    assert prolonged_until(0, settings, 250, 1000) is None
    assert prolonged_until(0, settings, 100, 0) is None
    assert prolonged_until(ANSWERED, settings, 100, 1000) is None
