"""Documents over HTTPS and from files: every answer that is none is refused, in bounded time."""

from __future__ import annotations

import itertools
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from kbroker.client.fetching import FetchFailed, fetch
from tests.client.certificates import Certificates, make_certificates

LIMIT = 100_000
HEAD = b"HTTP/1.1 200 OK\r\n"
read = partial(fetch, limit_bytes=LIMIT, timeout_s=60)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(autouse=True)
def trusted(files: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))


class Received:
    content = b""


@contextmanager
def served(files: Certificates, parts: Iterable[bytes], pause_s: float = 0) -> Iterator[tuple[str, Received]]:
    """The URL of a server that takes one request and sends `parts`."""
    received = Received()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server)

    def serve() -> None:
        with suppress(OSError), context.wrap_socket(listener.accept()[0], server_side=True) as peer:
            while b"\r\n\r\n" not in received.content:
                received.content += peer.recv(65536)
            for part in parts:
                peer.sendall(part)
                time.sleep(pause_s)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"https://localhost:{listener.getsockname()[1]}/a/b?c=d", received
        finally:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        (HEAD + b"Content-Length: 3\r\n\r\nabc and more", b"abc"),
        (HEAD + b"\r\nuntil the end", b"until the end"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", b"abc"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 1\r\n\r\na", b"a"),
        (HEAD + b"Content-Length: 100000\r\n\r\n" + b"a" * LIMIT, b"a" * LIMIT),
    ],
)
def test_a_document(files: Certificates, answer: bytes, content: bytes) -> None:
    with served(files, [answer]) as (url, received):
        assert read(url) == content
    assert received.content.startswith(b"GET /a/b?c=d HTTP/1.1\r\nHost: localhost:")


def test_a_form(files: Certificates) -> None:
    with served(files, [HEAD, b"\r\nyes"]) as (url, received):
        assert read(url, form="a=b+c", headers={"Authorization": "Basic x"}) == b"yes"
    head, _, body = received.content.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /a/b?c=d HTTP/1.1\r\n")
    assert {b"Authorization: Basic x", b"Content-Length: 5"} <= set(head.split(b"\r\n"))
    assert body in (b"", b"a=b+c")


ENDLESS = {
    "content": (HEAD + b"\r\n", b"x" * 65536, "larger than 100000 bytes"),
    "chunks": (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
        b"1000\r\n" + b"x" * 4096 + b"\r\n",
        "larger than 100000 bytes",
    ),
    "line": (b"", b"x" * 65536, "LineTooLong"),
    "header": (HEAD, b"x" * 65536, "LineTooLong"),
    "headers": (HEAD, b"a: b\r\n", "HTTPException"),
}


@pytest.mark.parametrize("form", ENDLESS)
def test_what_has_no_end_is_refused(files: Certificates, form: str) -> None:
    first, rest, reason = ENDLESS[form]
    with served(files, itertools.chain([first], itertools.repeat(rest))) as (url, _):
        with pytest.raises(FetchFailed, match=f"^https://localhost:[0-9]+: .*{reason}") as caught:
            read(url)
        assert "/a/b" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "RemoteDisconnected"),
        (b"canary\r\n\r\n", "BadStatusLine"),
        (b"HTTP/1.1 302 Found\r\nLocation: https://canary.example.com/\r\n\r\n", "status 302"),
        (b"HTTP/1.1 500 canary\r\n\r\n", "status 500"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "status 204"),
        (HEAD + b"Content-Length: 100001\r\n\r\n" + b"a" * (LIMIT + 1), "larger than 100000 bytes"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\ncanary\r\n", "IncompleteRead"),
    ],
)
def test_rubbish_is_refused(files: Certificates, answer: bytes, reason: str) -> None:
    with served(files, [answer]) as (url, _), pytest.raises(FetchFailed, match=reason) as caught:
        read(url)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        (HEAD + b"\r\n", b"x"),
        (HEAD, b"x"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["content", "header", "continue"],
)
def test_a_slow_answer_is_given_up(files: Certificates, first: bytes, rest: bytes) -> None:
    """Each byte comes in time, and the whole does not."""
    parts = itertools.chain([first], itertools.repeat(rest))
    with (
        served(files, parts, pause_s=0.05) as (url, _),
        pytest.raises(FetchFailed, match=r"no complete answer within 0\.5 s"),
    ):
        read(url, timeout_s=0.5)


def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://localhost:{listener.getsockname()[1]}/"
        with pytest.raises(FetchFailed, match=r"no complete answer within 0\.2 s"):
            read(url, timeout_s=0.2)


def test_a_server_that_is_not_trusted(files: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(files.other_ca))
    with served(files, []) as (url, received), pytest.raises(FetchFailed, match="certificate"):
        read(url)
    assert received.content == b""


def test_a_server_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(FetchFailed, match=f"https://127.0.0.1:{port}: Connection refused"):
        read(f"https://127.0.0.1:{port}/")


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "with a space"
    file.write_bytes(b"x" * LIMIT)
    assert read(file.as_uri()) == b"x" * LIMIT
    file.write_bytes(b"x" * (LIMIT + 1))
    with pytest.raises(FetchFailed, match="larger than 100000 bytes"):
        read(file.as_uri())


def test_urls_and_files_that_are_refused(tmp_path: Path) -> None:
    for url in (
        "http://localhost/keys",
        "ftp://a/b",
        "https://",
        "https://u:canary@a/b",
        "https://a/b\r\ncanary: x",
        "https://a:99999/",
        "https://[/",
        "file://a/b",
        "x",
        "",
    ):
        with pytest.raises(FetchFailed) as caught:
            read(url)
        assert "canary" not in str(caught.value)
    for path in (tmp_path, tmp_path / "missing", Path("/dev/zero")):
        with pytest.raises(FetchFailed, match=str(path)):
            read(path.as_uri())
