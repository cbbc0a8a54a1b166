"""Brokers for the tests of the client: kbroker on each engine, and Apache Kafka in the long form.

Every test runs under asyncio and under trio.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from clients.python.tests.targets import KAFKA, SHORT_LOCKS, Target
from kbroker.testing.broker import open_test_broker
from tests.differential.apache_kafka import running_kafka

full = pytest.mark.full


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(
    scope="session",
    params=["memory", *(pytest.param(name, marks=full) for name in ("segment", "lmdb", "rocksdb", "kafka"))],
)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with ExitStack() as stack:
        if request.param == "kafka":
            home: Path = tmp_path_factory.mktemp("kafka")
            yield Target(stack.enter_context(running_kafka(home, KAFKA)), None)
        else:
            broker = stack.enter_context(open_test_broker(storage=request.param, config=SHORT_LOCKS))
            yield Target(broker.port, broker)
