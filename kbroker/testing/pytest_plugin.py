"""The pytest plugin that comes with kbroker: the `kbroker` fixture is a real broker for anybody's
test suite.

    def test_orders(kbroker):
        kbroker.create_topic("orders")
        kbroker.set_group_config("workers", {"share.auto.offset.reset": "earliest"})
        producer = confluent_kafka.Producer({"bootstrap.servers": kbroker.bootstrap})

The object is a `kbroker.testing.broker.RunningBroker`. Each test gets a broker of its own in an
empty directory; with the ini option `kbroker_scope = session` (or module, class, package) one is
shared. `--kbroker-storage` chooses the engine. The report of a failing test, setup or teardown has
the end of what the brokers of `open_test_broker` logged during the test.

This file is imported in every pytest run of the environment, so it imports nothing of kbroker
before a test asks for it.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import pytest

if TYPE_CHECKING:
    from kbroker.testing.broker import RunningBroker
    from kbroker.testing.broker_logs import BrokerLogs

Scope: TypeAlias = Literal["session", "package", "module", "class", "function"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kbroker", "a real kbroker for tests")
    group.addoption(
        "--kbroker-storage",
        default="segment",
        metavar="ENGINE",
        help="engine of the kbroker fixture (default: segment)",
    )
    parser.addini(
        "kbroker_scope",
        "scope of the kbroker fixture: function, class, module, package or session",
        default="function",
    )


def _broker_logs() -> BrokerLogs | None:
    """None while no test has asked for a broker: its module is then not even imported."""
    module = sys.modules.get("kbroker.testing.broker_logs")
    return None if module is None else cast("BrokerLogs", module.LOGS)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if logs := _broker_logs():
        logs.begin_test()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A section of the report for each broker, which pytest-xdist takes along to the process that
    prints it."""
    report = yield
    if report.failed and (logs := _broker_logs()):
        report.sections += [(f"log of the broker {address}", text) for address, text in logs.texts()]
    return report


def _scope(fixture_name: str, config: pytest.Config) -> Scope:
    return cast("Scope", config.getini("kbroker_scope"))


@pytest.fixture(scope=_scope)
def kbroker(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    """A running broker: `.bootstrap`, `.data_dir`, `.restart()`, `.kill()`, `.logs()`,
    `.create_topic()`, `.set_group_config()`."""
    from kbroker.testing.broker import open_test_broker

    with open_test_broker(storage=request.config.getoption("--kbroker-storage")) as broker:
        yield broker
