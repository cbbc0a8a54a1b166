"""Unmodified clients as transactional producers, and in consume-transform-produce loops.

A reader with read_committed sees what was committed, exactly once, whichever client wrote it.
Tests of crashes do the same with librdkafka (tests/crash).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer
from confluent_kafka import TopicPartition as Place

from kbroker.testing.broker import RunningBroker
from tests.clients.drivers import PATIENCE_S
from tests.kafka_tools.java import HERE, MISSING, run

PARTITIONS = 2
INPUTS = 40
AT_ONCE = 7
ABORTED, DONE = "aborted", "of"

# kafka-python on Python 3.11 and 3.12
pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")


def results(inputs: Iterable[str]) -> Counter[str]:
    return Counter(f"of {value}" for value in inputs)


def prepare(broker: RunningBroker, name: str) -> list[str]:
    """A topic with inputs in both partitions, and one for the results."""
    for topic in (f"{name}-in", f"{name}-out"):
        broker.create_topic(topic, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    values = [f"input {number}" for number in range(INPUTS)]
    for number, value in enumerate(values):
        producer.produce(f"{name}-in", value.encode(), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0
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
    inputs = prepare(broker, name)
    program = str(HERE / "TransactionProgram.java")
    ended = run(program, broker.bootstrap, f"{name}-in", f"{name}-out", name, str(INPUTS))
    assert (ended.code, ended.lines) == (0, ["fenced"]), ended
    check(broker, name, inputs)


def python_producer(broker: RunningBroker, transactional_id: str) -> Any:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=transactional_id)
    producer.init_transactions()
    return producer


def python_transaction(
    producer: Any, consumer: Any, polled: Mapping[Any, Sequence[Any]], topic: str, prefix: str
) -> None:
    from kafka.structs import OffsetAndMetadata

    producer.begin_transaction()
    for place, records in polled.items():
        for record in records:
            producer.send(topic, f"{prefix} {record.value.decode()}".encode(), partition=place.partition)
    producer.flush()
    offsets = {place: OffsetAndMetadata(rows[-1].offset + 1, "", -1) for place, rows in polled.items()}
    producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
    if prefix == ABORTED:
        producer.abort_transaction()
    else:
        producer.commit_transaction()


def test_kafka_python(broker: RunningBroker, name: str) -> None:
    from kafka import KafkaConsumer
    from kafka.errors import InvalidProducerEpochError, ProducerFencedError

    inputs = prepare(broker, name)
    producer = python_producer(broker, name)
    consumer = KafkaConsumer(
        f"{name}-in", bootstrap_servers=broker.bootstrap, group_id=name, auto_offset_reset="earliest",
        enable_auto_commit=False, isolation_level="read_committed",
    )  # fmt: skip
    done = rounds = 0
    while done < INPUTS:
        polled = consumer.poll(timeout_ms=int(1000 * PATIENCE_S), max_records=AT_ONCE)
        assert polled, f"no more inputs after {done}"
        rounds += 1
        for prefix in (ABORTED, DONE) if rounds % 3 == 1 else (DONE,):
            python_transaction(producer, consumer, polled, f"{name}-out", prefix)
        done += sum(map(len, polled.values()))
    consumer.close()
    second = python_producer(broker, name)
    producer.begin_transaction()
    late = producer.send(f"{name}-out", b"late", partition=0)
    with pytest.raises((ProducerFencedError, InvalidProducerEpochError)):
        late.get(PATIENCE_S)
    second.close()
    producer.close(timeout=0)
    check(broker, name, inputs)


def test_aiokafka(broker: RunningBroker, name: str) -> None:
    inputs = prepare(broker, name)
    asyncio.run(transform(broker, name))
    check(broker, name, inputs)


async def transform(broker: RunningBroker, name: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.errors import ProducerFenced

    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=name)
    consumer = AIOKafkaConsumer(
        f"{name}-in", bootstrap_servers=broker.bootstrap, group_id=name, auto_offset_reset="earliest",
        enable_auto_commit=False, isolation_level="read_committed",
    )  # fmt: skip
    await producer.start()
    await consumer.start()
    done = rounds = 0
    while done < INPUTS:
        polled = await consumer.getmany(timeout_ms=int(1000 * PATIENCE_S), max_records=AT_ONCE)
        assert polled, f"no more inputs after {done}"
        rounds += 1
        for prefix in (ABORTED, DONE) if rounds % 3 == 1 else (DONE,):
            await transaction(producer, polled, name, prefix)
        done += sum(map(len, polled.values()))
    await consumer.stop()
    second = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=name)
    await second.start()
    await producer.begin_transaction()
    with pytest.raises(ProducerFenced):
        await producer.send_and_wait(f"{name}-out", b"late", partition=0)
    await second.stop()
    await producer.stop()


async def transaction(producer: Any, polled: Mapping[Any, Sequence[Any]], name: str, prefix: str) -> None:
    await producer.begin_transaction()
    for place, records in polled.items():
        for record in records:
            value = f"{prefix} {record.value.decode()}".encode()
            await producer.send_and_wait(f"{name}-out", value, partition=place.partition)
    offsets = {place: rows[-1].offset + 1 for place, rows in polled.items()}
    await producer.send_offsets_to_transaction(offsets, name)
    if prefix == ABORTED:
        await producer.abort_transaction()
    else:
        await producer.commit_transaction()
