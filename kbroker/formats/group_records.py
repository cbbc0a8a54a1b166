"""Kafka's coordinator records for classic groups, consumer groups (KIP-848) and committed offsets,
byte for byte as in `__consumer_offsets`. Their general form is in formats/share_records.py.

    type, value, version               fields; `string?` may be null; the keys of 5, 7 and 8 name a
                                       member
    0/1  GroupOffset, 3                offset (8), leader epoch (4; -1: not stated), metadata
                                       string, commit time (8)
         ExpiringGroupOffset, 1        offset (8), metadata string, commit time (8), time at which
                                       it expires (8)
    2    ClassicGroupMetadata, 3       protocol type string, generation (4), protocol string?,
                                       leader string?, time since which it has been in its state
                                       (8), members [member id string, instance id string?, client
                                       id string, client host string, rebalance timeout (4),
                                       session timeout (4), subscription bytes, assignment bytes]
    3    ConsumerGroupMetadata, 0      epoch (4), tag 0: metadata hash (8; the broker's own)
    5    ConsumerGroupMember, 0        instance id string?, rack id string?, client id string,
                                       client host string, topic names [string], topic regex
                                       string?, rebalance timeout (4), server assignor string?,
                                       tag 0, only with the classic protocol: 1 (1), session
                                       timeout (4), protocols [name string, metadata bytes]
    6    ConsumerGroupTargetMetadata, 0    assignment epoch (4), tag 0: assignment time (8)
    7    ConsumerGroupTargetMember, 0      [topic id (16), partitions [(4)]]
    8    ConsumerGroupCurrentMember, 0     member epoch (4), previous epoch (4), state (1; 0 stable,
                                       1 has to revoke, 2 waits for others' partitions), [topic id
                                       (16), partitions [(4)], tag 0: the member epoch at which it
                                       got each of them [(4)]], pending revocation likewise

Versions 1 and 3 are not flexible. Type 2 is the last stable generation of a classic group. A group
with offsets but without any record of its own is a classic group without members.

Kafka's key of a committed offset names the topic; here it names the topic's id
(state_records.GroupOffsetKey), so that a recreated topic does not begin at the offsets of the old
one. Type 4 (partition metadata) is obsolete. Type 16 (the topics that match a regular expression)
can be recomputed at any time and is not stored.

Offsets are packed by hand, since every commit of a consumer has some: the bytes are the same as
kio's, which takes eight times as long. As in formats/share_records.py, there is no `from __future__
import annotations`: kio reads the field types at run time.
"""

import struct
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias
from uuid import UUID

from kio.static.primitive import i16

from kbroker.formats.share_records import (
    INT8,
    INT32,
    INT64,
    STRING,
    TAG_0,
    UUID_,
    Message,
    RecordType,
    TopicPartitions,
)

_BYTES: Final = {"kafka_type": "bytes"}
MAX_METADATA_BYTES: Final = 32767
"""The longest string in a non-flexible record."""

