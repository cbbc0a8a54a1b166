"""The demo's broker, orders and consumers. They use only what a user has: the command line and a
Kafka client library.

    order            share     what a consumer of order-workers does
    good             the rest  accepts it
    flaky            4 %       releases it once, then accepts it
    expired card     0.5 %     releases it until its deliveries are exhausted: a dead letter
                               ("exhausted"); only three customers have such orders
    poison           0.4 %     rejects it at once, as it is not JSON: a dead letter ("rejected")

The orders come from a fixed seed, so each run has the same. This module must not know the jobs.
"""

from __future__ import annotations

import json
import random
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kbroker_pipeline.exits import CommandFailed

if TYPE_CHECKING:
    from confluent_kafka import AcknowledgeType, Message

ORDERS, DEAD_LETTERS = "orders", "dlq.orders"
WORKERS, MAILER = "order-workers", "mailer"
PARTITIONS: Final = 4
DELIVERY_LIMIT: Final = 5
SEED: Final = 932
_ITEMS = ("keyboard", "lamp", "desk", "chair", "monitor", "notebook", "pen", "cable")
_EXPIRED = ("customer-0013", "customer-0042", "customer-0077")
_READY = "kbroker ready on "
_PATIENCE_S: Final = 60.0
_IDLE_POLLS: Final = 4


@contextmanager
def broker(data_dir: Path, storage: str) -> Iterator[str]:
    """`kbroker start` in a separate process. Yields its address, and stops it at the end. Raises
    CommandFailed."""
    command = [
        sys.executable,
        "-m",
        "kbroker",
        "start",
        "--data-dir",
        str(data_dir),
        "--storage",
        storage,
        "--listen",
        "127.0.0.1:0",
    ]
    log = data_dir.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output, text=True
        )
    try:
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], _PATIENCE_S)
        line = process.stdout.readline() if readable else ""
        if not line.startswith(_READY):
            raise CommandFailed(f"the broker did not start: see {log}")
        yield line.removeprefix(_READY).split()[0]
        process.terminate()
        if process.wait(_PATIENCE_S) != 0:
            raise CommandFailed(f"the broker ended with exit code {process.returncode}: see {log}")
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def prepare(bootstrap: str) -> None:
    """Creates the topics and configures the groups."""
    _kbroker(bootstrap, "topics", "create", ORDERS, "--partitions", str(PARTITIONS))
    _kbroker(
        bootstrap, "topics", "create", DEAD_LETTERS, "--config", "errors.deadletterqueue.group.enable=true"
    )
    _kbroker(
        bootstrap, "configs", "set", "--group", WORKERS, "share.auto.offset.reset=earliest",
        f"share.delivery.count.limit={DELIVERY_LIMIT}",
        f"errors.deadletterqueue.topic.name={DEAD_LETTERS}", "errors.deadletterqueue.copy.record.enable=true",
    )  # fmt: skip
    _kbroker(bootstrap, "configs", "set", "--group", MAILER, "share.auto.offset.reset=earliest")


def _kbroker(bootstrap: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kbroker", *arguments, "--bootstrap-server", bootstrap],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise CommandFailed(f"kbroker {' '.join(arguments[:2])}: {done.stderr.strip()}")


def orders(first: int, count: int) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of orders, by number."""
    for number in range(first, first + count):
        chance = random.Random(SEED * 1_000_003 + number)
        fate = chance.random()
        expired = fate < 0.005
        customer = (
            chance.choices(_EXPIRED, (6, 3, 1))[0] if expired else f"customer-{chance.randrange(2000):04}"
        )
        card = "expired" if expired else "ok after retry" if fate < 0.045 else "ok"
        order = {
            "order": number,
            "customer": customer,
            "item": chance.choice(_ITEMS),
            "cents": chance.randrange(100, 50_000),
            "card": card,
        }
        line = json.dumps(order, separators=(",", ":")).encode()
        yield customer.encode(), line[: len(line) // 2] if fate > 0.996 else line


def produce(bootstrap: str, first: int, count: int) -> None:
    """Produces orders and returns when all are confirmed. Raises CommandFailed."""
    from confluent_kafka import Producer

    failed: list[str] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
    )
    for key, value in orders(first, count):
        producer.produce(
            ORDERS,
            value,
            key,
            on_delivery=lambda error, _: failed.append(error.str()) if error is not None else None,
        )
        producer.poll(0)
    if producer.flush(_PATIENCE_S) or failed:
        raise CommandFailed(f"the orders were not confirmed: {failed[0] if failed else 'no response'}")


def worker(message: Message) -> AcknowledgeType:
    """How order-workers acknowledge an order."""
    from confluent_kafka import AcknowledgeType

    try:
        order = json.loads(message.value() or b"")
    except ValueError:
        return AcknowledgeType.REJECT
    if order["card"] == "expired" or (
        order["card"] == "ok after retry" and (message.delivery_count() or 1) < 2
    ):
        return AcknowledgeType.RELEASE
    return AcknowledgeType.ACCEPT


def mailer(message: Message) -> AcknowledgeType:
    """How mailer acknowledges an order: it accepts most at once, and one in 25 at the third
    delivery."""
    from confluent_kafka import AcknowledgeType

    again = (message.offset() or 0) % 25 == 0 and (message.delivery_count() or 1) < 3
    return AcknowledgeType.RELEASE if again else AcknowledgeType.ACCEPT


def consume(
    bootstrap: str, group: str, decide: Callable[[Message], AcknowledgeType], most: int | None = None
) -> int:
    """Runs one share consumer until no more records arrive, or until it has finished `most`.
    Returns the number of deliveries."""
    from confluent_kafka import AcknowledgeType, ShareConsumer

    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
        "log_level": 0,
    }
    consumer = ShareConsumer(settings)
    deliveries = finished = idle = 0
    try:
        consumer.subscribe([ORDERS])
        while idle < _IDLE_POLLS and (most is None or finished < most):
            messages = [message for message in consumer.poll(1.0) if message.error() is None]
            idle = 0 if messages else idle + 1
            for message in messages:
                verdict = decide(message)
                finished += verdict is not AcknowledgeType.RELEASE
                consumer.acknowledge(message, verdict)
            deliveries += len(messages)
            if messages:
                consumer.commit_sync()
    finally:
        consumer.close()
    return deliveries
