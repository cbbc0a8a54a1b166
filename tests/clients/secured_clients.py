"""Unmodified clients behind one function each: it sends RECORDS to a topic and returns those that
it then reads. Settings are those of the client's library, with the address and the security."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, Producer, ShareConsumer

PATIENCE_S = 60
RECORDS = [b"%d" % number for number in range(20)]


def _send(settings: Mapping[str, Any], topic: str) -> None:
    producer = Producer({**settings})
    for value in RECORDS:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0


def _until_all(poll: Callable[[], list[bytes]]) -> list[bytes]:
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < len(RECORDS) and time.monotonic() < deadline:
        found += poll()
    return found


def confluent(settings: Mapping[str, Any], topic: str) -> list[bytes]:
    _send(settings, topic)
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        return _until_all(
            lambda: [each.value() or b"" for each in consumer.consume(100, 1) if each.error() is None]
        )
    finally:
        consumer.close()


def share_consumer(settings: Mapping[str, Any], topic: str) -> list[bytes]:
    """The share group `topic` must begin at the earliest record."""
    _send(settings, topic)
    with ShareConsumer({**settings, "group.id": topic}) as consumer:
        consumer.subscribe([topic])
        return _until_all(lambda: [each.value() or b"" for each in consumer.poll(1) if each.error() is None])


def kafka_python(settings: Mapping[str, Any], topic: str) -> list[bytes]:
    from kafka import KafkaConsumer, KafkaProducer

    producer = KafkaProducer(**settings)
    for value in RECORDS:
        producer.send(topic, value)
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer(
        topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=PATIENCE_S * 1000
    )
    found = [record.value for _, record in zip(RECORDS, consumer, strict=False)]
    consumer.close()
    return found


def aiokafka(settings: Mapping[str, Any], topic: str) -> list[bytes]:
    return asyncio.run(_aiokafka(settings, topic))


async def _aiokafka(settings: Mapping[str, Any], topic: str) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async with AIOKafkaProducer(**settings) as producer:
        for value in RECORDS:
            await producer.send_and_wait(topic, value)
    async with AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest") as consumer:
        return [(await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value for _ in RECORDS]
