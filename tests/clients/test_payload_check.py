"""Unmodified producers and topics with kbroker.payload.check: the broker accepts everything that
they write, in order, and reports each refusal to them."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer
from kio.serial import entity_reader

from kbroker.client import admin, topic_logs
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import Record, build_batch
from kbroker.protocol.messages import response_schema
from kbroker.testing.broker import RunningBroker
from tests.clients.drivers import CODECS, DRIVERS
from tests.clients.workload import check_all, contents
from tests.odd_batches import odd_batch

# kafka-python on Python 3.11 and 3.12
pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
CHECKED = {"kbroker.payload.check": "true"}
COUNT, PARTITIONS = 20_000, 3
PLACES = [(client, codec) for client, driver in DRIVERS.items() for codec in CODECS if codec in driver.codecs]


@pytest.mark.parametrize(("client", "codec"), PLACES)
def test_records_come_back_the_same(broker: RunningBroker, client: str, codec: str, name: str) -> None:
    """Each client with each codec: the check refuses nothing that a client writes."""
    broker.create_topic(name, partitions=PARTITIONS, config=CHECKED)
    driver = DRIVERS[client]
    driver.send(broker.bootstrap, name, contents(COUNT), partitions=PARTITIONS, codec=codec)
    check_all(driver.receive(broker.bootstrap, name, COUNT, partitions=PARTITIONS), COUNT, PARTITIONS)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_an_idempotent_producer_keeps_its_order(broker: RunningBroker, name: str, codec: str) -> None:
    """Five requests are in flight; some are checked in a thread and some are not."""
    broker.create_topic(name, config=CHECKED)
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "enable.idempotence": True,
        "compression.type": codec,
        "linger.ms": 0,
    }
    producer = Producer(settings)
    sizes = [10, 200_000, 30, 5, 400_000, 1, 1, 1, 90_000]
    for number in range(900):
        producer.produce(name, b"%d " % number + b"x" * sizes[number % len(sizes)])
        producer.poll(0)
    assert producer.flush(60) == 0
    with broker.connect() as connection:
        (topic,) = admin.topics(connection, [name])
        records = topic_logs.read_records(connection, topic, 0, 0, 900)
        assert [int((record.value or b"").split()[0]) for record in records] == list(range(900))


def test_answers_come_in_the_order_of_requests(broker: RunningBroker, name: str) -> None:
    """On one connection: a large batch, a small one for another partition, a refused one, a small
    one."""
    broker.create_topic(name, partitions=2, config=CHECKED)
    with broker.connect() as connection:
        small = build_batch([Record(0, 1, None, b"x")])
        frames = b""
        for partition, batch in ((0, odd_batch("a bomb")), (1, small), (0, odd_batch("zeros")), (0, small)):
            topics = [{"name": name, "partition_data": [{"index": partition, "records": batch}]}]
            fields = {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": topics}
            frames += connection.encode("produce", 9, fields)
        connection.send_raw(frames)
        answers = [_answer(connection.read_frame()) for _ in range(4)]
    numbers = [number for number, _ in answers]
    assert numbers == sorted(numbers)
    assert [(row.error_code, row.base_offset) for _, row in answers] == [
        (ErrorCode.message_too_large, -1),
        (ErrorCode.none, 0),
        (ErrorCode.invalid_record, -1),
        (ErrorCode.none, 0),
    ]


def _answer(frame: bytes) -> tuple[int, Any]:
    """The correlation id of the response, and its one row."""
    schema = response_schema(0, 9)
    header, size = entity_reader(schema.__header_schema__)(frame, 0)
    answer, _ = entity_reader(schema)(frame, size)
    return header.correlation_id, answer.responses[0].partition_responses[0]


def test_a_queue_that_nobody_can_poison(broker: RunningBroker, name: str) -> None:
    broker.create_topic(name, config=CHECKED)
    with broker.connect() as connection:
        (topic,) = admin.topics(connection, [name])
        with pytest.raises(KafkaError) as caught:
            topic_logs.append(connection, topic, 0, odd_batch("no structure"))
        assert caught.value.code is ErrorCode.invalid_record
        assert topic_logs.bounds(connection, topic)[0] == (0, 0)
