"""The stored state of a transactional id, and the records that end a transaction in a log.

    transaction/     transactional id                                   TransactionRecord: JSON
    transactional/   topic id (16), partition (4)                       TransactionalLog: JSON
    txn_offset/      producer id (8), group str, topic id (16),         AnyGroupOffset
                     partition (4)
    aborted/         topic id (16), partition (4), last offset (8)      AbortedTransaction

The fields are those of Kafka's `__transaction_state`, except that a transaction names its topics
by id, and the consumer groups whose offsets it commits instead of their partitions of
`__consumer_offsets`. One key always has the newest state.

A marker is a control batch with one record, which ends the transaction of its producer in one log.
It has bits 4 and 5 of its attributes set, the producer's id and epoch, and no sequence:

    record key      version (2) = 0, type (2): 0 ABORT, 1 COMMIT
    record value    version (2) = 0, coordinator epoch (4)

This module must not know when a state may follow another one (kbroker/transactions).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Final, NamedTuple, Self
from uuid import UUID

from kbroker.formats.batches import (
    CONTROL,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    ProducerInfo,
    Record,
    build_batch,
    iter_records,
)
from kbroker.formats.group_records import decode_group_offset
from kbroker.formats.state_keys import I32, I64, LogKey, Rest, StateKey
from kbroker.formats.state_values import JsonValue, dump_json, load_json

NO_EPOCH: Final = -1
NO_PRODUCER: Final = NO_PRODUCER_ID
MAX_TRANSACTIONAL_ID_BYTES: Final = 255
MARKER_VERSIONS: Final = range(1 << 15)
"""As in Kafka, readers take a marker of any version for one of version 0."""

_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")


class TransactionState(IntEnum):
    """Kafka's numbers. PREPARE_EPOCH_FENCE (7) is never stored."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


class TransactionPartition(NamedTuple):
    """A log that belongs to a transaction."""

    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True)
class TransactionRecord(JsonValue):
    """A transactional id. Times are ms of the wall clock; -1: never.

    - `last_producer_epoch`: the epoch before the last increment, which a client may send again
    - `previous_producer_id`: its id before the last rotation; `next_producer_id`: the id that it
      gets when the transaction is complete
    - `version`: the transaction version that the client has used last (1, or 2: KIP-890)"""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TransactionPartition] = frozenset()
    groups: frozenset[str] = frozenset()
    last_producer_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER
    next_producer_id: int = NO_PRODUCER
    started_ms: int = -1
    updated_ms: int = -1
    version: int = 1

    def encode(self) -> bytes:
        """The members in the order of their names, as dump_json() would sort them, in a quarter of
        its time: a transaction has three records."""
        numbers: dict[str, list[int]] = {}
        for topic_id, number in sorted(self.partitions):
            numbers.setdefault(str(topic_id), []).append(number)
        groups = dump_json(sorted(self.groups)).decode() if self.groups else "[]"
        partitions = dump_json(numbers).decode() if len(numbers) > 1 else _json_of_one(numbers)
        return (
            f'{{"groups":{groups},"last_producer_epoch":{self.last_producer_epoch},'
            f'"next_producer_id":{self.next_producer_id},"partitions":{partitions},'
            f'"previous_producer_id":{self.previous_producer_id},"producer_epoch":{self.producer_epoch},'
            f'"producer_id":{self.producer_id},"started_ms":{self.started_ms},"state":{self.state:d},'
            f'"timeout_ms":{self.timeout_ms},"updated_ms":{self.updated_ms},"version":{self.version}}}'
        ).encode()

    @classmethod
    def decode(cls, value: bytes) -> Self:
        found = load_json(value)
        known = {each.name: found[each.name] for each in fields(cls) if each.name in found}
        try:
            known["state"] = TransactionState(known["state"])
            known["partitions"] = frozenset(_partitions(known["partitions"].items()))
            known["groups"] = frozenset(known["groups"])
            return cls(**known)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a {cls.__name__}: {value!r}") from error


def _json_of_one(numbers: dict[str, list[int]]) -> str:
    """The logs of a transaction in at most one topic."""
    for topic_id, indexes in numbers.items():
        return f'{{"{topic_id}":[{",".join(map(str, indexes))}]}}'
    return "{}"


