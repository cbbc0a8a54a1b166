"""Bounds on connections that hold against strangers: the open files of the process, and one address
under two spellings."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kbroker.client.admin import create_topic
from kbroker.server import connection_limits
from kbroker.server.connection_limits import ConnectionLimits
from kbroker.settings.altering import BrokerConfig
from kbroker.testing.broker import free_port, open_test_broker
from tests.server.test_admin_http import admin_of
from tests.server.test_limits import API_VERSIONS_0, ask

FILES = 128
FEW_FILES = ["sh", "-c", f'ulimit -n {FILES} && exec "$0" -m kbroker "$@"', sys.executable]


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connected(address: tuple[str, int], sockets: ExitStack) -> socket.socket:
    return sockets.enter_context(socket.create_connection(address, timeout=20))


def is_refused(address: tuple[str, int]) -> bool:
    with socket.create_connection(address, timeout=20) as sock:
        try:
            sock.sendall(API_VERSIONS_0)
            return sock.recv(1) == b""
        except ConnectionError:
            return True


def test_connections_leave_files_to_the_storage_engine(sockets: ExitStack) -> None:
    """Without that an engine that cannot create a file would take no more writes."""
    with open_test_broker(command=FEW_FILES) as broker, broker.connect() as administrator:
        address = (broker.host, broker.port)
        for _ in range(FILES // 2 - 1):
            ask(connected(address, sockets))
        for _ in range(FILES):
            assert is_refused(address)
        create_topic(administrator, "orders", partitions=3)
        lines = [each for each in broker.logs().splitlines() if "ulimit -n" in each]
        assert len(lines) == 1, lines


def test_connections_to_the_admin_endpoint_leave_files_to_the_stores(sockets: ExitStack) -> None:
    """Regression: it took up to 50 connections, whatever the process may open."""
    few = open_test_broker(command=FEW_FILES, extra_args=["--admin", "0"])
    with few as broker, broker.connect() as administrator:
        for _ in range(FILES // 2 - 1):
            connected((broker.host, broker.port), sockets)
        for _ in range(50):
            connected(admin_of(broker), sockets)
        create_topic(administrator, "orders", partitions=3)
        assert "Too many open files" not in broker.logs()


def test_an_address_has_one_spelling(sockets: ExitStack) -> None:
    """Clients with IPv4 addresses may come to an IPv6 socket. The limit counts them together."""
    port, other = free_port(), free_port()
    config = {
        "listeners": f"A://127.0.0.1:{port},B://[::ffff:127.0.0.1]:{other}",
        "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
        "max.connections.per.ip.overrides": "127.0.0.1:2",
    }
    with open_test_broker(storage="memory", config=config, port=port) as broker:
        ask(connected(("127.0.0.1", other), sockets))
        ask(connected(("127.0.0.1", port), sockets))
        assert is_refused(("127.0.0.1", other))
        assert is_refused(("127.0.0.1", port))
        assert "::ffff:" not in broker.logs().partition("ready on")[2].partition("\n")[2]


def test_the_limits_of_addresses_are_read_when_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be thousands, and every new connection asks for one."""
    name, read = "max.connections.per.ip.overrides", []
    parse = connection_limits.per_ip_overrides

    def counting(texts: tuple[str, ...]) -> dict[str, int]:
        read.append(texts)
        return parse(texts)

    monkeypatch.setattr(connection_limits, "per_ip_overrides", counting)
    config = BrokerConfig.load(overrides={name: "10.0.0.1:1,[::ffff:10.0.0.2]:2"})
    limits = ConnectionLimits(config, lambda _: True)
    for host in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
        limits.add(host)
    hosts = ("10.0.0.1", "10.0.0.2", "10.0.0.3") * 5
    assert [limits.exceeded(host) is not None for host in hosts] == [True, False, False] * 5
    config.set_dynamic({}, {name: "10.0.0.3:1"})
    assert [limits.exceeded(host) is not None for host in hosts] == [False, False, True] * 5
    assert read == [("10.0.0.1:1", "[::ffff:10.0.0.2]:2"), ("10.0.0.3:1",)]
