"""Unmodified clients as transactional producers, and in consume-transform-produce loops.

A reader with read_committed sees what was committed, exactly once, whichever client wrote it. The
tests know two answers from elsewhere: librdkafka's in tests/crash, and single requests in tests/api.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import OFFSET_BEGINNING, Consumer
from confluent_kafka import TopicPartition as Place
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPlace
from kafka.errors import InvalidProducerEpochError, ProducerFencedError
from kafka.structs import OffsetAndMetadata

from kbroker.testing.broker import RunningBroker
from tests.clients.drivers import PATIENCE_S
from tests.kafka_tools.java import HERE, MISSING, run

PARTITIONS = 2
INPUTS = 40
BY_SEVEN = 7

pytestmark = pytest.mark.parametrize("engine", ["segment"], indirect=True)


def results(inputs: Iterable[str]) -> Counter[str]:
    return Counter(f"of {value}" for value in inputs)


def fill(broker: RunningBroker, topic: str) -> list[str]:
    """A topic with inputs in both partitions."""
    broker.create_topic(topic, PARTITIONS)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    values = [f"input {number}" for number in range(INPUTS)]
    for number, value in enumerate(values):
        producer.send(topic, value.encode(), partition=number % PARTITIONS)
    producer.flush()
    producer.close()
    return values


def committed(broker: RunningBroker, topic: str) -> Counter[str]:
    """All that a reader with read_committed gets, up to the end of both logs."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap, "group.id": "reader", "isolation.level": "read_committed",
            "enable.partition.eof": True, "enable.auto.commit": False,
        }
    )  # fmt: skip
    consumer.assign([Place(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
    found: Counter[str] = Counter()
    ends = 0
    while ends < PARTITIONS:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        if message.error() is not None:
            ends += 1
        else:
            value = message.value()
            assert value is not None
            found[value.decode()] += 1
    consumer.close()
    return found


def group_offsets(broker: RunningBroker, group: str, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    places = [Place(topic, index) for index in range(PARTITIONS)]
    found = [place.offset for place in consumer.committed(places, PATIENCE_S)]
    consumer.close()
    return found


def check(broker: RunningBroker, name: str, inputs: list[str]) -> None:
    assert committed(broker, f"{name}-out") == results(inputs)
    assert group_offsets(broker, name, f"{name}-in") == [INPUTS // PARTITIONS] * PARTITIONS


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_java(broker: RunningBroker, name: str) -> None:
    inputs = fill(broker, f"{name}-in")
    broker.create_topic(f"{name}-out", PARTITIONS)
    program = str(HERE / "TransactionProgram.java")
    ended = run(program, broker.bootstrap, f"{name}-in", f"{name}-out", name, str(INPUTS))
    assert (ended.code, ended.lines) == (0, ["fenced"]), ended
    check(broker, name, inputs)


def python_producer(broker: RunningBroker, transactional_id: str) -> KafkaProducer:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=transactional_id)
    producer.init_transactions()
    return producer


def test_kafka_python(broker: RunningBroker, name: str) -> None:
    inputs = fill(broker, f"{name}-in")
    broker.create_topic(f"{name}-out", PARTITIONS)
    producer = python_producer(broker, name)
    consumer = KafkaConsumer(
        f"{name}-in", bootstrap_servers=broker.bootstrap, group_id=name, auto_offset_reset="earliest",
        enable_auto_commit=False, isolation_level="read_committed",
    )  # fmt: skip
    done = rounds = 0
    while done < INPUTS:
        polled = consumer.poll(timeout_ms=int(1000 * PATIENCE_S), max_records=BY_SEVEN)
        assert polled, f"no more inputs after {done}"
        rounds += 1
        for prefix in ("aborted", "of") if rounds % 3 == 1 else ("of",):
            producer.begin_transaction()
            for place, records in polled.items():
                for record in records:
                    value = f"{prefix} {record.value.decode()}".encode()
                    producer.send(f"{name}-out", value, partition=place.partition)
            producer.flush()
            offsets = {
                PythonPlace(place.topic, place.partition): OffsetAndMetadata(records[-1].offset + 1, "", -1)
                for place, records in polled.items()
            }
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            if prefix == "aborted":
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        done += sum(map(len, polled.values()))
    consumer.close()
    second = python_producer(broker, name)
    with pytest.raises((ProducerFencedError, InvalidProducerEpochError)):
        producer.begin_transaction()
        producer.send(f"{name}-out", b"late", partition=0)
        producer.commit_transaction()
    second.close()
    producer.close(timeout=0)
    check(broker, name, inputs)


def test_aiokafka(broker: RunningBroker, name: str) -> None:
    inputs = fill(broker, f"{name}-in")
    broker.create_topic(f"{name}-out", PARTITIONS)
    asyncio.run(transform(broker, name))
    check(broker, name, inputs)


async def transform(broker: RunningBroker, name: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=name)
    consumer = AIOKafkaConsumer(
        f"{name}-in", bootstrap_servers=broker.bootstrap, group_id=name, auto_offset_reset="earliest",
        enable_auto_commit=False, isolation_level="read_committed",
    )  # fmt: skip
    await producer.start()
    await consumer.start()
    done = rounds = 0
    while done < INPUTS:
        polled = await consumer.getmany(timeout_ms=int(1000 * PATIENCE_S), max_records=BY_SEVEN)
        assert polled, f"no more inputs after {done}"
        rounds += 1
        for prefix in ("aborted", "of") if rounds % 3 == 1 else ("of",):
            await producer.begin_transaction()
            offsets = {}
            for place, records in polled.items():
                for record in records:
                    value = f"{prefix} {record.value.decode()}".encode()
                    await producer.send_and_wait(f"{name}-out", value, partition=place.partition)
                offsets[TopicPartition(place.topic, place.partition)] = records[-1].offset + 1
            await producer.send_offsets_to_transaction(offsets, name)
            await (producer.abort_transaction if prefix == "aborted" else producer.commit_transaction)()
        done += sum(map(len, polled.values()))
    await consumer.stop()
    second = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=name)
    await second.start()
    with pytest.raises(ProducerFenced):
        async with producer.transaction():
            await producer.send_and_wait(f"{name}-out", b"late", partition=0)
    await second.stop()
    await producer.stop()
