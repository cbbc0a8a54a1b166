"""A share group in memory, and its records (types 10 to 15 of `__consumer_offsets`).

    10  a member's identity and subscription      13  a member's target assignment
    11  the group epoch, the hash of the topics   14  a member's current assignment, as it was sent
    12  the epoch of the targets                  15  the partitions with share state

`ShareGroup` holds state and answers questions about it; share/coordinator.py decides what happens
when. A method that changes something that must survive a restart also puts it into `Records`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypeAlias
from uuid import UUID

from kbroker.formats.share_records import (
    Message,
    NamedTopic,
    NamedTopicPartitions,
    RecordType,
    ShareGroupCurrentMember,
    ShareGroupMember,
    ShareGroupMetadata,
    ShareGroupPartitions,
    ShareGroupTargetMember,
    ShareGroupTargetMetadata,
    TopicPartitions,
)
from kbroker.formats.state import GroupKey
from kbroker.groups.outcome import Records
from kbroker.groups.share.messages import ShareGroupHeartbeatRequest, TopicsView
from kbroker.share.persister import TopicPartition

Assignment: TypeAlias = Mapping[UUID, tuple[int, ...]]
"""Partition numbers by topic, ascending; no topic without partitions."""

NO_PARTITIONS: Assignment = {}


@dataclass(slots=True)
class ShareMember:
    """`topic_names` are sorted and distinct."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    member_epoch: int = 0
    previous_epoch: int = 0
    assigned: Assignment = field(default_factory=dict)

    def identity(self) -> ShareGroupMember:
        return ShareGroupMember(
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=self.topic_names,
        )


@dataclass(slots=True)
class TopicPart:
    """Some partitions of a topic."""

    name: str
    partitions: set[int] = field(default_factory=set)


