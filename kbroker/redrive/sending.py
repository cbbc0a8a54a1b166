"""One process's work on a redrive: sends the dead letters in their order, one batch at a time for
each target partition.

    pass    read what each target partition has of this redrive -> read the dead letters, send the
            missing ones -> read again

Passes repeat until nothing is missing. Memory holds the places of all dead letters, but only the
records of the next batches.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.client.admin import Topic, topics
from kbroker.client.rpc import Connection
from kbroker.client.topic_logs import Bounds, Damage, append, bounds, ignore_damage, read_batches
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import ProducerInfo, Record, build_batch
from kbroker.formats.compression import DEFAULT_MAX_BYTES, Codec
from kbroker.formats.schedule_headers import DELAY_MS, DELIVER_AT
from kbroker.redrive.dead_letters import Originals, StoredDeadLetter, read_dead_letters
from kbroker.redrive.notes import Notes, Place, Redrive, RedriveWish, Started
from kbroker.share.runs import runs_of

HEADER = "__kbroker.redrive"
_BATCH_RECORDS = 200
_BATCH_BYTES = 256 << 10
_SEQUENCES = 1 << 31
_NOTE_EVERY = 1000
_ATTEMPTS = 20
_RETRY_S = 0.2
_TOO_LARGE = (ErrorCode.message_too_large, ErrorCode.record_list_too_large)
_SENT_BY_OTHERS = (ErrorCode.out_of_order_sequence_number, ErrorCode.duplicate_sequence_number)


class RedriveRefused(Exception):
    """The redrive cannot run; the message says what to do."""


class Target(NamedTuple):
    topic: str
    partition: int


def target_of(letter: StoredDeadLetter, wish: RedriveWish, width: int) -> Target:
    """The record's own partition, modulo the `width` of a topic with fewer partitions."""
    origin = letter.origin
    return (
        Target(wish.to_topic, origin.partition % width)
        if wish.to_topic
        else Target(origin.topic, origin.partition)
    )


def place_of(letter: StoredDeadLetter) -> Place:
    return letter.partition, letter.offset


_Chunk = list[tuple[Place, Record]]


@dataclass
class Summary:
    """Numbers of dead letters. `chosen` is `sent` + `sent_before` + `not_sent`; `skipped` ones were
    redriven by other redrives."""

    redrive: str
    chosen: int = 0
    sent: int = 0
    sent_before: int = 0
    skipped: int = 0
    not_sent: int = 0
    problems: list[str] = field(default_factory=list)
    """Lines that name all that cannot be sent: their records are gone or cannot be read, or they
    are too large."""
    left_out: list[str] = field(default_factory=list)
    """Lines that name what cannot be read of the dead letter topic: nothing tells whether those are
    dead letters."""
    finished: bool = False


@dataclass
class _Lane:
    """One target partition. Dead letters `there`: found in it; `wanted`: to be sent; `acked`: sent
    by this process."""

    target: Target
    topic: Topic | None = None
    problem: str | None = None
    """Why nothing can be sent there."""
    there: set[Place] = field(default_factory=set)
    wanted: set[Place] = field(default_factory=set)
    acked: set[Place] = field(default_factory=set)
    given_up: set[Place] = field(default_factory=set)
    sequence: int = 0
    chunk: _Chunk = field(default_factory=list)
    chunk_bytes: int = 0
    is_behind: bool = False
    """Another process has sent there: send nothing more before reading it again."""

    @property
    def missing(self) -> set[Place]:
        return self.wanted - self.there - self.given_up


