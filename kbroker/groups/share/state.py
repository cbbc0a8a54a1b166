"""A share group in memory, and how it goes into records and comes back (record types 10 to 15 of
`__consumer_offsets`).

    10  what a member said of itself            13  what a member is to have (target assignment)
    11  the group's epoch, the topics' hash     14  what a member was told to have (current assignment)
    12  which epoch the targets are for         15  for which partitions the group has share state

`ShareGroup` holds state and answers questions about it; what happens when is decided in
share/coordinator.py. Everything that a method changes and that must survive a restart is put into
`Records` in the same breath.
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
from kbroker.groups.share.messages import TopicsView
from kbroker.share.persister import TopicPartition

Assignment: TypeAlias = Mapping[UUID, tuple[int, ...]]
"""Partitions by topic, rising; no topic without partitions."""

NO_PARTITIONS: Assignment = {}


@dataclass(slots=True)
class ShareMember:
    """`topic_names` are sorted and distinct. The last two fields are the session's and not
    stored."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    member_epoch: int = 0
    previous_epoch: int = 0
    assigned: Assignment = field(default_factory=dict)
    deadline_ms: int = 0
    timer_ms: int = -1
    """When the coordinator looks at this session next; its deadline may have moved on by then."""

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
    # What follows is not stored.
    asked_ms: dict[TopicPartition, int] = field(default_factory=dict)
    """Initialisations that the persister has not answered, with the time at which it was asked
    last."""
    start_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """The start offset decided for a share-partition that is not initialised yet: a second attempt
    must ask for the same."""
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
        """Initialised partitions of topics that somebody subscribes to."""
        names = set(self.subscribed_names())
        return {topic_id: part for topic_id, part in self.initialized.items() if part.name in names}

    def hash_topics(self, topics: TopicsView, assignor: str) -> int:
        """Changes when a subscribed topic is created, deleted, recreated or grown, and with the
        assignor. 0: there are none."""
        found = [topic for topic in map(topics.by_name, self.subscribed_names()) if topic is not None]
        if not found:
            return 0
        lines = [f"{topic.name} {topic.topic_id} {len(topic.partitions)}" for topic in found]
        # Hashes that are stored since before there was another one stay as they are.
        if assignor != "simple":
            lines.append(assignor)
        text = "\n".join(lines)
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)

    def forget_attempts(self, topic_id: UUID) -> None:
        """What is in memory of initialisations of the topic that are not done: it has no share
        state any more."""
        for notes in (self.asked_ms, self.start_offsets):
            for partition in [each for each in notes if each.topic_id == topic_id]:
                del notes[partition]

    # --- changes that are recorded ---

    def bump(self, records: Records) -> None:
        self.epoch += 1
        self.put_metadata(records)

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
        metadata = ShareGroupTargetMetadata(
            assignment_epoch=self.assignment_epoch, assignment_timestamp=records.times.to_store(now_ms)
        )
        records.put(RecordType.SHARE_GROUP_TARGET_METADATA, metadata)

    def reconcile(self, member: ShareMember, records: Records) -> bool:
        """Give a member its target, in one step. True if what it has changed."""
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
        """They left or their sessions ended. No targets are made for the new epoch before the next
        heartbeat, if there is one."""
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

    # --- coming back ---

    def replay(self, key: GroupKey, value: Message) -> None:
        """Take a stored record in; the order of the records does not matter."""
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