@dataclass(slots=True)
class ShareGroup:
    group_id: str
    epoch: int = 1
    metadata_hash: int = 0
    assignment_epoch: int = 1
    assignment_ms: int = 0
    members: dict[str, ShareMember] = field(default_factory=dict)
    targets: dict[str, Assignment] = field(default_factory=dict)
    initializing: dict[UUID, TopicPart] = field(default_factory=dict)
    initialized: dict[UUID, TopicPart] = field(default_factory=dict)
    deleting: dict[UUID, str] = field(default_factory=dict)
    # Fields from here on are not stored.
    asked_ms: dict[TopicPartition, int] = field(default_factory=dict)
    """Initialisations that the persister has not answered, each with the time of the last
    request."""
    start_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """The start offset chosen for a share-partition that is not initialised yet. A retry must
    request the same one."""
    topics_version: int | None = None
    must_look_for_partitions: bool = True
    must_compare_targets: bool = True

    @property
    def state(self) -> str:
        return "Stable" if self.members else "Empty"

    @property
    def assignment_pending(self) -> bool:
        return self.assignment_epoch < self.epoch

    def subscribed_names(self) -> list[str]:
        return sorted({name for member in self.members.values() for name in member.topic_names})

    def assignable(self) -> dict[UUID, TopicPart]:
        """Initialised partitions of topics that a member subscribes to."""
        names = set(self.subscribed_names())
        return {topic_id: part for topic_id, part in self.initialized.items() if part.name in names}

    def hash_topics(self, topics: TopicsView, assignor: str) -> int:
        """A hash that changes with the assignor, and when a subscribed topic is created, deleted,
        recreated or gets partitions. 0: no subscribed topic exists."""
        found = [topic for topic in map(topics.by_name, self.subscribed_names()) if topic is not None]
        if not found:
            return 0
        lines = [f"{topic.name} {topic.topic_id} {len(topic.partitions)}" for topic in found]
        # Hashes that were stored when `simple` was the only assignor stay valid.
        if assignor != "simple":
            lines.append(assignor)
        text = "\n".join(lines)
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)

    def forget_attempts(self, topic_id: UUID) -> None:
        """Drop the topic's unfinished initialisations from memory: its share state is gone."""
        for notes in (self.asked_ms, self.start_offsets):
            for partition in [each for each in notes if each.topic_id == topic_id]:
                del notes[partition]

    # --- changes that are recorded ---

    def update_member(
        self, request: ShareGroupHeartbeatRequest, records: Records
    ) -> tuple[ShareMember, bool]:
        """Update the member from its heartbeat, or add it. True if its subscription has changed."""
        member = self.members.get(request.member_id) or ShareMember(request.member_id)
        before = member.identity() if request.member_id in self.members else None
        self.members[member.member_id] = member
        old_names = member.topic_names
        member.client_id, member.client_host = request.client_id, request.client_host
        if request.rack_id is not None:
            member.rack_id = request.rack_id
        if request.subscribed_topic_names is not None:
            member.topic_names = tuple(sorted(set(request.subscribed_topic_names)))
        identity = member.identity()
        if identity != before:
            records.put(RecordType.SHARE_GROUP_MEMBER, identity, member.member_id)
        return member, before is None or member.topic_names != old_names

    def bump(self, records: Records) -> None:
        """Start a new group epoch, which needs new targets. Without members it has them at once."""
        self.epoch += 1
        self.put_metadata(records)
        if not self.members:
            self.assignment_epoch = self.epoch
            self._put_target_metadata(records)

    def put_metadata(self, records: Records) -> None:
        records.put(
            RecordType.SHARE_GROUP_METADATA,
            ShareGroupMetadata(epoch=self.epoch, metadata_hash=self.metadata_hash),
        )

    def set_targets(self, targets: Mapping[str, Assignment], now_ms: int, records: Records) -> None:
        """The target assignment of this group epoch, one for every member."""
        for member_id, target in targets.items():
            if self.targets.get(member_id) != target:
                value = ShareGroupTargetMember(topic_partitions=to_topic_partitions(target))
                records.put(RecordType.SHARE_GROUP_TARGET_MEMBER, value, member_id)
        self.targets = dict(targets)
        self.must_compare_targets = False
        self.assignment_epoch, self.assignment_ms = self.epoch, now_ms
        self._put_target_metadata(records)

    def _put_target_metadata(self, records: Records) -> None:
        assigned_ms = records.times.to_store(self.assignment_ms)
        value = ShareGroupTargetMetadata(
            assignment_epoch=self.assignment_epoch, assignment_timestamp=assigned_ms
        )
        records.put(RecordType.SHARE_GROUP_TARGET_METADATA, value)

    def reconcile(self, member: ShareMember, records: Records) -> bool:
        """Give a member its target, in one step. True if its assignment has changed."""
        if member.member_epoch == self.assignment_epoch:
            return False
        target = self.targets.get(member.member_id, NO_PARTITIONS)
        changed = member.assigned != target
        member.previous_epoch, member.member_epoch = member.member_epoch, self.assignment_epoch
        member.assigned = target
        value = ShareGroupCurrentMember(
            member_epoch=member.member_epoch,
            previous_member_epoch=member.previous_epoch,
            assigned_partitions=to_topic_partitions(target),
        )
        records.put(RecordType.SHARE_GROUP_CURRENT_MEMBER, value, member.member_id)
        return changed

    def remove_members(self, member_ids: Iterable[str], records: Records) -> None:
        """Remove members that left or whose sessions ended. The next heartbeat, if any, computes
        targets for the new epoch."""
        for member_id in member_ids:
            del self.members[member_id]
            self.targets.pop(member_id, None)
            records.remove(RecordType.SHARE_GROUP_CURRENT_MEMBER, member_id)
            records.remove(RecordType.SHARE_GROUP_TARGET_MEMBER, member_id)
            records.remove(RecordType.SHARE_GROUP_MEMBER, member_id)
        self.bump(records)

    def put_partitions(self, records: Records) -> None:
        value = ShareGroupPartitions(
            initializing_topics=_to_named(self.initializing),
            initialized_topics=_to_named(self.initialized),
            deleting_topics=tuple(
                NamedTopic(topic_id=topic_id, topic_name=name)
                for topic_id, name in sorted(self.deleting.items(), key=lambda each: each[0])
            ),
        )
        records.put(RecordType.SHARE_GROUP_PARTITIONS, value)

    def remove_all(self, records: Records) -> None:
        """Tombstones of a group without members, in Kafka's order."""
        assert not self.members
        records.remove(RecordType.SHARE_GROUP_TARGET_METADATA)
        records.remove(RecordType.SHARE_GROUP_PARTITIONS)
        records.remove(RecordType.SHARE_GROUP_METADATA)

    # --- loading ---

    def replay(self, key: GroupKey, value: Message) -> None:
        """Load a stored record. Records may come in any order."""
        match value:
            case ShareGroupMember():
                member = self._member(key)
                member.rack_id, member.client_id, member.client_host = (
                    value.rack_id,
                    value.client_id,
                    value.client_host,
                )
                member.topic_names = value.subscribed_topic_names
            case ShareGroupMetadata():
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
            case ShareGroupTargetMetadata():
                self.assignment_epoch, self.assignment_ms = value.assignment_epoch, value.assignment_timestamp
            case ShareGroupTargetMember():
                assert key.member_id is not None
                self.targets[key.member_id] = _from_topic_partitions(value.topic_partitions)
            case ShareGroupCurrentMember():
                member = self._member(key)
                member.member_epoch, member.previous_epoch = value.member_epoch, value.previous_member_epoch
                member.assigned = _from_topic_partitions(value.assigned_partitions)
            case ShareGroupPartitions():
                self.initializing = _from_named(value.initializing_topics)
                self.initialized = _from_named(value.initialized_topics)
                self.deleting = {each.topic_id: each.topic_name for each in value.deleting_topics}

    def _member(self, key: GroupKey) -> ShareMember:
        assert key.member_id is not None
        return self.members.setdefault(key.member_id, ShareMember(key.member_id))


