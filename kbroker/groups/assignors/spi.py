"""Who gets which partitions in a consumer group of the new protocol (KIP-848): the SPI of
server-side assignors.

An assignor is told who the members are, what they subscribe to and what they have, and gives each
partition of each subscribed topic to exactly one subscriber. `group.consumer.assignors` lists the
ones a broker offers, by the names of their entry points (group `kbroker.assignor`, see
kbroker.plugins); a group uses the one that most of its members ask for, or the first. `uniform` and
`range` come through that door too. Assignors know no epochs, no heartbeats and no clock: what moves
when is the coordinator's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple, Protocol
from uuid import UUID

_SIGNS = 1 << 127 | 1 << 63


class PartitionAssignorError(ValueError):
    """There is no assignment for these members and partitions; the group keeps the one it has
    (Kafka's PartitionAssignorException)."""


class ConsumerAssignorMember(NamedTuple):
    """A member's subscription, and what it had."""

    topic_ids: frozenset[UUID]
    """Topics it subscribes to, by name or by regular expression."""
    assigned: Mapping[UUID, Sequence[int]]
    """Partition numbers by topic in its previous target assignment; what it has no subscription for
    any more may be among them."""
    instance_id: str | None = None
    """group.instance.id of a static member. A new member id under the same instance id has
    inherited `assigned`."""
    rack_id: str | None = None
    """client.rack, as the member tells it."""


class ConsumerAssignor(Protocol):
    """What an entry point of the group `kbroker.assignor` names: an object, used for all groups."""

    def assign(
        self, members: Mapping[str, ConsumerAssignorMember], partitions: Mapping[UUID, Sequence[int]]
    ) -> Mapping[str, Mapping[UUID, tuple[int, ...]]]:
        """An assignment for every member of `members`, which is by member id: the numbers of each
        topic in ascending order, no empty ones.

        `partitions` has the partition numbers of every subscribed topic, and of others perhaps.
        Equal input must give an equal answer, whatever the order of mappings and sequences: after a
        restart members come in another one. It runs between two requests of the group, so it should
        take milliseconds. Nothing passed in may be changed. Raises PartitionAssignorError.
        """


def subscribers_by_topic(
    members: Sequence[ConsumerAssignorMember], partitions: Mapping[UUID, Sequence[int]]
) -> Mapping[UUID, Sequence[int]]:
    """The places in `members` of each topic's subscribers, ascending; topics as topic_order() has
    them.

    Raises PartitionAssignorError for a topic that is not in `partitions`.
    """
    # Members mostly share a few subscriptions; asking each member for each of its topics would take
    # longer than all the rest.
    places: dict[frozenset[UUID], list[int]] = {}
    for place, member in enumerate(members):
        places.setdefault(member.topic_ids, []).append(place)
    found: dict[UUID, list[list[int]]] = {}
    for topic_ids, subscribers in places.items():
        for topic_id in topic_ids:
            found.setdefault(topic_id, []).append(subscribers)
    for topic_id in found:
        if topic_id not in partitions:
            raise PartitionAssignorError(f"members subscribe to topic {topic_id}, which does not exist")
    return {
        topic_id: found[topic_id][0]
        if len(found[topic_id]) == 1
        else sorted(chain.from_iterable(found[topic_id]))
        for topic_id in sorted(found, key=topic_order)
    }


def topic_order(topic_id: UUID) -> int:
    """The sort key of Kafka's Uuid.compareTo: both halves as signed numbers."""
    return topic_id.int ^ _SIGNS


def text_order(text: str) -> bytes:
    """The sort key of Java's String.compareTo: by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")
