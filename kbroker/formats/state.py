"""Keys and values of everything in the StateStore, for the broker, the command line and readers
such as Spark.

A key is a namespace, "/" and a body. Its numbers are big-endian and never negative, so that keys
sort in numeric order. Strings are UTF-8; `str` below is length (2) and UTF-8.

    namespace      body                                              value
    meta/          name                                              META_VALUES: JSON
    topic/         topic id (16)                                     Topic: JSON
    config/        resource type (1), name                           Config: JSON
    log_start/     topic id (16), partition (4)                      LogStart: JSON
    cleaned/       topic id (16), partition (4)                      Cleaned: JSON
    leader_epoch/  topic id (16), partition (4), epoch (4)           LeaderEpoch: JSON
    producers/     topic id (16), partition (4), offset (8)          ProducerSnapshot: JSON
    group/         group str, record type (2) [, member str]         GROUP_VALUES
    offset/        group str, topic id (16), partition (4)           group_records.AnyGroupOffset
    txn_offset/    producer id (8), group str, topic id (16),        group_records.AnyGroupOffset
                   partition (4)
    share/         topic id (16), partition (4), group str,          number 0: ShareSnapshot
                   number (8)                                        number > 0: ShareUpdate
    dead_letter/   topic id (16), partition (4), group str           DeadLetterCursor: JSON
    given_up/      topic id (16), partition (4), group str           GivenUp: JSON
    share_control/ topic id (16), partition (4)                      ControlHint: JSON
    parked/        topic id (16), partition (4), group str, ...      parked_records.ParkedRecord
    transaction/   transactional id                                  TransactionRecord: JSON
    transactional/ topic id (16), partition (4)                      TransactionalLog: JSON
    aborted/       topic id (16), partition (4), offset (8)          transactions.AbortedTransaction
    scram/         mechanism (1), user name                          ScramCredential: JSON
    acl/           id (16)                                           StoredAcl: JSON
    quota/         id (16)                                           StoredQuota: JSON

The JSON values are defined in state_values.py, and can be imported from here too; those of users
are in security_values.py, those of transactions in transactions.py. Later formats may add
namespaces, meta names and group record types; readers skip those that they do not know
(`parse_key` returns None). A value that cannot be read raises ValueError.

Resource types are 2 topic, 4 broker (name: node id, or empty for all) and 32 group. `meta/`
`generation` is the leader epoch of all partitions. `share_control/` is there where a log has share
state in control records, `dead_letter/` while records may be ARCHIVING.

The values of group records, offsets and share state are Kafka's own bytes
(formats/share_records.py, formats/group_records.py). Their keys begin with the fields that they are
looked up by. So one scan finds all records of a group, all its offsets, a share-partition's
snapshot and updates in order, or all share state of a topic.

No key is longer than MAX_KEY_BYTES, LMDB's limit: the broker refuses group ids longer than
MAX_GROUP_ID_BYTES.

This module must not know where a store keeps the keys, nor what the broker does with them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Final, Self, TypeAlias, get_args
from uuid import UUID

from kbroker.formats.group_records import CONSUMER_GROUP_VALUES, AnyGroupOffset, decode_group_offset
from kbroker.formats.parked_records import ParkedKey, ParkedValue
from kbroker.formats.security_values import AclKey, QuotaKey, ScramKey, ScramSecret
from kbroker.formats.share_records import (
    MEMBER_RECORD_TYPES,
    SHARE_GROUP_VALUES,
    SHARE_SNAPSHOT_TYPE,
    SHARE_STATE_VALUES,
    SHARE_UPDATE_TYPE,
    Message,
    RecordType,
    decode_string,
    encode_string,
)
from kbroker.formats.state_values import (
    Cleaned,
    Config,
    ControlChain,
    ControlHint,
    DeadLetterCursor,
    Generation,
    GivenUp,
    JsonValue,
    LeaderEpoch,
    LogStart,
    PersisterName,
    Producer,
    ProducerBatch,
    ProducerIds,
    ProducerSnapshot,
    ResourceType,
    Topic,
    TopicState,
)
from kbroker.formats.transactions import (
    AbortedKey,
    AbortedTransaction,
    PendingOffsetKey,
    TransactionalLogKey,
    TransactionKey,
)

__all__ = [
    "GENERATION", "GROUP_VALUES", "MAX_GROUP_ID_BYTES", "MAX_KEY_BYTES", "MAX_MEMBER_ID_BYTES",
    "META_VALUES", "PERSISTER", "PRODUCER_IDS", "SCRAM_SECRET", "Cleaned", "CleanedKey", "Config",
    "ConfigKey", "ControlChain", "ControlHint", "ControlHintKey", "DeadLetterCursor", "DeadLetterKey",
    "Generation", "GivenUp", "GivenUpKey", "GroupKey", "GroupOffsetKey", "JsonValue", "LeaderEpoch",
    "LeaderEpochKey", "LogStart", "LogStartKey", "MetaKey", "PendingOffsetKey", "PersisterName", "Producer",
    "ProducerBatch", "ProducerIds", "ProducerSnapshot", "ProducerSnapshotKey", "ResourceType", "ScramKey",
    "ScramSecret", "ShareStateKey", "StateKey", "StateValue", "Topic", "TopicKey", "TopicState",
    "control_hint_topic_prefix", "dead_letter_topic_prefix", "given_up_topic_prefix",
    "group_offset_key_end", "group_offsets_prefix", "group_prefix", "parse_key", "read_entries",
    "share_partition_prefix", "share_state_number", "share_topic_prefix",
]  # fmt: skip

MAX_KEY_BYTES: Final = 511
MAX_GROUP_ID_BYTES: Final = 255
MAX_MEMBER_ID_BYTES: Final = 200
"""With both at their maximum, the longest key has 467 bytes."""

_LOG = struct.Struct(">16si")
_EPOCH = struct.Struct(">16sii")
_OFFSET = struct.Struct(">16siq")
_I16 = struct.Struct(">h")
_NUMBER = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class MetaKey:
    """`name`: one of META_VALUES."""

    name: str
    namespace: ClassVar[bytes] = b"meta/"

    def encode(self) -> bytes:
        return self.namespace + self.name.encode()

    @classmethod
    def parse(cls, body: bytes) -> MetaKey | None:
        name = body.decode()
        return cls(name) if name in META_VALUES else None

    def decode_value(self, value: bytes) -> JsonValue:
        return META_VALUES[self.name].decode(value)


META_VALUES: Final[dict[str, type[JsonValue]]] = {
    "generation": Generation,
    "persister": PersisterName,
    "producer_ids": ProducerIds,
    "scram_secret": ScramSecret,
}
GENERATION: Final = MetaKey("generation")
PERSISTER: Final = MetaKey("persister")
PRODUCER_IDS: Final = MetaKey("producer_ids")
SCRAM_SECRET: Final = MetaKey("scram_secret")


@dataclass(frozen=True, slots=True)
class TopicKey:
    topic_id: UUID
    namespace: ClassVar[bytes] = b"topic/"

    def encode(self) -> bytes:
        return self.namespace + self.topic_id.bytes

    @classmethod
    def parse(cls, body: bytes) -> TopicKey:
        return cls(UUID(bytes=body))

    def decode_value(self, value: bytes) -> Topic:
        return Topic.decode(value)


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """`name`: a topic's name, a broker's id ("" for all brokers), or a group's id."""

    resource_type: ResourceType
    name: str
    namespace: ClassVar[bytes] = b"config/"

    def encode(self) -> bytes:
        return self.namespace + bytes((self.resource_type,)) + self.name.encode()

    @classmethod
    def parse(cls, body: bytes) -> ConfigKey:
        return cls(ResourceType(body[0]), body[1:].decode())

    def decode_value(self, value: bytes) -> Config:
        return Config.decode(value)


