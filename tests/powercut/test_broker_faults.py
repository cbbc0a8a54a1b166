"""A broker on a failing or full disk: no response confirms data that is not durable, reads still
work, and recovery finds the confirmed records."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    ShareConsumer,
    TopicPartition,
)

from kbroker.testing.broker import FAST_CONFIG, RunningBroker
from tests.crash.test_crash import ENGINES
from tests.powercut.fault_process import WRITES
from tests.powercut.recorded import RecordedBroker
from tests.powercut.recording import CHANGES, Calls, Faults, Recording

TOPIC, GROUP = "orders", "workers"


def engines(quick: str) -> list[Any]:
    """The default run has segment and one other engine; test_faults.py has them all, and tests each
    more thoroughly."""
    return [
        pytest.param(engine, marks=() if engine in ("segment", quick) else pytest.mark.full)
        for engine in ENGINES
    ]


class Disk:
    """A broker on a disk with injected faults."""

    def __init__(self, home: Path, engine: str) -> None:
        (home / "data").mkdir()
        self.faults = Faults(home / "faults")
        self.recording = Recording(home / "data", home / "record.log", faults=self.faults)
        self.broker = RecordedBroker(home, self.recording, storage=engine, config=FAST_CONFIG)
        self.sent = 0

    def produce(self, count: int) -> tuple[list[str], list[KafkaError]]:
        numbers = range(self.sent, self.sent + count)
        self.sent += count
        return produce(self.broker, numbers)

    def consume(self) -> list[str]:
        return consume(self.broker)

    @contextmanager
    def share_consumer(self) -> Iterator[ShareConsumer]:
        config = {
            "bootstrap.servers": self.broker.bootstrap,
            "group.id": GROUP,
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
        }
        consumer = ShareConsumer(config)
        consumer.subscribe([TOPIC])
        yield consumer
        consumer.close()


def produce(broker: RunningBroker, numbers: Iterable[int]) -> tuple[list[str], list[KafkaError]]:
    """Each in its own request. Returns the confirmed values, and the errors of the others; nothing
    is retried."""
    confirmed: list[str] = []
    errors: list[KafkaError] = []

    def answered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            confirmed.append(value_of(message))
        else:
            errors.append(error)

    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "retries": 0, "log_level": 0})
    for number in numbers:
        producer.produce(TOPIC, f"{number:<3000}".encode(), on_delivery=answered)
        assert producer.flush(30) == 0
    return confirmed, errors


def consume(broker: RunningBroker) -> list[str]:
    """The whole of partition 0."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=20)
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    values: list[str] = []
    while len(values) < end:
        (message,) = consumer.consume(1, 20)
        assert message.error() is None
        values.append(value_of(message))
    consumer.close()
    return values


def value_of(message: Message) -> str:
    value = message.value()
    assert value is not None
    return value.decode().rstrip()


def polled(consumer: ShareConsumer) -> list[Message]:
    """The next messages, at least one."""
    for _ in range(100):
        if messages := [message for message in consumer.poll(0.3) if message.error() is None]:
            return messages
    raise AssertionError("nothing came in half a minute")


@contextmanager
def a_disk(home: Path, engine: str) -> Iterator[Disk]:
    disk = Disk(home, engine)
    disk.broker.start()
    try:
        disk.broker.create_topic(TOPIC)
        yield disk
    finally:
        disk.broker.kill()
        disk.recording.close()


@pytest.mark.parametrize("engine", engines("rocksdb"))
def test_after_a_failed_sync_nothing_is_confirmed_until_restart(engine: str, home: Path) -> None:
    with a_disk(home, engine) as disk:
        confirmed, errors = disk.produce(5)
        assert len(confirmed) == 5
        assert not errors
        disk.faults.arm(Calls.SYNC, errno.EIO, path=f"log-{engine}")
        assert disk.produce(1)[0] == []
        assert disk.faults.fired == 1
        refused, errors = disk.produce(3)
        assert refused == []
        assert {error.name() for error in errors} == {"KAFKA_STORAGE_ERROR"}
        assert disk.consume()[:5] == confirmed
        disk.broker.kill()
        disk.broker.start()
        more, _ = disk.produce(2)
        found = disk.consume()
        assert found[:5] == confirmed
        assert found[-2:] == more


@pytest.mark.parametrize("engine", engines("sqlite"))
def test_a_full_disk_is_survived(engine: str, home: Path) -> None:
    with a_disk(home, engine) as disk:
        confirmed, _ = disk.produce(5)
        disk.faults.arm(WRITES, errno.ENOSPC, keep_bytes=100, sticky=True, path=f"log-{engine}")
        errors: list[KafkaError] = []
        for _ in range(30_000):  # an engine may have preallocated space
            more, errors = disk.produce(1)
            confirmed += more
            if errors:
                break
        assert {error.name() for error in errors} == {"KAFKA_STORAGE_ERROR"}
        assert disk.consume() == confirmed
        disk.faults.disarm()
        more, errors = disk.produce(3)
        assert not errors, "with free space the same broker accepts records again"
        assert disk.consume() == confirmed + more
        disk.broker.kill()
        disk.broker.start()
        assert disk.consume() == confirmed + more


@pytest.mark.parametrize("engine", engines("lmdb"))
def test_a_file_system_that_becomes_read_only(engine: str, home: Path) -> None:
    """Records and acknowledgements are refused, even after it is writable again; reads still work;
    a restart finds the confirmed records."""
    with a_disk(home, engine) as disk:
        disk.broker.set_group_config(GROUP, {"share.auto.offset.reset": "earliest"})
        confirmed, _ = disk.produce(1)
        with disk.share_consumer() as consumer:
            (done,) = polled(consumer)
            consumer.acknowledge(done)
            assert list(consumer.commit_sync(10).values()) == [None]
            more, errors = disk.produce(4)
            assert not errors
            confirmed += more
            held = polled(consumer)
            disk.faults.arm(CHANGES, errno.EROFS, sticky=True)
            refused, errors = disk.produce(2)
            assert refused == []
            assert {error.name() for error in errors} == {"KAFKA_STORAGE_ERROR"}
            for message in held:
                consumer.acknowledge(message)
            (answer,) = consumer.commit_sync(10).values()
            assert answer is not None
            assert answer.args[0].name() == "COORDINATOR_NOT_AVAILABLE"
            assert disk.faults.fired
            assert disk.consume()[:5] == confirmed, "reads still work"
            disk.faults.disarm()
            refused, errors = disk.produce(2)
            assert refused == []
            assert {error.name() for error in errors} == {"KAFKA_STORAGE_ERROR"}
        disk.broker.kill()
        disk.broker.start()
        assert disk.consume()[:5] == confirmed
        assert len(disk.produce(1)[0]) == 1
        with disk.share_consumer() as consumer:
            assert value_of(polled(consumer)[0]) == confirmed[1], (
                "accepted records are done, refused ones are redelivered"
            )
