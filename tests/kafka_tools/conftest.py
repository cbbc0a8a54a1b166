"""A broker on each engine, and Apache Kafka's tools to run against it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.brokers import DURABLE_ENGINES, require_engine
from tests.kafka_tools.java import CONFIGS, CONSOLE_PRODUCER, TOPICS, Ended, Tool, run


@pytest.fixture(scope="module", params=DURABLE_ENGINES)
def broker(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    with ExitStack() as stack:
        yield stack.enter_context(open_test_broker(storage=require_engine(request.param)))


@pytest.fixture
def tool(broker: RunningBroker) -> Tool:
    """Runs a tool against the broker; it must exit with 0."""

    def call(main: str, *arguments: str, given: str = "") -> Ended:
        ended = run(main, "--bootstrap-server", broker.bootstrap, *arguments, given=given)
        assert ended.code == 0, ended
        assert "Exception" not in ended.errors, ended
        return ended

    return call


@pytest.fixture
def filled(tool: Tool, request: pytest.FixtureRequest) -> str:
    """A topic with two partitions and 20 records, and a group of the same name that begins at its
    start."""
    name = re.sub(r"\W+|_", "-", request.node.name.removeprefix("test_")).strip("-")
    assert f"Created topic {name}." in tool(TOPICS, "--create", "--topic", name, "--partitions", "2").lines
    tool(CONSOLE_PRODUCER, "--topic", name, given="".join(f"value-{number}\n" for number in range(20)))
    tool(
        CONFIGS,
        "--entity-type",
        "groups",
        "--entity-name",
        name,
        "--alter",
        "--add-config",
        "share.auto.offset.reset=earliest",
    )
    return name