def share_partitions(topics: Mapping[UUID, TopicPart]) -> Iterator[TopicPartition]:
    for topic_id, part in sorted(topics.items(), key=lambda each: each[0]):
        yield from (TopicPartition(topic_id, number) for number in sorted(part.partitions))


def to_assignment(partitions: Iterable[TopicPartition]) -> Assignment:
    found: dict[UUID, list[int]] = {}
    for topic_id, number in sorted(partitions):
        found.setdefault(topic_id, []).append(number)
    return {topic_id: tuple(numbers) for topic_id, numbers in found.items()}


def from_assignment(assignment: Assignment) -> list[TopicPartition]:
    return [
        TopicPartition(topic_id, number) for topic_id, numbers in assignment.items() for number in numbers
    ]


def to_topic_partitions(assignment: Assignment) -> tuple[TopicPartitions, ...]:
    return tuple(
        TopicPartitions(topic_id=topic_id, partitions=numbers) for topic_id, numbers in assignment.items()
    )


def _from_topic_partitions(records: Iterable[TopicPartitions]) -> Assignment:
    return {each.topic_id: tuple(each.partitions) for each in records}


def _to_named(topics: Mapping[UUID, TopicPart]) -> tuple[NamedTopicPartitions, ...]:
    return tuple(
        NamedTopicPartitions(
            topic_id=topic_id, topic_name=part.name, partitions=tuple(sorted(part.partitions))
        )
        for topic_id, part in sorted(topics.items(), key=lambda each: each[0])
    )


def _from_named(records: Iterable[NamedTopicPartitions]) -> dict[UUID, TopicPart]:
    return {each.topic_id: TopicPart(each.topic_name, set(each.partitions)) for each in records}
