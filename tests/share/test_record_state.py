"""The life of a record as a table: which state may follow which (share groups, record states)."""

from __future__ import annotations

import pytest

from kbroker.share.record_state import (
    ACK_CODES,
    ARCHIVING_CODES,
    COUNT_UP,
    DEAD_LETTER_ACK_CODES,
    DEAD_LETTER_CODES,
    HAND_OUT,
    HANDED_OUT_CODES,
    PENDING,
    PENDING_CODES,
    REJECTED,
    SETTLE,
    STATE,
    TAKE_BACK,
    TERMINAL,
    TRANSITIONS,
    UNSAVED,
    Event,
    RecordState,
    given_back,
    given_back_pending,
)

A, H, K, G, R = RecordState

MAY_FOLLOW = {
    A: {H, R},  # R only when forced: log start moved, compaction
    H: {A, H, K, G, R},  # H: a renewal
    K: set(),
    G: {R},
    R: set(),
}


@pytest.mark.parametrize("before", RecordState)
def test_only_the_known_states_follow(before: RecordState) -> None:  # REC-2..5
    assert {after for (state, _), after in TRANSITIONS.items() if state is before} == MAY_FOLLOW[before]


def test_ids_are_the_persisted_ones() -> None:  # REC-1
    assert [state.value for state in RecordState] == [0, 1, 2, 3, 4]
    assert [state.name for state in RecordState] == [
        "AVAILABLE",
        "ACQUIRED",
        "ACKNOWLEDGED",
        "ARCHIVING",
        "ARCHIVED",
    ]


def test_terminal_means_that_nothing_follows() -> None:  # REC-5
    assert {K, R} == TERMINAL


def test_every_event_happens_to_some_state() -> None:
    assert {event for _, event in TRANSITIONS} == set(Event)


@pytest.mark.parametrize(
    ("ack_type", "after"), [(0, R), (1, K), (2, A), (3, R)], ids=["gap", "accept", "release", "reject"]
)
def test_acknowledge_types(ack_type: int, after: RecordState) -> None:  # ACK-1
    assert TRANSITIONS[H, Event(ack_type)] is after
    assert SETTLE[ACK_CODES[ack_type]] == after
    assert ACK_CODES[ack_type] >= PENDING


@pytest.mark.parametrize("limit", [2, 5, 25])
def test_the_limit_is_reached_by_the_count_itself(limit: int) -> None:  # REC-6
    """Limit 5 means five deliveries: a record released after the fifth is archived."""
    states = given_back(limit)
    assert list(states[1 : limit + 2]) == [A] * (limit - 1) + [R] * 2
    assert states == given_back_pending(limit).translate(SETTLE)


@pytest.mark.parametrize("limit", [2, 5, 25])
def test_the_limit_with_a_dead_letter_queue(limit: int) -> None:  # REC-7
    pending, decided = (
        given_back_pending(limit, dead_letter_queue=True),
        given_back(limit, dead_letter_queue=True),
    )
    for states in (pending.translate(SETTLE), decided.translate(SETTLE)):
        assert list(states[1 : limit + 2]) == [A] * (limit - 1) + [G] * 2
    assert set(pending) <= set(PENDING_CODES)
    assert set(decided[limit:]) == {G | UNSAVED}, "not a dead letter before it is saved"


def test_acknowledge_types_with_a_dead_letter_queue() -> None:  # ACK-2
    assert [code & STATE for code in DEAD_LETTER_ACK_CODES] == [R, K, A, G]
    assert DEAD_LETTER_ACK_CODES[Event.REJECT] == G | PENDING | REJECTED
    assert set(DEAD_LETTER_ACK_CODES) <= set(PENDING_CODES)


def test_dead_letters_come_back_as_they_went_out() -> None:
    assert DEAD_LETTER_CODES.translate(HAND_OUT) == HANDED_OUT_CODES
    assert HANDED_OUT_CODES.translate(TAKE_BACK) == DEAD_LETTER_CODES
    others = bytes(set(range(256)) - set(ARCHIVING_CODES))
    assert others.translate(HAND_OUT) == others.translate(TAKE_BACK) == others


def test_counts_rise_by_one_and_stay_in_a_byte() -> None:  # REC-9
    assert COUNT_UP[0] == 1
    assert COUNT_UP[4] == 5
    assert COUNT_UP[255] == 255
