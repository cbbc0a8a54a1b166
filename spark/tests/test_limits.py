"""Sizes of micro-batches: the arithmetic of Spark's Kafka source."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker_spark.limits import Patience, Span, proportional_ends


def test_each_partition_takes_its_share_of_the_limit() -> None:
    assert proportional_ends(100, {"a": Span(0, 900), "b": Span(50, 150)}) == {"a": 90, "b": 60}


def test_a_share_is_rounded_down_but_no_partition_starves() -> None:
    assert proportional_ends(10, {"large": Span(0, 997), "small": Span(7, 9), "one": Span(3, 4)}) == {
        "large": 9,
        "small": 8,
        "one": 4,
    }


def test_what_is_there_bounds_a_batch() -> None:
    assert proportional_ends(1000, {"a": Span(5, 15), "b": Span(0, 20)}) == {"a": 15, "b": 20}


def test_a_partition_with_nothing_to_read_keeps_its_end() -> None:
    assert proportional_ends(5, {"full": Span(0, 10), "empty": Span(4, 4), "shrunk": Span(9, 6)}) == {
        "full": 5,
        "empty": 4,
        "shrunk": 6,
    }
    assert proportional_ends(5, {"empty": Span(4, 4)}) == {"empty": 4}


def test_offsets_beyond_what_a_float_holds() -> None:
    first = 2**62
    assert proportional_ends(2**60 + 1, {"a": Span(first, first + 2**60 + 1)}) == {"a": first + 2**60 + 1}


@given(
    limit=st.integers(1, 10**6),
    spans=st.dictionaries(
        st.integers(0, 20), st.builds(Span, st.integers(0, 10**9), st.integers(0, 10**9)), max_size=8
    ),
)
def test_batches_progress_and_keep_to_the_limit(limit: int, spans: dict[int, Span]) -> None:
    ends = proportional_ends(limit, spans)
    waiting = [key for key, span in spans.items() if span.size]
    assert all(spans[key].first < ends[key] <= spans[key].end for key in waiting)
    assert all(ends[key] == spans[key].end for key in spans.keys() - waiting)
    taken = sum(ends[key] - spans[key].first for key in waiting)
    assert taken <= limit + len(waiting)


def test_a_small_batch_waits_until_enough_is_there() -> None:
    patience = Patience(min_offsets=100, max_delay_ms=1000)
    assert not patience.waits(1, now_ms=0)  # the first batch of a run
    assert patience.waits(99, now_ms=500)
    assert not patience.waits(100, now_ms=600)
    assert patience.waits(1, now_ms=700)


def test_a_small_batch_waits_no_longer_than_the_delay() -> None:
    patience = Patience(min_offsets=100, max_delay_ms=1000)
    assert not patience.waits(1, now_ms=0)
    assert patience.waits(5, now_ms=999)
    assert not patience.waits(5, now_ms=1000)
    assert patience.waits(5, now_ms=1999)


def test_a_moment_without_data_is_no_batch() -> None:
    patience = Patience(min_offsets=100, max_delay_ms=1000)
    assert not patience.waits(500, now_ms=0)
    assert not patience.waits(0, now_ms=5000)
    assert not patience.waits(1, now_ms=5001)  # overdue since 1000
