"""Sending dead letters back to where they came from, each chosen one exactly once, however often it is interrupted.

A redrive has a name. Before it sends anything it notes (redrive_notes.py) which dead letters it is about and where the topics that
will get records end. Every record that it sends has a header with its dead letter's coordinates:

    __kbroker.redrive   {"name": redrive, "topic": …, "topic_id": …, "partition": …, "offset": …}   as JSON

so that, begun again under its name, it reads those topics from the noted ends on and leaves out what is there. What a dead process
has sent may still be on its way then: hence all processes of one redrive send with one producer id, and sequence numbers go on
where what was found ends. The broker takes a batch of a sequence once (KIP-98), whoever of them is first, and who is
second looks again.

It prints nothing; the caller is told of progress.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from kbroker.client.admin import Topic, topics
from kbroker.client.dead_letters import DeadLetter, Originals, read_dead_letters
from kbroker.client.redrive_notes import Notes, Place, Redrive, Started, Wish
from kbroker.client.rpc import Connection
from kbroker.client.topic_logs import Bounds, append, bounds, new_producer_id, read_batches
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError
from kbroker.records import ProducerInfo, Record, build_batch

HEADER = "__kbroker.redrive"
_BATCH_RECORDS = 200
_BATCH_BYTES = 256 << 10
_SEQUENCES = 1 << 31
_NOTE_EVERY = 1000
_ATTEMPTS = 20
_RETRY_S = 0.2
_SENT_BY_OTHERS = (ErrorCode.out_of_order_sequence_number, ErrorCode.duplicate_sequence_number)


class RedriveRefused(Exception):
    """One line that says what to do."""


class Target(NamedTuple):
    topic: str
    partition: int


_Chunk = list[tuple[Place, Record]]


@dataclass
class Summary:
    """Numbers of dead letters. `chosen` is `sent` + `sent_before` + the problems; `skipped` ones were redriven by other redrives."""

    redrive: str
    chosen: int = 0
    sent: int = 0
    sent_before: int = 0
    skipped: int = 0
    problems: list[str] = field(default_factory=list)
    """A line for each that cannot be sent: its record is gone, or it is too large."""
    finished: bool = False


class _Found(NamedTuple):
    """What lies in a target partition from the noted end on."""

    places: set[Place]
    next_sequence: int


class Plan(NamedTuple):
    """What a redrive would do, or is doing. `width`: number of partitions of the topic that it sends everything to."""

    wish: Wish
    width: int
    letters: list[DeadLetter]
    skipped: int

    def target_of(self, letter: DeadLetter) -> Target:
        """The partition that the record was in; where another topic has fewer, that modulo their number."""
        origin = letter.origin
        return Target(self.wish.to_topic, origin.partition % self.width) if self.wish.to_topic else Target(origin.topic, origin.partition)


def plan(connection: Connection, notes: Notes, topic: Topic, wish: Wish) -> Plan:
    """Without sending or noting anything. Raises RedriveRefused, KafkaError."""
    return _plan(connection, notes, topic, wish, bounds(connection, topic), _width(connection, wish), None)


def _plan(
    connection: Connection, notes: Notes, topic: Topic, wish: Wish, spans: Mapping[int, Bounds], width: int, name: str | None
) -> Plan:
    others = [each for each in notes.of_topic(topic.topic_id) if each.started.redrive != name]
    redriven = set() if wish.again else {place for each in others for place in each.sent}
    letters, skipped = [], 0
    for letter in read_dead_letters(connection, topic, spans, wish.choice):
        if _place(letter) in redriven:
            skipped += 1
        else:
            letters.append(letter)
    return Plan(wish, width, letters, skipped)


def _width(connection: Connection, wish: Wish) -> int:
    found = [each for each in topics(connection) if each.name == wish.to_topic]
    if wish.to_topic is not None and not found:
        raise RedriveRefused(f"there is no topic {wish.to_topic}")
    return len(found[0].partitions) if found else 0


def redrive(
    connection: Connection,
    topic: Topic,
    name: str,
    wish: Wish,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> Summary:
    """Start the redrive `name`, or go on with it. Everything that the summary counts as sent is durable on return.

    `on_progress(done, of)` is called after each batch. Raises RedriveRefused and KafkaError; what was sent so far is found next time.
    """
    notes = Notes(connection)
    known = notes.redrives.get((topic.topic_id, name))
    if known is None:
        _refuse_beside_others(notes, topic)
        known = _start(connection, notes, topic, name, wish)
    if known.started.wish != wish:
        raise RedriveRefused(f"redrive {name} was started with other options; give the same ones, or choose another name")
    if known.finished_ms is not None:
        return Summary(name, chosen=len(known.sent), sent_before=len(known.sent), finished=True)
    return _Sending(connection, notes, topic, known, on_progress).run()


def _refuse_beside_others(notes: Notes, topic: Topic) -> None:
    for each in notes.of_topic(topic.topic_id):
        if each.finished_ms is None:
            raise RedriveRefused(f"redrive {each.started.redrive} of {topic.name} is not finished; run it again first (--name)")


def _start(connection: Connection, notes: Notes, topic: Topic, name: str, wish: Wish) -> Redrive:
    spans = bounds(connection, topic)
    wanted = _plan(connection, notes, topic, wish, spans, _width(connection, wish), name)
    by_name = {each.name: each for each in topics(connection)}
    names = {wanted.target_of(letter).topic for letter in wanted.letters}
    targets: dict[str, tuple[UUID, Mapping[int, int]]] = {}
    for target in (by_name[each] for each in sorted(names) if each in by_name):
        ends = {partition: span.end_offset for partition, span in bounds(connection, target).items()}
        targets[target.name] = (target.topic_id, ends)
    started = Started(
        redrive=name,
        topic=topic.name,
        topic_id=topic.topic_id,
        ends={partition: span.end_offset for partition, span in spans.items()},
        targets=targets,
        wish=wish,
        producer_id=new_producer_id(connection),
        started_ms=wall_clock_ms(),
    )
    return notes.start(started)


class _Sending:
    """One process's work on a redrive."""

    def __init__(
        self, connection: Connection, notes: Notes, topic: Topic, redrive: Redrive, on_progress: Callable[[int, int], None]
    ) -> None:
        self._connection = connection
        self._notes = notes
        self._redrive = redrive
        self._topic = topic
        self._on_progress = on_progress
        self._topics = {each.name: each for each in topics(connection)}
        self._originals = Originals(connection, self._topics)
        self._unnoted: list[Place] = []
        self.summary = Summary(redrive.started.redrive)

    def run(self) -> Summary:
        started, summary = self._redrive.started, self.summary
        starts = bounds(self._connection, self._topic)
        spans = {p: Bounds(starts[p].start_offset, end) for p, end in started.ends.items()}
        noted = started.targets.get(started.wish.to_topic or "")
        width = len(noted[1]) if noted else 0
        wanted = _plan(self._connection, self._notes, self._topic, started.wish, spans, width, started.redrive)
        summary.skipped, summary.chosen = wanted.skipped, len(wanted.letters)
        by_target: dict[Target, list[DeadLetter]] = {}
        for letter in wanted.letters:
            by_target.setdefault(wanted.target_of(letter), []).append(letter)
        sent: set[Place] = set()
        for target, letters in sorted(by_target.items()):
            sent |= self._send_all(target, letters)
        self._notes.finish(self._redrive, sent, wall_clock_ms())
        summary.finished = True
        return summary

    def _send_all(self, target: Target, letters: Sequence[DeadLetter]) -> set[Place]:
        """All letters of one target partition; which of them are there now, whoever has sent them."""
        topic = self._target_topic(target)
        if isinstance(topic, str):
            for letter in letters:
                self._give_up(*_place(letter), topic)
            return set()
        given_up: set[Place] = set()
        found = self._look(topic, target)
        self.summary.sent_before += len({_place(each) for each in letters} & found.places)
        for _ in range(_ATTEMPTS):
            left = [each for each in letters if _place(each) not in found.places | given_up]
            try:
                given_up |= self._send(topic, target, left, found.next_sequence)
            except KafkaError as error:
                if error.code not in _SENT_BY_OTHERS:
                    raise
                time.sleep(_RETRY_S)
            found = self._look(topic, target)
            if not {_place(each) for each in letters} - found.places - given_up:
                return found.places & {_place(each) for each in letters}
        raise RedriveRefused(
            f"redrive {self.summary.redrive} is being run by somebody else as well; run it once, and again when that ended"
        )

    def _target_topic(self, target: Target) -> Topic | str:
        """Or why nothing can be sent there."""
        noted = self._redrive.started.targets.get(target.topic)
        topic = self._topics.get(target.topic)
        if noted is None or topic is None or topic.topic_id != noted[0]:
            return f"there is no topic {target.topic}" if topic is None else f"topic {target.topic} was made after the redrive was started"
        if target.partition not in noted[1]:
            return f"topic {target.topic} has no partition {target.partition}"
        return topic

    def _look(self, topic: Topic, target: Target) -> _Found:
        """What this redrive has sent to a partition so far, as its log and the notes say."""
        started = self._redrive.started
        end = bounds(self._connection, topic)[target.partition].end_offset
        places = set(self._redrive.sent)
        next_sequence = 0
        for header, records in read_batches(
            self._connection, topic, target.partition, started.targets[target.topic][1][target.partition], end
        ):
            if header.producer_id == started.producer_id:
                next_sequence = (header.base_sequence + header.record_count) % _SEQUENCES
                places |= set(_places_of(records, started))
        return _Found(places, next_sequence)

    def _send(self, topic: Topic, target: Target, letters: Sequence[DeadLetter], sequence: int) -> set[Place]:
        """Those that cannot be sent."""
        given_up: set[Place] = set()
        for chunk in self._chunks(letters, given_up):
            for part in self._append(topic, target, chunk, sequence, given_up):
                sequence = (sequence + len(part)) % _SEQUENCES
                self._count([place for place, _ in part])
        return given_up

    def _chunks(self, letters: Sequence[DeadLetter], given_up: set[Place]) -> Iterator[_Chunk]:
        chunk: _Chunk = []
        size = 0
        for letter in letters:
            record = self._record_of(letter)
            if record is None:
                self._give_up(letter.partition, letter.offset, f"its record is not in {letter.origin.topic} any more, nor was it copied")
                given_up.add(_place(letter))
                continue
            size += _size(record)
            if chunk and (len(chunk) == _BATCH_RECORDS or size > _BATCH_BYTES):
                yield chunk
                chunk, size = [], _size(record)
            chunk.append((_place(letter), record))
        if chunk:
            yield chunk

    def _append(self, topic: Topic, target: Target, chunk: _Chunk, sequence: int, given_up: set[Place]) -> Iterator[_Chunk]:
        """Whole, or one by one where the topic takes no batch of that size; the parts that were taken, one after the other."""
        producer = ProducerInfo(self._redrive.started.producer_id, 0, sequence)
        try:
            append(self._connection, topic, target.partition, build_batch([record for _, record in chunk], producer=producer))
        except KafkaError as error:
            if error.code is not ErrorCode.message_too_large:
                raise
            if len(chunk) == 1:
                self._give_up(*chunk[0][0], f"it is too large for topic {target.topic}")
                given_up.add(chunk[0][0])
                return
        else:
            yield chunk
            return
        for each in chunk:
            for part in self._append(topic, target, [each], sequence, given_up):
                sequence = (sequence + 1) % _SEQUENCES
                yield part

    def _give_up(self, partition: int, offset: int, reason: str) -> None:
        self.summary.problems.append(f"dead letter {partition}:{offset}: {reason}")

    def _count(self, places: Sequence[Place]) -> None:
        self.summary.sent += len(places)
        self._unnoted += places
        if len(self._unnoted) >= _NOTE_EVERY:
            self._notes.note_sent(self._redrive, self._unnoted)
            self._unnoted.clear()
        self._on_progress(self.summary.sent + self.summary.sent_before, self.summary.chosen)

    def _record_of(self, letter: DeadLetter) -> Record | None:
        """What to send: the copy, else the record itself where it still is."""
        mark = (HEADER, self._mark(letter))
        if letter.has_copy:
            kept = tuple(each for each in letter.kept_headers if each[0] != HEADER)
            return Record(0, wall_clock_ms(), letter.record.key, letter.record.value, (*kept, mark))
        found = self._originals.get(letter)
        if found is None:
            return None
        kept = tuple(each for each in found.headers if each[0] != HEADER)
        return Record(0, wall_clock_ms(), found.key, found.value, (*kept, mark))

    def _mark(self, letter: DeadLetter) -> bytes:
        started = self._redrive.started
        values = {"name": started.redrive, "topic": started.topic, "topic_id": str(started.topic_id)}
        return json.dumps({**values, "partition": letter.partition, "offset": letter.offset}).encode()


def _places_of(records: Sequence[Record], started: Started) -> Iterator[Place]:
    for record in records:
        mark = json.loads(dict(record.headers).get(HEADER) or b"{}")
        if (mark.get("name"), mark.get("topic_id")) == (started.redrive, str(started.topic_id)):
            yield mark["partition"], mark["offset"]


def _place(letter: DeadLetter) -> Place:
    return letter.partition, letter.offset


def _size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"") + sum(len(name) + len(value or b"") for name, value in record.headers) + 64
