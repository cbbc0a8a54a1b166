"""What is noted of redrives: one small topic of the broker's own, `__kbroker_redrives`, one JSON record per note.

    started     written before the first record is sent: which dead letters, and where every topic that will get records ended then
    progress    these dead letters are surely sent
    finished    all are

A redrive is known by its name among those of one dead letter topic. Notes are durable
when they are added, and the same for whoever asks, from whatever machine; nothing of a redrive is kept anywhere else.
It must not know how records are chosen or sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

from kbroker.client.admin import Topic, create_topic, topics
from kbroker.client.dead_letters import Choice
from kbroker.client.rpc import Connection
from kbroker.client.topic_logs import append, bounds, read_records
from kbroker.errors import ErrorCode, KafkaError
from kbroker.records import Record, build_batch
from kbroker.share.dead_letter import runs_of

NOTES_TOPIC = "__kbroker_redrives"
_CONFIG = {"retention.ms": "-1", "retention.bytes": "-1"}

Place = tuple[int, int]
"""Partition and offset of a dead letter."""
Key = tuple[UUID, str]
"""Id of the dead letter topic, and the redrive's name."""


@dataclass(frozen=True)
class Wish:
    """What a redrive is to do: `to_topic` None sends each record to where it came from; `again` also what other redrives have sent."""

    choice: Choice
    to_topic: str | None = None
    again: bool = False


@dataclass(frozen=True)
class Started:
    """`ends`: of the dead letter topic, by partition. `targets`: id of each topic that gets records, and its ends then."""

    redrive: str
    topic: str
    topic_id: UUID
    ends: Mapping[int, int]
    targets: Mapping[str, tuple[UUID, Mapping[int, int]]]
    wish: Wish
    producer_id: int
    started_ms: int

    @property
    def key(self) -> Key:
        return self.topic_id, self.redrive

    def encode(self) -> bytes:
        targets = {name: {"topic_id": str(topic_id), "ends": ends} for name, (topic_id, ends) in self.targets.items()}
        values = asdict(self) | {"topic_id": str(self.topic_id), "targets": targets, "note": "started"}
        return json.dumps(values).encode()

    @classmethod
    def decode(cls, values: dict[str, Any]) -> Started:
        wish = dict(values["wish"])
        choice = dict(wish["choice"])
        choice["places"] = tuple((partition, offset) for partition, offset in choice["places"])
        targets = {name: (UUID(each["topic_id"]), _by_partition(each["ends"])) for name, each in values["targets"].items()}
        plain = {name: values[name] for name in ("redrive", "topic", "producer_id", "started_ms")}
        ends = _by_partition(values["ends"])
        return cls(
            **plain, topic_id=UUID(values["topic_id"]), ends=ends, targets=targets, wish=Wish(**{**wish, "choice": Choice(**choice)})
        )


@dataclass
class Redrive:
    """One redrive, all notes taken together. `sent`: dead letters that are noted as sent."""

    started: Started
    sent: set[Place] = field(default_factory=set)
    finished_ms: int | None = None


class Notes:
    """The notes as they were when they were read, with what was added since."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.redrives: dict[Key, Redrive] = {}
        self._topic: Topic | None = None
        self._read()

    def _read(self) -> None:
        connection = self._connection
        self.redrives.clear()
        self._topic = _find(connection)
        if self._topic is not None:
            (span,) = bounds(connection, self._topic).values()
            for record in read_records(connection, self._topic, 0, *span):
                self._take(record)

    def _take(self, record: Record) -> None:
        values = json.loads(record.value or b"{}")
        match values.get("note"):
            case "started":
                started = Started.decode(values)
                self.redrives.setdefault(started.key, Redrive(started))  # of two at the same moment, the first one counts
            case "progress" | "finished" as note:
                redrive = self.redrives[UUID(values["topic_id"]), values["redrive"]]
                for partition, runs in values["sent"].items():
                    redrive.sent.update((int(partition), offset) for first, last in runs for offset in range(first, last + 1))
                if note == "finished":
                    redrive.finished_ms = values["finished_ms"]

    def of_topic(self, topic_id: UUID) -> list[Redrive]:
        return [each for each in self.redrives.values() if each.started.topic_id == topic_id]

    def start(self, started: Started) -> Redrive:
        """The redrive of that name: this one, unless somebody else has just started one."""
        if self._topic is None:
            try:
                create_topic(self._connection, NOTES_TOPIC, partitions=1, config=_CONFIG)
            except KafkaError as error:
                if error.code is not ErrorCode.topic_already_exists:
                    raise
            self._topic = _find(self._connection)
        self._add(started.redrive, started.encode())
        self._read()  # as everybody else sees it
        return self.redrives[started.key]

    def note_sent(self, redrive: Redrive, sent: Iterable[Place]) -> None:
        self._add_sent(redrive, sent, {"note": "progress"})

    def finish(self, redrive: Redrive, sent: Iterable[Place], now_ms: int) -> None:
        self._add_sent(redrive, sent, {"note": "finished", "finished_ms": now_ms})

    def _add_sent(self, redrive: Redrive, sent: Iterable[Place], values: dict[str, Any]) -> None:
        by_partition: dict[int, list[int]] = {}
        for partition, offset in sent:
            by_partition.setdefault(partition, []).append(offset)
        runs = {partition: runs_of(offsets) for partition, offsets in by_partition.items()}
        started = redrive.started
        values |= {"redrive": started.redrive, "topic_id": str(started.topic_id), "sent": runs}
        self._add(started.redrive, json.dumps(values).encode())
        redrive.sent.update((partition, offset) for partition, offsets in by_partition.items() for offset in offsets)

    def _add(self, name: str, value: bytes) -> None:
        assert self._topic is not None
        append(self._connection, self._topic, 0, build_batch([Record(0, 0, name.encode(), value)]))


def _find(connection: Connection) -> Topic | None:
    try:
        return topics(connection, [NOTES_TOPIC])[0]
    except KafkaError as error:
        if error.code is not ErrorCode.unknown_topic_or_partition:
            raise
        return None


def _by_partition(values: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in values.items()}
