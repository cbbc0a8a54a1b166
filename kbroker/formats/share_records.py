"""Kafka's coordinator records for share groups, byte for byte as in `__consumer_offsets` and
`__share_group_state`. For the other groups see formats/group_records.py.

    key     record type (2)   fields, encoded as a non-flexible message
    value   version 0 (2)     fields, encoded as a flexible message: compact lengths, tagged fields
                              at the end of each struct

    type  topic                  key                                     value
       0  __share_group_state    group, topic id (16), partition (4)     ShareSnapshot
       1  __share_group_state    group, topic id (16), partition (4)     ShareUpdate
      10  __consumer_offsets     group, member                           ShareGroupMember
      11  __consumer_offsets     group                                   ShareGroupMetadata
      12  __consumer_offsets     group                                   ShareGroupTargetMetadata
      13  __consumer_offsets     group, member                           ShareGroupTargetMember
      14  __consumer_offsets     group, member                           ShareGroupCurrentMember
      15  __consumer_offsets     group                                   ShareGroupPartitions

    ShareUpdate in full: 00 00 | snapshot epoch (4) | leader epoch (4) | start offset (8)
        | batch count + 1 (varint)
        | per batch: first (8) last (8) state (1) delivery count (2) 00
        | 00, or 01 00 04 and the delivery-complete count (4)

kio has no schemas for these records. So the messages are declared here in the form that kio uses
for its own, and kio encodes and decodes them. Only ShareUpdate, written with every acknowledgement,
and ShareSnapshot, written with every 500th, are packed by hand (`encode_share_update`,
`encode_share_snapshot`).

A topic is identified by its id; its name in record 15 is the name at the time of the write. There
is no `from __future__ import annotations` here: kio reads the field types at run time.
"""

import io
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, Final, Self
from uuid import UUID

from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.serial.writers import write_compact_array_length
from kio.static.constants import EntityType
from kio.static.primitive import i16

VALUE_VERSION: Final = 0
UNKNOWN_COUNT: Final = -1
"""An unknown delivery-complete count: in records of Kafka before 4.2, or while the start offset is
undecided."""
UNKNOWN_EPOCH: Final = -1
UNCHANGED_OFFSET: Final = -1
"""ShareUpdate.start_offset: the start offset does not change."""

_I16 = struct.Struct(">h")
_UPDATE_HEAD = struct.Struct(">hiiq")
_SNAPSHOT_HEAD = struct.Struct(">hiiiqqq")
_BATCH = struct.Struct(">qqbhx")
_COUNT_TAG = struct.Struct(">BBi")
_NO_TAGS = b"\0"
_ONE_TAG = b"\1"
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


class RecordType(IntEnum):
    """The record types of `__consumer_offsets`; those of classic and consumer groups have their
    values in formats/group_records.py."""

    CLASSIC_GROUP_METADATA = 2
    CONSUMER_GROUP_METADATA = 3
    CONSUMER_GROUP_MEMBER = 5
    CONSUMER_GROUP_TARGET_METADATA = 6
    CONSUMER_GROUP_TARGET_MEMBER = 7
    CONSUMER_GROUP_CURRENT_MEMBER = 8
    SHARE_GROUP_MEMBER = 10
    SHARE_GROUP_METADATA = 11
    SHARE_GROUP_TARGET_METADATA = 12
    SHARE_GROUP_TARGET_MEMBER = 13
    SHARE_GROUP_CURRENT_MEMBER = 14
    SHARE_GROUP_PARTITIONS = 15


MEMBER_RECORD_TYPES: Final = frozenset(
    {
        RecordType.CONSUMER_GROUP_MEMBER,
        RecordType.CONSUMER_GROUP_TARGET_MEMBER,
        RecordType.CONSUMER_GROUP_CURRENT_MEMBER,
        RecordType.SHARE_GROUP_MEMBER,
        RecordType.SHARE_GROUP_TARGET_MEMBER,
        RecordType.SHARE_GROUP_CURRENT_MEMBER,
    }
)


INT8: Final = {"kafka_type": "int8"}
INT16: Final = {"kafka_type": "int16"}
INT32: Final = {"kafka_type": "int32"}
INT64: Final = {"kafka_type": "int64"}
STRING: Final = {"kafka_type": "string"}
UUID_: Final = {"kafka_type": "uuid"}
TAG_0: Final[dict[str, Any]] = {"tag": 0}
_TAG_OF_OURS: Final[dict[str, Any]] = {"tag": 1000}
"""Far from the tags that Kafka may use later. Kafka's readers skip unknown tags."""
_TAG_OF_OURS_HEAD: Final = b"\xe8\x07\x04"
"""The tag as a varint, the length of its value (4)."""
_PARKED_TAG: Final[dict[str, Any]] = {"tag": 1001}
_PARKED_TAG_HEAD: Final = b"\xe9\x07\x08"


