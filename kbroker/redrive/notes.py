"""The notes of redrives: a small internal topic `__kbroker_redrives` with one JSON record per note.

    started     written before the first record is sent: the chosen dead letters, and the
                ends of all topics that will receive records
    progress    these dead letters have been sent
    finished    all have been sent

Within a dead letter topic, a redrive is identified by its name. Notes are durable once added, and
every client on every machine sees the same; a redrive has no other state. It must not know how
records are chosen or sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

from kbroker.client.admin import ResourceType, Topic, alter_configs, create_topic, topics
from kbroker.client.rpc import Connection
from kbroker.client.topic_logs import append, bounds, read_records
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import Record, build_batch
from kbroker.redrive.dead_letters import Choice
from kbroker.share.runs import runs_of

NOTES_TOPIC = "__kbroker_redrives"
_CONFIG = {"retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": "1048588"}
_RUNS_PER_NOTE = 5_000
"""A run is two offsets in JSON: 44 bytes at most."""

Place = tuple[int, int]
"""Partition and offset of a dead letter."""
Key = tuple[UUID, str]
"""Id of the dead letter topic, and the redrive's name."""
Runs = dict[int, list[tuple[int, int]]]
"""Runs of offsets (first, last), by partition."""


@dataclass(frozen=True)
class RedriveWish:
    """The options of a redrive.

    - `to_topic`: None sends each record to its own topic
    - `again`: also dead letters that other redrives have sent
    - `keep_schedule`: keep the headers that schedule a record (formats/schedule_headers.py); notes
      of earlier versions lack it
    """

    choice: Choice
    to_topic: str | None = None
    again: bool = False
    keep_schedule: bool = False


@dataclass(frozen=True)
class Started:
    """`ends`: of the dead letter topic, by partition. `targets`: id of each topic that gets
    records, and its ends then."""

    redrive: str
    topic: str
    topic_id: UUID
    ends: Mapping[int, int]
    targets: Mapping[str, tuple[UUID, Mapping[int, int]]]
    wish: RedriveWish
    producer_id: int
    started_ms: int

    @property
    def key(self) -> Key:
        return self.topic_id, self.redrive

    def encode(self) -> bytes:
        targets = {
            name: {"topic_id": str(topic_id), "ends": ends} for name, (topic_id, ends) in self.targets.items()
        }
        values = asdict(self) | {"topic_id": str(self.topic_id), "targets": targets, "note": "started"}
        if not self.wish.keep_schedule:
            # Earlier versions, which do not know it, read this note, too.
            del values["wish"]["keep_schedule"]
        return json.dumps(values).encode()

    @classmethod
    def decode(cls, values: dict[str, Any]) -> Started:
        wish = dict(values["wish"])
        choice = dict(wish["choice"])
        choice["places"] = tuple((partition, offset) for partition, offset in choice["places"])
        targets = {
            name: (UUID(each["topic_id"]), _by_partition(each["ends"]))
            for name, each in values["targets"].items()
        }
        plain = {name: values[name] for name in ("redrive", "topic", "producer_id", "started_ms")}
        ends = _by_partition(values["ends"])
        return cls(
            **plain,
            topic_id=UUID(values["topic_id"]),
            ends=ends,
            targets=targets,
            wish=RedriveWish(**{**wish, "choice": Choice(**choice)}),
        )


@dataclass(eq=False)
class Redrive:
    """One redrive, from all its notes. `started`: None if that note is lost. `sent`: dead letters
    noted as sent."""

    name: str
    topic_id: UUID
    started: Started | None = None
    sent: set[Place] = field(default_factory=set)
    finished_ms: int | None = None


