"""SimpleAssignor: the results of released Kafka (5.5), and the properties that hold for any members
and partitions. AllAssignor: everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.groups.assignors.share import ASSIGNORS, AllAssignor, AssignorMember, SimpleAssignor
from kbroker.settings.group_configs import GROUP_CONFIGS
from kbroker.settings.queue import ASSIGNMENT
from kbroker.share.persister import TopicPartition

TOPICS = [UUID(int=number) for number in (1, 2, 3)]
ONE = frozenset(TOPICS[:1])

Assigned = Mapping[str, Sequence[TopicPartition]]


def assign(
    subscriptions: Mapping[str, frozenset[UUID]], counts: Mapping[UUID, int], old: Assigned | None = None
) -> Assigned:
    members = {
        name: AssignorMember(topics, (old or {}).get(name, ())) for name, topics in subscriptions.items()
    }
    return SimpleAssignor().assign(members, {topic_id: range(count) for topic_id, count in counts.items()})


def same_topics(members: int, topics: frozenset[UUID] = ONE) -> dict[str, frozenset[UUID]]:
    return {f"m{number}": topics for number in range(members)}


@pytest.mark.parametrize(
    ("members", "partitions", "sharing", "numbers"),
    [
        (1, 3, 1, [3]),
        (2, 3, 1, [2, 1]),
        (3, 3, 1, [1, 1, 1]),
        (4, 3, 2, [2, 1, 2, 1]),
        (5, 3, 2, [2, 1, 1, 1, 1]),
        (3, 2, 2, [2, 1, 1]),
        (7, 3, 3, [2, 1, 1, 2, 1, 1, 1]),
        (2, 1, 2, [1, 1]),
        (3, 10, 1, [4, 3, 3]),
    ],
)
# ASG-1, ASG-2
def test_kafkas_numbers(members: int, partitions: int, sharing: int, numbers: list[int]) -> None:
    assigned = assign(same_topics(members), {TOPICS[0]: partitions})
    assert [len(found) for found in assigned.values()] == numbers
    assert max(Counter(each for found in assigned.values() for each in found).values()) <= sharing


@pytest.mark.parametrize(
    ("subscriptions", "counts"),
    [({}, {TOPICS[0]: 3}), (same_topics(2), {}), (same_topics(2), {TOPICS[0]: 0})],
)
# ASG-8
def test_nobody_or_nothing(subscriptions: dict[str, frozenset[UUID]], counts: dict[UUID, int]) -> None:
    assert assign(subscriptions, counts) == {name: [] for name in subscriptions}


def test_with_equal_subscriptions_topics_are_shared_out_together() -> None:  # ASG-1
    assigned = assign(same_topics(4, frozenset(TOPICS[:2])), {TOPICS[0]: 1, TOPICS[1]: 3, TOPICS[2]: 5})
    assert [len(found) for found in assigned.values()] == [1, 1, 1, 1]
    assert len({each for found in assigned.values() for each in found}) == 4


def test_with_different_subscriptions_each_topic_is_shared_out_by_itself() -> None:  # ASG-5
    subscriptions = {"a": frozenset(TOPICS[:2]), "b": frozenset(TOPICS[1:2]), "c": frozenset(TOPICS[2:])}
    assigned = assign(subscriptions, {TOPICS[0]: 2, TOPICS[1]: 3, TOPICS[2]: 1})
    assert {name: sorted(found) for name, found in assigned.items()} == {
        "a": [(TOPICS[0], 0), (TOPICS[0], 1), (TOPICS[1], 0), (TOPICS[1], 2)],
        "b": [(TOPICS[1], 1)],
        "c": [(TOPICS[2], 0)],
    }


def test_one_who_joins_takes_only_what_the_others_must_give() -> None:  # ASG-3
    before = assign(same_topics(2), {TOPICS[0]: 6})
    after = assign(same_topics(3), {TOPICS[0]: 6}, before)
    assert [len(found) for found in after.values()] == [2, 2, 2]
    assert all(set(after[name]) < set(before[name]) for name in before)


def test_one_who_leaves_gives_to_the_others_who_keep_theirs() -> None:  # ASG-3
    before = assign(same_topics(3), {TOPICS[0]: 6})
    after = assign({name: ONE for name in ("m0", "m2")}, {TOPICS[0]: 6}, before)
    assert all(set(before[name]) <= set(after[name]) for name in after)
    assert sum(map(len, after.values())) == 6


def test_what_is_not_subscribed_any_more_is_dropped() -> None:  # ASG-6
    before = assign(same_topics(2, frozenset(TOPICS[:2])), {TOPICS[0]: 2, TOPICS[1]: 2})
    after = assign(same_topics(2), {TOPICS[0]: 2, TOPICS[1]: 2}, before)
    assert {each.topic_id for found in after.values() for each in found} == {TOPICS[0]}


counts = st.fixed_dictionaries({topic_id: st.integers(0, 7) for topic_id in TOPICS})
subscription = st.sets(st.sampled_from(TOPICS), max_size=3).map(frozenset)
mixed = st.dictionaries(st.integers(0, 20).map(str), subscription, max_size=9)
equal = st.builds(
    lambda names, topics: dict.fromkeys(names, topics),
    st.lists(st.integers(0, 20).map(str), max_size=9, unique=True),
    subscription,
)
any_group = mixed | equal


def check(
    subscriptions: Mapping[str, frozenset[UUID]], partitions: Mapping[UUID, int], assigned: Assigned
) -> None:
    assert list(assigned) == list(subscriptions)
    for name, found in assigned.items():
        assert len(found) == len(set(found)), "no partition twice"
        assert {each.topic_id for each in found} <= subscriptions[name], "only what was subscribed"
        assert all(each.partition < partitions[each.topic_id] for each in found)
    together = len(set(subscriptions.values())) == 1
    for topics in [TOPICS] if together else [[topic_id] for topic_id in TOPICS]:
        check_round(subscriptions, partitions, assigned, topics)


def check_round(
    subscriptions: Mapping[str, frozenset[UUID]],
    partitions: Mapping[UUID, int],
    assigned: Assigned,
    topics: Sequence[UUID],
) -> None:
    members = {
        name: [each for each in assigned[name] if each.topic_id in topics]
        for name, found in subscriptions.items()
        if found & {*topics}
    }
    wanted = {topic_id for name in members for topic_id in subscriptions[name]} & {*topics}
    total = sum(partitions[topic_id] for topic_id in wanted)
    if not members or not total:
        return
    sharing = -(-len(members) // total)
    holders = Counter(each for found in members.values() for each in found)
    assert len(holders) == total, "every partition has somebody"
    assert max(holders.values()) <= sharing
    sizes = [len(found) for found in members.values()]
    assert min(sizes) >= 1, "everybody has something"
    assert max(sizes) <= -(-sharing * total // len(members)), "balance"


@given(any_group, counts)
# ASG-4, ASG-7
def test_anybody_anything(subscriptions: dict[str, frozenset[UUID]], partitions: dict[UUID, int]) -> None:
    assigned = assign(subscriptions, partitions)
    check(subscriptions, partitions, assigned)
    assert assign(subscriptions, partitions, assigned) == {
        name: list(found) for name, found in assigned.items()
    }, "stable"
    assert assign(subscriptions, partitions) == assigned, "equal input, equal output"


@given(any_group, counts, any_group, counts)
def test_after_any_change(
    before: dict[str, frozenset[UUID]],
    counts_before: dict[UUID, int],
    after: dict[str, frozenset[UUID]],
    counts_after: dict[UUID, int],
) -> None:  # ASG-4, ASG-7
    old = assign(before, counts_before)
    check(after, counts_after, assign(after, counts_after, old))


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 4))
# ASG-3
def test_those_who_are_there_keep_what_their_number_allows_when_others_join(
    members: int, partitions: int, more: int
) -> None:
    before = assign(same_topics(members), {TOPICS[0]: partitions})
    after = assign(same_topics(members + more), {TOPICS[0]: partitions}, before)
    for name, old in before.items():
        assert len({*old} & {*after[name]}) == min(len(old), len(after[name]))


@given(any_group, counts, any_group)
def test_all_gives_each_member_every_partition_of_its_topics(
    subscriptions: dict[str, frozenset[UUID]], partitions: dict[UUID, int], before: dict[str, frozenset[UUID]]
) -> None:
    old = assign(before, partitions)
    members = {name: AssignorMember(topics, old.get(name, ())) for name, topics in subscriptions.items()}
    assigned = AllAssignor().assign(
        members, {topic_id: range(count) for topic_id, count in partitions.items()}
    )
    assert {name: sorted(found) for name, found in assigned.items()} == {
        name: [
            TopicPartition(topic_id, number)
            for topic_id in sorted(topics)
            for number in range(partitions[topic_id])
        ]
        for name, topics in subscriptions.items()
    }


def test_the_values_of_the_setting_are_the_assignors() -> None:
    assert set(GROUP_CONFIGS[ASSIGNMENT].choices) == set(ASSIGNORS)
    assert [each.name for each in ASSIGNORS.values()] == list(ASSIGNORS)
