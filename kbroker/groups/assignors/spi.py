"""The SPI of server-side assignors (KIP-848): which member of a consumer group of the new protocol
gets which partitions.

An assignor gets the members, their subscriptions and their previous partitions, and gives each
partition of each subscribed topic to exactly one subscriber. `group.consumer.assignors` lists the
assignors that a broker offers, by the names of their entry points (group `kbroker.assignor`, see
kbroker.plugins). A group uses the one that most of its members ask for, or the first. `uniform` and
`range` are entry points too. Assignors know no epochs, no heartbeats and no clock: the coordinator
decides when partitions move.
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
    """A member's subscription, and its previous partitions."""

    topic_ids: frozenset[UUID]
    """Topics it subscribes to, by name or by regular expression."""
    assigned: Mapping[UUID, Sequence[int]]
    """Partition numbers by topic in its previous target assignment. Topics that it no longer
    subscribes to may be among them."""
    instance_id: str | None = None
    """group.instance.id of a static member. A new member id under the same instance id has
    inherited `assigned`."""
    rack_id: str | None = None
    """The member's client.rack."""


class ConsumerAssignor(Protocol):
    """An entry point of the group `kbroker.assignor` names such an object. All groups use it."""

    def assign(
        self, members: Mapping[str, ConsumerAssignorMember], partitions: Mapping[UUID, Sequence[int]]
    ) -> Mapping[str, Mapping[UUID, tuple[int, ...]]]:
        """Return an assignment for every member: ascending partition numbers by topic, no topic
        without partitions. Raises PartitionAssignorError.

        - `members`: by member id
        - `partitions`: the partition numbers of every subscribed topic, perhaps of others too

        Equal input must give an equal result, whatever the order of mappings and sequences: it
        differs after a restart. The call runs between two requests of the group, so it should take
        milliseconds. It must not change its arguments.
        """


def subscribers_by_topic(
    members: Sequence[ConsumerAssignorMember], partitions: Mapping[UUID, Sequence[int]]
) -> Mapping[UUID, Sequence[int]]:
    """The indexes in `members` of each topic's subscribers, ascending; topics in the order of
    topic_order().

    Raises PartitionAssignorError for a topic that is not in `partitions`.
    """
    # Most members share a few subscriptions. A loop over the topics of each member would take
    # longer than everything else.
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