class Sending:
    def __init__(
        self,
        connection: Connection,
        notes: Notes,
        topic: Topic,
        redrive: Redrive,
        started: Started,
        on_progress: Callable[[int, int], None],
    ) -> None:
        self._connection, self._notes, self._topic = connection, notes, topic
        self._redrive, self._started = redrive, started
        self._on_progress = on_progress
        self._topics = {each.name: each for each in topics(connection)}
        self._originals = Originals(connection, self._topics)
        self._lanes: dict[Target, _Lane] = {}
        self._unnoted: list[Place] = []
        self._not_sent: dict[tuple[str, int], list[int]] = {}
        """By reason and partition."""
        noted = started.targets.get(started.wish.to_topic or "")
        self._width = len(noted[1]) if noted else 0
        self._redriven = {} if started.wish.again else notes.redriven(topic.topic_id, but=redrive)
        self._offsets = self._offsets_done = 0
        self.summary = Summary(redrive.name)

    def run(self) -> Summary:
        """Raises RedriveRefused, KafkaError."""
        summary = self.summary
        for attempt in range(_ATTEMPTS):
            self._pass(is_first=attempt == 0)
            for lane in self._lanes.values():
                self._look(lane)
            if not any(lane.missing for lane in self._lanes.values()):
                break
            time.sleep(_RETRY_S)
        else:
            raise RedriveRefused(
                f"redrive {summary.redrive} is being run by another process as well; run it again when that "
                "has ended"
            )
        sent = {place for lane in self._lanes.values() for place in lane.wanted & lane.there}
        self._notes.finish(self._redrive, sent, wall_clock_ms())
        summary.not_sent = sum(map(len, self._not_sent.values()))
        summary.problems = [
            f"dead letter{_range_of(partition, first, last)}: {reason}"
            for (reason, partition), offsets in self._not_sent.items()
            for first, last in runs_of(offsets)
        ]
        summary.finished = True
        return summary

    def _pass(self, *, is_first: bool) -> None:
        summary = self.summary
        for letter in self._letters(is_first=is_first):
            target, place = target_of(letter, self._started.wish, self._width), place_of(letter)
            lane = self._lanes.get(target) or self._open(target)
            lane.wanted.add(place)
            summary.chosen += is_first
            if place in lane.there:
                summary.sent_before += is_first
            elif lane.problem is not None:
                self._give_up(lane, place, lane.problem)
            elif place not in lane.given_up and not lane.is_behind:
                self._add(lane, letter)
        for lane in self._lanes.values():
            self._flush(lane)

    def _letters(self, *, is_first: bool) -> Iterator[StoredDeadLetter]:
        now = bounds(self._connection, self._topic)
        spans = {
            p: Bounds(now[p].start_offset, min(end, now[p].end_offset))
            for p, end in self._started.ends.items()
        }
        self._offsets = sum(max(0, span.end_offset - span.start_offset) for span in spans.values())
        self._offsets_done, partition = 0, -1
        on_damage = self._note_damage if is_first else ignore_damage
        for letter in read_dead_letters(
            self._connection, self._topic, spans, self._started.wish.choice, on_damage
        ):
            if letter.partition != partition:
                partition, last = letter.partition, spans[letter.partition].start_offset - 1
            self._offsets_done += letter.offset - last
            last = letter.offset
            if place_of(letter) in self._redriven:
                self.summary.skipped += is_first
            else:
                yield letter

    def _note_damage(self, damage: Damage) -> None:
        self.summary.left_out.append(str(damage))

    def _open(self, target: Target) -> _Lane:
        lane = self._lanes[target] = _Lane(target, there=set(self._redrive.sent))
        noted = self._started.targets.get(target.topic)
        topic = self._topics.get(target.topic)
        if topic is None:
            lane.problem = f"there is no topic {target.topic}"
        elif noted is None or topic.topic_id != noted[0]:
            lane.problem = f"topic {target.topic} was made after the redrive was started"
        elif target.partition not in noted[1]:
            lane.problem = f"topic {target.topic} has no partition {target.partition}"
        else:
            lane.topic = topic
            self._look(lane)
        return lane

    def _look(self, lane: _Lane) -> None:
        """The dead letters that this redrive has sent there, according to the log and the notes.
        They are unknown if the log has lost records after the noted end, or if a batch of this
        redrive is damaged there. Batches of other producers do not matter."""
        if lane.topic is None:
            return
        started, (name, partition) = self._started, lane.target
        noted_end = started.targets[name][1][partition]
        span = bounds(self._connection, lane.topic)[partition]
        lane.there = set(self._redrive.sent)
        lane.sequence, lane.is_behind = 0, False
        for header, records, damage in read_batches(
            self._connection, lane.topic, partition, noted_end, span.end_offset
        ):
            if header.producer_id == started.producer_id:
                lane.sequence = (header.base_sequence + header.last_offset_delta + 1) % _SEQUENCES
                lane.there |= set(_places_of(records, started))
                if damage is not None:
                    lane.there |= lane.acked
                    lane.problem = (
                        f"a batch of {name}-{partition} cannot be read, so that nobody can tell "
                        "whether it was sent"
                    )
        if span.start_offset > noted_end:
            lane.there |= lane.acked
            lane.problem = (
                f"records of {name}-{partition} were deleted, so that nobody can tell whether it was sent"
            )

    def _add(self, lane: _Lane, letter: StoredDeadLetter) -> None:
        record = self._record_of(letter)
        if record is None:
            self._give_up(
                lane,
                place_of(letter),
                f"its record cannot be read in {letter.origin.topic} any more, nor was it copied",
            )
            return
        size = _size(record)
        if len(lane.chunk) == _BATCH_RECORDS or lane.chunk_bytes + size > _BATCH_BYTES:
            self._flush(lane)
        lane.chunk.append((place_of(letter), record))
        lane.chunk_bytes += size

    def _flush(self, lane: _Lane) -> None:
        chunk, lane.chunk, lane.chunk_bytes = lane.chunk, [], 0
        if not chunk or lane.is_behind:
            return
        try:
            self._append(lane, chunk)
        except KafkaError as error:
            if error.code not in _SENT_BY_OTHERS:
                raise
            lane.is_behind = True

    def _append(self, lane: _Lane, chunk: _Chunk, codec: Codec = Codec.NONE) -> None:
        """As one batch. If the topic refuses that size: record by record, and compressed, since the
        record may have been produced compressed."""
        assert lane.topic is not None
        producer = ProducerInfo(self._started.producer_id, 0, lane.sequence)
        try:
            append(
                self._connection,
                lane.topic,
                lane.target.partition,
                build_batch([record for _, record in chunk], producer=producer, codec=codec),
            )
        except KafkaError as error:
            if error.code not in _TOO_LARGE:
                raise
        else:
            lane.sequence = (lane.sequence + len(chunk)) % _SEQUENCES
            self._count(lane, [place for place, _ in chunk])
            return
        if len(chunk) > 1:
            for each in chunk:
                self._append(lane, [each])
        elif codec is Codec.NONE and _size(chunk[0][1]) <= DEFAULT_MAX_BYTES:
            self._append(lane, chunk, Codec.ZSTD)
        else:
            self._give_up(lane, chunk[0][0], f"it is too large for topic {lane.target.topic}")

    def _give_up(self, lane: _Lane, place: Place, reason: str) -> None:
        if place not in lane.given_up:
            lane.given_up.add(place)
            self._not_sent.setdefault((reason, place[0]), []).append(place[1])

    def _count(self, lane: _Lane, places: Sequence[Place]) -> None:
        lane.acked.update(places)
        self.summary.sent += len(places)
        self._unnoted += places
        if len(self._unnoted) >= _NOTE_EVERY:
            self._notes.note_sent(self._redrive, self._unnoted)
            self._unnoted.clear()
        self._on_progress(self._offsets_done, self._offsets)

    def _record_of(self, letter: StoredDeadLetter) -> Record | None:
        """The record to send: the dead letter's copy, or the original if it still exists. Its
        schedule is dropped unless the redrive keeps schedules."""
        found = (
            self._originals.get(letter)
            if not letter.has_copy
            else letter.record._replace(headers=letter.kept_headers)
        )
        if found is None:
            return None
        dropped = (HEADER,) if self._started.wish.keep_schedule else (HEADER, DELIVER_AT, DELAY_MS)
        kept = tuple(each for each in found.headers if each[0] not in dropped)
        return Record(0, wall_clock_ms(), found.key, found.value, (*kept, (HEADER, self._mark(letter))))

    def _mark(self, letter: StoredDeadLetter) -> bytes:
        started = self._started
        values = {"name": started.redrive, "topic": started.topic, "topic_id": str(started.topic_id)}
        return json.dumps({**values, "partition": letter.partition, "offset": letter.offset}).encode()


def _places_of(records: Sequence[Record], started: Started) -> Iterator[Place]:
    for record in records:
        mark = json.loads(dict(record.headers).get(HEADER) or b"{}")
        if (mark.get("name"), mark.get("topic_id")) == (started.redrive, str(started.topic_id)):
            yield mark["partition"], mark["offset"]


def _size(record: Record) -> int:
    return (
        len(record.key or b"")
        + len(record.value or b"")
        + sum(len(name) + len(value or b"") for name, value in record.headers)
        + 64
    )


def _range_of(partition: int, first: int, last: int) -> str:
    return f" {partition}:{first}" if first == last else f"s {partition}:{first} to {partition}:{last}"
