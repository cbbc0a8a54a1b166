"""The assignors of consumer groups: equal to Kafka's, even, with few moves, and deterministic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.groups.assignors.range import RangeAssignor
from kbroker.groups.assignors.spi import ConsumerAssignor, ConsumerAssignorMember, topic_order
from kbroker.groups.assignors.uniform import UniformAssignor
from kbroker.testing.assignor_contract import AssignorContract, Members, Partitions
from tests.groups.assignors.cases import Assignment, answer, flat, moves

VECTORS = json.loads((Path(__file__).parent / "vectors" / "consumer_assignors.json").read_text())
TOPICS = [UUID(int=number) for number in (1, 2, 3, 4)]
A, B = TOPICS[:2]
Counts = Mapping[UUID, int]


class TestUniformContract(AssignorContract):
    name = "uniform"


class TestRangeContract(AssignorContract):
    name = "range"


@pytest.mark.parametrize("number", range(len(VECTORS)))
def test_kafka_s_answers(number: int) -> None:
    assert answer(VECTORS[number]["case"]) == VECTORS[number]["answer"]


# Groups as hypothesis has them.


@st.composite
def groups(draw: st.DrawFn, *, same: bool) -> tuple[Members, Partitions]:
    """Up to seven members of up to four topics; each partition had one owner, any of them, or
    none."""
    counts = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    names = draw(st.lists(st.text("abc-", min_size=1, max_size=3), min_size=1, max_size=7, unique=True))
    subsets = st.frozensets(st.sampled_from(TOPICS[: len(counts)]))
    subscriptions = [draw(subsets)] * len(names) if same else [draw(subsets) for _ in names]
    assigned: list[dict[UUID, tuple[int, ...]]] = [{} for _ in names]
    for topic_id, count in zip(TOPICS, counts, strict=False):
        for number in range(count):
            owner = draw(st.integers(-1, len(names) - 1))
            if owner >= 0:
                assigned[owner][topic_id] = (*assigned[owner].get(topic_id, ()), number)
    members = dict(zip(names, map(ConsumerAssignorMember, subscriptions, assigned), strict=True))
    return members, dict(zip(TOPICS, map(range, counts), strict=False))


def loads(assignment: Assignment[UUID]) -> dict[str, int]:
    return {member_id: len(flat(assigned)) for member_id, assigned in assignment.items()}


def before(members: Members) -> Assignment[UUID]:
    """The members' partitions of topics that they subscribe to."""
    return {
        member_id: {
            topic_id: numbers for topic_id, numbers in member.assigned.items() if topic_id in member.topic_ids
        }
        for member_id, member in members.items()
    }


def after(
    members: Members, assignment: Mapping[str, Mapping[UUID, tuple[int, ...]]]
) -> dict[str, ConsumerAssignorMember]:
    """The same members, with this as their previous assignment."""
    return {
        member_id: member._replace(assigned=assignment[member_id]) for member_id, member in members.items()
    }


# uniform, where all subscribe to the same.


@settings(deadline=None)
@given(groups(same=True))
def test_uniform_is_even_and_moves_what_that_needs(group: tuple[Members, Partitions]) -> None:
    members, partitions = group
    found = UniformAssignor().assign(members, partitions)
    assert max(loads(found).values()) - min(loads(found).values()) <= 1
    least, extra = divmod(sum(loads(found).values()), len(members))
    too_many = [load - least for load in loads(before(members)).values() if load > least]
    assert moves(before(members), found) <= sum(too_many) - min(extra, len(too_many))


@pytest.mark.parametrize("assignor", [UniformAssignor(), RangeAssignor()])
@settings(deadline=None)
@given(st.one_of(groups(same=True), groups(same=False)))
def test_nothing_moves_when_nothing_changes(
    assignor: ConsumerAssignor, group: tuple[Members, Partitions]
) -> None:
    members, partitions = group
    found = assignor.assign(members, partitions)
    assert assignor.assign(after(members, found), partitions) == found


@settings(deadline=None)
@given(groups(same=True), st.text("abc-", min_size=4, max_size=4))
def test_uniform_takes_for_a_new_member_what_it_is_to_have_and_no_more(
    group: tuple[Members, Partitions], joins: str
) -> None:
    members, partitions = group
    found = UniformAssignor().assign(members, partitions)
    topic_ids = next(iter(members.values())).topic_ids
    more = UniformAssignor().assign(
        after(members, found) | {joins: ConsumerAssignorMember(topic_ids, {})}, partitions
    )
    assert loads(more)[joins] == sum(loads(found).values()) // (len(members) + 1)
    assert all(set(flat(more[member_id])) <= set(flat(found[member_id])) for member_id in members)


