"""One broker per engine for all tests of clients, started when a test first asks for it; tests keep apart by topic and group.

Tests that stop or kill a broker start their own. What is waited for is polled under a deadline that is far longer than it takes,
so a slow machine makes a test slow, not red.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import entry_points
from typing import TypeAlias

import pytest

from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.clients.drivers import DRIVERS, Driver
from tests.clients.share_workers import Crew, open_crew

DURABLE_ENGINES = ("segment", "lmdb", "rocksdb", "sqlite")
ENGINES = (*DURABLE_ENGINES, "memory")
BrokerOf: TypeAlias = Callable[[str], RunningBroker]

_INSTALLED = {entry_point.name for entry_point in entry_points(group="kbroker.log_store")}


def require_engine(name: str) -> str:
    """Skips the test where the engine is a plugin that is not installed."""
    if name not in _INSTALLED:
        pytest.skip(f"storage engine {name} is not installed")
    return name


@pytest.fixture(scope="session")
def broker_of() -> Iterator[BrokerOf]:
    brokers: dict[str, RunningBroker] = {}
    with ExitStack() as stack:

        def running(engine: str) -> RunningBroker:
            if engine not in brokers:
                brokers[engine] = stack.enter_context(open_test_broker(storage=require_engine(engine)))
            return brokers[engine]

        yield running


@pytest.fixture
def engine() -> str:
    """Tests that concern every engine parametrize this."""
    return "segment"


@pytest.fixture
def broker(broker_of: BrokerOf, engine: str) -> RunningBroker:
    return broker_of(engine)


@pytest.fixture(params=sorted(DRIVERS))
def driver(request: pytest.FixtureRequest) -> Driver:
    return DRIVERS[request.param]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for topics and groups that no other test uses."""
    return re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")


@pytest.fixture
def crew(broker: RunningBroker) -> Iterator[Crew]:
    with open_crew(broker) as crew:
        yield crew
