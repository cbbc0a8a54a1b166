"""The contract suite of the ConsumerAssignor SPI. Every assignor of consumer groups must pass it,
built in or from a plugin.

    from kbroker.testing.assignor_contract import AssignorContract
    class TestMyAssignor(AssignorContract):
        name = "mine"                            # its name in group.consumer.assignors

There is one test method for each promise of kbroker/groups/assignors/spi.py. Each runs over many
small groups, which are the same in every run: with and without members, with equal and different
subscriptions, with previous assignments of all kinds. The SPI does not promise even or sticky
assignments; an assignor that does needs tests of its own. This module must not know any assignor.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import ClassVar
from uuid import UUID

import pytest

from kbroker import plugins
from kbroker.groups.assignors.spi import ConsumerAssignor, ConsumerAssignorMember, PartitionAssignorError

_GROUPS = 300
_TOPICS = [UUID(int=number << 124 | number) for number in (1, 4, 9, 14)]

Members = Mapping[str, ConsumerAssignorMember]
Partitions = Mapping[UUID, Sequence[int]]


def groups() -> Iterator[tuple[Members, Partitions]]:
    """Members, and the partitions of all topics. No member subscribes to the last topic."""
    for seed in range(_GROUPS):
        random = Random(seed)
        partitions = {topic_id: range(random.choice([0, 1, 2, 5, 12])) for topic_id in _TOPICS}
        owners = [f"member-{number}" for number in range(random.choice([0, 1, 2, 3, 8]))]
        same = random.random() < 0.4
        members = {}
        for number, member_id in enumerate(owners):
            topic_ids = frozenset(_TOPICS[:2] if same else random.sample(_TOPICS[:3], random.randint(0, 3)))
            instance_id = f"instance-{random.random()}" if random.random() < 0.3 else None
            rack_id = random.choice([None, "a", "b"])
            members[member_id] = ConsumerAssignorMember(
                topic_ids, _assigned(random, number, len(owners)), instance_id, rack_id
            )
        yield members, partitions


def _assigned(random: Random, number: int, members: int) -> dict[UUID, tuple[int, ...]]:
    """The previous assignment of a member. Every partition had at most one owner. It may include
    topics that the member no longer subscribes to, and partitions that no longer exist."""
    drop = random.random()
    found = {
        topic_id: tuple(each for each in range(number, 13, members) if random.random() > drop)
        for topic_id in _TOPICS
    }
    return {topic_id: numbers for topic_id, numbers in found.items() if numbers}


def _turned(topics: Mapping[UUID, Sequence[int]]) -> dict[UUID, tuple[int, ...]]:
    return {topic_id: tuple(reversed(topics[topic_id])) for topic_id in reversed(list(topics))}


class AssignorContract:
    name: ClassVar[str]

    @pytest.fixture
    def assignor(self) -> ConsumerAssignor:
        found: ConsumerAssignor = plugins.consumer_assignors([self.name])[self.name]
        return found

    def test_each_partition_of_a_subscribed_topic_has_one_owner_who_subscribes_to_it(
        self, assignor: ConsumerAssignor
    ) -> None:
        for members, partitions in groups():
            found = assignor.assign(members, partitions)
            owned = Counter(
                (topic_id, number)
                for topics in found.values()
                for topic_id, numbers in topics.items()
                for number in numbers
            )
            subscribed = frozenset[UUID]().union(*(member.topic_ids for member in members.values()))
            assert owned == Counter(
                (topic_id, number) for topic_id in subscribed for number in partitions[topic_id]
            )
            assert all(members[member_id].topic_ids.issuperset(topics) for member_id, topics in found.items())

    def test_every_member_is_in_the_answer(self, assignor: ConsumerAssignor) -> None:
        for members, partitions in groups():
            assert assignor.assign(members, partitions).keys() == members.keys()

    def test_numbers_ascend_and_no_topic_is_empty(self, assignor: ConsumerAssignor) -> None:
        for members, partitions in groups():
            found = [
                numbers
                for topics in assignor.assign(members, partitions).values()
                for numbers in topics.values()
            ]
            assert [numbers for numbers in found if not numbers or numbers != tuple(sorted(numbers))] == []

    def test_the_order_of_what_is_passed_in_does_not_matter(self, assignor: ConsumerAssignor) -> None:
        for members, partitions in groups():
            turned = {
                member_id: member._replace(assigned=_turned(member.assigned))
                for member_id, member in reversed(list(members.items()))
            }
            found = assignor.assign(turned, _turned(partitions))
            assert found == assignor.assign(members, partitions)

    def test_what_is_passed_in_stays_as_it_is(self, assignor: ConsumerAssignor) -> None:
        for members, partitions in groups():
            before = copy.deepcopy((members, partitions))
            assignor.assign(members, partitions)
            assert (members, partitions) == before

    def test_a_topic_without_partitions_is_an_error(self, assignor: ConsumerAssignor) -> None:
        members = {"member-1": ConsumerAssignorMember(frozenset(_TOPICS[:2]), {})}
        with pytest.raises(PartitionAssignorError, match=str(_TOPICS[1])):
            assignor.assign(members, {_TOPICS[0]: range(3)})