class Message:
    """The attributes that kio needs of a message. `encode` and `decode` are for the value of a
    record."""

    __slots__ = ()
    __type__: ClassVar[EntityType] = EntityType.data
    __version__: ClassVar[i16] = i16(VALUE_VERSION)
    __flexible__: ClassVar[bool] = True
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def encode(self) -> bytes:
        out = io.BytesIO()
        out.write(_I16.pack(self.__version__))
        entity_writer(type(self))(out, self)
        return out.getvalue()

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Raises ValueError unless `value` is exactly one such value, in its version and without
        tags of a later format."""
        if value[:2] != _I16.pack(cls.__version__):
            raise ValueError(f"{cls.__name__}: not version {cls.__version__}: {value[:2].hex()}")
        try:
            message, size = entity_reader(cls)(value, 2)
        except (SerialError, KeyError) as error:  # KeyError: a tag that kio does not know
            raise ValueError(f"{cls.__name__}: {error}") from error
        if size != len(value) - 2:
            raise ValueError(f"{cls.__name__}: {len(value) - 2 - size} bytes too many")
        return message


# --- __share_group_state ---


@dataclass(frozen=True, slots=True)
class StateBatchRecord(Message):
    """An element of StateBatches in the two records below."""

    first_offset: int = field(metadata=INT64)
    last_offset: int = field(metadata=INT64)
    delivery_state: int = field(metadata=INT8)
    delivery_count: int = field(metadata=INT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSnapshot(Message):
    """The whole state of a share-partition.

    - `start_offset`: -1 while it is undecided.
    - `written_in` (not Kafka's): the newest leader epoch whose log the start offset and the batches
      refer to. -1: they refer to no record, since the start offset was set by a request.
    - `parked_generation` (not Kafka's): the generation of its parked records (parked_records.py); 0
      if it never had any.
    """

    snapshot_epoch: int = field(metadata=INT32)
    state_epoch: int = field(metadata=INT32)
    leader_epoch: int = field(metadata=INT32)
    start_offset: int = field(metadata=INT64)
    create_timestamp: int = field(metadata=INT64)
    write_timestamp: int = field(metadata=INT64)
    state_batches: tuple[StateBatchRecord, ...]
    delivery_complete_count: int = field(metadata=INT32 | TAG_0, default=UNKNOWN_COUNT)
    written_in: int = field(metadata=INT32 | _TAG_OF_OURS, default=UNKNOWN_EPOCH)
    parked_generation: int = field(metadata=INT64 | _PARKED_TAG, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareUpdate(Message):
    """The changes since the previous update, or since the snapshot with the same epoch.
    `leader_epoch` -1 and `start_offset` -1: unchanged."""

    snapshot_epoch: int = field(metadata=INT32)
    leader_epoch: int = field(metadata=INT32)
    start_offset: int = field(metadata=INT64)
    state_batches: tuple[StateBatchRecord, ...]
    delivery_complete_count: int = field(metadata=INT32 | TAG_0, default=UNKNOWN_COUNT)


def encode_share_snapshot(
    snapshot_epoch: int,
    state_epoch: int,
    leader_epoch: int,
    start_offset: int,
    create_timestamp: int,
    write_timestamp: int,
    delivery_complete_count: int,
    written_in: int,
    batches: Iterable[tuple[int, int, int, int]],
    parked_generation: int = 0,
) -> bytes:
    """The same bytes as ShareSnapshot(...).encode(), ten times as fast. A batch is (first, last,
    state, delivery count)."""
    head = _SNAPSHOT_HEAD.pack(
        VALUE_VERSION, snapshot_epoch, state_epoch, leader_epoch, start_offset,
        create_timestamp, write_timestamp,
    )  # fmt: skip
    tags = (
        [] if delivery_complete_count == UNKNOWN_COUNT else [_COUNT_TAG.pack(0, 4, delivery_complete_count)]
    )
    if written_in != UNKNOWN_EPOCH:
        tags.append(_TAG_OF_OURS_HEAD + _I32.pack(written_in))
    if parked_generation:
        tags.append(_PARKED_TAG_HEAD + _I64.pack(parked_generation))
    return _with_batches(head, batches, b"".join((bytes((len(tags),)), *tags)))


def encode_share_update(
    snapshot_epoch: int,
    leader_epoch: int,
    start_offset: int,
    delivery_complete_count: int,
    batches: Iterable[tuple[int, int, int, int]],
) -> bytes:
    """The same bytes as ShareUpdate(...).encode(), ten times as fast. A batch is (first, last,
    state, delivery count)."""
    head = _UPDATE_HEAD.pack(VALUE_VERSION, snapshot_epoch, leader_epoch, start_offset)
    tags = (
        _NO_TAGS
        if delivery_complete_count == UNKNOWN_COUNT
        else _ONE_TAG + _COUNT_TAG.pack(0, 4, delivery_complete_count)
    )
    return _with_batches(head, batches, tags)


def _with_batches(head: bytes, batches: Iterable[tuple[int, int, int, int]], tags: bytes) -> bytes:
    packed = [_BATCH.pack(*batch) for batch in batches]
    count = len(packed)
    if count < 0x7F:
        size = bytes((count + 1,))
    else:
        out = io.BytesIO()
        write_compact_array_length(out, count)
        size = out.getvalue()
    return b"".join((head, size, *packed, tags))


SHARE_SNAPSHOT_TYPE: Final = 0
SHARE_UPDATE_TYPE: Final = 1
SHARE_STATE_VALUES: Final[dict[int, type[ShareSnapshot] | type[ShareUpdate]]] = {
    SHARE_SNAPSHOT_TYPE: ShareSnapshot,
    SHARE_UPDATE_TYPE: ShareUpdate,
}


# --- __consumer_offsets ---


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions(Message):
    """Partitions of one topic in an assignment."""

    topic_id: UUID = field(metadata=UUID_)
    partitions: tuple[int, ...] = field(metadata=INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTopicPartitions(Message):
    """Partitions of one topic in ShareGroupPartitions."""

    topic_id: UUID = field(metadata=UUID_)
    topic_name: str = field(metadata=STRING)
    partitions: tuple[int, ...] = field(metadata=INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTopic(Message):
    """A topic in ShareGroupPartitions whose share state is being deleted."""

    topic_id: UUID = field(metadata=UUID_)
    topic_name: str = field(metadata=STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupMember(Message):
    """Type 10, ShareGroupMemberMetadata: the data that a member sent about itself."""

    rack_id: str | None = field(metadata=STRING, default=None)
    client_id: str = field(metadata=STRING)
    client_host: str = field(metadata=STRING)
    subscribed_topic_names: tuple[str, ...] = field(metadata=STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupMetadata(Message):
    """Type 11: the group epoch, and a hash over the topics subscribed to (the broker's own; 0:
    none)."""

    epoch: int = field(metadata=INT32)
    metadata_hash: int = field(metadata=INT64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupTargetMetadata(Message):
    """Type 12, ShareGroupTargetAssignmentMetadata: the group epoch of the target assignment, and
    when it was computed."""

    assignment_epoch: int = field(metadata=INT32)
    assignment_timestamp: int = field(metadata=INT64 | TAG_0, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupTargetMember(Message):
    """Type 13, ShareGroupTargetAssignmentMember: a member's target assignment."""

    topic_partitions: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupCurrentMember(Message):
    """Type 14, ShareGroupCurrentMemberAssignment: the assignment that a member was sent. `state` is
    always 0 (stable)."""

    member_epoch: int = field(metadata=INT32)
    previous_member_epoch: int = field(metadata=INT32)
    state: int = field(metadata=INT8, default=0)
    assigned_partitions: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupPartitions(Message):
    """Type 15, ShareGroupStatePartitionMetadata: the partitions for which the group's share state
    exists, is being initialized, or is being deleted."""

    initializing_topics: tuple[NamedTopicPartitions, ...]
    initialized_topics: tuple[NamedTopicPartitions, ...]
    deleting_topics: tuple[NamedTopic, ...]


SHARE_GROUP_VALUES: Final[dict[RecordType, type[Message]]] = {
    RecordType.SHARE_GROUP_MEMBER: ShareGroupMember,
    RecordType.SHARE_GROUP_METADATA: ShareGroupMetadata,
    RecordType.SHARE_GROUP_TARGET_METADATA: ShareGroupTargetMetadata,
    RecordType.SHARE_GROUP_TARGET_MEMBER: ShareGroupTargetMember,
    RecordType.SHARE_GROUP_CURRENT_MEMBER: ShareGroupCurrentMember,
    RecordType.SHARE_GROUP_PARTITIONS: ShareGroupPartitions,
}
