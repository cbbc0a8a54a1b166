"""One share consumer of the demo, a separate process: it polls, works, acknowledges, and reports
each step to the demo.

Before it acknowledges, it reports the orders that it holds and waits for the demo's permission. So
when the demo kills a consumer or the broker, it knows which orders were held, and which orders an
unanswered acknowledgement was for.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kbroker.cli.demo.orders import Verdict, handle

if TYPE_CHECKING:
    from confluent_kafka import ShareConsumer

_POLL_S = 0.2


class Order(NamedTuple):
    """One delivery of an order, and the consumer's verdict."""

    offset: int
    delivery_count: int
    verdict: Verdict


class Taken(NamedTuple):
    """The consumer holds these orders and has acknowledged none of them. It continues when the demo
    answers."""

    orders: Sequence[Order]


class Answered(NamedTuple):
    """The result of acknowledging the orders taken last. Not confirmed means unknown: the broker
    may have carried it out."""

    confirmed: bool


Report: TypeAlias = Taken | Answered


def work(worker: int, client_settings: Mapping[str, str], topic: str, group: str, demo: Connection) -> None:
    """Run until the demo closes its end of the pipe. The demo handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # also drops one that arrived during the start
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    from confluent_kafka import ShareConsumer

    settings = {
        **client_settings,
        "group.id": group,
        "client.id": f"demo-{worker}",
        "share.acknowledgement.mode": "explicit",
        "reconnect.backoff.ms": 250,  # without it librdkafka tries 38 times a second while the broker is down
        "log_level": 0,
    }
    consumer = ShareConsumer(settings)
    try:
        consumer.subscribe([topic])
        while not demo.poll():
            _work_once(consumer, demo)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the demo has ended
    finally:
        consumer.close()


def _work_once(consumer: ShareConsumer, demo: Connection) -> None:
    from confluent_kafka import AcknowledgeType

    orders: list[Order] = []
    for message in consumer.poll(_POLL_S):
        if message.error() is not None:
            continue  # the library retries; the demo ends if there is no progress
        offset, value, count = message.offset(), message.value(), message.delivery_count()
        assert offset is not None
        assert isinstance(value, bytes)
        assert count is not None
        order = Order(offset, count, handle(value, count))
        consumer.acknowledge(message, AcknowledgeType(order.verdict.value))  # sent with the commit below
        orders.append(order)
    if not orders:
        return
    demo.send(Taken(orders))
    demo.recv()
    results = consumer.commit_sync()
    demo.send(Answered(bool(results) and all(error is None for error in results.values())))
