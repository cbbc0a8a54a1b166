"""`range`: each topic's partitions in contiguous ranges, in the order of the members, as Kafka 4.3
does it.

Static members come first, by instance id, then the others by member id. With P partitions and S
subscribers of a topic each gets P // S, and the first P % S one more. So topics with the same
subscribers and the same number of partitions are cut at the same places, and one member has the
same numbers of all of them: what joins of two topics need (co-partitioning).

    topics a and b, 5 partitions each, members 1 and 2:  1 has a0 a1 a2 b0 b1 b2,  2 has a3 a4 b3 b4

What members had does not count, in Kafka neither: the ranges stay because the order does. A static
member that comes back under a new member id keeps its place; one that joins or leaves shifts the
ranges behind its own.
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
            # Without a least number those behind the first `extra` get nothing.
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
