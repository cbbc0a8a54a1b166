"""Whatever a client sends, the broker continues to serve the others: one log line, one closed
connection, bounded memory.

A real broker process, raw sockets. After each attack a well-behaved client must be answered.
"""

from __future__ import annotations

import random
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kbroker.api import APIS
from kbroker.client.broker_process import RunningBroker
from kbroker.testing.broker import open_test_broker

API_VERSIONS, METADATA, SHARE_FETCH = 18, 3, 78
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with open_test_broker(
        storage="segment", config={"socket.request.max.bytes": str(4 * MEGABYTE)}
    ) as running:
        yield running


def connect(broker: RunningBroker) -> socket.socket:
    sock = socket.create_connection((broker.host, broker.port), timeout=20)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def frame(
    api_key: int, version: int, body: bytes, *, client_id: bytes | None = b"x", tags: bytes = b""
) -> bytes:
    name = struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id
    content = struct.pack(">hhi", api_key, version, 7) + name + tags + body
    return struct.pack(">i", len(content)) + content


def is_closed(sock: socket.socket) -> bool:
    """Reads until the end of the stream; a reset also means closed."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        return True
    return True


def assert_serving(broker: RunningBroker) -> None:
    with connect(broker) as sock:
        sock.sendall(frame(API_VERSIONS, 0, b""))
        size, correlation_id, error = struct.unpack(">iih", _exactly(sock, 10))
        assert (correlation_id, error) == (7, 0)
        _exactly(sock, size - 6)


def _exactly(sock: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = sock.recv(size - len(received))
        assert part, "closed while an answer was expected"
        received += part
    return received


BAD_FRAMES = {
    "size 0": struct.pack(">i", 0),
    "size -1": struct.pack(">i", -1),
    "size above the limit": struct.pack(">i", 5 * MEGABYTE),
    "size 2 GiB": b"\x7f\xff\xff\xff",
    "too short for a header": struct.pack(">i", 3) + b"abc",
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "unknown api": frame(1234, 0, b""),
    "negative api": frame(-1, 0, b""),
    "controller api": frame(52, 0, b""),
    "version too new": frame(METADATA, 99, b""),
    "negative version": frame(METADATA, -1, b""),
    "old produce": frame(0, 2, b""),
    "client id beyond the frame": struct.pack(">ihhih", 10, METADATA, 0, 1, 500),
    "client id length -2": struct.pack(">ihhih", 10, METADATA, 0, 1, -2),
    "client id not UTF-8": frame(METADATA, 1, b"\xff\xff\xff\xff", client_id=b"\xff\xfe"),
    "empty body": frame(METADATA, 1, b""),
    "array of 2 billion": frame(METADATA, 1, b"\x7f\xff\xff\xff"),
    "compact array of 4 billion": frame(METADATA, 12, b"\xff\xff\xff\xff\x0f", tags=b"\x00"),
    "string beyond the frame": frame(METADATA, 1, b"\x00\x00\x00\x01\x7f\xff"),
    "tags without end": frame(SHARE_FETCH, 1, b"", tags=b"\xff\xff\xff\xff\x0f"),
    "endless varint": frame(SHARE_FETCH, 1, b"\xff" * 40, tags=b"\x00"),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
# BASE-4, BASE-5, RPC-50
def test_a_bad_frame_ends_its_connection_only(broker: RunningBroker, name: str) -> None:
    with connect(broker) as innocent, connect(broker) as sock:
        sock.sendall(BAD_FRAMES[name])
        assert is_closed(sock)
        innocent.sendall(frame(API_VERSIONS, 0, b""))
        assert struct.unpack(">iih", _exactly(innocent, 10))[1:] == (7, 0)
    assert_serving(broker)


def test_one_log_line_for_a_bad_frame() -> None:
    with open_test_broker() as broker:  # A separate broker: bad frames of one host get one line a minute.
        before = len(broker.logs().splitlines())
        with connect(broker) as sock:
            sock.sendall(struct.pack(">i", -12345))
            assert is_closed(sock)
        assert_serving(broker)
        new = broker.logs().splitlines()[before:]
    assert len(new) == 1
    assert "closing connection" in new[0]


def test_unsupported_version_of_api_versions_is_answered(broker: RunningBroker) -> None:  # RPC-51
    with connect(broker) as sock:
        sock.sendall(frame(API_VERSIONS, 77, b"", tags=b"\x00"))
        size, correlation_id, error, count, key, first, last = struct.unpack(">iihihhh", _exactly(sock, 20))
        assert (correlation_id, error, count, key, first, last) == (7, 35, 1, 18, 0, 5)
        assert size == 16


def test_answers_keep_the_order_of_requests(broker: RunningBroker) -> None:  # BASE-6
    with connect(broker) as sock:
        sock.sendall(b"".join(struct.pack(">ihhih", 10, API_VERSIONS, 0, number, -1) for number in range(50)))
        for number in range(50):
            size, correlation_id = struct.unpack(">ii", _exactly(sock, 8))
            assert correlation_id == number
            _exactly(sock, size - 4)


@pytest.mark.parametrize("name", ["size -1", "unknown api", "empty body"])
@pytest.mark.parametrize("waits", [False, True], ids=["after an answer", "after one that waits"])
def test_what_came_before_a_bad_frame_is_answered(broker: RunningBroker, name: str, waits: bool) -> None:
    good = frame(METADATA, 1, b"\x00\x00\x00\x00") if waits else frame(API_VERSIONS, 0, b"")
    with connect(broker) as sock:
        sock.sendall(good * 2 + BAD_FRAMES[name])
        for _ in range(2):
            size, correlation_id = struct.unpack(">ii", _exactly(sock, 8))
            assert correlation_id == 7
            _exactly(sock, size - 4)
        assert is_closed(sock)


def test_a_slow_sender_is_served(broker: RunningBroker) -> None:
    with connect(broker) as sock:
        for byte in frame(API_VERSIONS, 0, b""):
            sock.sendall(bytes([byte]))
            assert_serving(broker) if byte == 120 else None
        assert struct.unpack(">iih", _exactly(sock, 10))[1:] == (7, 0)


@pytest.mark.parametrize("seed", range(6))
def test_random_bytes(broker: RunningBroker, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(50):
        with connect(broker) as sock:
            body = dice.randbytes(dice.randrange(200))
            kind = dice.randrange(3)
            if kind == 0:
                sock.sendall(body or b"\x00")
            elif kind == 1:
                sock.sendall(struct.pack(">i", len(body) + 1) + body + b"\x00")
            else:
                api = APIS[dice.choice(list(APIS))]
                sock.sendall(frame(api.key, dice.randint(api.first, api.last), body, tags=b"\x00"))
            sock.shutdown(socket.SHUT_WR)
            assert is_closed(sock)
    assert_serving(broker)
    assert "internal error" not in broker.logs(), broker.log_tail()


def test_truncated_real_requests(broker: RunningBroker) -> None:
    whole = frame(METADATA, 1, b"\x00\x00\x00\x02\x00\x01a\x00\x01b")
    for cut in range(4, len(whole) - 4):
        content = whole[4:-1][:cut]
        with connect(broker) as sock:
            sock.sendall(struct.pack(">i", len(content)) + content)
            sock.shutdown(socket.SHUT_WR)
            assert is_closed(sock)
    assert_serving(broker)
    assert "internal error" not in broker.logs(), broker.log_tail()


def test_announced_bytes_that_never_come_cost_nothing(broker: RunningBroker) -> None:
    assert_serving(broker)
    before = broker.anonymous_memory_bytes()
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connect(broker)).sendall(struct.pack(">i", 4 * MEGABYTE) + b"x" * 10)
        assert_serving(broker)
        assert broker.anonymous_memory_bytes() - before < 16 * MEGABYTE
    assert_serving(broker)


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raise this process's limit of open files to the machine's, as a broker does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2200:
        pytest.skip(f"2 000 connections need as many open files, and the machine allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_two_thousand_idle_connections(broker: RunningBroker) -> None:
    assert_serving(broker)
    before = broker.anonymous_memory_bytes()
    with ExitStack() as stack:
        for _ in range(2000):
            sock = stack.enter_context(connect(broker))
        sock.sendall(frame(API_VERSIONS, 0, b""))
        _exactly(sock, 10)
        assert_serving(broker)
        per_connection = (broker.anonymous_memory_bytes() - before) / 2000
        assert per_connection < 16 * 1024, f"{per_connection:.0f} bytes per idle connection"
    assert_serving(broker)
