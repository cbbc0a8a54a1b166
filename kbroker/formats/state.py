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

Each namespace is a class that declares its fields (state_keys.py). The JSON values are defined in
state_values.py, and can be imported from here too; those of users are in security_values.py, those
of transactions in transactions.py. Later formats may add namespaces, meta names and group record
types; readers skip those that they do not know (`parse_key` returns None). A value that cannot be
read raises ValueError.

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
from collections.abc import Iterable
from typing import Final, Self, TypeAlias
from uuid import UUID

from kbroker.formats.group_records import CONSUMER_GROUP_VALUES, decode_group_offset
from kbroker.formats.parked_records import ParkedKey, ParkedValue
from kbroker.formats.security_values import ScramKey, ScramSecret
from kbroker.formats.share_records import (
    MEMBER_RECORD_TYPES,
    SHARE_GROUP_VALUES,
    SHARE_SNAPSHOT_TYPE,
    SHARE_STATE_VALUES,
    SHARE_UPDATE_TYPE,
    Message,
    RecordType,
)
from kbroker.formats.state_keys import (
    DECLARED,
    I32,
    I64,
    LaterKey,
    LogKey,
    Rest,
    StateKey,
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
from kbroker.formats.transactions import AbortedTransaction, PendingOffsetKey

__all__ = [
    "GENERATION", "GROUP_VALUES", "MAX_GROUP_ID_BYTES", "MAX_KEY_BYTES", "MAX_MEMBER_ID_BYTES",
    "META_VALUES", "PERSISTER", "PRODUCER_IDS", "SCRAM_SECRET", "Cleaned", "CleanedKey", "Config",
    "ConfigKey", "ControlChain", "ControlHint", "ControlHintKey", "DeadLetterCursor", "DeadLetterKey",
    "Generation", "GivenUp", "GivenUpKey", "GroupKey", "GroupOffsetKey", "JsonValue", "LeaderEpoch",
    "LeaderEpochKey", "LogStart", "LogStartKey", "MetaKey", "ParkedKey", "PendingOffsetKey",
    "PersisterName", "Producer", "ProducerBatch", "ProducerIds", "ProducerSnapshot",
    "ProducerSnapshotKey", "ResourceType", "ScramKey", "ScramSecret", "ShareStateKey", "StateKey",
    "StateValue", "Topic", "TopicKey", "TopicState", "control_hint_topic_prefix",
    "dead_letter_topic_prefix", "given_up_topic_prefix", "group_offset_key_end", "group_offsets_prefix",
    "group_prefix", "parse_key", "read_entries", "share_partition_prefix", "share_state_number",
    "share_topic_prefix",
]  # fmt: skip

MAX_KEY_BYTES: Final = 511
MAX_GROUP_ID_BYTES: Final = 255
MAX_MEMBER_ID_BYTES: Final = 200
"""With both at their maximum, the longest key has 467 bytes."""

_LOG = struct.Struct(">16si")
_I16 = struct.Struct(">h")
_NUMBER = struct.Struct(">q")


class MetaKey(StateKey):
    """`name`: one of META_VALUES."""

    name: Rest
    namespace = b"meta/"

    @classmethod
    def _parse(cls, body: bytes) -> Self:
        if body.decode() not in META_VALUES:
            raise LaterKey
        return cls(body.decode())

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


class TopicKey(StateKey):
    topic_id: UUID
    namespace = b"topic/"
    decode_value = staticmethod(Topic.decode)


class ConfigKey(StateKey):
    """`name`: a topic's name, a broker's id ("" for all brokers), or a group's id."""

    resource_type: ResourceType
    name: Rest
    namespace = b"config/"
    decode_value = staticmethod(Config.decode)


class LogStartKey(LogKey):
    namespace = b"log_start/"
    decode_value = staticmethod(LogStart.decode)


class CleanedKey(LogKey):
    namespace = b"cleaned/"
    decode_value = staticmethod(Cleaned.decode)


class LeaderEpochKey(StateKey):
    topic_id: UUID
    partition: I32
    epoch: I32
    namespace = b"leader_epoch/"
    decode_value = staticmethod(LeaderEpoch.decode)


class ProducerSnapshotKey(StateKey):
    topic_id: UUID
    partition: I32
    offset: I64
    namespace = b"producers/"
    decode_value = staticmethod(ProducerSnapshot.decode)


GROUP_VALUES: Final[dict[RecordType, type[Message]]] = {**CONSUMER_GROUP_VALUES, **SHARE_GROUP_VALUES}


class GroupKey(StateKey):
    """A record of a group. `member_id` is None except for the types in MEMBER_RECORD_TYPES."""

    record_type: RecordType
    group_id: str
    member_id: str | None = None
    namespace = b"group/"

    def encode(self) -> bytes:
        member = b"" if self.member_id is None else encode_string(self.member_id)
        return group_prefix(self.group_id) + _I16.pack(self.record_type) + member

    @classmethod
    def _parse(cls, body: bytes) -> Self:
        group_id, end = decode_string(body, 0)
        (number,) = _I16.unpack_from(body, end)
        if number not in GROUP_VALUES:
            raise LaterKey
        record_type = RecordType(number)
        has_member = record_type in MEMBER_RECORD_TYPES
        return cls(record_type, group_id, decode_string(body, end + 2)[0] if has_member else None)

    def decode_value(self, value: bytes) -> Message:
        return GROUP_VALUES[self.record_type].decode(value)


def group_prefix(group_id: str) -> bytes:
    """The prefix of all records of one group."""
    return GroupKey.namespace + encode_string(group_id)


class GroupOffsetKey(StateKey):
    """An offset that a group has committed."""

    group_id: str
    topic_id: UUID
    partition: I32
    namespace = b"offset/"
    decode_value = staticmethod(decode_group_offset)


def group_offsets_prefix(group_id: str) -> bytes:
    """The prefix of all offsets of one group; with `group_offset_key_end` appended it is a key."""
    return GroupOffsetKey.namespace + encode_string(group_id)


group_offset_key_end: Final = _LOG.pack
"""The last part of an offset's key: the topic id's bytes and the partition."""


class ShareStateKey(StateKey):
    """Number 0 is the share-partition's snapshot; 1, 2, ... are the later updates, which are merged
    in this order."""

    topic_id: UUID
    partition: I32
    group_id: str
    number: I64
    namespace = b"share/"

    @property
    def record_type(self) -> int:
        return SHARE_UPDATE_TYPE if self.number else SHARE_SNAPSHOT_TYPE

    def decode_value(self, value: bytes) -> Message:
        return SHARE_STATE_VALUES[self.record_type].decode(value)


def share_partition_prefix(group_id: str, topic_id: UUID, partition: int) -> bytes:
    """The prefix of a share-partition's snapshot and updates; with `share_state_number` appended it
    is a key."""
    return ShareStateKey.namespace + _LOG.pack(topic_id.bytes, partition) + encode_string(group_id)


share_topic_prefix: Final = ShareStateKey.topic_prefix
share_state_number: Final = _NUMBER.pack
"""The last part of a share state key."""


class _SharePartitionKey(StateKey):
    topic_id: UUID
    partition: I32
    group_id: str


class DeadLetterKey(_SharePartitionKey):
    """A share-partition whose dead letters are being written."""

    namespace = b"dead_letter/"
    decode_value = staticmethod(DeadLetterCursor.decode)


class GivenUpKey(_SharePartitionKey):
    """A share-partition whose group has given up records."""

    namespace = b"given_up/"
    decode_value = staticmethod(GivenUp.decode)


class ControlHintKey(LogKey):
    """A log that has share state in control records."""

    namespace = b"share_control/"
    decode_value = staticmethod(ControlHint.decode)


dead_letter_topic_prefix: Final = DeadLetterKey.topic_prefix
given_up_topic_prefix: Final = GivenUpKey.topic_prefix
control_hint_topic_prefix: Final = ControlHintKey.topic_prefix

StateValue: TypeAlias = JsonValue | Message | ParkedValue | AbortedTransaction


def parse_key(key: bytes) -> StateKey | None:
    """The parsed key; None if only later formats know it. Raises ValueError for a known namespace
    with a broken body."""
    namespace, slash, body = key.partition(b"/")
    declared: type[StateKey] | None = DECLARED.get(namespace + slash)
    try:
        return None if declared is None else declared.parse(body)
    except LaterKey:
        return None


def read_entries(entries: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[StateKey, StateValue]]:
    """Decode scanned entries, without those that only later formats know."""
    for key, value in entries:
        parsed = parse_key(key)
        if parsed is not None:
            yield parsed, parsed.decode_value(value)
