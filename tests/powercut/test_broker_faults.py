"""A broker on a failing or full disk: no answer says OK for what is not safe, reading goes on, and recovery finds what was confirmed."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from kbroker.testing.broker import FAST_CONFIG, RunningBroker
from tests.crash.test_crash import ENGINES
from tests.powercut.fault_process import WRITES
from tests.powercut.recording import Calls, Faults, Recording

TOPIC = "orders"


class Disk:
    """A broker with a disk that can be broken."""

    def __init__(self, home: Path, engine: str) -> None:
        (home / "data").mkdir()
        self.faults = Faults(home / "faults")
        self.recording = Recording(home / "data", home / "record.log", faults=self.faults)
        self.broker = RunningBroker(home, storage=engine, config=FAST_CONFIG, env=self.recording.environment())
        self.sent = 0

    def produce(self, count: int) -> tuple[list[str], list[KafkaError]]:
        """Values that were confirmed, and the errors of the others; nothing is retried."""
        confirmed: list[str] = []
        errors: list[KafkaError] = []

        def answered(error: KafkaError | None, message: Message) -> None:
            value = message.value()
            assert value is not None
            if error is None:
                confirmed.append(value.decode().rstrip())
            else:
                errors.append(error)

        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "acks": "all", "retries": 0, "log_level": 0})
        for _ in range(count):
            producer.produce(TOPIC, f"{self.sent:<3000}".encode(), on_delivery=answered)
            self.sent += 1
            assert producer.flush(30) == 0
        return confirmed, errors

    def consume(self) -> list[str]:
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "reader", "enable.auto.commit": False})
        _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=20)
        consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
        values: list[str] = []
        while len(values) < end:
            (message,) = consumer.consume(1, 20)
            value = message.value()
            assert message.error() is None
            assert value is not None
            values.append(value.decode().rstrip())
        consumer.close()
        return values


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


@pytest.mark.parametrize("engine", ENGINES)
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


@pytest.mark.parametrize("engine", ENGINES)
def test_a_full_disk_is_survived(engine: str, home: Path) -> None:
    with a_disk(home, engine) as disk:
        confirmed, _ = disk.produce(5)
        disk.faults.arm(WRITES, errno.ENOSPC, keep_bytes=100, sticky=True, path=f"log-{engine}")
        errors: list[KafkaError] = []
        for _ in range(30_000):  # an engine may have taken space ahead
            more, errors = disk.produce(1)
            confirmed += more
            if errors:
                break
        assert {error.name() for error in errors} == {"KAFKA_STORAGE_ERROR"}
        assert disk.consume() == confirmed
        disk.faults.disarm()
        more, errors = disk.produce(3)
        assert not errors, "with space again the same broker goes on"
        assert disk.consume() == confirmed + more
        disk.broker.kill()
        disk.broker.start()
        assert disk.consume() == confirmed + more
