"""One broker for all workloads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.testing.broker import RunningBroker, open_test_broker


@pytest.fixture(scope="session")
def broker() -> Iterator[RunningBroker]:
    with open_test_broker(storage="segment", durability="os") as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: RunningBroker) -> str:
    """A new topic of two partitions, named after the test."""
    name = request.node.name.replace("[", ".").replace("]", "")
    broker.create_topic(name, partitions=2)
    return name


@pytest.fixture
def group(request: pytest.FixtureRequest, broker: RunningBroker) -> str:
    """A share group that begins at the earliest record."""
    broker.set_group_config("workers." + request.node.name, {"share.auto.offset.reset": "earliest"})
    return "workers." + request.node.name
