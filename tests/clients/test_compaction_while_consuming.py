"""The idea of librdkafka's own test of compaction (0077): messages of a few keys with tombstones
among them, messages of unique keys, and large fillers that close segments. Here a consumer reads
all the time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.brokers import DURABLE_ENGINES, require_engine

PATIENCE_S = 60.0
KEYS = ("k1", "k2", "k3")
WITH_TOMBSTONES = "k1"
FILLER = b"x" * 60_000
CONFIG = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "internal.segment.bytes": "200000",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "100",
    "delete.retention.ms": "86400000",
}
CASES = [("segment", "none", 1000), ("segment", "zstd", 10)]
LONG = [
    ("segment", "snappy", 1000),
    *((engine, "lz4", 1000) for engine in DURABLE_ENGINES[1:]),
    ("segment", "gzip", 10_000),
    ("segment", "none", 10),
]


@contextmanager
def broker_of(engine: str) -> Iterator[RunningBroker]:
    config = {"log.cleaner.backoff.ms": "20"}
    with open_test_broker(storage=require_engine(engine), config=config) as broker:
        yield broker


def fill(broker: RunningBroker, topic: str, count: int) -> None:
    """Values of one key, that close segments, and a tombstone at the end."""
    settings = {"bootstrap.servers": broker.bootstrap, "batch.num.messages": 1, "log_level": 0}
    producer = Producer(settings)
    for _ in range(count):
        producer.produce(topic, FILLER, b"filler", partition=0)
    producer.produce(topic, None, b"filler", partition=0)
    assert producer.flush(PATIENCE_S) == 0


def produce(broker: RunningBroker, topic: str, codec: str, rounds: int) -> Mapping[int, bytes | None]:
    """In each round a message of each key, and one of a key of its own. Returns by offset what
    compaction has to leave."""
    left: dict[int, bytes | None] = {}
    settings = {"bootstrap.servers": broker.bootstrap, "compression.type": codec, "linger.ms": 10}
    producer = Producer({**settings, "batch.num.messages": 100, "log_level": 0})

    def answered(value: bytes | None, stays: bool, error: object, message: Message) -> None:
        assert error is None, error
        offset = message.offset()
        assert offset is not None
        if stays:
            left[offset] = value

    for number in range(4 * rounds):
        place = number % 4
        key = KEYS[place] if place < len(KEYS) else f"unique {number}"
        is_last = number >= 4 * (rounds - 1)
        is_tombstone = key == WITH_TOMBSTONES and (is_last or number % 7 == 0)
        value = None if is_tombstone else b"message %d" % number
        headers = [("number", b"%d" % number)]
        producer.produce(
            topic,
            value,
            key.encode(),
            partition=0,
            headers=headers,
            on_delivery=partial(answered, value, is_last or key not in KEYS),
        )
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    return left


class Reader:
    """Consumes in a thread, from the beginning to the present end, again and again."""

    def __init__(self, broker: RunningBroker, topic: str) -> None:
        self.reads: list[dict[int, bytes | None]] = []
        self._broker, self._topic = broker, topic
        self._stops = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stops.is_set():
                self.reads.append(read(self._broker, self._topic))
        except BaseException as error:
            self._error = error


def read(broker: RunningBroker, topic: str) -> dict[int, bytes | None]:
    """The messages but the fillers, from the beginning to the present end."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "unused", "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: dict[int, bytes | None] = {}
    before = -1
    try:
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, "nothing more came, and no end"
            if message.error() is not None:
                return found
            offset = message.offset()
            assert offset is not None
            assert offset > before, "in order, each once"
            before = offset
            if message.key() != b"filler":
                check(message)
                found[offset] = message.value()
    finally:
        consumer.close()


def check(message: Message) -> None:
    """Nothing of a message changes."""
    number = int(dict(message.headers() or ())["number"] or b"")
    place = number % 4
    assert message.key() == (KEYS[place] if place < len(KEYS) else f"unique {number}").encode()
    is_tombstone = place == 0 and message.value() is None
    assert is_tombstone or message.value() == b"message %d" % number


@pytest.mark.parametrize(
    ("engine", "codec", "rounds"), [*CASES, *(pytest.param(*each, marks=pytest.mark.full) for each in LONG)]
)
def test_compaction_while_a_consumer_reads(engine: str, codec: str, rounds: int) -> None:
    with broker_of(engine) as broker:
        topic = "compacted"
        broker.create_topic(topic, config=CONFIG)
        fill(broker, topic, 10)
        with Reader(broker, topic) as reader:
            left = produce(broker, topic, codec, rounds)
            fill(broker, topic, 10)
            deadline = time.monotonic() + PATIENCE_S
            found = read(broker, topic)
            while found != left:
                assert left.items() <= found.items(), "what has to stay has gone"
                assert time.monotonic() < deadline, f"{len(found)} messages are left, not {len(left)}"
                found = read(broker, topic)
        assert len(left) == rounds + 3
        assert list(left.values()).count(None) == 1, "the last tombstone"
        assert reader.reads
        for each in reader.reads:
            seen = {offset: value for offset, value in left.items() if offset <= max(each, default=-1)}
            assert seen.items() <= each.items(), "a reader misses what was never overwritten"
        broker.restart()
        assert read(broker, topic) == left
