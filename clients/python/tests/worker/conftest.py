"""Common to the tests of workers: each async test runs under asyncio and under trio, at one broker
for all, in queues of its own."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator, Mapping

import pytest

from clients.python.tests.worker.queues import QUICK, NewQueue
from kbroker.testing.broker import RunningBroker, open_test_broker

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session", autouse=True)
def signals() -> None:
    """Programs that the tests start get SIGINT and SIGHUP, also if these tests are ignoring them:
    after nohup, or in the background of a script."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@pytest.fixture(scope="session")
def broker() -> Iterator[RunningBroker]:
    with open_test_broker(storage="memory", durability="os") as running:
        yield running


@pytest.fixture
def new_queue(broker: RunningBroker) -> NewQueue:
    """Makes a queue; returns its name."""

    def make(config: Mapping[str, str] | None = None) -> str:
        name = f"queue-{next(_NUMBERS)}"
        broker.create_queue(name, {**QUICK, **(config or {})})
        return name

    return make


@pytest.fixture
def queue(new_queue: NewQueue) -> str:
    return new_queue()
