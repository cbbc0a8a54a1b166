"""Logs with transactions: written through an engine, or by clients of a live broker. Each record's
value is its offset. Both know which records a consumer with read_committed gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from confluent_kafka import Producer

from kbroker.broker.logs.producer_state import ProducerStates
from kbroker.formats.batches import TRANSACTIONAL, ProducerInfo, Record, build_batch, read_header, stamp
from kbroker.formats.compression import Codec
from kbroker.formats.state import ProducerSnapshot, ProducerSnapshotKey
from kbroker.formats.transactions import (
    AbortedKey,
    Marker,
    MarkerType,
    TransactionalLog,
    TransactionalLogKey,
    build_marker,
    is_marker,
)
from kbroker.storage.spi import LogId, LogSettings
from spark.tests.filling import PATIENCE_S
from spark.tests.stored import Stored

COMMITTED = {"kafka.isolation.level": "read_committed"}


def time_of(offset: int) -> int:
    """The timestamp of a record in a StoredLog."""
    return 1000 + offset


class Event(NamedTuple):
    """Records of a transaction, or plain ones (without a producer); or the end of one."""

    offset: int
    count: int
    producer: int | None
    ends: MarkerType | None = None


def stable_end(events: Iterable[Event], start: int, end: int) -> int:
    """The last stable offset of a log with these bounds."""
    first: dict[int, int] = {}
    for offset, count, producer, ends in events:
        if producer is not None and ends is None and offset + count > start:
            first.setdefault(producer, offset)
        elif producer is not None and ends is not None:
            first.pop(producer, None)
    return max(start, min(first.values(), default=end))


def committed(events: Iterable[Event], start: int, end: int) -> list[int]:
    """The offsets that a consumer with read_committed gets, found record by record."""
    every = list(events)
    until = stable_end(every, start, end)
    found = []
    for number, (offset, count, producer, ends) in enumerate(every):
        later = every[number + 1 :]
        how = next((each.ends for each in later if each.producer == producer and each.ends is not None), None)
        if ends is None and (producer is None or how is MarkerType.COMMIT):
            found += range(max(offset, start), min(offset + count, until))
    return found


class StoredLog:
    """Partition 0 of a topic, without a broker. `key_of`: the keys of its records by offset."""

    def __init__(
        self, data: Stored, topic: str = "t", key_of: Callable[[int], bytes | None] = lambda _: None
    ) -> None:
        self._key_of = key_of
        self.path = data.path
        self.topic_id = data.topic(topic, settings=LogSettings(segment_bytes=1))
        self.events: list[Event] = []
        self.start = self.end = 0
        self._data = data
        self._states = ProducerStates()
        self._sequences: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._saved: list[bytes] = []
        key = TransactionalLogKey(self.topic_id, 0).encode()
        data.state.write([(key, TransactionalLog(0).encode())])

    @property
    def committed(self) -> list[int]:
        return committed(self.events, self.start, self.end)

    @property
    def stable_end(self) -> int:
        return stable_end(self.events, self.start, self.end)

    def send(self, count: int, producer: int | None = None, *, codec: Codec = Codec.NONE) -> None:
        """A batch of a producer's transaction, or of no transaction."""
        records = [
            Record(0, time_of(offset), self._key_of(offset), b"%d" % offset)
            for offset in range(self.end, self.end + count)
        ]
        if producer is None:
            data = build_batch(records, base_offset=self.end, codec=codec)
        else:
            sequence = self._sequences.setdefault(producer, 0)
            self._sequences[producer] += count
            epoch = self._epochs.get(producer, 0)
            data = build_batch(
                records,
                base_offset=self.end,
                codec=codec,
                attributes=TRANSACTIONAL,
                producer=ProducerInfo(producer, epoch, sequence),
            )
        self._append(data, Event(self.end, count, producer))

    def finish(self, producer: int, kind: MarkerType, *, new_epoch: bool = False) -> None:
        """`new_epoch`: as with transaction version 2 (KIP-890)."""
        if new_epoch:
            self._epochs[producer] = self._epochs.get(producer, 0) + 1
            self._sequences[producer] = 0
        data = bytearray(build_marker(kind, producer, self._epochs.get(producer, 0), 1, 5))
        stamp(data, base_offset=self.end, leader_epoch=1)
        self._append(bytes(data), Event(self.end, 1, producer, kind))

    def commit(self, producer: int) -> None:
        self.finish(producer, MarkerType.COMMIT)

    def abort(self, producer: int) -> None:
        self.finish(producer, MarkerType.ABORT)

    def save(self, *, at: int | None = None) -> None:
        """As the broker saves the producers of a log. `at`: a wrong offset."""
        offset = self.end if at is None else at
        key = ProducerSnapshotKey(self.topic_id, 0, offset).encode()
        changes = [(old, None) for old in self._saved if old != key]
        aborted = self._states.transactions.aborted
        self._data.state.write(
            [
                *changes,
                (key, ProducerSnapshot(self._states.confirmed()).encode()),
                *(
                    (AbortedKey(self.topic_id, 0, each.last_offset).encode(), each.encode())
                    for each in aborted
                ),
            ]
        )
        self._saved = [key]

    def break_saved(self) -> None:
        """The snapshot cannot be read."""
        self._data.state.write([(key, b'{"producers":[oops') for key in self._saved])

    def delete_records(self, start: int) -> None:
        self.start = start
        self._data.log_start(self.topic_id, 0, start)

    def trim(self, start: int) -> None:
        """As retention does; each batch is a segment."""
        self._data.logs.trim(LogId(self.topic_id, 0), start)
        self.start = start

    def _append(self, data: bytes, event: Event) -> None:
        self._data.append(self.topic_id, 0, data)
        self.events.append(event)
        self.end += event.count
        header = read_header(data)
        if is_marker(header):
            self._states.replay_marker(header, Marker.from_batch(data, 0), 5)
        elif header.has_producer:
            self._states.replay(header, header.base_offset, 5)


