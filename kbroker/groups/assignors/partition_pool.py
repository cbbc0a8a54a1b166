"""The uniform assignor's data: members and partitions as small numbers, and the owner of each
partition.

Members are numbered in the order of their ids. Partitions of subscribed topics are *slots*,
numbered from 0: topic by topic in Kafka's order of ids, and by partition number within a topic. So
the order of numbers is the order in which the assignor takes members and partitions, and nothing
depends on the order of a mapping. This module must not know how partitions are assigned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final
from uuid import UUID

from kbroker.groups.assignors.spi import ConsumerAssignorMember, subscribers_by_topic

NOBODY: Final = -1


class PartitionPool:
    def __init__(
        self, members: Mapping[str, ConsumerAssignorMember], partitions: Mapping[UUID, Sequence[int]]
    ) -> None:
        """Raises PartitionAssignorError."""
        self.member_ids: Final = sorted(members)
        in_order = [members[member_id] for member_id in self.member_ids]
        by_topic = subscribers_by_topic(in_order, partitions)
        self.subscribers: Final = list(by_topic.values())
        """Members by topic, ascending."""
        self._slots: Final = [
            (topic_id, number) for topic_id in by_topic for number in sorted(partitions[topic_id])
        ]
        ends = list(accumulate((len(partitions[topic_id]) for topic_id in by_topic), initial=0))
        self.topics: Final = list(map(range, ends, ends[1:]))
        """The slots of each topic."""
        self.owners: Final = [NOBODY] * len(self._slots)
        """The member that has each slot, or NOBODY."""
        self._take_over(in_order)

    def owned(self) -> list[list[int]]:
        """The slots of each member, ascending."""
        owned: list[list[int]] = [[] for _ in self.member_ids]
        for slot, member in enumerate(self.owners):
            if member != NOBODY:
                owned[member].append(slot)
        return owned

    def assignment(self) -> dict[str, dict[UUID, tuple[int, ...]]]:
        """The owners in the form of an assignor's result."""
        assigned: dict[str, dict[UUID, tuple[int, ...]]] = {}
        for member_id, slots in zip(self.member_ids, self.owned(), strict=True):
            topics: dict[UUID, list[int]] = {}
            for topic_id, number in map(self._slots.__getitem__, slots):
                topics.setdefault(topic_id, []).append(number)
            assigned[member_id] = {topic_id: tuple(numbers) for topic_id, numbers in topics.items()}
        return assigned

    def _take_over(self, members: Sequence[ConsumerAssignorMember]) -> None:
        """Assign each partition to the first member that had it and still subscribes to it."""
        slots: dict[UUID, dict[int, int]] = {}
        for slot, (topic_id, number) in enumerate(self._slots):
            slots.setdefault(topic_id, {})[number] = slot
        for member, (topic_ids, assigned, _, _) in enumerate(members):
            for topic_id in topic_ids.intersection(assigned):
                for number in assigned[topic_id]:
                    slot = slots.get(topic_id, {}).get(number, NOBODY)
                    if slot != NOBODY and self.owners[slot] == NOBODY:
                        self.owners[slot] = member
