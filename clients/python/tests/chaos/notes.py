"""What the processes of this test write down, in few bytes: a line tells of runs of records.

Each process has a file of its own. A line is one write(), so kill -9 loses none. Times are
CLOCK_MONOTONIC, which all processes share. The writers keep the rules of
tests.judges.history_events: a request is noted before it is sent, an answer after it has
arrived. `expand` makes the events that the judge reads, of one partition at a time: a million
records would need much memory otherwise.

The value of a record is `PRODUCER.PARTITION.NUMBER`. Numbers run without gaps in each partition, so
the values of a run follow from the first one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from tests.judges.history_events import (
    AckAnswered,
    AckKind,
    AckSent,
    Closing,
    Delivered,
    Disconnected,
    Drained,
    Event,
    LifeBegan,
    LifeEnded,
    LogRead,
    LogReadDone,
    Outcome,
    Record,
    SendConfirmed,
    Sent,
)

TOPIC, GROUP = "numbers", "chaos"


class Place(NamedTuple):
    partition: int
    offset: int


class Value(NamedTuple):
    """What a record says about itself."""

    producer: str
    partition: int
    number: int

    def __str__(self) -> str:
        return f"{self.producer}.{self.partition}.{self.number}"

    @staticmethod
    def read(text: bytes | None) -> Value:
        assert text is not None, "a record without a value was delivered"
        producer, partition, number = text.decode().split(".")
        return Value(producer, int(partition), int(number))


class Note(StrEnum):
    """The first field of a line; the second is its time. The others are below."""

    SENT = "sent"  # runs of values
    STORED = "stored"  # runs of values, with their first offset
    DELIVERED = "delivered"  # when the fetch was sent, runs of records
    ACKNOWLEDGED = "acknowledged"  # the kind, runs of places
    ANSWERED = "answered"  # the outcome, runs of places
    BROKEN = "broken"  # a session was lost
    CLOSING = "closing"  # the name of the process
    DRAINED = "drained"
    BEGAN = "began"  # the number of the broker's life
    ENDED = "ended"  # likewise
    READ = "read"  # runs of records, of the log
    READ_DONE = "read-done"  # the partition


class Notes:
    """The file of one process."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, note: Note, *fields: object, at_ns: int | None = None) -> None:
        line = [note, time.monotonic_ns() if at_ns is None else at_ns, *fields]
        os.write(self._fd, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self._fd)


def runs_of_places(places: Iterable[tuple[int, int]]) -> list[list[int]]:
    """[partition, first offset, length]"""
    runs: list[list[int]] = []
    for partition, offset in sorted(places):
        if runs and runs[-1][0] == partition and runs[-1][1] + runs[-1][2] == offset:
            runs[-1][2] += 1
        else:
            runs.append([partition, offset, 1])
    return runs


def runs_of_values(values: Iterable[Value]) -> list[list[int]]:
    """[partition, first number, length]"""
    return runs_of_places((value.partition, value.number) for value in values)


def runs_of_stored(stored: Iterable[tuple[Value, int]]) -> list[list[int]]:
    """Of values and their offsets: [partition, first number, length, first offset]"""
    runs: list[list[int]] = []
    for value, offset in sorted(stored):
        if runs:
            partition, number, length, first = runs[-1]
            if [partition, number + length, first + length] == [*value[1:], offset]:
                runs[-1][2] += 1
                continue
        runs.append([value.partition, value.number, 1, offset])
    return runs


def runs_of_records(records: Iterable[tuple[Place, Value, int]]) -> list[list[Any]]:
    """Of places, values and delivery counts: [partition, first offset, length, producer, the
    partition in the value, first number, count]. Keeps the order, since records may come twice."""
    runs: list[list[Any]] = []
    for (partition, offset), value, count in records:
        if runs:
            last, length = runs[-1], runs[-1][2]
            expected = [partition, offset - length, length, *value[:2], value.number - length, count]
            if last == expected:
                last[2] += 1
                continue
        runs.append([partition, offset, 1, *value, count])
    return runs


Line = list[Any]


def read_notes(folder: Path) -> dict[str, list[Line]]:
    """The lines of each process. A last line without its end, whose writer was killed, is left
    out."""
    found = {}
    for path in sorted(folder.glob("*.notes")):
        text = path.read_bytes()
        found[path.stem] = [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
    return found


def expand(notes: Mapping[str, list[Line]], partition: int) -> Iterator[Event]:
    """The events of one partition, and those that have none."""
    for process, lines in notes.items():
        for note, at_ns, *fields in lines:
            yield from _EXPANDED[note](process, at_ns, partition, *fields)


def _sent(process: str, at_ns: int, partition: int, runs: list[Line]) -> Iterator[Event]:
    for own, first, length in runs:
        if own == partition:
            for number in range(first, first + length):
                yield Sent(at_ns, process, str(Value(process, own, number)), idempotent=True)


def _stored(process: str, at_ns: int, partition: int, runs: list[Line]) -> Iterator[Event]:
    for own, first, length, offset in runs:
        if own == partition:
            for index in range(length):
                record = Record(TOPIC, own, offset + index)
                yield SendConfirmed(at_ns, process, str(Value(process, own, first + index)), record)


def _delivered(process: str, at_ns: int, partition: int, asked_ns: int, runs: list[Line]) -> Iterator[Event]:
    for record, value, count in _records(partition, runs):
        yield Delivered(at_ns, asked_ns, process, record, value, count)


def _acknowledged(process: str, at_ns: int, partition: int, kind: str, runs: list[Line]) -> Iterator[Event]:
    for record in _places(partition, runs):
        yield AckSent(at_ns, process, record, AckKind(kind))


def _answered(process: str, at_ns: int, partition: int, outcome: str, runs: list[Line]) -> Iterator[Event]:
    for record in _places(partition, runs):
        yield AckAnswered(at_ns, process, record, Outcome(outcome))


def _read(process: str, at_ns: int, partition: int, runs: list[Line]) -> Iterator[Event]:
    del process
    for record, value, _ in _records(partition, runs):
        yield LogRead(at_ns, record, value)


def _read_done(process: str, at_ns: int, partition: int, own: int) -> Iterator[Event]:
    del process
    if own == partition:
        yield LogReadDone(at_ns, TOPIC, partition)


def _records(partition: int, runs: list[Line]) -> Iterator[tuple[Record, str, int]]:
    for own, offset, length, producer, valued, number, count in runs:
        if own == partition:
            for index in range(length):
                value = str(Value(producer, valued, number + index))
                yield Record(TOPIC, own, offset + index), value, count


def _places(partition: int, runs: list[Line]) -> Iterator[Record]:
    for own, offset, length in runs:
        if own == partition:
            for index in range(length):
                yield Record(TOPIC, own, offset + index)


_EXPANDED: Mapping[str, Any] = {
    Note.SENT: _sent,
    Note.STORED: _stored,
    Note.DELIVERED: _delivered,
    Note.ACKNOWLEDGED: _acknowledged,
    Note.ANSWERED: _answered,
    Note.BROKEN: lambda process, at_ns, _: [Disconnected(at_ns, process)],
    Note.CLOSING: lambda _, at_ns, __, name: [Closing(at_ns, name)],
    Note.DRAINED: lambda _, at_ns, __: [Drained(at_ns)],
    Note.BEGAN: lambda _, at_ns, __, life: [LifeBegan(at_ns, life)],
    Note.ENDED: lambda _, at_ns, __, life: [LifeEnded(at_ns, life)],
    Note.READ: _read,
    Note.READ_DONE: _read_done,
}
