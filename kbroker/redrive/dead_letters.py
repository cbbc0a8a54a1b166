"""Dead letters as tools see them: the records of a dead letter topic, the record that each stands
for, and the selection of some of them.

It must not know how they are used (redrive/plan.py, kbroker.cli).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.client.admin import LATEST, Topic, list_offsets
from kbroker.client.rpc import Connection
from kbroker.client.topic_logs import Bounds, Damage, ignore_damage, read_batches, read_records
from kbroker.formats.batches import Record
from kbroker.share.dead_letter import MESSAGES, Headers, Origin, origin_of, own_headers, reason_of
from kbroker.share.effects import DeadLetterCause
from kbroker.share.reasons import Reason

_READ_AHEAD_BYTES = 256 << 10
CAUSES = {cause.name.lower(): MESSAGES[cause] for cause in DeadLetterCause}


class StoredDeadLetter(NamedTuple):
    """`record`: as stored in `partition` of the dead letter topic."""

    partition: int
    record: Record
    origin: Origin

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def cause(self) -> str:
        """One of CAUSES, or the message of another broker."""
        return next(
            (name for name, message in CAUSES.items() if message == self.origin.message), self.origin.message
        )

    @property
    def has_copy(self) -> bool:
        """Whether it holds the record's key or value; a record without either has nothing to
        copy."""
        return self.record.key is not None or self.record.value is not None

    @property
    def kept_headers(self) -> Headers:
        """The record's own headers, if the group keeps them: they follow the dead letter's first
        headers."""
        headers = self.record.headers
        return headers[len(own_headers(headers)) :]

    @property
    def reason(self) -> Reason | None:
        """The reason that the client gave when it rejected the record."""
        return reason_of(self.record.headers)


@dataclass(frozen=True)
class Choice:
    """Selects dead letters: all, or those that match every given criterion. `places`: (partition,
    offset)."""

    group: str | None = None
    source_topic: str | None = None
    cause: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    places: tuple[tuple[int, int], ...] = ()

    def takes(self, letter: StoredDeadLetter) -> bool:
        return (
            self.group in (None, letter.origin.group_id)
            and self.source_topic in (None, letter.origin.topic)
            and self.cause in (None, letter.cause)
            and (self.since_ms is None or letter.record.timestamp_ms >= self.since_ms)
            and (self.until_ms is None or letter.record.timestamp_ms < self.until_ms)
            and (not self.places or (letter.partition, letter.offset) in self.places)
        )


def read_dead_letters(
    connection: Connection,
    topic: Topic,
    ends: Mapping[int, Bounds],
    choice: Choice,
    on_damage: Callable[[Damage], None] = ignore_damage,
) -> Iterator[StoredDeadLetter]:
    """In the order of partitions and offsets, without unreadable records and those that are no dead
    letters."""
    for partition, (start, end) in sorted(ends.items()):
        first, last = _span(choice, partition, start, end)
        for record in read_records(connection, topic, partition, first, last, on_damage):
            origin = origin_of(record.headers)
            letter = None if origin is None else StoredDeadLetter(partition, record, origin)
            if letter is not None and choice.takes(letter):
                yield letter


def _span(choice: Choice, partition: int, start: int, end: int) -> tuple[int, int]:
    """The ranges to read, so that one record of a large topic is found without reading all of
    it."""
    if not choice.places:
        return start, end
    offsets = [offset for where, offset in choice.places if where == partition]
    return (max(start, min(offsets)), min(end, max(offsets) + 1)) if offsets else (end, end)


class Originals:
    """The records that dead letters stand for, from the topics that have their names now. Dead
    letters come in runs, so the last read of each partition is kept, and neighbours are read
    ahead."""

    def __init__(self, connection: Connection, topics: Mapping[str, Topic]) -> None:
        self._connection = connection
        self._topics = topics
        self._ends: dict[tuple[str, int], int] = {}
        self._records: dict[tuple[str, int], dict[int, Record]] = {}

    def get(self, letter: StoredDeadLetter) -> Record | None:
        """None if the record is gone or unreadable."""
        origin = letter.origin
        known = self._records.get((origin.topic, origin.partition), {})
        if origin.offset not in known:
            wanted = _READ_AHEAD_BYTES if origin.offset - 1 in known else 1
            known = {record.offset: record for record in self._read(origin, wanted)}
            self._records[origin.topic, origin.partition] = known
        return known.get(origin.offset)

    def _read(self, origin: Origin, wanted_bytes: int) -> Iterator[Record]:
        """From that offset on, whole batches. The end is read once: dead letters never precede
        their records."""
        topic = self._topics.get(origin.topic)
        if topic is None or origin.partition not in topic.partitions:
            return
        place = (topic.name, origin.partition)
        if place not in self._ends:
            (self._ends[place],) = list_offsets(
                self._connection, topic.name, [origin.partition], LATEST
            ).values()
        size = 0
        batches = read_batches(
            self._connection,
            topic,
            origin.partition,
            origin.offset,
            self._ends[place],
            fetch_bytes=wanted_bytes,
        )
        while size < wanted_bytes and (batch := next(batches, None)) is not None:
            size += batch.header.size_bytes
            yield from batch.records
