"""The pytest plugin of kbroker: the fixture `kbroker` gives any test suite a real broker.

    def test_orders(kbroker):
        kbroker.create_topic("orders")
        kbroker.set_group_config("workers", {"share.auto.offset.reset": "earliest"})
        producer = confluent_kafka.Producer({"bootstrap.servers": kbroker.bootstrap})

The fixture's value is a `kbroker.testing.broker.RunningBroker`. Each test gets its own broker in an
empty directory. With the ini option `kbroker_scope = session` (or module, class, package) tests
share one. While it runs, every `App` of the worker library connects to it, whatever address the app
was given. `--kbroker-storage` chooses the engine. With the ini option `kbroker_protocol = SASL_SSL`
(or SSL, SASL_PLAINTEXT), or `--kbroker-protocol`, clients must log in: `kbroker.client_settings()`
has what they need. The report of a failing test, setup or teardown
shows what the brokers of `open_test_broker` logged during the test.

Every pytest run of the environment imports this file, so it imports nothing else of kbroker until a
test uses the fixture.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
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
    group.addoption(
        "--kbroker-protocol",
        choices=["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        help="protocol of the kbroker fixture's listener (default: kbroker_protocol of the ini file, or "
        "PLAINTEXT)",
    )
    parser.addini(
        "kbroker_protocol",
        "protocol of the kbroker fixture's listener: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
        default="PLAINTEXT",
    )
    parser.addini(
        "kbroker_scope",
        "scope of the kbroker fixture: function, class, module, package or session",
        default="function",
    )


def _broker_logs() -> BrokerLogs | None:
    """None until a test uses a broker, because the module is not imported before."""
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
    """Adds the log of each broker to the report as a section, since pytest-xdist sends sections to
    the process that prints the report."""
    report = yield
    if report.failed and (logs := _broker_logs()):
        report.sections += [(f"log of the broker {address}", text) for address, text in logs.texts()]
    return report


def _scope(fixture_name: str, config: pytest.Config) -> Scope:
    return cast("Scope", config.getini("kbroker_scope"))


@pytest.fixture(scope=_scope)
def kbroker(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    """A running broker: `.bootstrap`, `.client_settings()`, `.data_dir`, `.restart()`, `.kill()`,
    `.logs()`, `.create_topic()`, `.set_group_config()`, `.create_user()`."""
    from kbroker.testing.broker import open_test_broker

    storage = request.config.getoption("--kbroker-storage")
    protocol = request.config.getoption("--kbroker-protocol") or request.config.getini("kbroker_protocol")
    with open_test_broker(storage=storage, protocol=protocol) as broker, _redirected_apps(broker):
        yield broker


def _redirected_apps(broker: RunningBroker) -> AbstractContextManager[None]:
    """The apps of workers, some of which may name the address of a broker in production."""
    if importlib.util.find_spec("kbroker_client") is None:
        return nullcontext()
    from kbroker.client.security import PLAINTEXT
    from kbroker.client.worker_security import client_security
    from kbroker_client import Security
    from kbroker_client.worker.redirection import redirected

    return redirected(broker.bootstrap, client_security(broker.security or PLAINTEXT) or Security())
