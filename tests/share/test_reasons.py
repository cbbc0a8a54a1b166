"""Which reasons belong to a write, and how long ones are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.share.effects import AckBatch, Persist, StateBatch
from kbroker.share.parked import Lane, Parked, ParkingChange
from kbroker.share.reasons import (
    MAX_REASON_BYTES,
    Reason,
    ReasonChange,
    shortened,
)
from kbroker.share.rejections import attached, without_reasons

A, B = Reason("A", "a", ""), Reason("B", "", "b")
ACCEPT, REJECT, RENEW = 1, 3, 4
ARCHIVING, ARCHIVED = 3, 4


def persist(*batches: tuple[int, int, int], parking: tuple[ParkingChange, ...] = ()) -> Persist:
    saved = tuple(StateBatch(first, last, state, 1) for first, last, state in batches)
    return Persist(1, 0, 0, 0, 0, saved, parking)


def test_a_reason_belongs_to_what_the_same_list_rejects() -> None:
    given = dict.fromkeys(range(20), A) | {5: B}
    acks = [AckBatch(0, 3, bytes((REJECT,))), AckBatch(4, 6, bytes((ACCEPT, REJECT, ACCEPT)))]
    found = attached(persist((0, 3, ARCHIVING), (4, 4, 2), (5, 5, ARCHIVING), (6, 9, 2)), acks, given)
    assert found == (*(ReasonChange(offset, A) for offset in range(4)), ReasonChange(5, B))


def test_a_reason_without_its_dead_letter_is_ignored() -> None:
    """No dead letter queue; below the start offset; exhausted earlier, and saved with this list."""
    acks = [AckBatch(0, 1 << 62, bytes((REJECT,)))]
    assert attached(persist((0, 3, ARCHIVED)), acks, {0: A}) == ()
    assert attached(persist((4, 5, ARCHIVING)), acks, {0: A, 5: B, 1 << 60: A}) == (ReasonChange(5, B),)
    assert attached(persist((4, 5, ARCHIVING)), [AckBatch(4, 4, bytes((ACCEPT,)))], {5: B}) == ()
    assert attached(persist((4, 5, ARCHIVING)), [], {5: B}) == ()


def test_a_renewed_record_may_be_rejected_in_the_same_list() -> None:
    acks = [AckBatch(4, 4, bytes((RENEW,))), AckBatch(4, 4, bytes((REJECT,)))]
    assert attached(persist((4, 4, ARCHIVING)), acks, {4: A}) == (ReasonChange(4, A),)


def test_parked_records() -> None:
    def change(offset: int, lane: Lane) -> ParkingChange:
        return ParkingChange(offset, (), Parked(offset, lane, 0, 1, 0))

    acks = [AckBatch(4, 6, bytes((REJECT,)))]
    parking = (change(4, Lane.ARCHIVING), change(5, Lane.REDELIVERY), ParkingChange(6, (), None))
    assert attached(persist(parking=parking), acks, {4: A, 5: A, 6: A}) == (ReasonChange(4, A),)


def test_removals_come_first_and_never_hit_a_new_reason() -> None:
    changes = (ReasonChange(4, A),)
    assert without_reasons((3, 4, 5), changes) == (ReasonChange(3, None), ReasonChange(5, None), *changes)


@pytest.mark.parametrize(
    ("kind", "message", "traceback", "expected"),
    [
        (3, 5, 8184, (3, 5, 8184)),
        (3, 5, 8185, (3, 5, 8184)),
        (3, 5, 1 << 20, (3, 5, 8184)),
        (3, 8189, 100, (3, 8189, 0)),
        (3, 8190, 100, (3, 8189, 0)),
        (8191, 9, 9, (8191, 1, 0)),
        (9000, 9, 9, (8192, 0, 0)),
    ],
)
def test_the_traceback_is_cut_first(
    kind: int, message: int, traceback: int, expected: tuple[int, int, int]
) -> None:
    last_lines = "".join(chr(97 + number % 26) for number in range(traceback))
    found = shortened(Reason("t" * kind, "m" * message, last_lines))
    assert tuple(map(len, found)) == expected
    assert last_lines.endswith(found.traceback)


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=40).map(lambda text: text * 101)


@given(texts, texts, texts)
def test_a_cut_splits_no_character(kind: str, message: str, traceback: str) -> None:
    found = shortened(Reason(kind, message, traceback))
    assert kind.startswith(found.type)
    assert message.startswith(found.message)
    assert traceback.endswith(found.traceback)
    size = sum(len(text.encode()) for text in found)
    assert size <= MAX_REASON_BYTES
    if found != Reason(kind, message, traceback):
        assert size > MAX_REASON_BYTES - 9
