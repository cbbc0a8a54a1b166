"""A consumer group in memory, and its records (types 3 and 5 to 8 of `__consumer_offsets`).

    3  the group epoch, the hash of the topics     7  a member's target assignment
    5  a member's details and subscription         8  a member's current assignment, with the
    6  the epoch of the targets                       partitions that it must give up

`ConsumerGroup` holds state and answers questions about it; consumer/coordinator.py decides what
happens when. A method that changes something that must survive a restart also puts it into
`Records`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from kbroker.formats.group_records import (
    NOT_CLASSIC,
    ConsumerGroupCurrentMember,
    ConsumerGroupMember,
    ConsumerGroupMetadata,
    ConsumerGroupTargetMember,
    ConsumerGroupTargetMetadata,
    OwnedPartitions,
)
from kbroker.formats.share_records import Message, RecordType, TopicPartitions
from kbroker.formats.state import GroupKey
from kbroker.groups.consumer.messages import LEAVE_STATIC_EPOCH, Partitions
from kbroker.groups.consumer.reconciliation import Current, MemberState, Owned
from kbroker.groups.outcome import Records
from kbroker.security.rights import Rights

NOBODY: Final = ConsumerGroupMember(
    client_id="", client_host="", subscribed_topic_names=(), subscribed_topic_regex=""
)
"""The details of a member before its first heartbeat."""

_MEMBER_TYPES: Final = (
    RecordType.CONSUMER_GROUP_CURRENT_MEMBER,
    RecordType.CONSUMER_GROUP_TARGET_MEMBER,
    RecordType.CONSUMER_GROUP_MEMBER,
)


@dataclass(slots=True)
class ConsumerMember:
    """- `said`: the details that it sent; its topic names are sorted and distinct
    - `rights`: of the client that sent its last heartbeat. None: it may do everything, or has sent
      none since the start
    - `seen`: the hash of the topics to which `rights` resolved its regular expression, since all of
      them are many; None: not known
    """

    member_id: str
    said: ConsumerGroupMember = NOBODY
    current: Current = field(default_factory=Current)
    rights: Rights | None = None
    seen: int | None = None

    @property
    def is_classic(self) -> bool:
        """Whether it uses the classic protocol."""
        return self.said.classic.present != NOT_CLASSIC.present


@dataclass(slots=True)
class ConsumerGroup:
    group_id: str
    epoch: int = 1
    metadata_hash: int = 0
    assignment_epoch: int = 1
    assignment_ms: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    # Fields from here on are derived or not stored.
    instances: dict[str, str] = field(default_factory=dict)
    """Member ids by instance id."""
    owners: dict[UUID, dict[int, str]] = field(default_factory=dict)
    """The member that has each partition. A member that must give one up has it until it reports
    that it did."""
    topics_version: int | None = None
    """The version of the topics that the epoch takes into account."""

    @property
    def state(self) -> str:
        if not self.members:
            return "Empty"
        if self.assignment_pending:
            return "Assigning"
        settled = all(
            member.current.is_reconciled_to(self.assignment_epoch) for member in self.members.values()
        )
        return "Stable" if settled else "Reconciling"

    @property
    def assignment_pending(self) -> bool:
        return self.assignment_epoch < self.epoch

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self.instances.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def is_free(self, topic_id: UUID, partition: int) -> bool:
        return partition not in self.owners.get(topic_id, ())

    def preferred_assignor(self, assignors: Iterable[str]) -> str:
        """The assignor that most members ask for. A tie, or no vote, goes to the first in the
        broker's order."""
        votes = Counter(member.said.server_assignor for member in self.members.values())
        return max(assignors, key=lambda name: votes[name])

    def classic_members(self) -> Iterator[ConsumerMember]:
        return (member for member in self.members.values() if member.is_classic)

    def add(self, member: ConsumerMember, target: Partitions) -> None:
        """Add a member of a converted group; `put_all` records it."""
        self.members[member.member_id] = member
        self.targets[member.member_id] = target
        if member.said.instance_id is not None:
            self.instances[member.said.instance_id] = member.member_id
        self._own(member)

    # --- changes that are recorded ---

    def bump(self, epochs: int, metadata_hash: int, records: Records) -> None:
        """Start a new group epoch, which needs new targets. Without members it has them at once."""
        self.epoch += epochs
        self.metadata_hash = metadata_hash
        self._put_metadata(records)
        if not self.members:
            self.assignment_epoch = self.epoch
            self._put_target_metadata(records)

    def set_said(self, member: ConsumerMember, said: ConsumerGroupMember, records: Records) -> None:
        """Update a member's details; add it if it is new."""
        is_new = member.member_id not in self.members
        if not is_new and said == member.said:
            return
        if member.said.instance_id not in (None, said.instance_id):
            self.instances.pop(member.said.instance_id, None)
        member.said = said
        self.members[member.member_id] = member
        if said.instance_id is not None:
            self.instances[said.instance_id] = member.member_id
        records.put(RecordType.CONSUMER_GROUP_MEMBER, said, member.member_id)

    def set_current(self, member: ConsumerMember, current: Current, records: Records) -> None:
        if current == member.current:
            return
        self._disown(member)
        member.current = current
        self._own(member)
        records.put(RecordType.CONSUMER_GROUP_CURRENT_MEMBER, _current_record(current), member.member_id)

    def set_targets(self, targets: Mapping[str, Partitions], now_ms: int, records: Records) -> None:
        """The target assignment of this group epoch, one for every member."""
        for member_id, target in targets.items():
            if self.targets.get(member_id) != target:
                self._put_target(member_id, target, records)
        self.targets = dict(targets)
        self.assignment_epoch, self.assignment_ms = self.epoch, now_ms
        self._put_target_metadata(records)

    def remove_member(self, member: ConsumerMember, records: Records) -> None:
        del self.members[member.member_id]
        self.targets.pop(member.member_id, None)
        self._disown(member)
        if member.said.instance_id is not None:
            self.instances.pop(member.said.instance_id, None)
        for record_type in _MEMBER_TYPES:
            records.remove(record_type, member.member_id)

    def leave_for_a_while(self, member: ConsumerMember, records: Records) -> None:
        """Keep a static member's partitions for the next client with its instance id. Commits with
        its old epochs become invalid."""
        assigned = {
            topic_id: dict.fromkeys(numbers, 0) for topic_id, numbers in member.current.assigned.items()
        }
        current = replace(member.current, epoch=LEAVE_STATIC_EPOCH, assigned=assigned, revoking={})
        self.set_current(member, current, records)

    def replace_member(self, old: ConsumerMember, member_id: str, records: Records) -> ConsumerMember:
        """Give a static member a new member id. It takes over the old one's target, and reconciles
        from epoch 0."""
        target = self.targets.get(old.member_id, {})
        self.remove_member(old, records)
        if member_id in self.members:
            self.remove_member(self.members[member_id], records)
        member = ConsumerMember(member_id, old.said)
        self.members[member_id] = member
        if old.said.instance_id is not None:
            self.instances[old.said.instance_id] = member_id
        records.put(RecordType.CONSUMER_GROUP_MEMBER, old.said, member_id)
        self.targets[member_id] = target
        self._put_target(member_id, target, records)
        self.set_current(member, replace(old.current, epoch=0, previous_epoch=0), records)
        return member

    def put_all(self, records: Records) -> None:
        """Record the whole group, which was not a stored consumer group before."""
        self._put_metadata(records)
        self._put_target_metadata(records)
        for member in self.members.values():
            records.put(RecordType.CONSUMER_GROUP_MEMBER, member.said, member.member_id)
            self._put_target(member.member_id, self.targets.get(member.member_id, {}), records)
            records.put(
                RecordType.CONSUMER_GROUP_CURRENT_MEMBER, _current_record(member.current), member.member_id
            )

    def remove_all(self, records: Records) -> None:
        """Tombstones of a group that is deleted or becomes a classic one."""
        for record_type in _MEMBER_TYPES:
            for member_id in self.members:
                records.remove(record_type, member_id)
        records.remove(RecordType.CONSUMER_GROUP_TARGET_METADATA)
        records.remove(RecordType.CONSUMER_GROUP_METADATA)

    def _put_metadata(self, records: Records) -> None:
        value = ConsumerGroupMetadata(epoch=self.epoch, metadata_hash=self.metadata_hash)
        records.put(RecordType.CONSUMER_GROUP_METADATA, value)

    def _put_target_metadata(self, records: Records) -> None:
        assigned_ms = records.times.to_store(self.assignment_ms)
        value = ConsumerGroupTargetMetadata(
            assignment_epoch=self.assignment_epoch, assignment_timestamp=assigned_ms
        )
        records.put(RecordType.CONSUMER_GROUP_TARGET_METADATA, value)

    def _put_target(self, member_id: str, target: Partitions, records: Records) -> None:
        topics = tuple(
            TopicPartitions(topic_id=topic_id, partitions=numbers) for topic_id, numbers in target.items()
        )
        records.put(
            RecordType.CONSUMER_GROUP_TARGET_MEMBER,
            ConsumerGroupTargetMember(topic_partitions=topics),
            member_id,
        )

    # --- owners ---

    def _own(self, member: ConsumerMember) -> None:
        for topic_id, number in _all_of(member.current):
            owner = self.owners.setdefault(topic_id, {}).setdefault(number, member.member_id)
            # Two members have stored it: the state store is damaged, and the start fails.
            if owner != member.member_id:
                raise ValueError(
                    f"group {self.group_id!r}: partition {topic_id}-{number} belongs to both {owner} and "
                    f"{member.member_id}"
                )

    def _disown(self, member: ConsumerMember) -> None:
        for topic_id, number in _all_of(member.current):
            owners = self.owners[topic_id]
            del owners[number]
            if not owners:
                del self.owners[topic_id]

    # --- loading ---

    def replay(self, key: GroupKey, value: Message) -> None:
        """Load a stored record. Records may come in any order."""
        match value:
            case ConsumerGroupMetadata():
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
            case ConsumerGroupTargetMetadata():
                self.assignment_epoch, self.assignment_ms = value.assignment_epoch, value.assignment_timestamp
            case ConsumerGroupTargetMember():
                assert key.member_id is not None
                self.targets[key.member_id] = {
                    each.topic_id: tuple(each.partitions) for each in value.topic_partitions
                }
            case ConsumerGroupMember():
                member = self._replayed(key)
                member.said = value
                if value.instance_id is not None:
                    self.instances[value.instance_id] = member.member_id
            case ConsumerGroupCurrentMember():
                member = self._replayed(key)
                member.current = _from_record(value)
                self._own(member)

    def _replayed(self, key: GroupKey) -> ConsumerMember:
        assert key.member_id is not None
        return self.members.setdefault(key.member_id, ConsumerMember(key.member_id))


