"""Responses that a broker sent and a client never received: the connection broke, or the broker
died."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import pytest
from confluent_kafka import Producer

from kbroker.client.rpc import API_KEYS
from kbroker.testing.broker import RunningBroker, free_port, open_test_broker
from tests.clients.drivers import DRIVERS, LATEST, QUICK_RECONNECT
from tests.clients.lossy_proxy import LossyProxy, open_lossy_proxy
from tests.clients.share_workers import PATIENCE_S, open_crew
from tests.clients.test_share_consumers import EARLIEST, numbered, send

BehindProxy: TypeAlias = tuple[RunningBroker, LossyProxy]


@pytest.fixture
def broker_behind_proxy() -> Iterator[BehindProxy]:
    port = free_port()
    with (
        open_lossy_proxy(("127.0.0.1", port)) as proxy,
        open_test_broker(port=port, extra_args=["--advertise", proxy.address]) as broker,
    ):
        yield broker, proxy


def test_a_share_consumer_whose_new_assignment_was_lost(broker_behind_proxy: BehindProxy) -> None:
    broker, proxy = broker_behind_proxy
    broker.set_group_config("group", {**EARLIEST, "share.heartbeat.interval.ms": "500"})
    broker.create_topic("first")
    with open_crew(broker) as crew:
        worker = crew.start_one("group")
        worker.tell("subscribe", "first", "second")
        send(broker, "first", numbered(3))
        crew.until_delivered(numbered(3))
        proxy.lose_next(API_KEYS["share_group_heartbeat"], lambda answer: answer.assignment is not None)
        broker.create_topic("second")
        send(broker, "second", numbered(3, start=3))
        assert proxy.lost.wait(PATIENCE_S)
        crew.until_delivered(numbered(3, start=3))


def test_records_that_were_lost_on_their_way_to_a_share_consumer(broker_behind_proxy: BehindProxy) -> None:
    """The share session ends with the connection, so the records are redelivered at once, not after
    the lock of 30 s."""
    broker, proxy = broker_behind_proxy
    broker.set_group_config("group", EARLIEST)
    broker.create_topic("topic")
    send(broker, "topic", numbered(5))
    proxy.lose_next(
        API_KEYS["share_fetch"],
        lambda answer: any(row.acquired_records for each in answer.responses for row in each.partitions),
    )
    with open_crew(broker) as crew:
        worker = crew.start_one("group")
        worker.tell("subscribe", "topic")
        crew.until_delivered(numbered(5))
        crew.until("all are acknowledged", lambda: len(worker.accepted_places) == 5)
        assert crew.counts() == {value: [2] for value in numbered(5)}
    assert proxy.lost.is_set()


def test_an_answer_that_an_idempotent_producer_never_got(broker_behind_proxy: BehindProxy) -> None:
    broker, proxy = broker_behind_proxy
    broker.create_topic("topic")
    proxy.lose_next(API_KEYS["produce"], lambda answer: True)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 50,
            **QUICK_RECONNECT,
        }
    )
    for value in numbered(10):
        producer.produce("topic", value.encode(), partition=0)
    assert producer.flush(PATIENCE_S) == 0
    assert proxy.lost.is_set()
    stored = DRIVERS["confluent-kafka"].receive(broker.bootstrap, "topic", 10)
    assert [placed.content.value for placed in stored] == [value.encode() for value in numbered(10)]
    assert DRIVERS["confluent-kafka"].find_offset(broker.bootstrap, "topic", 0, LATEST) == 10