class Notes:
    """The notes read at the start, and those added since."""

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
            for record in read_records(connection, self._topic, 0, *bounds(connection, self._topic)[0]):
                try:
                    self._take(json.loads(record.value or b"null"))
                except (ValueError, TypeError, KeyError, AttributeError):
                    continue  # Any client may write into the topic: this is no note.

    def _take(self, values: dict[str, Any]) -> None:
        """Raises ValueError, TypeError, KeyError or AttributeError if `value` is no note; then
        nothing has changed."""
        name, topic_id = values["redrive"], UUID(values["topic_id"])
        if not isinstance(name, str):
            raise TypeError("the name of a redrive is text")
        match values["note"]:
            case "started":
                started = Started.decode(values)
                redrive = self.redrives.setdefault(started.key, Redrive(name, topic_id))
                # Of two at the same moment, the first one is valid.
                redrive.started = redrive.started or started
            case "progress" | "finished" as note:
                runs = [
                    (int(partition), range(first, last + 1))
                    for partition, each in values["sent"].items()
                    for first, last in each
                ]
                finished_ms = int(values["finished_ms"]) if note == "finished" else None
                redrive = self.redrives.setdefault((topic_id, name), Redrive(name, topic_id))
                redrive.sent.update((partition, offset) for partition, offsets in runs for offset in offsets)
                redrive.finished_ms = redrive.finished_ms or finished_ms

    def of_topic(self, topic_id: UUID) -> list[Redrive]:
        """In the order of their start."""
        return [each for each in self.redrives.values() if each.topic_id == topic_id]

    def redriven(self, topic_id: UUID, *, but: Redrive | None = None) -> dict[Place, str]:
        """Dead letters of a topic that redrives have sent, all `but` this one, and the name of the
        last of them."""
        return {
            place: each.name for each in self.of_topic(topic_id) if each is not but for place in each.sent
        }

    def start(self, started: Started) -> Redrive:
        """The redrive of that name: this one, unless another process has just started one."""
        try:
            create_topic(self._connection, NOTES_TOPIC, partitions=1, config=_CONFIG)
        except KafkaError as error:
            if error.code is not ErrorCode.topic_already_exists:
                raise
            # A topic created by hand would lose the notes to retention, and a redrive would repeat.
            alter_configs(self._connection, ResourceType.TOPIC, NOTES_TOPIC, set_configs=_CONFIG)
        self._topic = _find(self._connection)
        self._add(started.redrive, started.encode())
        self._read()  # As every other process sees it.
        return self.redrives[started.key]

    def note_sent(self, redrive: Redrive, sent: Iterable[Place]) -> None:
        for each in _notes_of(sent):
            self._add_sent(redrive, each, {"note": "progress"})

    def finish(self, redrive: Redrive, sent: Iterable[Place], now_ms: int) -> None:
        """`sent`: all of them, noted earlier or not."""
        self.note_sent(redrive, set(sent) - redrive.sent)
        self._add_sent(redrive, {}, {"note": "finished", "finished_ms": now_ms})

    def _add_sent(self, redrive: Redrive, sent: Runs, values: dict[str, Any]) -> None:
        values |= {"redrive": redrive.name, "topic_id": str(redrive.topic_id), "sent": sent}
        self._add(redrive.name, json.dumps(values).encode())
        redrive.sent.update(
            (partition, offset)
            for partition, runs in sent.items()
            for first, last in runs
            for offset in range(first, last + 1)
        )

    def _add(self, name: str, value: bytes) -> None:
        assert self._topic is not None
        append(self._connection, self._topic, 0, build_batch([Record(0, 0, name.encode(), value)]))


def _notes_of(sent: Iterable[Place]) -> Iterator[Runs]:
    """As many as fit into one note."""
    by_partition: dict[int, list[int]] = {}
    for partition, offset in sent:
        by_partition.setdefault(partition, []).append(offset)
    for partition, offsets in by_partition.items():
        runs = runs_of(offsets)
        for first in range(0, len(runs), _RUNS_PER_NOTE):
            yield {partition: runs[first : first + _RUNS_PER_NOTE]}


def _find(connection: Connection) -> Topic | None:
    try:
        return topics(connection, [NOTES_TOPIC])[0]
    except KafkaError as error:
        if error.code is not ErrorCode.unknown_topic_or_partition:
            raise
        return None


def _by_partition(values: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in values.items()}
