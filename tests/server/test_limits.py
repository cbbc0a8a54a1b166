"""The connection settings: max.connections, connections.max.idle.ms, queued.max.request.bytes,
socket.request.max.bytes; and stopping."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from kbroker.testing.broker import RunningBroker, free_port, open_test_broker

MEGABYTE = 1 << 20
API_VERSIONS_0 = struct.pack(">ihhih", 10, 18, 0, 7, -1)


def connect(broker: RunningBroker) -> socket.socket:
    return socket.create_connection((broker.host, broker.port), timeout=20)


def read_answer(sock: socket.socket) -> bytes:
    received = b""
    while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
        part = sock.recv(65536)
        assert part, "closed while an answer was expected"
        received += part
    return received


def ask(sock: socket.socket) -> None:
    sock.sendall(API_VERSIONS_0)
    assert struct.unpack(">iih", read_answer(sock)[:10])[1:] == (7, 0)


def test_max_connections() -> None:
    with open_test_broker(config={"max.connections": "3"}) as broker, ExitStack() as stack:
        first, *others = [stack.enter_context(connect(broker)) for _ in range(3)]
        for sock in (first, *others):
            ask(sock)
        with connect(broker) as refused:
            assert refused.recv(1) == b"", "closed without an answer"
        first.close()
        ask(others[0])
        ask(stack.enter_context(connect(broker)))


def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    with (
        open_test_broker(config={"connections.max.idle.ms": "1500"}) as broker,
        connect(broker) as idle,
        connect(broker) as busy,
    ):
        ask(idle)
        ask(busy)
        idle.setblocking(False)
        while True:
            ask(busy)
            try:
                closed = idle.recv(1) == b""
            except BlockingIOError:
                continue
            assert closed
            break
        ask(busy)


def test_a_peer_that_never_reads_its_answers_counts_as_idle() -> None:
    with open_test_broker(config={"connections.max.idle.ms": "1500"}) as broker, connect(broker) as deaf:
        with suppress(ConnectionError):  # It may be closed before everything is sent.
            deaf.sendall(API_VERSIONS_0 * 50_000)
        while "idle for connections.max.idle.ms" not in broker.logs():
            with connect(broker) as other:
                ask(other)


def test_a_burst_of_costly_requests_leaves_the_others_their_turn() -> None:
    """A megabyte of requests whose answers, all built at once, would take the better part of a
    minute and hundreds of megabytes."""
    describe_broker = (
        struct.pack(">hhih", 32, 1, 7, -1)
        + struct.pack(">ibh", 1, 4, 1)
        + b"1"
        + b"\xff\xff\xff\xff"
        + b"\x01"
    )
    with open_test_broker() as broker, connect(broker) as greedy, connect(broker) as innocent:
        ask(innocent)
        before = broker.anonymous_memory_bytes()
        greedy.sendall((struct.pack(">i", len(describe_broker)) + describe_broker) * 30_000)
        for _ in range(20):
            ask(innocent)
        assert broker.anonymous_memory_bytes() - before < 50 * MEGABYTE
        assert len(read_answer(greedy)) > 1000


def test_frames_that_have_begun_are_bounded_and_all_end() -> None:
    """Twice as many as fit: the second half waits until the first is finished, and all are
    answered."""
    body = b"x" * (MEGABYTE - 11)
    frame = struct.pack(">ihhih", len(body) + 10, 18, 0, 7, -1) + body
    with (
        open_test_broker(config={"queued.max.request.bytes": str(4 * MEGABYTE)}) as broker,
        ExitStack() as stack,
    ):
        socks = [stack.enter_context(connect(broker)) for _ in range(8)]
        for sock in socks:
            sock.sendall(frame[: MEGABYTE // 2])
        for sock in socks:
            sock.sendall(frame[MEGABYTE // 2 :])
        for sock in socks:
            assert struct.unpack(">iih", read_answer(sock)[:10])[1:] == (7, 0)


def test_a_request_as_large_as_allowed_and_one_byte_more() -> None:
    with open_test_broker(config={"socket.request.max.bytes": "1000"}) as broker:
        fits = struct.pack(">ihhih", 1000, 18, 0, 7, -1) + b"x" * 990
        with connect(broker) as sock:
            sock.sendall(fits)
            read_answer(sock)
        with connect(broker) as sock:
            sock.sendall(struct.pack(">ihhih", 1001, 18, 0, 7, -1) + b"x" * 991)
            with pytest.raises((AssertionError, ConnectionResetError)):
                read_answer(sock)


def test_a_stopping_broker_answers_what_waits(tmp_path: Path) -> None:
    """A fetch that waits for a minute does not delay the stop, and is answered."""
    with open_test_broker() as broker:
        broker.create_topic("orders")
        with connect(broker) as sock:
            topic = b"\x00\x06orders" + struct.pack(">iiqi", 1, 0, 0, 1000)
            body = struct.pack(">iiiib", -1, 60_000, 1, 1000, 0) + struct.pack(">i", 1) + topic
            sock.sendall(struct.pack(">ihhih", 10 + len(body), 1, 4, 7, -1) + body)
            ask_other = connect(broker)
            ask(ask_other)
            os.kill(broker.pid, signal.SIGTERM)
            assert struct.unpack(">ii", read_answer(sock)[:8])[1] == 7
            ask_other.close()
        assert broker.wait() == 0


def test_a_client_that_leaves_with_requests_behind_a_waiting_one_is_noticed() -> None:
    """The fetch may wait for 24 days; the next client still gets the connection."""
    topic = b"\x00\x06orders" + struct.pack(">iiqi", 1, 0, 0, 1000)
    body = struct.pack(">iiiib", -1, (1 << 31) - 1, 1, 1000, 0) + struct.pack(">i", 1) + topic
    with open_test_broker(config={"max.connections": "2"}) as broker:
        broker.create_topic("orders")
        with connect(broker) as other:
            ask(other)
            with connect(broker) as sock:
                ask(sock)
                sock.sendall(struct.pack(">ihhih", 10 + len(body), 1, 4, 7, -1) + body)
                for _ in range(2):
                    ask(other)  # Now the fetch has been read, and later requests stay in the socket.
                sock.sendall(API_VERSIONS_0)
            while True:
                try:
                    with connect(broker) as sock:
                        ask(sock)
                        break
                except (AssertionError, ConnectionError):
                    ask(other)


def test_sd_notify(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(60)
        with open_test_broker(env={"NOTIFY_SOCKET": str(tmp_path / "notify")}):
            assert notify.recv(100) == b"READY=1"


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "kbroker",
        "start",
        "--data-dir",
        str(tmp_path / "data"),
        "--listen",
        f"127.0.0.1:{free_port()}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        # Frozen, so that both signals are pending when it resumes, before the first is handled.
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) in (128 + signal.SIGTERM, 128 + signal.SIGINT)


def test_an_address_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "kbroker",
            "start",
            "--data-dir",
            "unused",
            "--listen",
            f"127.0.0.1:{port}",
        ]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 4
        assert len(result.stderr.strip().splitlines()) == 1
        assert "--listen" in result.stderr
        assert not Path("unused").exists()
