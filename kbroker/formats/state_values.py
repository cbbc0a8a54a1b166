"""The JSON values in the StateStore; formats/state.py has their keys.

The JSON is compact and UTF-8. Readers ignore unknown members, since later formats may add some. A
value that cannot be read raises ValueError. The members are the fields of the classes below, which
say what they mean; a missing one has the default named here.

    Generation        {"number", "unsynced": false}
    ProducerIds       {"next_id"}
    PersisterName     {"name"}
    Topic             {"name", "partitions", "created_ms", "state": "live"}; or state "deleting"
    Config            {"entries": {name: value}}
    LogStart          {"offset"}
    Cleaned           {"offset"}
    LeaderEpoch       {"start_offset"}
    ProducerSnapshot  {"producers": [[producer id, epoch, [[first sequence, last sequence, base
                      offset, last offset, time], ...], ...], ...]}: at most five batches each. A
                      transactional producer has three or four more members (Producer)
    DeadLetterCursor  {"topic", "topic_id", "partition", "offset"}
    GivenUp           {"records"}
    ControlHint       {"offset", "is_open", "groups": {name: [checkpoint, newest]}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import IntEnum, StrEnum
from typing import Any, ClassVar, NamedTuple, Self
from uuid import UUID

_PRODUCERS = '{"producers":['
_PRODUCERS_A_PIECE = 256
_decode_next = json.JSONDecoder().raw_decode


class JsonValue:
    """A value stored as a JSON object whose members are the dataclass's fields."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def encode(self) -> bytes:
        return dump_json({each.name: getattr(self, each.name) for each in fields(self)})

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Raises ValueError for bytes that are not such a value."""
        found = load_json(value)
        try:
            return cls(**{each.name: found[each.name] for each in fields(cls) if each.name in found})
        except TypeError as error:
            raise ValueError(f"not a {cls.__name__}: {value!r}") from error


@dataclass(frozen=True, slots=True)
class Generation(JsonValue):
    """meta/generation: incremented at each start. Used as the leader epoch of every log, and as the
    owner epoch of the stores.

    `unsynced`: that life or an earlier one answered before it synced (durability `os`), and none
    has ended cleanly since. A power cut may have taken what was answered last."""

    number: int
    unsynced: bool = False


@dataclass(frozen=True, slots=True)
class ProducerIds(JsonValue):
    """meta/producer_ids: no producer id at or above `next_id` was ever assigned."""

    next_id: int


@dataclass(frozen=True, slots=True)
class PersisterName(JsonValue):
    """meta/persister: the persister that has stored the share state of the existing groups."""

    name: str


class TopicState(StrEnum):
    """LIVE, or DELETING: a tombstone, which lets recovery finish the removal of the topic's
    logs."""

    LIVE = "live"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class Topic(JsonValue):
    """A topic. Names of live topics are unique; a topic that is being deleted may have the same
    name as a live one."""

    name: str
    partitions: int
    created_ms: int
    state: TopicState = TopicState.LIVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", TopicState(self.state))


class ResourceType(IntEnum):
    """Kafka's config resource types that have stored configs."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


@dataclass(frozen=True, slots=True)
class Config(JsonValue):
    """The configs set for one resource, name to value, without defaults."""

    entries: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LogStart(JsonValue):
    """The log start offset (DeleteRecords, retention), if it is not the log's beginning. It may lie
    inside the first remaining batch."""

    offset: int


@dataclass(frozen=True, slots=True)
class Cleaned(JsonValue):
    """Where the last pass of compaction stopped: the records from there on are new to the next."""

    offset: int


@dataclass(frozen=True, slots=True)
class LeaderEpoch(JsonValue):
    """The log's end when the leader epoch in the key began: the first offset appended under it."""

    start_offset: int


