"""Assignors of share groups: the SPI, Kafka's SimpleAssignor as it is since 4.2 (KIP-932), and
`all`.

`all` gives every member all partitions of its topics: a worker is idle only if the whole queue is
empty.

`simple` may give a partition to several members. With P partitions and M members each partition
goes to S = ceil(M / P) members, and member i gets ceil(d * (i + 1)) - ceil(d * i) of them, where
d = S * P / M. These numbers differ by at most one and add up to S * P.

    M, P   S   numbers              M, P    S   numbers
    1, 3   1   3                    5, 3    2   2 1 1 1 1
    2, 3   1   2 1                  7, 3    3   2 1 1 2 1 1 1
    4, 3   2   2 1 2 1              3, 10   1   4 3 3

Members keep their partitions as far as those numbers allow. Members are taken in the order in which
they joined, and equal input gives equal output. This module must not know epochs, records or
sessions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from kbroker.share.persister import TopicPartition


class AssignorMember(NamedTuple):
    """A member's subscription, and its partitions in the previous assignment."""

    topic_ids: frozenset[UUID]
    assigned: Sequence[TopicPartition]


class Assignor(Protocol):
    name: str
    """The name in kbroker.queue.assignment and in ShareGroupDescribe."""

    def assign(
        self, members: Mapping[str, AssignorMember], partitions: Mapping[UUID, Sequence[int]]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        """Return a list for every member. `partitions`: the assignable partitions by topic;
        subscribed topics may be missing."""


class SimpleAssignor:
    name = "simple"

    def assign(
        self, members: Mapping[str, AssignorMember], partitions: Mapping[UUID, Sequence[int]]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        assigned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
        # If all members have the same subscription, all topics are assigned together, otherwise
        # one at a time.
        together = len({member.topic_ids for member in members.values()}) == 1
        rounds = [list(partitions)] if together else [[topic_id] for topic_id in partitions]
        for topic_ids in rounds:
            subscribers = {
                name: member for name, member in members.items() if not member.topic_ids.isdisjoint(topic_ids)
            }
            wanted = frozenset[UUID]().union(*(member.topic_ids for member in subscribers.values()))
            targets = [
                TopicPartition(topic_id, number)
                for topic_id in topic_ids
                if topic_id in wanted
                for number in partitions[topic_id]
            ]
            for member_id, share in _share_out(
                {name: member.assigned for name, member in subscribers.items()}, targets
            ).items():
                assigned[member_id] += share
        return assigned


class AllAssignor:
    name = "all"

    def assign(
        self, members: Mapping[str, AssignorMember], partitions: Mapping[UUID, Sequence[int]]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        return {
            member_id: [
                TopicPartition(topic_id, number)
                for topic_id, numbers in partitions.items()
                if topic_id in member.topic_ids
                for number in numbers
            ]
            for member_id, member in members.items()
        }


ASSIGNORS: Final[Mapping[str, Assignor]] = {each.name: each for each in (SimpleAssignor(), AllAssignor())}
"""By the values of kbroker.queue.assignment."""


def _share_out(
    current: Mapping[str, Iterable[TopicPartition]], targets: Sequence[TopicPartition]
) -> dict[str, list[TopicPartition]]:
    """Give all `targets` to the members of `current`; each member may have any of them."""
    if not targets:
        return {member_id: [] for member_id in current}
    sharing = -(-len(current) // len(targets))
    quotas = dict(zip(current, _quotas(len(current), len(targets), sharing), strict=True))
    holders: dict[TopicPartition, list[str]] = {partition: [] for partition in targets}
    kept: dict[str, dict[TopicPartition, None]] = {
        member_id: {partition: None for partition in partitions if partition in holders}
        for member_id, partitions in current.items()
    }
    for member_id, partitions in kept.items():
        for partition in partitions:
            holders[partition].append(member_id)
    for member_id, partitions in kept.items():
        if len(partitions) > quotas[member_id]:
            # Give up the most shared ones first, as other members have them too, then the newest.
            for partition in sorted(reversed(partitions), key=lambda each: -len(holders[each]))[
                : len(partitions) - quotas[member_id]
            ]:
                del partitions[partition]
                holders[partition].remove(member_id)
    for partition, members in holders.items():
        while len(members) > sharing:
            del kept[members.pop()][partition]
    unfilled = deque(member_id for member_id in current if len(kept[member_id]) < quotas[member_id])
    for partition, members in holders.items():
        _fill(partition, sharing - len(members), unfilled, kept, quotas)
    return {member_id: list(partitions) for member_id, partitions in kept.items()}


def _fill(
    partition: TopicPartition,
    vacancies: int,
    unfilled: deque[str],
    kept: dict[str, dict[TopicPartition, None]],
    quotas: Mapping[str, int],
) -> None:
    """Give a partition, in turn, to members that may have more and do not have it. If they are too
    few, vacancies remain."""
    for _ in range(len(unfilled)):
        if vacancies <= 0:
            return
        member_id = unfilled.popleft()
        if partition not in kept[member_id]:
            kept[member_id][partition] = None
            vacancies -= 1
        if len(kept[member_id]) < quotas[member_id]:
            unfilled.append(member_id)


def _quotas(members: int, partitions: int, sharing: int) -> list[int]:
    def up_to(count: int) -> int:
        return -(-sharing * partitions * count // members)

    return [up_to(index + 1) - up_to(index) for index in range(members)]