def _all_of(current: Current) -> Iterator[tuple[UUID, int]]:
    for part in (current.assigned, current.revoking):
        for topic_id, numbers in part.items():
            for number in numbers:
                yield topic_id, number


def _current_record(current: Current) -> ConsumerGroupCurrentMember:
    return ConsumerGroupCurrentMember(
        member_epoch=current.epoch,
        previous_member_epoch=current.previous_epoch,
        state=current.state,
        assigned_partitions=_to_owned_partitions(current.assigned),
        partitions_pending_revocation=_to_owned_partitions(current.revoking),
    )


def _from_record(value: ConsumerGroupCurrentMember) -> Current:
    return Current(
        value.member_epoch,
        value.previous_member_epoch,
        MemberState(value.state),
        _from_owned_partitions(value.assigned_partitions, value.member_epoch),
        _from_owned_partitions(value.partitions_pending_revocation, value.member_epoch),
    )


def _to_owned_partitions(owned: Owned) -> tuple[OwnedPartitions, ...]:
    return tuple(
        OwnedPartitions(topic_id=topic_id, partitions=tuple(epochs), assignment_epochs=tuple(epochs.values()))
        for topic_id, epochs in owned.items()
    )


def _from_owned_partitions(found: Iterable[OwnedPartitions], epoch: int) -> Owned:
    """Records without epochs (Kafka before 4.3) get the member's epoch for all partitions."""
    return {
        each.topic_id: dict(
            zip(
                each.partitions, each.assignment_epochs or [max(epoch, 0)] * len(each.partitions), strict=True
            )
        )
        for each in found
    }
