"""`uniform`, the default: as even as possible, then with as few moves as possible. Its results are
those of Kafka 4.4.

If all members subscribe to the same topics, the partitions of all topics are one pool, and the
members' numbers differ by at most one. With P partitions and M members each gets P // M, and P % M
members get one more: those that had more than P // M before and, if they are too few, the last
ones. A member with too many gives up its last partitions. Free partitions go to the members in
turn, each filled up before the next: first those that had no owner, then those given up. So as few
partitions move as an even assignment allows.

If subscriptions differ, topics are assigned one by one (uniform_mixed.py).

Members are taken in the order of their ids, topics in Kafka's order of ids. Kafka takes both in the
order of hash maps, so in Kafka chance decides which member is last; for the same order the results
are equal. Racks are ignored, as in Kafka. This module must not know epochs or sessions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from kbroker.groups.assignors.partition_pool import NOBODY, PartitionPool
from kbroker.groups.assignors.spi import ConsumerAssignorMember
from kbroker.groups.assignors.uniform_mixed import share_out_by_topic


class UniformAssignor:
    def assign(
        self, members: Mapping[str, ConsumerAssignorMember], partitions: Mapping[UUID, Sequence[int]]
    ) -> Mapping[str, Mapping[UUID, tuple[int, ...]]]:
        pool = PartitionPool(members, partitions)
        if all(len(subscribers) == len(members) for subscribers in pool.subscribers):
            _share_out_together(pool)
        else:
            share_out_by_topic(pool)
        return pool.assignment()


def _share_out_together(pool: PartitionPool) -> None:
    owned = pool.owned()
    free = [slot for slot, owner in enumerate(pool.owners) if owner == NOBODY]
    receivers: list[int] = []
    least, extra = divmod(len(pool.owners), max(1, len(owned)))
    for member, slots in enumerate(owned):
        one_more = extra > 0 and (len(slots) > least or len(owned) - member <= extra)
        extra -= one_more
        free += slots[least + one_more :]
        receivers += [member] * (least + one_more - len(slots))
    for slot, member in zip(free, receivers, strict=True):
        pool.owners[slot] = member


ASSIGNOR = UniformAssignor()
