"""One share consumer of the demo, in a process of its own: polls, works, acknowledges, and reports
each step to the demo.

It reports what it holds before it acknowledges, and waits for the demo's leave. So the demo knows,
when it kills a consumer or the broker, which orders were in hand; and an acknowledgement whose
answer is lost belongs to orders that the demo knows.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kbroker.cli.demo.orders import Verdict, handle

if TYPE_CHECKING:
    from confluent_kafka import ShareConsumer

_POLL_S = 0.2


class Order(NamedTuple):
    """One delivery of an order, and what the consumer will say of it."""

    offset: int
    delivery_count: int
    verdict: Verdict


class Taken(NamedTuple):
    """The consumer holds these orders and has acknowledged none of them. It goes on when the demo
    answers."""

    orders: Sequence[Order]


class Answered(NamedTuple):
    """What became of the acknowledgements of the orders taken last. Not confirmed means unknown:
    the broker may have done them."""

    confirmed: bool


Report: TypeAlias = Taken | Answered


def work(worker: int, bootstrap: str, topic: str, group: str, demo: Connection) -> None:
    """Runs until the demo closes its end of the pipe; Ctrl-C is the demo's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # one that came while the process started is dropped by this
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    from confluent_kafka import ShareConsumer

    settings = {
        "bootstrap.servers": bootstrap,
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
            continue  # the library asks again by itself; the demo ends by itself if nothing moves
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
