"""A broker whose wall clock is set forward and back while it runs. Locks and sessions do not
notice; timestamps follow it; retention removes records as if that much time had passed (as in
Kafka). Committed offsets stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, ShareConsumer, TopicPartition

from kbroker.testing.broker import FAST_CONFIG, RunningBroker
from tests.crash.stepped_clock import SteppedClock

DAY = timedelta(days=1)
STAMPED = {"message.timestamp.type": "LogAppendTime"}
EARLIEST = {"share.auto.offset.reset": "earliest"}


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBroker, SteppedClock]]:
    """One broker for all tests; each steps its clock back at the end."""
    home = tmp_path_factory.mktemp("stepped")
    clock = SteppedClock(home / "clock")
    config = {
        **FAST_CONFIG,
        "log.retention.check.interval.ms": "100",
        "offsets.retention.check.interval.ms": "100",
    }
    broker = RunningBroker(home, config=config, command=clock.command(), env=clock.environment())
    broker.start()
    try:
        yield broker, clock
    finally:
        broker.kill()


@pytest.fixture
def broker(stepped: tuple[RunningBroker, SteppedClock]) -> RunningBroker:
    return stepped[0]


@pytest.fixture
def clock(stepped: tuple[RunningBroker, SteppedClock]) -> Iterator[SteppedClock]:
    clock = stepped[1]
    yield clock
    clock.step(-clock.offset)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A separate topic name per test, for groups as well."""
    return "".join(each if each.isalnum() else "-" for each in request.node.name)


class Sender:
    """One idempotent producer, with a correct clock."""

    def __init__(self, broker: RunningBroker, topic: str) -> None:
        self._topic = topic
        config = {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "log_level": 0}
        self._producer = Producer(config)
        self._answers: list[tuple[KafkaError | None, Message]] = []

    def send(self, count: int = 1) -> list[KafkaError | None]:
        self._answers.clear()
        for _ in range(count):
            self._producer.produce(
                self._topic, b"x", on_delivery=lambda error, message: self._answers.append((error, message))
            )
        assert self._producer.flush(30) == 0
        return [error for error, _ in self._answers]


@contextmanager
def share_consumer(broker: RunningBroker, topic: str, kind: str = "readers") -> Iterator[ShareConsumer]:
    config = {"bootstrap.servers": broker.bootstrap, "share.acknowledgement.mode": "explicit", "log_level": 0}
    consumer = ShareConsumer({**config, "group.id": f"{kind}-{topic}"})
    consumer.subscribe([topic])
    yield consumer
    consumer.close()


def polled(consumer: ShareConsumer, polls: int = 100) -> list[Message]:
    """The next messages; empty if so many polls return nothing."""
    for _ in range(polls):
        if messages := [message for message in consumer.poll(0.3) if message.error() is None]:
            return messages
    return []


def accepted(consumer: ShareConsumer, messages: list[Message]) -> bool:
    for message in messages:
        consumer.acknowledge(message)
    return list(consumer.commit_sync(10).values()) == [None]