def _partitions(found: Iterable[tuple[str, list[int]]]) -> Iterable[TransactionPartition]:
    return (TransactionPartition(UUID(topic_id), number) for topic_id, numbers in found for number in numbers)


class TransactionKey(StateKey):
    transactional_id: Rest
    namespace = b"transaction/"
    decode_value = staticmethod(TransactionRecord.decode)


class MarkerType(IntEnum):
    ABORT = 0
    COMMIT = 1


def marker_key(kind: MarkerType) -> bytes:
    return _MARKER_KEY.pack(0, kind)


def marker_value(coordinator_epoch: int) -> bytes:
    return _MARKER_VALUE.pack(0, coordinator_epoch)


def build_marker(
    kind: MarkerType, producer_id: int, producer_epoch: int, coordinator_epoch: int, now_ms: int
) -> bytes:
    """The control batch that ends a transaction, 78 bytes; its base offset is stamped later."""
    record = Record(0, now_ms, marker_key(kind), marker_value(coordinator_epoch))
    producer = ProducerInfo(producer_id, producer_epoch, -1)
    return build_batch([record], producer=producer, attributes=TRANSACTIONAL | CONTROL)


def is_marker(header: BatchHeader) -> bool:
    """Share state in control records (control_records.py) has no producer."""
    return header.is_control and header.has_producer


class Marker(NamedTuple):
    """The record of a marker."""

    kind: MarkerType
    coordinator_epoch: int

    @classmethod
    def from_record(cls, key: bytes | None, value: bytes | None) -> Marker:
        """Raises ValueError for another control record, or one that cannot be read."""
        try:
            version, kind = _MARKER_KEY.unpack_from(key or b"")
            _, coordinator_epoch = _MARKER_VALUE.unpack_from(value or b"")
        except struct.error as error:
            raise ValueError("not the marker of a transaction: cut off") from error
        if version not in MARKER_VERSIONS:
            raise ValueError(f"not the marker of a transaction: version {version}")
        return cls(MarkerType(kind), coordinator_epoch)

    @classmethod
    def from_batch(cls, data: Buffer, position: int) -> Marker:
        """The marker in the control batch at `position`. Raises ValueError or CorruptPayload."""
        for record in iter_records(data, position):
            return cls.from_record(record.key, record.value)
        raise ValueError("a control batch without a record")


_ABORTED = struct.Struct(">qqq")


@dataclass(frozen=True, slots=True)
class TransactionalLog(JsonValue):
    """This log may have transactions, from `first_offset` on. Durable before its first one begins,
    so that a start knows which logs to look at before consumers with read_committed read them."""

    first_offset: int


class TransactionalLogKey(LogKey):
    namespace = b"transactional/"
    decode_value = staticmethod(TransactionalLog.decode)


class PendingOffsetKey(StateKey):
    """An offset that a group gets if the producer's transaction is committed."""

    producer_id: I64
    group_id: str
    topic_id: UUID
    partition: I32
    namespace = b"txn_offset/"
    decode_value = staticmethod(decode_group_offset)


class AbortedTransaction(NamedTuple):
    """An aborted transaction in one log, from its first record to its marker. `stable_offset`: the
    last stable offset when it had ended; all that end later begin at or above it."""

    producer_id: int
    first_offset: int
    last_offset: int
    stable_offset: int

    def encode(self) -> bytes:
        return _ABORTED.pack(self.producer_id, self.first_offset, self.stable_offset)


class AbortedKey(StateKey):
    """`last_offset`: that of the marker."""

    topic_id: UUID
    partition: I32
    last_offset: I64
    namespace = b"aborted/"

    def decode_value(self, value: bytes) -> AbortedTransaction:
        try:
            producer_id, first_offset, stable_offset = _ABORTED.unpack(value)
        except struct.error as error:
            raise ValueError(f"not an aborted transaction: {value.hex()}") from error
        return AbortedTransaction(producer_id, first_offset, self.last_offset, stable_offset)


def aborted_prefix(topic_id: UUID, partition: int) -> bytes:
    """The prefix of the aborted transactions of one log."""
    return AbortedKey(topic_id, partition, 0).encode()[:-8]
