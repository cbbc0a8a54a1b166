"""Which events get a log line: one of each kind per interval, however many kinds there are."""

from __future__ import annotations

from kbroker.seldom import Seldom


def test_one_of_a_kind_in_the_interval_and_the_next_has_the_number() -> None:
    seldom = Seldom(60)
    assert [seldom.times("a", now) for now in (0, 1, 59.9)] == [1, 0, 0]
    assert seldom.times("b", 5) == 1
    assert seldom.times("a", 60) == 3
    assert [seldom.times("a", now) for now in (61, 120.5, 1000)] == [0, 2, 1]


def test_many_kinds_get_no_more_lines_than_that_and_no_memory() -> None:
    seldom = Seldom(60, most=3)
    assert [seldom.times(name, 0) for name in "abcde"] == [1, 1, 1, 0, 0]
    assert seldom.times("a", 1) == 0, "it is still known"
    assert seldom.times("a", 61) == 2
    assert seldom.times("d", 61) == 1, "in the place of the one that was said longest ago"
    assert seldom.times("e", 61) == 1
    assert [seldom.times(name, 62) for name in "bc"] == [0, 0]
