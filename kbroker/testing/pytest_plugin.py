"""The pytest plugin that comes with kbroker: the `kbroker` fixture is a real broker for anybody's test suite.

    def test_orders(kbroker):
        kbroker.create_topic("orders")
        kbroker.set_group_config("workers", {"share.auto.offset.reset": "earliest"})
        producer = confluent_kafka.Producer({"bootstrap.servers": kbroker.bootstrap})

The object is a `kbroker.testing.broker.RunningBroker`. Each test gets a broker of its own in an empty directory; with the ini
option `kbroker_scope = session` (or module, class, package) one is shared. `--kbroker-storage` chooses the engine.

This file is imported in every pytest run of the environment, so it imports nothing of kbroker before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import pytest

if TYPE_CHECKING:
    from kbroker.testing.broker import RunningBroker

Scope: TypeAlias = Literal["session", "package", "module", "class", "function"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kbroker", "a real kbroker for tests")
    group.addoption("--kbroker-storage", default="segment", metavar="ENGINE", help="engine of the kbroker fixture (default: segment)")
    parser.addini("kbroker_scope", "scope of the kbroker fixture: function, class, module, package or session", default="function")


def _scope(fixture_name: str, config: pytest.Config) -> Scope:
    return cast("Scope", config.getini("kbroker_scope"))


@pytest.fixture(scope=_scope)
def kbroker(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    """A running broker: `.bootstrap`, `.data_dir`, `.restart()`, `.kill()`, `.logs()`, `.create_topic()`, `.set_group_config()`."""
    from kbroker.testing.broker import open_test_broker

    with open_test_broker(storage=request.config.getoption("--kbroker-storage")) as broker:
        yield broker
