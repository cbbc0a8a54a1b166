"""Real clients that send, fetch and work as fast as they may, with a quota of 1 MB a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, ShareConsumer

from kbroker.client import quota_admin
from kbroker.client.rpc import Connection
from kbroker.security.quotas import entity_of
from kbroker.testing.broker import RunningBroker, open_test_broker

MB = 1_000_000
VALUE = bytes(10_000)
BATCH = 50_000
"""Requests that are small beside what a client may use at once."""
CLIENT = "limited"
Work = Callable[[RunningBroker, float], int]


def settings(broker: RunningBroker, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": broker.bootstrap, "client.id": CLIENT, **more}


def fill(broker: RunningBroker, size: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20, "batch.size": BATCH})
    for _ in range(size // len(VALUE)):
        producer.produce("work", VALUE)
        producer.poll(0)
    assert producer.flush(60) == 0


def produce(broker: RunningBroker, seconds: float) -> int:
    """The bytes that were acknowledged in that time."""
    done = 0

    def answered(error: object, _: Message) -> None:
        nonlocal done
        done += len(VALUE) if error is None else 0

    producer = Producer(settings(broker, **{"linger.ms": 5, "batch.size": BATCH}))
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            producer.produce("work", VALUE, on_delivery=answered)
            producer.poll(0)
        except BufferError:
            producer.poll(0.05)
    total = done
    producer.purge()
    producer.flush(10)
    return total


def fetch(broker: RunningBroker, seconds: float) -> int:
    """The bytes that a consumer received in that time."""
    more = {"group.id": "readers", "auto.offset.reset": "earliest", "fetch.message.max.bytes": BATCH}
    consumer = Consumer(settings(broker, **more))
    consumer.subscribe(["work"])
    return _received(lambda: consumer.consume(100, 0.1), consumer.close, seconds)


def share_fetch(broker: RunningBroker, seconds: float) -> int:
    """The bytes that a worker received in that time."""
    broker.set_group_config("workers", {"share.auto.offset.reset": "earliest"})
    consumer = ShareConsumer(settings(broker, **{"group.id": "workers"}))
    consumer.subscribe(["work"])

    return _received(lambda: list(consumer.poll(0.1)), consumer.close, seconds)


def _received(poll: Callable[[], list[Message]], close: Callable[[], None], seconds: float) -> int:
    """From the first record on."""
    total, ends = 0, None
    try:
        patience = time.monotonic() + 60
        while ends is None or time.monotonic() < ends:
            found = poll()
            if found and ends is None:
                ends = time.monotonic() + seconds
            assert ends is not None or time.monotonic() < patience, "no record has come"
            for message in found:
                assert message.error() is None
                total += len(message.value() or b"")
    finally:
        close()
    return total


@pytest.fixture(params=[pytest.param("11", marks=pytest.mark.full), "2"])
def windows(request: pytest.FixtureRequest) -> int:
    """With two windows a client may use one second's worth at once, with Kafka's eleven ten."""
    return int(request.param)


@pytest.fixture
def broker(windows: int) -> Iterator[RunningBroker]:
    with open_test_broker(config={"quota.window.num": str(windows)}) as running:
        running.create_topic("work")
        with Connection(running.host, running.port) as connection:
            limits = {"producer_byte_rate": MB, "consumer_byte_rate": MB}
            quota_admin.alter(connection, entity_of({"client-id": CLIENT}), limits)
        yield running


@pytest.mark.parametrize("work", [produce, fetch, share_fetch])
def test_a_client_stays_near_its_limit(work: Work, broker: RunningBroker, windows: int) -> None:
    seconds = 30 if windows == 11 else 6
    if work is not produce:
        fill(broker, (seconds + 20) * MB)
    total = work(broker, seconds)
    print(f"{total / seconds / MB:.3f} MB/s")
    if windows == 11:
        assert 0.85 * seconds * MB <= total <= 1.15 * seconds * MB
    else:  # The second's worth at the start counts, and six seconds of a busy machine say little.
        assert 0.3 * seconds * MB <= total <= 1.15 * (seconds + 1) * MB
