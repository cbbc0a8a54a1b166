"""Unmodified clients over TLS: with a certificate of their own, and with a log-in. Each sends
records and reads them."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer

from kbroker.testing.broker import RunningBroker, open_test_broker

# kafka-python on Python 3.11 and 3.12
pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
PATIENCE_S = 60
RECORDS = [b"%d" % number for number in range(20)]


@pytest.fixture(scope="module")
def brokers() -> Iterator[dict[str, RunningBroker]]:
    with open_test_broker(protocol="SSL") as by_certificate, open_test_broker(protocol="SASL_SSL") as by_name:
        yield {"SSL": by_certificate, "SASL_SSL": by_name}


def send(settings: dict[str, Any], topic: str) -> None:
    producer = Producer(settings)
    for value in RECORDS:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0


def until_all(poll: Callable[[], list[bytes]]) -> list[bytes]:
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < len(RECORDS) and time.monotonic() < deadline:
        found += poll()
    return found


def confluent(settings: dict[str, Any], topic: str) -> list[bytes]:
    send(settings, topic)
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        return until_all(lambda: [each.value() or b"" for each in consumer.consume(100, 1)])
    finally:
        consumer.close()


def share_consumer(settings: dict[str, Any], topic: str) -> list[bytes]:
    send(settings, topic)
    with ShareConsumer({**settings, "group.id": topic}) as consumer:
        consumer.subscribe([topic])
        return until_all(lambda: [each.value() or b"" for each in consumer.poll(1)])


def python_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """kafka-python's and aiokafka's names for librdkafka's settings."""
    context = ssl.create_default_context(cafile=settings["ssl.ca.location"])
    if "ssl.certificate.location" in settings:
        context.load_cert_chain(settings["ssl.certificate.location"])
    found = {
        "bootstrap_servers": settings["bootstrap.servers"],
        "security_protocol": settings["security.protocol"],
        "ssl_context": context,
    }
    if "sasl.mechanism" in settings:
        found["sasl_mechanism"] = settings["sasl.mechanism"]
        found["sasl_plain_username"] = settings["sasl.username"]
        found["sasl_plain_password"] = settings["sasl.password"]
    return found


def kafka_python(settings: dict[str, Any], topic: str) -> list[bytes]:
    from kafka import KafkaConsumer, KafkaProducer

    own = python_settings(settings)
    producer = KafkaProducer(**own)
    for value in RECORDS:
        producer.send(topic, value)
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer(
        topic, **own, auto_offset_reset="earliest", consumer_timeout_ms=PATIENCE_S * 1000
    )
    found = [record.value for _, record in zip(RECORDS, consumer, strict=False)]
    consumer.close()
    return found


def aiokafka(settings: dict[str, Any], topic: str) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    own = python_settings(settings)

    async def run() -> list[bytes]:
        async with AIOKafkaProducer(**own) as producer:
            for value in RECORDS:
                await producer.send_and_wait(topic, value)
        async with AIOKafkaConsumer(topic, **own, auto_offset_reset="earliest") as consumer:
            return [(await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value for _ in RECORDS]

    return asyncio.run(run())


CLIENTS: dict[str, Callable[[dict[str, Any], str], list[bytes]]] = {
    "confluent-kafka": confluent,
    "share consumer": share_consumer,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}
LOG_INS = {"SSL": [""], "SASL_SSL": ["SCRAM-SHA-256", "PLAIN"]}
DEFAULT_RUN = {
    ("confluent-kafka", "SSL", ""),
    ("share consumer", "SASL_SSL", "SCRAM-SHA-256"),
    ("kafka-python", "SASL_SSL", "PLAIN"),
    ("aiokafka", "SSL", ""),
}


def matrix() -> Iterator[object]:
    for client in CLIENTS:
        for protocol, mechanisms in LOG_INS.items():
            for mechanism in mechanisms:
                chosen = (client, protocol, mechanism)
                yield pytest.param(
                    *chosen,
                    marks=[] if chosen in DEFAULT_RUN else [pytest.mark.full],
                    id="-".join(filter(None, chosen)).replace(" ", "-"),
                )


@pytest.mark.parametrize(("client", "protocol", "mechanism"), [*matrix()])
def test_records_over_tls(
    brokers: dict[str, RunningBroker], client: str, protocol: str, mechanism: str
) -> None:
    broker, name = brokers[protocol], "-".join((client, protocol, mechanism)).replace(" ", "-")
    broker.create_topic(name)
    broker.set_group_config(name, {"share.auto.offset.reset": "earliest"})
    settings = {**broker.client_settings(), **({"sasl.mechanism": mechanism} if mechanism else {})}
    assert CLIENTS[client](settings, name) == RECORDS