@dataclass(frozen=True, slots=True)
class _LogKey:
    """A key of one log."""

    topic_id: UUID
    partition: int
    namespace: ClassVar[bytes]

    def encode(self) -> bytes:
        return self.namespace + _LOG.pack(self.topic_id.bytes, self.partition)

    @classmethod
    def parse(cls, body: bytes) -> Self:
        topic_id, partition = _LOG.unpack(body)
        return cls(UUID(bytes=topic_id), partition)


@dataclass(frozen=True, slots=True)
class LogStartKey(_LogKey):
    namespace: ClassVar[bytes] = b"log_start/"

    def decode_value(self, value: bytes) -> LogStart:
        return LogStart.decode(value)


@dataclass(frozen=True, slots=True)
class CleanedKey(_LogKey):
    namespace: ClassVar[bytes] = b"cleaned/"

    def decode_value(self, value: bytes) -> Cleaned:
        return Cleaned.decode(value)


@dataclass(frozen=True, slots=True)
class LeaderEpochKey:
    topic_id: UUID
    partition: int
    epoch: int
    namespace: ClassVar[bytes] = b"leader_epoch/"

    def encode(self) -> bytes:
        return self.namespace + _EPOCH.pack(self.topic_id.bytes, self.partition, self.epoch)

    @classmethod
    def parse(cls, body: bytes) -> LeaderEpochKey:
        topic_id, partition, epoch = _EPOCH.unpack(body)
        return cls(UUID(bytes=topic_id), partition, epoch)

    def decode_value(self, value: bytes) -> LeaderEpoch:
        return LeaderEpoch.decode(value)