_OFFSET_HEAD = struct.Struct(">hqih")
_OFFSET_TAIL = struct.Struct(">q")
_EXPIRING_HEAD = struct.Struct(">hqh")
_EXPIRING_TAIL = struct.Struct(">qq")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset(Message):
    """OffsetCommitValue: the offset that a group committed for a partition, which is that of the
    next record to read. `leader_epoch` -1: not stated."""

    __version__: ClassVar[i16] = i16(3)
    __flexible__: ClassVar[bool] = False
    offset: int = field(metadata=INT64)
    leader_epoch: int = field(metadata=INT32, default=-1)
    metadata: str = field(metadata=STRING, default="")
    commit_timestamp: int = field(metadata=INT64)

    def encode(self, ahead_ms: int = 0) -> bytes:
        """`ahead_ms`: how far the clock of stored times is ahead of the clock of
        `commit_timestamp`."""
        text = self.metadata.encode()
        head = _OFFSET_HEAD.pack(self.__version__, self.offset, self.leader_epoch, len(text))
        return head + text + _OFFSET_TAIL.pack(self.commit_timestamp + ahead_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiringGroupOffset(Message):
    """OffsetCommitValue version 1: an offset that the client wants kept until `expire_timestamp`
    (OffsetCommit v2-4)."""

    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = False
    offset: int = field(metadata=INT64)
    metadata: str = field(metadata=STRING, default="")
    commit_timestamp: int = field(metadata=INT64)
    expire_timestamp: int = field(metadata=INT64)
    leader_epoch: ClassVar[int] = -1

    def encode(self, ahead_ms: int = 0) -> bytes:
        """`ahead_ms`: as above, for both times."""
        text = self.metadata.encode()
        head = _EXPIRING_HEAD.pack(self.__version__, self.offset, len(text))
        return (
            head
            + text
            + _EXPIRING_TAIL.pack(self.commit_timestamp + ahead_ms, self.expire_timestamp + ahead_ms)
        )


AnyGroupOffset: TypeAlias = GroupOffset | ExpiringGroupOffset


def decode_group_offset(value: bytes) -> AnyGroupOffset:
    """Raises ValueError."""
    return ExpiringGroupOffset.decode(value) if value[:2] == b"\0\1" else GroupOffset.decode(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroupMember(Message):
    """A member in ClassicGroupMetadata.

    - `rebalance_timeout`, `session_timeout`: in milliseconds.
    - `subscription`: its metadata for the group's protocol.
    - `assignment`: from the group's leader.
    """

    __version__: ClassVar[i16] = i16(3)
    __flexible__: ClassVar[bool] = False
    member_id: str = field(metadata=STRING)
    group_instance_id: str | None = field(metadata=STRING, default=None)
    client_id: str = field(metadata=STRING)
    client_host: str = field(metadata=STRING)
    rebalance_timeout: int = field(metadata=INT32)
    session_timeout: int = field(metadata=INT32)
    subscription: bytes = field(metadata=_BYTES)
    assignment: bytes = field(metadata=_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroupMetadata(Message):
    """Type 2, GroupMetadataValue: a generation of a classic group. `current_state_timestamp`: when
    the group entered its state, -1 unknown."""

    __version__: ClassVar[i16] = i16(3)
    __flexible__: ClassVar[bool] = False
    protocol_type: str = field(metadata=STRING)
    generation: int = field(metadata=INT32)
    protocol: str | None = field(metadata=STRING)
    leader: str | None = field(metadata=STRING)
    current_state_timestamp: int = field(metadata=INT64, default=-1)
    members: tuple[ClassicGroupMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadata(Message):
    """Type 3: the group epoch, and a hash over the topics subscribed to (the broker's own; 0:
    none)."""

    epoch: int = field(metadata=INT32)
    metadata_hash: int = field(metadata=INT64 | TAG_0, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicProtocol(Message):
    """An assignor that a member of the classic protocol offers, with the member's metadata for
    it."""

    name: str = field(metadata=STRING)
    metadata: bytes = field(metadata=_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMember(Message):
    """The classic-protocol data of a member of a consumer group. `session_timeout` is in
    milliseconds. `present`: the byte with which Kafka begins a nullable struct; kio omits it for a
    tagged one."""

    present: int = field(metadata=INT8, default=1)
    session_timeout: int = field(metadata=INT32)
    supported_protocols: tuple[ClassicProtocol, ...]


NOT_CLASSIC: Final = ClassicMember(present=-1, session_timeout=0, supported_protocols=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMember(Message):
    """Type 5, ConsumerGroupMemberMetadata: the data that a member sent about itself.
    `rebalance_timeout` is in milliseconds, -1 unknown. `classic`: NOT_CLASSIC for a member that
    speaks the consumer protocol."""

    instance_id: str | None = field(metadata=STRING, default=None)
    rack_id: str | None = field(metadata=STRING, default=None)
    client_id: str = field(metadata=STRING)
    client_host: str = field(metadata=STRING)
    subscribed_topic_names: tuple[str, ...] = field(metadata=STRING)
    subscribed_topic_regex: str | None = field(metadata=STRING, default=None)
    rebalance_timeout: int = field(metadata=INT32, default=-1)
    server_assignor: str | None = field(metadata=STRING, default=None)
    classic: ClassicMember = field(metadata=TAG_0, default=NOT_CLASSIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetMetadata(Message):
    """Type 6, ConsumerGroupTargetAssignmentMetadata: the group epoch of the target assignment, and
    when it was computed."""

    assignment_epoch: int = field(metadata=INT32)
    assignment_timestamp: int = field(metadata=INT64 | TAG_0, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetMember(Message):
    """Type 7, ConsumerGroupTargetAssignmentMember: a member's target assignment."""

    topic_partitions: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedPartitions(Message):
    """Partitions of one topic that a member has, and in the same order the member epochs at which
    they were assigned to it (KIP-1251)."""

    topic_id: UUID = field(metadata=UUID_)
    partitions: tuple[int, ...] = field(metadata=INT32)
    assignment_epochs: tuple[int, ...] = field(metadata=INT32 | TAG_0, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupCurrentMember(Message):
    """Type 8, ConsumerGroupCurrentMemberAssignment: the partitions that a member has, and those
    that it must revoke. `state` 0: stable, 1: it must revoke partitions, 2: some of its target
    partitions still belong to other members."""

    member_epoch: int = field(metadata=INT32)
    previous_member_epoch: int = field(metadata=INT32)
    state: int = field(metadata=INT8)
    assigned_partitions: tuple[OwnedPartitions, ...]
    partitions_pending_revocation: tuple[OwnedPartitions, ...]


CONSUMER_GROUP_VALUES: Final[dict[RecordType, type[Message]]] = {
    RecordType.CLASSIC_GROUP_METADATA: ClassicGroupMetadata,
    RecordType.CONSUMER_GROUP_METADATA: ConsumerGroupMetadata,
    RecordType.CONSUMER_GROUP_MEMBER: ConsumerGroupMember,
    RecordType.CONSUMER_GROUP_TARGET_METADATA: ConsumerGroupTargetMetadata,
    RecordType.CONSUMER_GROUP_TARGET_MEMBER: ConsumerGroupTargetMember,
    RecordType.CONSUMER_GROUP_CURRENT_MEMBER: ConsumerGroupCurrentMember,
}