class ProducerBatch(NamedTuple):
    """One of a producer's last batches, newest last."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class Producer(NamedTuple):
    """The state that a log keeps for an idempotent producer. The rest is for transactional ones:

    - `coordinator_epoch`: of its last marker; -1: none
    - `open_from`: the first offset of its open transaction; -1: none
    - `marked_ms`: when its last marker was written, which may have dropped its batches; -1: never

    `newest_ms`: the greatest timestamp in its last batch or marker; None: it was not stored.
    """

    producer_id: int
    producer_epoch: int
    batches: tuple[ProducerBatch, ...]
    coordinator_epoch: int = -1
    open_from: int = -1
    marked_ms: int = -1
    newest_ms: int | None = None

    @property
    def last_timestamp_ms(self) -> int:
        """As Kafka describes it."""
        return self.timestamp_ms if self.newest_ms is None else self.newest_ms

    @property
    def timestamp_ms(self) -> int:
        """When it was last used, by the broker's clock."""
        return max(self.marked_ms, self.batches[-1].timestamp_ms) if self.batches else self.marked_ms

    @property
    def stored(self) -> tuple[object, ...]:
        """As in a snapshot: an idempotent producer has three members only, as version 0.1.0
        expects."""
        if self[3:6] == (-1, -1, -1):
            return self[:3]
        return self[:6] if self.newest_ms is None else self


@dataclass(frozen=True, slots=True)
class ProducerSnapshot(JsonValue):
    """A log's producer state as of the offset in the key, which is not included. As JSON: arrays in
    the order of the fields. Below the log start and beyond the log's end a reader ignores it.

    A log may have tens of thousands of producers. A thread encodes and decodes them in pieces, so
    that other threads can run in between.
    """

    producers: tuple[Producer, ...]

    def encode(self) -> bytes:
        begins = range(0, len(self.producers), _PRODUCERS_A_PIECE)
        pieces = [
            dump_json([each.stored for each in self.producers[begin : begin + _PRODUCERS_A_PIECE]])[1:-1]
            for begin in begins
        ]
        return _PRODUCERS.encode() + b",".join(pieces) + b"]}"

    @classmethod
    def decode(cls, value: bytes) -> Self:
        text = value.decode()
        if not text.startswith(_PRODUCERS):
            raise ValueError(f"not a {cls.__name__}: {value[:80]!r}")
        producers, position = [], len(_PRODUCERS)
        try:
            while position != len(text) - 2 or not text.endswith("]}"):
                (number, epoch, batches, *more), position = _decode_next(text, position)
                batches = tuple(ProducerBatch(*each) for each in batches)
                producers.append(Producer(number, epoch, batches, *more))
                position += text.startswith(",", position)
        except TypeError as error:
            raise ValueError(f"not a {cls.__name__}: {text[position : position + 80]!r}") from error
        return cls(tuple(producers))


@dataclass(frozen=True, slots=True)
class DeadLetterCursor(JsonValue):
    """Where recovery looks for dead letters that were already written for a share-partition: in
    this partition, from `offset` on. The cursor exists as long as a record may be ARCHIVING.
    `topic_id` None: no dead letter was written yet."""

    topic_id: UUID | None
    topic: str
    partition: int
    offset: int

    def __post_init__(self) -> None:
        if self.topic_id is not None:
            object.__setattr__(self, "topic_id", UUID(str(self.topic_id)))


@dataclass(frozen=True, slots=True)
class GivenUp(JsonValue):
    """How many records a group has given up in a share-partition since its state was created,
    without a dead letter queue or with their dead letters. Version 0.1.0 counted none."""

    records: int

    def __post_init__(self) -> None:
        if type(self.records) is not int or self.records < 0:
            raise ValueError(f"no number of given-up records: {self.records!r}")


class ControlChain(NamedTuple):
    """The offsets of a group's newest SHARE_CHECKPOINT and of its newest control record, which is
    the checkpoint itself or a later SHARE_DELTA."""

    checkpoint: int
    newest: int


@dataclass(frozen=True, slots=True)
class ControlHint(JsonValue):
    """Where a log has share state in control records (control_records.py). `groups` covers all
    records below `offset`. From `offset` on there are none, unless `is_open`. A log without a hint
    has none at all."""

    offset: int
    is_open: bool
    groups: Mapping[str, ControlChain]

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "groups", {group_id: ControlChain(*chain) for group_id, chain in self.groups.items()}
        )


def dump_json(value: object) -> bytes:
    return json.dumps(
        value, separators=(",", ":"), ensure_ascii=False, sort_keys=True, default=_as_text
    ).encode()


def _as_text(value: object) -> str:
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"no JSON for {value!r}")


def load_json(value: bytes) -> dict[str, Any]:
    found = json.loads(value)
    if not isinstance(found, dict):
        raise ValueError(f"not a JSON object: {value!r}")
    return found