class LiveLog:
    """Partition 0 of a topic of a running broker; one step at a time, so that offsets are known."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.events: list[Event] = []
        self.end = 0
        self._bootstrap, self._topic = bootstrap, topic
        self._plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._producers: dict[int, Producer] = {}
        self._in_transaction: set[int] = set()

    def again(self, bootstrap: str) -> LiveLog:
        """For the broker's next life; the old producers are gone."""
        log = LiveLog(bootstrap, self._topic)
        log.events, log.end = self.events, self.end
        return log

    @property
    def committed(self) -> list[int]:
        return committed(self.events, 0, self.end)

    def send(self, count: int, producer: int | None = None) -> None:
        client = self._plain if producer is None else self._begun(producer)
        for offset in range(self.end, self.end + count):
            client.produce(self._topic, b"%d" % offset, partition=0)
        assert client.flush(PATIENCE_S) == 0
        self.events.append(Event(self.end, count, producer))
        self.end += count

    def commit(self, producer: int) -> None:
        self._producers[producer].commit_transaction(PATIENCE_S)
        self._ended(producer, MarkerType.COMMIT)

    def abort(self, producer: int) -> None:
        self._producers[producer].abort_transaction(PATIENCE_S)
        self._ended(producer, MarkerType.ABORT)

    def _begun(self, producer: int) -> Producer:
        client = self._producers.get(producer)
        if client is None:
            client = self._producers[producer] = Producer(
                {
                    "bootstrap.servers": self._bootstrap,
                    "transactional.id": f"{self._topic}-{producer}",
                    "transaction.timeout.ms": 600_000,
                    "linger.ms": 5,
                }
            )
            client.init_transactions(PATIENCE_S)
        if producer not in self._in_transaction:
            client.begin_transaction()
            self._in_transaction.add(producer)
        return client

    def _ended(self, producer: int, kind: MarkerType) -> None:
        self._in_transaction.discard(producer)
        self.events.append(Event(self.end, 1, producer, kind))
        self.end += 1
