"""`uniform`, the default: as even as can be, then as little moved as can be. Results are those of
Kafka 4.3.

Where all members subscribe to the same topics, the partitions of all topics are one pool, and
members' numbers differ by one at most. With P partitions and M members each has P // M, and P % M
have one more: those who had more than P // M before, and, if they are too few, the last ones. Who
has too many gives up the last partitions. What is free goes to the members in turn, each filled up
before the next: first what nobody had, then what was given up. So as few partitions move as
evenness allows.

Where subscriptions differ, topics are shared out one by one (uniform_mixed.py).

Members come in the order of their ids, topics in Kafka's order of ids. Kafka has them in the order
of hash maps, so that there it is chance who is the last; for the same order results are equal.
Racks are not looked at, in Kafka neither. It must not know epochs or who is alive.
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
