"""One broker for all workloads, and a way to run the command that measures it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from kbroker.testing.broker import RunningBroker, open_test_broker
from perf.workloads.command import workloads
from tests.cli.conftest import Command, command

__all__ = ["command"]

PROGRAM = "python -m perf.workloads"


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


@pytest.fixture
def measure(command: Command) -> Command:
    """Runs a command of perf.workloads against the broker, in this process."""
    return partial(command, root=workloads, program=PROGRAM)