@dataclass(frozen=True, slots=True)
class ProducerSnapshotKey:
    topic_id: UUID
    partition: int
    offset: int
    namespace: ClassVar[bytes] = b"producers/"

    def encode(self) -> bytes:
        return self.namespace + _OFFSET.pack(self.topic_id.bytes, self.partition, self.offset)

    @classmethod
    def parse(cls, body: bytes) -> ProducerSnapshotKey:
        topic_id, partition, offset = _OFFSET.unpack(body)
        return cls(UUID(bytes=topic_id), partition, offset)

    def decode_value(self, value: bytes) -> ProducerSnapshot:
        return ProducerSnapshot.decode(value)


GROUP_VALUES: Final[dict[RecordType, type[Message]]] = {**CONSUMER_GROUP_VALUES, **SHARE_GROUP_VALUES}


@dataclass(frozen=True, slots=True)
class GroupKey:
    """A record of a group. `member_id` is None except for the types in MEMBER_RECORD_TYPES."""

    record_type: RecordType
    group_id: str
    member_id: str | None = None
    namespace: ClassVar[bytes] = b"group/"

    def encode(self) -> bytes:
        member = b"" if self.member_id is None else encode_string(self.member_id)
        return group_prefix(self.group_id) + _I16.pack(self.record_type) + member

    @classmethod
    def parse(cls, body: bytes) -> GroupKey | None:
        group_id, end = decode_string(body, 0)
        (number,) = _I16.unpack_from(body, end)
        if number not in GROUP_VALUES:
            return None
        record_type, end = RecordType(number), end + 2
        if record_type not in MEMBER_RECORD_TYPES:
            return cls(record_type, group_id)
        member_id, end = decode_string(body, end)
        return cls(record_type, group_id, member_id)

    def decode_value(self, value: bytes) -> Message:
        return GROUP_VALUES[self.record_type].decode(value)


def group_prefix(group_id: str) -> bytes:
    """The prefix of all records of one group."""
    return GroupKey.namespace + encode_string(group_id)


@dataclass(frozen=True, slots=True)
class GroupOffsetKey:
    """An offset that a group has committed."""

    group_id: str
    topic_id: UUID
    partition: int
    namespace: ClassVar[bytes] = b"offset/"

    def encode(self) -> bytes:
        return group_offsets_prefix(self.group_id) + group_offset_key_end(self.topic_id.bytes, self.partition)

    @classmethod
    def parse(cls, body: bytes) -> GroupOffsetKey:
        group_id, end = decode_string(body, 0)
        topic_id, partition = _LOG.unpack(body[end:])
        return cls(group_id, UUID(bytes=topic_id), partition)

    def decode_value(self, value: bytes) -> AnyGroupOffset:
        return decode_group_offset(value)


def group_offsets_prefix(group_id: str) -> bytes:
    """The prefix of all offsets of one group; with `group_offset_key_end` appended it is a key."""
    return GroupOffsetKey.namespace + encode_string(group_id)


group_offset_key_end: Final = _LOG.pack
"""The last part of an offset's key: the topic id's bytes and the partition."""


@dataclass(frozen=True, slots=True)
class ShareStateKey:
    """Number 0 is the share-partition's snapshot; 1, 2, ... are the later updates, which are merged
    in this order."""

    topic_id: UUID
    partition: int
    group_id: str
    number: int
    namespace: ClassVar[bytes] = b"share/"

    def encode(self) -> bytes:
        return share_partition_prefix(self.group_id, self.topic_id, self.partition) + _NUMBER.pack(
            self.number
        )

    @classmethod
    def parse(cls, body: bytes) -> ShareStateKey:
        topic_id, partition = _LOG.unpack_from(body)
        group_id, end = decode_string(body, _LOG.size)
        (number,) = _NUMBER.unpack(body[end:])
        return cls(UUID(bytes=topic_id), partition, group_id, number)

    @property
    def record_type(self) -> int:
        return SHARE_UPDATE_TYPE if self.number else SHARE_SNAPSHOT_TYPE

    def decode_value(self, value: bytes) -> Message:
        return SHARE_STATE_VALUES[self.record_type].decode(value)


