"""`range`: contiguous ranges of each topic's partitions, in the order of the members, as in Kafka
4.3.

Static members come first, by instance id, then the others by member id. With P partitions and S
subscribers of a topic each gets P // S, and the first P % S get one more. So topics with the same
subscribers and the same number of partitions are divided alike, and a member gets the same numbers
of all of them, as joins of two topics need (co-partitioning).

    topics a and b, 5 partitions each, members 1 and 2:  1 has a0 a1 a2 b0 b1 b2,  2 has a3 a4 b3 b4

Previous partitions are ignored, as in Kafka: the ranges stay because the order does. A static
member that returns under a new member id keeps its place. A member that joins or leaves shifts the
ranges after its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from kbroker.groups.assignors.spi import ConsumerAssignorMember, subscribers_by_topic, text_order


class RangeAssignor:
    def assign(
        self, members: Mapping[str, ConsumerAssignorMember], partitions: Mapping[UUID, Sequence[int]]
    ) -> Mapping[str, Mapping[UUID, tuple[int, ...]]]:
        member_ids = sorted(members, key=lambda member_id: _order(member_id, members[member_id]))
        assigned: dict[str, dict[UUID, tuple[int, ...]]] = {member_id: {} for member_id in members}
        for topic_id, subscribers in subscribers_by_topic(
            [members[member_id] for member_id in member_ids], partitions
        ).items():
            numbers = sorted(partitions[topic_id])
            least, extra = divmod(len(numbers), len(subscribers))
            # If `least` is 0, members after the first `extra` get nothing.
            for rank, member in enumerate(subscribers if least else subscribers[:extra]):
                start = rank * least + min(rank, extra)
                assigned[member_ids[member]][topic_id] = tuple(
                    numbers[start : start + least + (rank < extra)]
                )
        return assigned


def _order(member_id: str, member: ConsumerAssignorMember) -> tuple[bool, bytes]:
    return member.instance_id is None, text_order(
        member.instance_id if member.instance_id is not None else member_id
    )


ASSIGNOR = RangeAssignor()
