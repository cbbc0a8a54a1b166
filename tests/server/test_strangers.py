"""Clients on the wrong port: the log names their protocol and their port, once; curl shows a
sentence."""

from __future__ import annotations

import http.client
import random
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import closing

import pytest

from kbroker.cli import run
from kbroker.cli.exits import UNREACHABLE
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.server.test_admin_http import admin_of
from tests.server.test_garbage import API_VERSIONS, BAD_FRAMES, METADATA, assert_serving, frame, is_closed


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with open_test_broker(extra_args=["--admin", "0"]) as running:
        yield running


def warnings_of(broker: RunningBroker) -> list[str]:
    return [line.partition(" WARNING ")[2] for line in broker.logs().splitlines() if " WARNING " in line]


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE"]
)
def test_http_at_the_kafka_port_is_told_where_it_belongs(broker: RunningBroker, method: str) -> None:
    host, port = admin_of(broker)
    with closing(http.client.HTTPConnection(broker.host, broker.port, timeout=30)) as client:
        client.request(method, "/metrics")
        answer = client.getresponse()
        text = answer.read().decode()
    assert (answer.status, answer.getheader("content-type"), answer.will_close) == (
        400,
        "text/plain; charset=utf-8",
        True,
    )
    said = (
        "his port speaks the Kafka protocol, not HTTP; metrics and records in flight are served "
        f"over HTTP at http://{host}:{port}/ (--admin)"
    )
    assert text == ("" if method == "HEAD" else f"T{said}.\n")
    assert [line for line in warnings_of(broker) if f"it sent an HTTP request; t{said}" in line]
    assert_serving(broker)


def test_http_without_an_admin_port_is_told_how_to_have_one() -> None:
    with (
        open_test_broker() as broker,
        closing(http.client.HTTPConnection(broker.host, broker.port, timeout=30)) as client,
    ):
        client.request("GET", "/")
        assert b"with kbroker start --admin PORT." in client.getresponse().read()


@pytest.mark.parametrize("at_admin", [False, True])
def test_tls_is_recognised(broker: RunningBroker, at_admin: bool) -> None:
    address = admin_of(broker) if at_admin else (broker.host, broker.port)
    context = ssl.create_default_context()
    with socket.create_connection(address, timeout=30) as sock, pytest.raises(ssl.SSLError):
        context.wrap_socket(sock, server_hostname="localhost")
    (line,) = warnings_of(broker)
    assert "it began a TLS handshake, and there is no TLS here" in line
    assert ("use http://" if at_admin else "set security.protocol=PLAINTEXT") in line
    assert_serving(broker)


def test_a_kafka_client_at_the_admin_port_is_told_where_it_belongs(broker: RunningBroker) -> None:
    for _ in range(2):
        with socket.create_connection(admin_of(broker), timeout=30) as sock:
            sock.sendall(frame(API_VERSIONS, 0, b""))
            assert is_closed(sock)
    (line,) = warnings_of(broker)
    assert line.endswith(
        "it speaks the Kafka protocol, and this is the admin port (HTTP): "
        f"set bootstrap.servers={broker.host}:{broker.port} in this client"
    )


def test_what_is_no_protocol_at_the_admin_port_is_no_warning(broker: RunningBroker) -> None:
    with socket.create_connection(admin_of(broker), timeout=30) as sock:
        sock.sendall(b"\x00\x00\x00\x09\x7f\xff nonsense\r\n\r\n")
        assert is_closed(sock)
    assert warnings_of(broker) == []


def knock(broker: RunningBroker, *sent: bytes) -> None:
    """Each over its own connection, which the broker closes."""
    for each in sent:
        with socket.create_connection((broker.host, broker.port), timeout=30) as sock:
            sock.sendall(each)
            assert is_closed(sock)


def test_those_who_come_again_and_again_do_not_fill_the_log(broker: RunningBroker) -> None:
    """One line for each kind. Numbers chosen by a client do not make a new kind, so that a really
    new one is logged at once."""
    for _ in range(30):
        knock(broker, BAD_FRAMES["http"], BAD_FRAMES["size 0"], b"\x16\x03\x01\x02\x00\x01")
    assert len(warnings_of(broker)) == 3
    dice = random.Random(7)
    knock(broker, *(bytes([dice.randrange(7, 256)]) + dice.randbytes(20) for _ in range(100)))
    assert len(warnings_of(broker)) == 3, "random bytes are the same kind as a frame of size 0"
    for number in range(1000, 1030):
        knock(
            broker,
            frame(number, 0, b""),
            frame(METADATA, number, b""),
            frame(METADATA, 1, struct.pack(">i", number)),
        )
    lines = warnings_of(broker)[3:]
    assert len(lines) == 3
    for part in ("unknown api key 1000", "metadata version 1000 is not served", "malformed request: "):
        assert any(part in line for line in lines), part
    assert_serving(broker)


def test_an_api_that_is_not_served_is_named(broker: RunningBroker) -> None:
    """With the client: somebody has to configure it."""
    payload = struct.pack(">hhih", 64, 0, 1, 3) + b"cli"
    knock(broker, struct.pack(">i", len(payload)) + payload, frame(64, 0, b""), frame(88, 0, b""))
    first, other = warnings_of(broker)
    assert first.endswith(
        "UnregisterBroker (API 64) is not served (there is no cluster to leave), from client cli"
    )
    assert "StreamsGroupHeartbeat (API 88) is not served" in other
    assert_serving(broker)


@pytest.mark.parametrize(
    ("sent", "protocol"),
    [(b"AMQP\0\0\x09\x01", "AMQP (RabbitMQ)"), (b"SSH-2.0-x\r\n", "SSH"), (b"*1\r\n$4\r\nPING\r\n", "Redis")],
)
def test_other_protocols_are_named(broker: RunningBroker, sent: bytes, protocol: str) -> None:
    knock(broker, sent, sent, BAD_FRAMES["size 0"])
    named, other = warnings_of(broker)
    assert named.endswith(f"it speaks {protocol}, and this port speaks the Kafka protocol")
    assert "frame size 0 is not between" in other
    assert_serving(broker)


def test_commands_at_the_admin_port_say_so(broker: RunningBroker, capsys: pytest.CaptureFixture[str]) -> None:
    host, port = admin_of(broker)
    assert run(["topics", "list", "-b", f"{host}:{port}"]) == UNREACHABLE
    assert capsys.readouterr().err == (
        f"kbroker: {host}:{port} is an HTTP port, not a Kafka broker's; is it the admin port? "
        "give the address of --listen instead\n"
    )
