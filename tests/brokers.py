"""Fixtures that conftests import: one broker per engine for all tests of a run, and names that keep
its tests apart.

Tests that stop, kill or empty a broker start their own with
`kbroker.testing.broker.open_test_broker`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from importlib.metadata import entry_points
from typing import TypeAlias

import pytest

from kbroker.testing.broker import RunningBroker, open_test_broker

DURABLE_ENGINES = ("segment", "lmdb", "rocksdb", "sqlite")
"""`sqlite` is a plugin."""
ENGINES = (*DURABLE_ENGINES, "memory")
BrokerOf: TypeAlias = Callable[[str], RunningBroker]

_INSTALLED = {entry_point.name for entry_point in entry_points(group="kbroker.log_store")}


def require_engine(name: str) -> str:
    """Skips the test if the engine is a plugin that is not installed."""
    if name not in _INSTALLED:
        pytest.skip(f"storage engine {name} is not installed")
    return name


@pytest.fixture(scope="session")
def broker_config() -> Mapping[str, str]:
    """Settings of the brokers; a conftest may override it."""
    return {}


@pytest.fixture(scope="session")
def broker_of(broker_config: Mapping[str, str]) -> Iterator[BrokerOf]:
    """A running broker on the named engine, the same one for all tests: `broker_of("lmdb")`."""
    brokers: dict[str, RunningBroker] = {}
    with ExitStack() as stack:

        def running(engine: str) -> RunningBroker:
            if engine not in brokers:
                brokers[engine] = stack.enter_context(
                    open_test_broker(storage=require_engine(engine), config=dict(broker_config))
                )
            return brokers[engine]

        yield running


@pytest.fixture
def engine() -> str:
    """Tests of every engine parametrize this."""
    return "segment"


@pytest.fixture
def broker(broker_of: BrokerOf, engine: str) -> RunningBroker:
    return broker_of(engine)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for topics and groups that no other test uses."""
    return re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")
