"""Deadlines by name, compared with a plain dictionary: due names, the time of the next check, and
that cancelled names leave nothing behind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker.groups.timers import Timers


def test_a_deadline_comes_once() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 10)
    timers.set("b", 5)
    assert timers.next_ms() == 5
    assert timers.take_due(4) == []
    assert timers.take_due(10) == ["b", "a"]
    assert timers.take_due(100) == []
    assert timers.next_ms() is None


def test_a_later_deadline_replaces_an_earlier_one_and_the_other_way_round() -> None:
    timers: Timers[str] = Timers()
    timers.set("later", 10)
    timers.set("later", 30)
    timers.set("sooner", 30)
    timers.set("sooner", 10)
    assert timers.next_ms() == 10
    assert timers.take_due(10) == ["sooner"]
    assert timers.deadline_ms("later") == 30
    assert timers.take_due(29) == []
    assert timers.take_due(30) == ["later"]


def test_what_is_cancelled_does_not_come_unless_it_is_set_again() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 10)
    timers.cancel("a")
    timers.cancel("never there")
    assert timers.deadline_ms("a") is None
    assert len(timers) == 0
    timers.set("a", 20)
    assert timers.take_due(10) == []
    assert timers.take_due(20) == ["a"]


def test_names_that_come_and_go_are_not_kept() -> None:
    """A client that keeps joining under new ids leaves no entries behind."""
    timers: Timers[int] = Timers()
    timers.set(-1, 500)
    for number in range(10_000):
        timers.set(number, 1_000_000 + number)
        timers.cancel(number)
    assert len(timers._heap) < 1100
    assert len(timers._looked_at) < 1100
    assert timers.next_ms() == 500
    assert timers.take_due(2_000_000) == [-1]
    assert timers.next_ms() is None


@given(
    st.lists(
        st.tuples(st.sampled_from(("set", "cancel", "take")), st.sampled_from("abcd"), st.integers(0, 20))
    )
)
def test_timers_are_a_dictionary_of_deadlines(steps: list[tuple[str, str, int]]) -> None:
    timers: Timers[str] = Timers()
    expected: dict[str, int] = {}
    for action, name, time_ms in steps:
        if action == "set":
            timers.set(name, time_ms)
            expected[name] = time_ms
        elif action == "cancel":
            timers.cancel(name)
            expected.pop(name, None)
        else:
            due = {each: deadline_ms for each, deadline_ms in expected.items() if deadline_ms <= time_ms}
            taken = timers.take_due(time_ms)
            assert sorted(taken) == sorted(due)
            assert [due[each] for each in taken] == sorted(due.values())
            expected = {each: deadline_ms for each, deadline_ms in expected.items() if deadline_ms > time_ms}
        assert len(timers) == len(expected)
        next_ms = timers.next_ms()
        if expected:
            assert next_ms is not None
            assert next_ms <= min(expected.values()), "nobody is forgotten"
