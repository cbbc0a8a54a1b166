"""Consumer groups for tests of commands: members that stay, committed offsets, and the brokers that
such tests run on."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer

from kbroker.client import consumer_group_admin
from kbroker.client.group_admin import TopicPartition
from kbroker.testing.broker import RunningBroker

ON_EACH_ENGINE = pytest.mark.parametrize(
    "broker",
    [
        "segment",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("lmdb", "rocksdb", "sqlite", "memory")),
    ],
    indirect=True,
)
PROTOCOLS = ("classic", "consumer")
EITHER_PROTOCOL = ("classic", pytest.param("consumer", marks=pytest.mark.full))
"""For tests that start processes, which are slow: both protocols in the full run only."""
PATIENCE_S = 60.0
T = TypeVar("T")


def until(what: str, found: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if (result := found()) is not None:
            return result
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {PATIENCE_S} s")


def commit(broker: RunningBroker, group: str, offsets: Mapping[tuple[str, int], int]) -> str:
    """Commit offsets of a group without members."""
    with broker.connect() as connection:
        assert (
            consumer_group_admin.commit_offsets(
                connection, group, {TopicPartition(*at): each for at, each in offsets.items()}
            )
            == {}
        )
    return group


def committed(broker: RunningBroker, group: str) -> dict[tuple[str, int], int]:
    with broker.connect() as connection:
        return {
            tuple(at): each.offset
            for at, each in consumer_group_admin.committed_offsets(connection, group).items()
        }


@contextmanager
def member(
    broker: RunningBroker, group: str, topic: str, protocol: str = "classic", **settings: Any
) -> Iterator[Consumer]:
    """A member that has its partitions; its library keeps it alive without polls."""
    names = {name.replace("_", "."): value for name, value in settings.items()}
    config = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "enable.auto.commit": False,
        **names,
    }
    consumer = Consumer(config)
    try:
        consumer.subscribe([topic])

        def assigned() -> object:
            consumer.poll(0.05)
            return consumer.assignment() or None

        until(f"{group} has a member with partitions", assigned)
        yield consumer
    finally:
        consumer.close()


@contextmanager
def consuming(broker: RunningBroker, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`kbroker consume` in a separate process, killed if it lives for very long."""
    command = [sys.executable, "-m", "kbroker", "consume", *arguments, "-b", broker.bootstrap]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children of background jobs ignore it
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(PATIENCE_S, process.kill)  # so that no read blocks forever
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()
