"""The states of records, and the codes that a window keeps of them."""

from __future__ import annotations

from kbroker.share.record_state import (
    ARCHIVING_CODES,
    DEAD_LETTER_CODES,
    HAND_OUT,
    HANDED_OUT_CODES,
    TAKE_BACK,
    RecordState,
)


def test_ids_are_the_persisted_ones() -> None:  # REC-1
    assert [state.value for state in RecordState] == [0, 1, 2, 3, 4]
    assert [state.name for state in RecordState] == [
        "AVAILABLE",
        "ACQUIRED",
        "ACKNOWLEDGED",
        "ARCHIVING",
        "ARCHIVED",
    ]


def test_dead_letters_come_back_as_they_went_out() -> None:
    assert DEAD_LETTER_CODES.translate(HAND_OUT) == HANDED_OUT_CODES
    assert HANDED_OUT_CODES.translate(TAKE_BACK) == DEAD_LETTER_CODES
    others = bytes(set(range(256)) - set(ARCHIVING_CODES))
    assert others.translate(HAND_OUT) == others.translate(TAKE_BACK) == others
