"""A topic that real clients fill and the broker compacts, with every kind of hole: missing offsets
at the start, in batches and between them, batches without records, tombstones, and aborted
transactions. The value of a record is its offset."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from kbroker import plugins
from kbroker.client import admin
from kbroker.formats.batches import BatchHeader, iter_headers
from kbroker.storage.spi import LogId
from kbroker.testing.broker import RunningBroker

PATIENCE_S = 60.0
CLEANER: Mapping[str, str] = {"log.cleaner.backoff.ms": "50"}
"""For the broker."""
_PRODUCER = {"linger.ms": 1000, "log_level": 0}
"""A flush sends at once what was produced, as one batch."""
_CONFIG = {
    "internal.segment.bytes": "1",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",  # Tombstones go in the second pass.
}


class Stored(NamedTuple):
    key: str
    is_tombstone: bool


def compacted_topic(broker: RunningBroker, name: str) -> CompactedTopic:
    """In its first half tombstones and markers have gone as well; the second half has them."""
    topic = CompactedTopic(broker, name)
    topic.fill()
    topic.compact()
    topic.forget_tombstones()
    topic.fill("again ")
    topic.compact()
    return topic


class CompactedTopic:
    """`records`: what readers get after compaction, by offset."""

    def __init__(self, broker: RunningBroker, name: str) -> None:
        self.broker, self.name = broker, name
        self.end = 0
        self._written: dict[int, Stored] = {}
        self._old_to = 0
        """Tombstones and empty transactions below have gone."""
        self._producers: dict[str, Producer] = {}
        broker.create_topic(name, config=_CONFIG)

    @property
    def records(self) -> Mapping[int, Stored]:
        """Of each key the last record that is not aborted, and all of the last batch."""
        latest = {each.key: offset for offset, each in self._written.items() if offset < self.end - 1}
        found = {offset: self._written[offset] for offset in sorted({*latest.values(), self.end - 1})}
        return {
            offset: each for offset, each in found.items() if offset >= self._old_to or not each.is_tombstone
        }

    def fill(self, prefix: str = "") -> None:
        """30 offsets. At first nothing is compacted: the policy is `delete`."""
        a, b, c, d, e, f, g, h, gone = (f"{prefix}{key}" for key in "abcdefgh-")
        self.plain(a, b, c)
        self.plain(b)
        self.transaction("t1", a, f"{prefix}only aborted", commit=False)
        self.plain(d, e, f, d)
        self.plain(d)
        self.transaction("t2", a, gone, commit=True)
        self.plain(c, gone, tombstones=True)
        self.plain(e, h, f)
        self.transaction("t1", e, commit=False)
        self.plain(e, f)
        self.plain(a, producer="idempotent")
        self.plain(a, g)
        self.transaction("t1", f"{prefix}aborted last", commit=False)
        self.plain(f"{prefix}end")

    def compact(self) -> None:
        """Returns when a pass over all but the last batch has ended."""
        self._alter({"cleanup.policy": "compact"})
        self.until("compaction", lambda: self.offsets() == list(self.records))

    def forget_tombstones(self) -> None:
        """Further passes, until tombstones and markers of empty transactions have gone."""
        markers = [header.base_offset for header in self.headers() if header.is_control]
        rounds = 0

        def have_gone() -> bool:
            nonlocal rounds
            rounds += 1
            self.plain(f"round {rounds}")
            left = [header.base_offset for header in self.headers() if header.is_control]
            return len(left) < len(markers) and self.offsets() == list(self.records)

        self._old_to = self.end
        self.until("the end of tombstones and markers", have_gone)
        self._alter({"delete.retention.ms": "86400000"})

    def plain(self, *keys: str, tombstones: bool = False, producer: str = "plain") -> None:
        """One batch."""
        self._send(self._producer(producer), keys, tombstones=tombstones)
        self._note(keys, tombstones=tombstones)

    def transaction(self, producer: str, *keys: str, commit: bool) -> None:
        """One batch and a marker."""
        sender = self._producer(producer)
        sender.begin_transaction()
        self._send(sender, keys)
        if commit:
            sender.commit_transaction(PATIENCE_S)
            self._note(keys)
        else:
            sender.abort_transaction(PATIENCE_S)
            self.end += len(keys)
        self.end += 1

    def _note(self, keys: tuple[str, ...], *, tombstones: bool = False) -> None:
        self._written |= {self.end + number: Stored(key, tombstones) for number, key in enumerate(keys)}
        self.end += len(keys)

    def _send(self, sender: Producer, keys: tuple[str, ...], *, tombstones: bool = False) -> None:
        for offset, key in enumerate(keys, self.end):
            sender.produce(self.name, None if tombstones else b"%d" % offset, key.encode(), partition=0)
        assert sender.flush(PATIENCE_S) == 0

    def _producer(self, name: str) -> Producer:
        if name not in self._producers:
            more = {
                "plain": {},
                "idempotent": {"enable.idempotence": True, "compression.type": "lz4"},
            }.get(name, {"transactional.id": f"{self.name} {name}", "compression.type": "zstd"})
            made = Producer({**_PRODUCER, "bootstrap.servers": self.broker.bootstrap, **more})
            if "transactional.id" in more:
                made.init_transactions(PATIENCE_S)
            self._producers[name] = made
        return self._producers[name]

    def _alter(self, config: Mapping[str, str]) -> None:
        with self.broker.connect() as connection:
            admin.alter_configs(connection, admin.ResourceType.TOPIC, self.name, set_configs=config)

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"{what}: {self.offsets()}, not {list(self.records)}"
            time.sleep(0.05)

    def offsets(self, level: str = "read_committed") -> list[int]:
        """What a consumer gets from the beginning to the end."""
        settings = {"enable.partition.eof": True, "isolation.level": level, "group.id": "unused"}
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, **settings})
        consumer.assign([TopicPartition(self.name, 0, OFFSET_BEGINNING)])
        found: list[int] = []
        try:
            while (message := consumer.poll(PATIENCE_S)) is not None:
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return found
                offset = message.offset()
                assert offset is not None
                found.append(offset)
            raise AssertionError("nothing more came, and no end")
        finally:
            consumer.close()

    def headers(self) -> list[BatchHeader]:
        """Of the batches on disk."""
        return list(_stored_headers(self.broker, self.name))


def _stored_headers(broker: RunningBroker, topic: str) -> Iterator[BatchHeader]:
    with broker.connect() as connection:
        (found,) = (each for each in admin.topics(connection) if each.name == topic)
    log = LogId(found.topic_id, 0)
    path = broker.data_dir / f"log-{broker.storage}"
    reader = plugins.log_store_factory(broker.storage).open_reader(path)
    try:
        end = reader.bounds(log).end_offset
        for view in reader.read(log, 0, max_bytes=1 << 20, end_offset=end):
            for _, header in iter_headers(view):
                yield header
    finally:
        reader.close()