def share_partition_prefix(group_id: str, topic_id: UUID, partition: int) -> bytes:
    """The prefix of a share-partition's snapshot and updates; with `share_state_number` appended it
    is a key."""
    return ShareStateKey.namespace + _LOG.pack(topic_id.bytes, partition) + encode_string(group_id)


def share_topic_prefix(topic_id: UUID) -> bytes:
    """The prefix of the share state of all groups on one topic."""
    return ShareStateKey.namespace + topic_id.bytes


share_state_number: Final = _NUMBER.pack
"""The last part of a share state key."""


@dataclass(frozen=True, slots=True)
class _SharePartitionKey:
    """A key of one share-partition."""

    topic_id: UUID
    partition: int
    group_id: str
    namespace: ClassVar[bytes]

    def encode(self) -> bytes:
        return self.namespace + _LOG.pack(self.topic_id.bytes, self.partition) + encode_string(self.group_id)

    @classmethod
    def parse(cls, body: bytes) -> Self:
        topic_id, partition = _LOG.unpack_from(body)
        group_id, end = decode_string(body, _LOG.size)
        if end != len(body):
            raise IndexError("bytes are left over")
        return cls(UUID(bytes=topic_id), partition, group_id)


@dataclass(frozen=True, slots=True)
class DeadLetterKey(_SharePartitionKey):
    """A share-partition whose dead letters are being written."""

    namespace: ClassVar[bytes] = b"dead_letter/"

    def decode_value(self, value: bytes) -> DeadLetterCursor:
        return DeadLetterCursor.decode(value)


@dataclass(frozen=True, slots=True)
class GivenUpKey(_SharePartitionKey):
    """A share-partition whose group has given up records."""

    namespace: ClassVar[bytes] = b"given_up/"

    def decode_value(self, value: bytes) -> GivenUp:
        return GivenUp.decode(value)


def dead_letter_topic_prefix(topic_id: UUID) -> bytes:
    """The prefix of the cursors of all groups on one topic."""
    return DeadLetterKey.namespace + topic_id.bytes


def given_up_topic_prefix(topic_id: UUID) -> bytes:
    """The prefix of the counts of all groups on one topic."""
    return GivenUpKey.namespace + topic_id.bytes


@dataclass(frozen=True, slots=True)
class ControlHintKey(_LogKey):
    """A log that has share state in control records."""

    namespace: ClassVar[bytes] = b"share_control/"

    def decode_value(self, value: bytes) -> ControlHint:
        return ControlHint.decode(value)


def control_hint_topic_prefix(topic_id: UUID) -> bytes:
    """The prefix of the hints of all partitions of one topic."""
    return ControlHintKey.namespace + topic_id.bytes


StateKey: TypeAlias = (
    MetaKey
    | TopicKey
    | ConfigKey
    | LogStartKey
    | CleanedKey
    | LeaderEpochKey
    | ProducerSnapshotKey
    | GroupKey
    | GroupOffsetKey
    | PendingOffsetKey
    | ShareStateKey
    | DeadLetterKey
    | GivenUpKey
    | ControlHintKey
    | ParkedKey
    | TransactionKey
    | TransactionalLogKey
    | AbortedKey
    | ScramKey
    | AclKey
    | QuotaKey
)
StateValue: TypeAlias = JsonValue | Message | ParkedValue | AbortedTransaction

_PARSERS: Final[dict[bytes, Callable[[bytes], StateKey | None]]] = {
    each.namespace: each.parse for each in get_args(StateKey)
}


def parse_key(key: bytes) -> StateKey | None:
    """The parsed key; None if only later formats know it. Raises ValueError for a known namespace
    with a broken body."""
    namespace, slash, body = key.partition(b"/")
    parse = _PARSERS.get(namespace + slash)
    if parse is None:
        return None
    try:
        return parse(body)
    except (struct.error, IndexError) as error:
        raise ValueError(f"not a key of {namespace.decode()}: {key.hex()}") from error


def read_entries(entries: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[StateKey, StateValue]]:
    """Decode scanned entries, without those that only later formats know."""
    for key, value in entries:
        parsed = parse_key(key)
        if parsed is not None:
            yield parsed, parsed.decode_value(value)
