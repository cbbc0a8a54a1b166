"""Slices of stored batches, read by an unmodified librdkafka that checks every CRC.

Its share consumer cannot set record_limit, so the broker treats all fetches as exact
(exact_broker.py). Java's can: tests/kafka_tools/test_kafka_tools.py.
"""

from __future__ import annotations

import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer
from prometheus_client.parser import text_string_to_metric_families

from kbroker.client import admin, group_admin, topic_logs
from kbroker.formats.batches import Record, build_batch
from kbroker.testing.broker import RunningBroker, free_port, open_test_broker
from tests.brokers import require_engine
from tests.clients.test_share_consumers import EARLIEST
from tests.clients.workload import Content, content
from tests.odd_batches import odd_batch

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ENGINES = ("segment", "lmdb", "rocksdb")
COUNT = 600
LARGE = 3
PATIENCE_S = 90.0


class Exact:
    """A broker that treats every ShareFetch as exact, and its metrics."""

    def __init__(self, stack: ExitStack, engine: str) -> None:
        self._admin_port = free_port()
        self.broker: RunningBroker = stack.enter_context(
            open_test_broker(
                storage=require_engine(engine),
                command=[sys.executable, "-m", "tests.clients.exact_broker"],
                extra_args=["--admin", f"127.0.0.1:{self._admin_port}"],
            )
        )

    def metrics(self) -> Counter[str]:
        """Sums over all labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._admin_port}/metrics") as answer:
            families = text_string_to_metric_families(answer.read().decode())
            sums: Counter[str] = Counter()
            for sample in (sample for family in families for sample in family.samples):
                sums[sample.name] += sample.value  # type: ignore[assignment]
            return sums


@pytest.fixture(scope="module")
def brokers() -> Iterator[dict[str, Exact]]:
    with ExitStack() as stack:
        yield {engine: Exact(stack, engine) for engine in ENGINES}


def expected(offset: int) -> Content:
    if offset < COUNT:
        return content(offset)
    return content(offset)._replace(value=bytes([offset % 251]) * (900_000 if offset < COUNT + LARGE else 1))


def fill(broker: RunningBroker, topic: str, codec: str) -> int:
    """Few batches with many records of every kind, and some with one large record or a record of a
    single byte. Returns the number of records."""
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "linger.ms": 1000,
        "compression.type": codec,
        "enable.idempotence": True,
    }
    producer = Producer(settings)
    for offset in range(COUNT + 2 * LARGE):
        timestamp_ms, key, value, headers = expected(offset)
        producer.produce(topic, value, key, partition=0, timestamp=timestamp_ms, headers=list(headers))
        if offset in (COUNT // 2, COUNT - 1):
            assert producer.flush(60) == 0
    assert producer.flush(60) == 0
    return COUNT + 2 * LARGE


def got(message: Message) -> Content:
    _, timestamp_ms = message.timestamp()
    return Content(timestamp_ms, message.key(), message.value(), tuple(message.headers() or ()))


def consumer_of(broker: RunningBroker, group: str, most: int) -> ShareConsumer:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "log_level": 3}
    settings |= {"share.acknowledgement.mode": "explicit", "max.poll.records": most, "check.crcs": True}
    consumer = ShareConsumer(settings)
    consumer.subscribe([group])
    return consumer


class Seen:
    """The records that the consumers of a test received. Records whose offset is divisible by seven
    are released once."""

    def __init__(self) -> None:
        self.deliveries: Counter[int] = Counter()
        self.accepted: set[int] = set()
        self.polls = 0

    def poll(self, consumer: ShareConsumer) -> None:
        messages = list(consumer.poll(0.2))
        assert len(messages) <= 3
        self.polls += bool(messages)
        for message in messages:
            assert message.error() is None, message.error()
            offset = message.offset()
            assert got(message) == expected(offset)
            self.deliveries[offset] += 1
            assert message.delivery_count() == self.deliveries[offset]
            is_back = offset % 7 == 0 and self.deliveries[offset] == 1
            consumer.acknowledge(message, AcknowledgeType.RELEASE if is_back else AcknowledgeType.ACCEPT)
            if not is_back:
                self.accepted.add(offset)
        if messages:
            assert all(error is None for error in consumer.commit_sync(60.0).values())


@pytest.mark.parametrize(
    ("engine", "codec"), [("segment", codec) for codec in CODECS] + [("lmdb", "lz4"), ("rocksdb", "zstd")]
)
def test_every_record_comes_whole_and_as_often_as_it_should(
    brokers: dict[str, Exact], engine: str, codec: str, name: str
) -> None:
    """Three consumers acquire up to three records at a time, and release some of them once."""
    exact = brokers[engine]
    broker = exact.broker
    broker.create_topic(name)
    broker.set_group_config(name, EARLIEST)
    count = fill(broker, name, codec)
    before = exact.metrics()
    seen = Seen()
    consumers = [consumer_of(broker, name, 3) for _ in range(3)]
    try:
        deadline = time.monotonic() + PATIENCE_S
        while len(seen.accepted) < count:
            assert time.monotonic() < deadline, f"{sorted({*range(count)} - seen.accepted)[:20]} did not come"
            for consumer in consumers:
                seen.poll(consumer)
    finally:
        for consumer in consumers:
            consumer.close()
    assert seen.deliveries == {offset: 1 + (offset % 7 == 0) for offset in range(count)}
    assert lag_of(broker, name) == 0
    more = exact.metrics()
    more.subtract(before)
    opened, cut = more["kbroker_queue_cache_misses_total"], more["kbroker_queue_cache_hits_total"]
    print(f"{codec}: {seen.polls} polls, {opened:.0f} waited for a batch, {cut:.0f} slices of what was open")
    assert more["kbroker_queue_uncut_batches_total"] == 0
    if codec == "none":
        assert (opened, cut) == (0, 0)
    else:
        assert opened < 40
        assert cut > 150


def lag_of(broker: RunningBroker, group: str) -> int | None:
    with broker.connect() as connection:
        rows = group_admin.describe_share_group_offsets(connection, group)
        return rows[0].lag if rows else None


@pytest.mark.parametrize(
    "kind", ["no gzip", "snappy of no structure", "lz4 with too many records", "zstd with too few records"]
)
@pytest.mark.parametrize("most", [2, 6])
def test_nothing_is_lost_behind_a_batch_that_cannot_be_read(
    brokers: dict[str, Exact], kind: str, most: int, name: str
) -> None:
    """librdkafka acknowledges the records that it cannot read as gaps, and also those after them in
    the same response."""
    broker = brokers["segment"].broker
    broker.create_topic(name)
    broker.set_group_config(name, {**EARLIEST, "share.record.lock.duration.ms": "1000"})
    good = [
        build_batch([Record(0, 1, None, b"%d-%d" % (number, n)) for n in range(4)]) for number in range(3)
    ]
    with broker.connect() as connection:
        (topic,) = admin.topics(connection, [name])
        for batch in (good[0], odd_batch(kind), good[1], odd_batch(kind), good[2]):
            topic_logs.append(connection, topic, 0, batch)
    values: set[bytes | None] = set()
    consumer = consumer_of(broker, name, most)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while lag_of(broker, name) != 0:
            assert time.monotonic() < deadline, f"{sorted(map(str, values))} came"
            messages = list(consumer.poll(0.2))
            for message in messages:
                if message.error() is None:
                    values.add(message.value())
                    consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            if messages:
                consumer.commit_sync(60.0)
    finally:
        consumer.close()
    assert {value for value in values if value and b"-" in value} == {
        b"%d-%d" % (number, n) for number in range(3) for n in range(4)
    }
