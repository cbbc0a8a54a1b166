"""Workers of a queue within tests of its commands, and its row of `kbroker queues list`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import AcknowledgeType, Message, ShareConsumer

from kbroker.testing.broker import RunningBroker
from tests.cli.conftest import Command
from tests.cli.consumer_groups import until


@contextmanager
def worker(broker: RunningBroker, queue: str, name: str = "w1") -> Iterator[ShareConsumer]:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": queue, "client.id": name, "log_level": 0}
    consumer = ShareConsumer({**settings, "share.acknowledgement.mode": "explicit"})
    consumer.subscribe([queue])
    try:
        yield consumer
    finally:
        consumer.close()


def taken(consumer: ShareConsumer) -> Message:
    def polled() -> Message | None:
        return next(iter(consumer.poll(0.1)), None)

    message = until("a job comes", polled)
    assert message.error() is None
    return message


def answer(consumer: ShareConsumer, message: Message, kind: AcknowledgeType) -> None:
    consumer.acknowledge(message, kind)
    assert set(consumer.commit_sync(60.0).values()) == {None}


def summary(command: Command, queue: str) -> dict[str, Any]:
    (found,) = [row for row in command("queues", "list", "--json").json if row["name"] == queue]
    return dict(found)
