"""Real clients against one broker per engine (`tests.brokers`).

Tests poll for the expected state under a deadline far longer than it should take: a slow machine
makes a test slow but does not make it fail.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.testing.broker import RunningBroker
from tests.brokers import broker, broker_config, broker_of, engine, name
from tests.clients.drivers import DRIVERS, Driver
from tests.clients.share_workers import Crew, open_crew

__all__ = ["broker", "broker_config", "broker_of", "engine", "name"]


@pytest.fixture(params=sorted(DRIVERS))
def driver(request: pytest.FixtureRequest) -> Driver:
    return DRIVERS[request.param]


@pytest.fixture
def crew(broker: RunningBroker) -> Iterator[Crew]:
    with open_crew(broker) as crew:
        yield crew