def committed(broker: RunningBroker, topic: str, partitions: int) -> list[int]:
    """Offsets of the group with the topic's name, -1001 where there is none."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic, "log_level": 0})
    found = consumer.committed([TopicPartition(topic, number) for number in range(partitions)], timeout=20)
    consumer.close()
    return [each.offset for each in found]


def commit(broker: RunningBroker, topic: str, partition: int, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic, "log_level": 0})
    (done,) = consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False) or []
    consumer.close()
    assert done.error is None


def bounds(broker: RunningBroker, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "log_level": 0})
    found = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
    consumer.close()
    assert found is not None
    return found


@pytest.mark.parametrize("step", [DAY, -DAY], ids=["forward", "back"])
def test_locks_and_sessions_do_not_notice(
    broker: RunningBroker, clock: SteppedClock, topic: str, step: timedelta
) -> None:
    broker.create_topic(topic, config=STAMPED)
    broker.set_group_config(f"patient-{topic}", EARLIEST)
    broker.set_group_config(f"hasty-{topic}", {**EARLIEST, "share.record.lock.duration.ms": "1000"})
    assert Sender(broker, topic).send() == [None]
    with share_consumer(broker, topic, "patient") as holder, share_consumer(broker, topic, "hasty") as slow:
        held, late = polled(holder), polled(slow)
        assert len(held) == len(late) == 1
        clock.step(step)
        with share_consumer(broker, topic, "patient") as other:
            assert polled(other, polls=5) == [], "the lock of half a minute holds"
        with share_consumer(broker, topic, "hasty") as other:
            (again,) = polled(other)
            assert again.delivery_count() == 2, "the lock of a second ends"
            assert accepted(other, [again])
        assert accepted(holder, held), "a member is a member still"


def test_timestamps_of_the_broker_step_and_offsets_do_not(
    broker: RunningBroker, clock: SteppedClock, topic: str
) -> None:
    broker.create_topic(topic, config=STAMPED)
    broker.set_group_config(f"readers-{topic}", EARLIEST)
    sender, hours, asked_ms = Sender(broker, topic), timedelta(hours=1), []
    for step in (timedelta(), 5 * hours, -10 * hours, 2 * hours):
        clock.step(step)
        asked_ms.append(clock.now_ms())
        assert sender.send() == [None]
    found: list[Message] = []
    with share_consumer(broker, topic) as consumer:
        while len(found) < 4:
            messages = polled(consumer)
            assert messages
            found += messages
            assert accepted(consumer, messages)
    assert [message.offset() for message in found] == [0, 1, 2, 3]
    for asked, message in zip(asked_ms, found, strict=True):
        assert asked <= message.timestamp()[1] < asked + hours // timedelta(milliseconds=1)


def test_retention_goes_by_the_clock_as_it_is(broker: RunningBroker, clock: SteppedClock, topic: str) -> None:
    """As in Kafka: a step beyond retention.ms removes all records at once. After a step back, new
    records stay and offsets continue."""
    broker.create_topic(topic, config={**STAMPED, "retention.ms": str(7 * DAY // timedelta(milliseconds=1))})
    sender = Sender(broker, topic)
    assert sender.send(5) == [None] * 5
    clock.step(6 * DAY)
    assert sender.send() == [None]
    assert bounds(broker, topic) == (0, 6)
    clock.step(100 * DAY)
    for _ in range(1000):
        if bounds(broker, topic) == (6, 6):
            break
    assert bounds(broker, topic) == (6, 6)
    clock.step(-106 * DAY)
    assert sender.send() == [None], "an idempotent producer continues"
    assert bounds(broker, topic) == (6, 7)
    broker.kill()
    broker.start()
    assert bounds(broker, topic) == (6, 7)


def test_a_slow_clock_of_the_broker_refuses_the_records_of_right_ones(
    broker: RunningBroker, clock: SteppedClock, topic: str
) -> None:
    """As in Kafka, by message.timestamp.after.max.ms, until the clock is right again."""
    broker.create_topic(topic)
    sender = Sender(broker, topic)
    assert sender.send() == [None]
    clock.step(-2 * timedelta(hours=1))
    (error,) = sender.send()
    assert error is not None
    assert error.name() == "INVALID_TIMESTAMP"
    clock.step(2 * timedelta(hours=1))
    assert sender.send() == [None]
    assert bounds(broker, topic) == (0, 2)


def test_committed_offsets_are_as_old_as_they_are(
    broker: RunningBroker, clock: SteppedClock, topic: str
) -> None:
    """The clock is a month behind at the start, then a month ahead, then right. Only offsets stored
    with a time of a month ago expire, and not before the restart."""
    month = 30 * DAY
    broker.kill()
    clock.step(-month)
    broker.start()
    broker.create_topic(topic, partitions=3)
    commit(broker, topic, 0, 10)
    clock.step(2 * month)
    commit(broker, topic, 1, 11)
    clock.step(-month)
    commit(broker, topic, 2, 12)
    assert committed(broker, topic, 3) == [10, 11, 12]
    broker.kill()
    broker.start()
    for _ in range(1000):
        if committed(broker, topic, 1) == [-1001]:
            break
    assert committed(broker, topic, 3) == [-1001, 11, 12]
