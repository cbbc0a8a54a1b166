"""The contract suite of assignors detects assignors that are broken on purpose, each by the
intended test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import pytest

from kbroker.groups.assignors.range import RangeAssignor
from kbroker.groups.assignors.spi import PartitionAssignorError
from kbroker.testing.assignor_contract import AssignorContract, Members, Partitions

Found = dict[str, dict[UUID, tuple[int, ...]]]
Change = Callable[[Found, Members], Any]


class Broken:
    def __init__(self, change: Change) -> None:
        self.change = change

    def assign(
        self, members: Members, partitions: Partitions
    ) -> Mapping[str, Mapping[UUID, tuple[int, ...]]]:
        found = {
            member_id: dict(topics)
            for member_id, topics in RangeAssignor().assign(members, partitions).items()
        }
        self.change(found, members)
        return found


class Forgiving(Broken):
    def assign(
        self, members: Members, partitions: Partitions
    ) -> Mapping[str, Mapping[UUID, tuple[int, ...]]]:
        try:
            return super().assign(members, partitions)
        except PartitionAssignorError:
            return {member_id: {} for member_id in members}


def gives_everything_to_each(found: Found, members: Members) -> None:
    for topics in found.values():
        topics.update({topic_id: numbers for other in found.values() for topic_id, numbers in other.items()})


def forgets_who_gets_nothing(found: Found, members: Members) -> None:
    for member_id in [member_id for member_id, topics in found.items() if not topics]:
        del found[member_id]


def counts_down(found: Found, members: Members) -> None:
    for topics in found.values():
        topics.update({topic_id: numbers[::-1] for topic_id, numbers in topics.items()})


def goes_by_who_comes_first(found: Found, members: Members) -> None:
    in_order = [found[member_id] for member_id in sorted(found)]
    if len({member.topic_ids for member in members.values()}) == 1:
        found.update(zip(members, in_order, strict=True))


def takes_away(found: Found, members: Members) -> None:
    for member in members.values():
        assert isinstance(member.assigned, dict)
        member.assigned.clear()


@pytest.mark.parametrize(
    ("change", "seen_by"),
    [
        (
            gives_everything_to_each,
            AssignorContract.test_each_partition_of_a_subscribed_topic_has_one_owner_who_subscribes_to_it,
        ),
        (forgets_who_gets_nothing, AssignorContract.test_every_member_is_in_the_answer),
        (counts_down, AssignorContract.test_numbers_ascend_and_no_topic_is_empty),
        (goes_by_who_comes_first, AssignorContract.test_the_order_of_what_is_passed_in_does_not_matter),
        (takes_away, AssignorContract.test_what_is_passed_in_stays_as_it_is),
    ],
)
def test_what_is_broken_is_seen(change: Change, seen_by: Callable[..., None]) -> None:
    with pytest.raises(AssertionError):
        seen_by(AssignorContract(), Broken(change))


def test_an_assignor_that_does_without_a_topic_is_seen() -> None:
    with pytest.raises(pytest.fail.Exception):
        AssignorContract().test_a_topic_without_partitions_is_an_error(Forgiving(lambda found, members: None))