@settings(deadline=None)
@given(groups(same=True))
def test_uniform_takes_nothing_from_members_when_one_leaves(group: tuple[Members, Partitions]) -> None:
    members, partitions = group
    found = UniformAssignor().assign(members, partitions)
    stay = after(members, found)
    del stay[min(stay)]
    fewer = UniformAssignor().assign(stay, partitions)
    assert all(set(flat(found[member_id])) <= set(flat(fewer[member_id])) for member_id in stay)


# uniform, where subscriptions differ.


@settings(deadline=None)
@given(groups(same=False))
def test_uniform_leaves_no_difference_that_one_move_could_lessen(group: tuple[Members, Partitions]) -> None:
    members, partitions = group
    found = UniformAssignor().assign(members, partitions)
    numbers = loads(found)
    assert [
        (owner, topic_id, other)
        for owner, assigned in found.items()
        for topic_id in assigned
        for other, member in members.items()
        if topic_id in member.topic_ids and numbers[owner] - numbers[other] > 1
    ] == []


def test_uniform_stays_as_it_is_where_only_two_moves_together_would_even_it_out() -> None:
    """As Kafka: 9, 10 and 11 partitions, where member 3 could pass one on to 2, and 2 one to 1."""
    both = frozenset([A, B])
    members = {
        "1": ConsumerAssignorMember(frozenset([A]), {A: tuple(range(9))}),
        "2": ConsumerAssignorMember(both, {A: (9,), B: tuple(range(9))}),
        "3": ConsumerAssignorMember(frozenset([B]), {B: tuple(range(9, 20))}),
    }
    found = UniformAssignor().assign(members, {A: range(10), B: range(20)})
    assert found == before(members)


def test_two_members_that_had_the_same_partition() -> None:
    """A plugin might have left this; the built-in assignors do not."""
    members = {name: ConsumerAssignorMember(frozenset([A]), {A: (0, 1, 7)}) for name in ("m2", "m1")}
    assert UniformAssignor().assign(members, {A: range(3)}) == {"m1": {A: (0, 1)}, "m2": {A: (2,)}}


# range.


def ranged(counts: Counts, *members: tuple[str, str | None, str]) -> dict[str, dict[str, list[int]]]:
    """Of members as (id, instance id, letters of topics)."""
    topics = dict(zip("ABCD", TOPICS, strict=True))
    given = {
        name: ConsumerAssignorMember(frozenset(map(topics.get, letters)), {}, instance)
        for name, instance, letters in members
    }
    found = RangeAssignor().assign(given, {topic_id: range(count) for topic_id, count in counts.items()})
    return {
        name: {
            letter: list(found[name][topics[letter]]) for letter in "ABCD" if topics[letter] in found[name]
        }
        for name, _, _ in members
    }


def test_range_cuts_topics_of_equal_size_at_the_same_places() -> None:
    assert ranged({A: 5, B: 5}, ("m1", None, "AB"), ("m2", None, "AB")) == {
        "m1": {"A": [0, 1, 2], "B": [0, 1, 2]},
        "m2": {"A": [3, 4], "B": [3, 4]},
    }


def test_range_gives_nothing_to_those_behind_the_last_partition() -> None:
    assert ranged({A: 2, B: 0}, ("m1", None, "AB"), ("m2", None, "A"), ("m3", None, "AB")) == {
        "m1": {"A": [0]},
        "m2": {"A": [1]},
        "m3": {},
    }


def test_range_has_static_members_first_in_the_order_of_instance_ids() -> None:
    members = [("m1", None, "A"), ("m2", "z", "A"), ("m3", "b", "A"), ("m0", None, "A")]
    found = ranged({A: 4}, *members)
    assert sorted(found, key=lambda name: found[name]["A"]) == ["m3", "m2", "m0", "m1"]


def test_range_keeps_the_place_of_a_static_member_under_a_new_member_id() -> None:
    once = ranged({A: 3}, ("m1", "i1", "A"), ("m2", "i2", "A"))
    again = ranged({A: 3}, ("x9", "i1", "A"), ("m2", "i2", "A"))
    assert [once["m1"], once["m2"]] == [again["x9"], again["m2"]]


def test_ids_are_in_java_s_order() -> None:
    """UTF-16 puts what is beyond the basic plane before the last characters in it; topic ids are
    signed."""
    found = ranged({A: 2}, ("\U0001f600", None, "A"), ("\uff5e", None, "A"))
    assert found == {"\U0001f600": {"A": [0]}, "\uff5e": {"A": [1]}}
    negative, positive = UUID(int=1 << 127), UUID(int=1)
    assert sorted([positive, negative], key=topic_order) == [negative, positive]
