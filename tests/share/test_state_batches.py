"""The batch combiner: the vectors of released Kafka, and a model that keeps one (count, state) per
offset."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.share.effects import StateBatch
from kbroker.share.state_batches import clip, combine

A, K, G, R = 0, 2, 3, 4  # available, acknowledged, archiving, archived


def batches(text: str) -> tuple[StateBatch, ...]:
    """ "100-109 A1, 110 K2" as state batches."""
    found = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        offsets, what = part.split()
        first, _, last = offsets.partition("-")
        found.append(
            StateBatch(
                int(first), int(last or first), {"A": A, "K": K, "G": G, "R": R}[what[0]], int(what[1:])
            )
        )
    return tuple(found)


@pytest.mark.parametrize(
    ("stored", "incoming", "start_offset", "result"),
    [
        ("100-109 A1", "105-109 K1", 100, "100-104 A1, 105-109 K1"),
        ("100-109 A2", "100-104 K1", 100, "100-109 A2"),  # the count wins
        ("100-109 K1, 110-119 K1", "", 105, "105-119 K1"),
        ("100-119 A1", "105-114 A2", 100, "100-104 A1, 105-114 A2, 115-119 A1"),
        ("100-109 G3", "100-109 R3", 100, "100-109 R3"),
        # the numbered rules
        ("100-109 A1", "90-95 A1", -1, "90-95 A1, 100-109 A1"),  # 1: -1 does not clip
        ("100-109 A1, 90-99 K1", "", 100, "100-109 A1"),  # 1: lower ones are dropped
        ("100-109 A1", "", 105, "105-109 A1"),  # 1: crossing is cut
        ("", "", 5, ""),  # 2
        ("7 K1", "", 5, "7 K1"),  # 2
        ("1-2 A1", "6-7 A1", 0, "1-2 A1, 6-7 A1"),  # 3: uncovered offsets stay uncovered
        ("5-6 A1", "1-4 A1", 0, "1-6 A1"),  # 4
        ("1-4 A1", "5-6 A2", 0, "1-4 A1, 5-6 A2"),  # 4: not with another count
        ("1-10 A1", "1-10 A1", 0, "1-10 A1"),
        ("1-10 A1", "3-4 A3, 6-20 K2", 0, "1-2 A1, 3-4 A3, 5 A1, 6-20 K2"),
        ("1-10 A1", "3-4 A3, 6 K1, 8 R1", 2, "2 A1, 3-4 A3, 5 A1, 6 K1, 7 A1, 8 R1, 9-10 A1"),
    ],
)
def test_vectors(stored: str, incoming: str, start_offset: int, result: str) -> None:  # CMB-1..6
    assert combine(batches(stored), batches(incoming), start_offset) == batches(result)
    assert combine(batches(incoming), batches(stored), start_offset) == batches(result), (
        "arrival order matters"
    )


def test_clip_keeps_the_order_and_the_batches_that_need_no_cut() -> None:  # CMB-1
    given_batches = batches("20-29 A1, 5-12 K1, 1-4 A1")
    assert clip(given_batches, 10) == [*batches("20-29 A1"), *batches("10-12 K1")]
    assert clip(given_batches, 10)[0] is given_batches[0]


def state_batches(highest: int = 40) -> st.SearchStrategy[list[StateBatch]]:
    one = st.builds(
        lambda first, length, state, count: StateBatch(first, first + length, state, count),
        st.integers(0, highest),
        st.integers(0, 12),
        st.sampled_from((A, K, G, R)),
        st.integers(0, 3),
    )
    return st.lists(one, max_size=12)


def model(given_batches: list[StateBatch], start_offset: int) -> dict[int, tuple[int, int]]:
    winners: dict[int, tuple[int, int]] = {}
    for batch in given_batches:
        for offset in range(max(batch.first_offset, start_offset), batch.last_offset + 1):
            winners[offset] = max(winners.get(offset, (-1, -1)), (batch.delivery_count, batch.state))
    return winners


@given(state_batches(), state_batches(), st.integers(-1, 45))
# CMB-3, CMB-4
def test_every_offset_has_its_winner(
    stored: list[StateBatch], incoming: list[StateBatch], start_offset: int
) -> None:
    result = combine(stored, incoming, start_offset)
    assert model(list(result), -1) == model(stored + incoming, start_offset)
    for before, after in pairwise(result):
        assert before.last_offset < after.first_offset, "in order, without overlaps"
        assert (before.last_offset + 1, before[2:]) != (after.first_offset, after[2:]), "joined"


@given(state_batches(), state_batches(), state_batches(), st.integers(-1, 45))
def test_merging_one_by_one_is_merging_at_once(
    one: list[StateBatch], two: list[StateBatch], three: list[StateBatch], start_offset: int
) -> None:  # CMB-5
    at_once = combine(one, two + three, start_offset)
    one_by_one = combine(combine(one, two, -1), three, start_offset)
    assert model(list(one_by_one), -1) == model(list(at_once), -1)
    if len(at_once) > 1:
        assert one_by_one == at_once
