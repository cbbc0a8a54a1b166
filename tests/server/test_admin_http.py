"""The admin HTTP endpoint: its views, access control, limits, and that no client can block or end
the broker through it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import pytest
import trio

from kbroker.server import admin_http
from kbroker.server.admin_http import AdminHttp
from kbroker.server.admin_requests import HttpAnswer, HttpPeer, HttpRefusal, HttpRequest, View, json_answer
from kbroker.server.run import bind
from kbroker.testing.broker import RunningBroker, open_test_broker

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def admin_of(broker: RunningBroker) -> tuple[str, int]:
    host, _, port = broker.ready_line.rpartition("admin http://")[2].rstrip(")").rpartition(":")
    return host, int(port)


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with open_test_broker(extra_args=["--admin", "0"]) as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[http.client.HTTPConnection]:
    with closing(http.client.HTTPConnection(*admin_of(broker), timeout=30)) as connection:
        yield connection


def ask(
    client: http.client.HTTPConnection, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    client.request(method, path, headers=headers)
    answer = client.getresponse()
    return answer, answer.read()


def test_views_over_one_connection(client: http.client.HTTPConnection) -> None:
    answer, body = ask(client, "/")
    assert (answer.status, answer.reason) == (200, "OK")
    assert set(json.loads(body)["views"]) == {
        "/metrics",
        "/v1/share-groups/GROUP/inflight",
        "/v1/users",
        "POST /v1/users/USER/disconnect",
    }
    sock = client.sock
    answer, body = ask(client, "/metrics")
    assert (answer.status, answer.getheader("content-type")) == (
        200,
        "text/plain; version=0.0.4; charset=utf-8",
    )
    assert b"\nkbroker_connections 0.0\n" in body
    answer, body = ask(client, "/metrics", Accept="application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    answer, body = ask(client, "/v1/share-groups/a%2Fb/inflight")
    assert (answer.status, json.loads(body)) == (404, {"error": "there is no share group a/b"})
    assert client.sock is sock, "kept alive"


def test_head_is_the_same_without_a_body(client: http.client.HTTPConnection) -> None:
    for path in ("/", "/metrics", "/nothing"):
        answer, body = ask(client, path)
        head, nothing = ask(client, path, "HEAD")
        assert (head.status, nothing) == (answer.status, b"")
        assert head.getheader("content-type") == answer.getheader("content-type")
        assert head.getheader("content-length") in (None, str(len(body)))


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1", "/v1/share-groups/g", "/metrics/x", "/v1/share-groups/g/inflight/x"]
)
def test_unknown_paths(client: http.client.HTTPConnection, path: str) -> None:
    answer, body = ask(client, path)
    assert (answer.status, body.count(b"\n")) == (404, 1)
    assert "error" in json.loads(body)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"])
def test_other_methods(client: http.client.HTTPConnection, method: str) -> None:
    answer, body = ask(client, "/metrics", method)
    assert (answer.status, answer.getheader("allow"), body.count(b"\n")) == (405, "GET, HEAD", 1)


def test_a_body_is_not_read_and_ends_the_connection(broker: RunningBroker) -> None:
    request = (
        b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000 + GET
    )
    assert [status for status, _ in exchange(admin_of(broker), request)] == [405]


HOSTS = [
    ("localhost", 200),
    ("LOCALHOST:9644", 200),
    ("localhost.", 200),
    ("127.0.0.1", 200),
    ("127.0.0.1:1", 200),
    ("[::1]", 200),
    ("[::1]:9644", 200),
    ("evil.example", 403),
    ("localhost.evil.example", 403),
    ("127.0.0.1.evil.example", 403),
    ("10.0.0.1", 403),
    ("evil.example:9644", 403),
    ("localhost@evil.example", 403),
    ("localhost:evil.example", 403),
    ("localhost:1:2", 403),
    ("[::1]evil.example", 403),
    ("[]", 403),
    ("", 403),
    ("[", 403),
]


@pytest.mark.parametrize(("host", "status"), HOSTS)
def test_the_host_header_tells_pages_of_other_names_apart(
    client: http.client.HTTPConnection, host: str, status: int
) -> None:
    for path in ("/metrics", "/v1/share-groups/g/inflight"):
        answer, body = ask(client, path, Host=host)
        assert answer.status == (status if path == "/metrics" or status != 200 else 404)
        assert b"kbroker_connections" in body or "error" in json.loads(body)
        assert not [name for name, _ in answer.getheaders() if name.lower().startswith("access-control-")]


def test_old_clients_and_several_requests_at_once(broker: RunningBroker) -> None:
    last = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    for sent, statuses in (
        (b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n" + GET, [200]),
        (b"GET / HTTP/1.0\r\n\r\n", [403]),
        (GET * 3 + last + GET, [200] * 4),
    ):
        assert [status for status, _ in exchange(admin_of(broker), sent)] == statuses


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (admin_http.MAX_HEAD_BYTES + 1), 431),
        (b"\x00\x00\x00\x12\x00\x12\x00\x03garbage\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", 400),
        (b"GET http://localhost/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (
            b"POST /log-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET,
            400,
        ),
    ],
)
def test_what_is_no_request(broker: RunningBroker, request_bytes: bytes, status: int) -> None:
    close = (
        request_bytes.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        if status == 400
        else request_bytes
    )
    assert [code for code, _ in exchange(admin_of(broker), close)] == [status]


def exchange(address: tuple[str, int], sent: bytes) -> list[tuple[int, bytes]]:
    """The answers to these bytes until the connection is closed: (status, body) each."""
    with socket.create_connection(address, timeout=30) as sock:
        sock.sendall(sent)
        received = b""
        while part := sock.recv(65536):
            received += part
    answers = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        answers.append((int(head.split()[1]), rest[:length]))
        received = rest[length:]
    return answers


# -- starting and stopping
# --------------------------------------------------------------------------------------------------


def test_it_is_off_by_default() -> None:
    with open_test_broker() as broker:
        assert ", admin " not in broker.ready_line


def test_an_address_for_others_brings_a_warning_and_names_can_be_given() -> None:
    with open_test_broker(extra_args=["--admin", "0.0.0.0:0", "--admin-host", "Broker.Internal"]) as broker:
        with closing(http.client.HTTPConnection("127.0.0.1", admin_of(broker)[1], timeout=30)) as client:
            for host, status in (
                ("broker.internal:9", 200),
                ("0.0.0.0", 200),
                ("127.0.0.1", 200),
                ("elsewhere", 403),
            ):
                assert ask(client, "/", Host=host)[0].status == status
        assert "sends passwords and tokens in clear: set kbroker.admin.protocol=SSL" in broker.logs()


def test_a_stopping_broker_does_not_wait_for_idle_connections(broker: RunningBroker) -> None:
    with open_test_broker(extra_args=["--admin", "0"]) as stopped:
        client = http.client.HTTPConnection(*admin_of(stopped), timeout=30)
        with closing(client), socket.create_connection(admin_of(stopped)) as silent:
            ask(client, "/")
            silent.sendall(GET[:10])
            os.kill(stopped.pid, signal.SIGTERM)
            assert stopped.wait() == 0
            assert "accept" not in stopped.logs()


def test_an_address_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        admin = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [
            sys.executable,
            "-m",
            "kbroker",
            "start",
            "--data-dir",
            str(tmp_path / "data"),
            "--listen",
            "127.0.0.1:0",
        ]
        result = subprocess.run(
            [*command, "--admin", admin], capture_output=True, text=True, timeout=60, check=False
        )
    assert (result.returncode, len(result.stderr.strip().splitlines())) == (4, 1)
    assert "choose another address with --admin" in result.stderr
    assert not (tmp_path / "data").exists()


# -- in this process, with views of the tests' own
# ------------------------------------------------------------------------------


@asynccontextmanager
async def serving(view: View) -> AsyncIterator[tuple[AdminHttp, partial[AsyncIterator[trio.SocketStream]]]]:
    """The server, and a function that opens connections to it."""
    listener = bind(("127.0.0.1", 0))
    server = AdminHttp(listener, view)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve)
        yield server, partial(trio.open_tcp_stream, *listener.getsockname())
        nursery.cancel_scope.cancel()


async def fine(_: HttpRequest) -> HttpAnswer:
    return json_answer("fine")


async def read_all(stream: trio.SocketStream) -> bytes:
    received = b""
    with trio.fail_after(30):
        while part := await stream.receive_some(1 << 20):
            received += part
    return received


async def read_answer(stream: trio.SocketStream, end: bytes = b"\n") -> bytes:
    """One short answer."""
    received = b""
    with trio.fail_after(30):
        while not received.endswith(end):
            part = await stream.receive_some(1 << 20)
            assert part, received
            received += part
    return received


async def test_an_error_in_a_view_is_its_requests_business(caplog: pytest.LogCaptureFixture) -> None:
    async def view(request: HttpRequest) -> HttpAnswer:
        if request.path == ("bug",):
            raise RuntimeError("a bug of ours")
        if request.path == ("refused",):
            raise HttpRefusal(410, "gone", ("x-why", "because"))
        return json_answer({"path": request.path, "query": dict(request.query)})

    async with serving(view) as (_, connect), await connect() as stream:
        await stream.send_all(GET.replace(b"/ ", b"/bug "))
        answer = await read_answer(stream)
        assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
        assert b"a bug of ours" not in answer
        assert "a bug of ours" in caplog.text
        await stream.send_all(GET.replace(b"/ ", b"/refused "))
        answer = await read_answer(stream)
        assert answer.startswith(b"HTTP/1.1 410 Gone\r\n")
        assert b"\r\nx-why: because\r\n" in answer
        await stream.send_all(GET.replace(b"/ ", b"/a%20b/c?x=1&x=2&y= "))
        assert json.loads((await read_answer(stream)).rpartition(b"\r\n")[2]) == {
            "path": ["a b", "c"],
            "query": {"x": "2", "y": ""},
        }


async def test_an_answer_that_breaks_off_is_seen_to(caplog: pytest.LogCaptureFixture) -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"a" * 100_000
        raise RuntimeError("in the middle")

    async def view(_: HttpRequest) -> HttpAnswer:
        return HttpAnswer("text/plain", pieces())

    async with serving(view) as (_, connect):
        async with await connect() as stream:
            await stream.send_all(GET)
            answer = await read_all(stream)
            assert answer.startswith(b"HTTP/1.1 200")
            assert not answer.endswith(b"\r\n0\r\n\r\n"), "the last chunk is missing"
            assert "in the middle" in caplog.text
        async with await connect() as stream:
            await stream.send_all(GET.replace(b"GET", b"HEAD"))
            assert (await read_answer(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_a_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_http, "IDLE_S", 0.2)
    async with (
        serving(fine) as (_, connect),
        await connect() as silent,
        await connect() as slow,
        await connect() as idle,
    ):
        await slow.send_all(GET[:-2])
        await idle.send_all(GET)
        assert await read_all(silent) == b""
        assert (await read_all(slow)).startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert (await read_all(idle)).endswith(b'"fine"\n')


async def test_a_reader_that_takes_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admin_http, "ANSWER_S", 0.2)

    async def endless() -> AsyncGenerator[bytes, None]:
        while True:
            yield b"x" * 100_000

    async def view(_: HttpRequest) -> HttpAnswer:
        return HttpAnswer("text/plain", endless())

    async with serving(view) as (_, connect), await connect() as stream:
        await stream.send_all(GET)
        with trio.fail_after(10):
            while "was aborted" not in caplog.text:
                await trio.lowlevel.checkpoint()
        assert not (await read_all(stream)).endswith(b"0\r\n\r\n")


async def test_too_many_connections_are_refused_and_come_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_http, "MAX_CONNECTIONS", 2)
    async with serving(fine) as (_, connect):
        async with await connect() as first, await connect() as second:
            for stream in (first, second):
                await stream.send_all(GET)
                await read_answer(stream)
            async with await connect() as third:
                assert await read_all(third) == b""
        with trio.fail_after(30):
            while True:
                async with await connect() as stream:
                    await stream.send_all(GET)
                    if await stream.receive_some(1000):
                        break


async def test_refused_connections_make_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admin_http, "MAX_CONNECTIONS", 1)
    async with serving(fine) as (_, connect), await connect() as first:
        await first.send_all(GET)
        await read_answer(first)
        for _ in range(20):
            async with await connect() as refused:
                assert await read_all(refused) == b""
    assert len([each for each in caplog.messages if "1 are open" in each]) == 1


async def test_one_other_machine_leaves_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_http, "MAX_OF_ADDRESS", 1)
    far = HttpPeer("192.0.2.1", "192.0.2.2", is_local=False)
    monkeypatch.setattr(admin_http, "_client_of", lambda _: far)
    async with serving(fine) as (_, connect), await connect() as first:
        await first.send_all(GET)
        await read_answer(first)
        async with await connect() as refused:
            assert await read_all(refused) == b""
        far = far._replace(host="192.0.2.3")
        async with await connect() as other:
            await other.send_all(GET.replace(b"localhost", b"192.0.2.2"))
            await read_answer(other)


async def test_an_answer_under_way_is_given_before_the_end() -> None:
    asked, go_on = trio.Event(), trio.Event()

    async def view(_: HttpRequest) -> HttpAnswer:
        asked.set()
        await go_on.wait()
        return json_answer("fine")

    async with serving(view) as (server, connect), await connect() as stream, await connect() as idle:
        await stream.send_all(GET)
        await asked.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.stop, 30)
            assert await read_all(idle) == b""
            go_on.set()
            answer = await read_all(stream)
        assert b"\r\nconnection: close\r\n" in answer.lower()
        assert answer.endswith(b'"fine"\n')


async def test_stopping_does_not_wait_for_ever(autojump_clock: trio.testing.MockClock) -> None:
    async def view(_: HttpRequest) -> HttpAnswer:
        await trio.sleep_forever()
        raise AssertionError

    async with serving(view) as (server, connect), await connect() as stream:
        await stream.send_all(GET)
        await server.stop(1.0)
