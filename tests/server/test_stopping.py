"""A stopping broker handles the requests that it has received, and their answers arrive. It does
not wait for clients that read nothing."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
import trio.testing

from kbroker.broker.broker import Broker, open_broker
from kbroker.broker.options import StartOptions
from kbroker.formats.batches import Record, build_batch
from kbroker.server.listener import Door, Server
from kbroker.server.run import bind
from kbroker.settings.altering import BrokerConfig
from tests.broker.appending import append

API_VERSIONS_0 = struct.pack(">ihhih", 10, 18, 0, 7, -1)
LARGE_VALUE = 300_000


class Serving:
    def __init__(self, broker: Broker, server: Server, address: tuple[str, int]) -> None:
        self.broker = broker
        self.server = server
        self.address = address

    async def connect(self, *, receive_buffer: int | None = None) -> trio.socket.SocketType:
        sock = trio.socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await sock.connect(self.address)
        return sock

    def stalled(self) -> int:
        return sum(peer.is_stalled for peer in self.server._open.values())


@asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[Serving]:
    options = StartOptions(
        data_dir=tmp_path,
        storage="memory",
        state_storage="memory",
        config=BrokerConfig({}),
        listen=("127.0.0.1", 0),
    )
    listener = bind(options.listen)
    try:
        async with open_broker(options) as broker, trio.open_nursery() as nursery:
            server = Server(broker)
            nursery.start_soon(server.serve, Door(listener))
            yield Serving(broker, server, listener.getsockname())
            nursery.cancel_scope.cancel()
    finally:
        listener.close()


def answers(received: bytes) -> list[int]:
    """The correlation ids of the complete answers; any remaining bytes fail the test."""
    found = []
    while received:
        size, correlation_id = struct.unpack(">ii", received[:8])
        assert len(received) >= 4 + size, "an answer was cut off"
        found.append(correlation_id)
        received = received[4 + size :]
    return found


async def send_all(sock: trio.socket.SocketType, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[await sock.send(view) :]


async def fill(broker: Broker) -> None:
    """A topic `a` with one large record."""
    topic = await broker.topics.create("a", 1, {})
    await append(topic.partitions[0], build_batch([Record(0, 1000, None, bytes(LARGE_VALUE), ())]))


def fetch(correlation_id: int, *, min_bytes: int) -> bytes:
    """Fetch v4 of topic `a` from the start, waiting for a minute."""
    topic = b"\x00\x01a" + struct.pack(">iiqi", 1, 0, 0, 1 << 30)
    body = struct.pack(">iiiib", -1, 60_000, min_bytes, 1 << 30, 0) + struct.pack(">i", 1) + topic
    return struct.pack(">ihhih", 10 + len(body), 1, 4, correlation_id, -1) + body


async def read_to_end(sock: trio.socket.SocketType) -> bytes:
    received = bytearray()
    while part := await sock.recv(1 << 16):
        received += part
    return bytes(received)


async def test_a_request_that_lies_in_the_socket_is_answered(tmp_path: Path) -> None:
    """Regression: the connection was shut down as idle in both directions; the request was handled
    and its answer could not be sent."""
    async with serving(tmp_path) as running:
        with trio.fail_after(30), socket.create_connection(running.address) as client:
            while not running.server.statistics().connections:
                await trio.testing.wait_all_tasks_blocked()
            client.sendall(API_VERSIONS_0)
            await running.server.stop(grace_s=10)  # its first part runs before any other task
            client.settimeout(10)
            assert struct.unpack(">ii", client.recv(8, socket.MSG_WAITALL))[1] == 7


async def test_a_client_that_reads_nothing_does_not_hold_up_the_end(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Regression: it used up the whole grace period."""
    async with serving(tmp_path) as running:
        with await running.connect(receive_buffer=4096) as deaf:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_all, deaf, API_VERSIONS_0 * 50_000)
                while not running.stalled():
                    await trio.testing.wait_all_tasks_blocked()
                began = trio.current_time()
                await running.server.stop(grace_s=3600)
                assert trio.current_time() - began < 2, "of the virtual clock"
                nursery.cancel_scope.cancel()


async def test_a_client_that_does_not_close_does_not_hold_up_the_end(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with serving(tmp_path) as running:
        with await running.connect() as client:
            while not running.server.statistics().connections:
                await trio.testing.wait_all_tasks_blocked()
            await send_all(client, API_VERSIONS_0)
            began = trio.current_time()
            await running.server.stop(grace_s=3600)
            assert trio.current_time() - began < 2, "of the virtual clock"
            assert answers(await read_to_end(client)) == [7]


async def test_unread_requests_do_not_cost_a_client_its_last_answer(tmp_path: Path) -> None:
    """Regression: the socket was closed with unread bytes in it, which resets the connection and
    drops data that is still in flight.

    The fetch waits when the broker stops, more requests follow it, and the answer is larger than
    what the client can receive.
    """
    async with serving(tmp_path) as running:
        await fill(running.broker)
        with trio.fail_after(60), await running.connect(receive_buffer=4096) as client:
            await send_all(client, fetch(7, min_bytes=10 * LARGE_VALUE) + API_VERSIONS_0 * 1000)
            while not running.server.statistics().requests:
                await trio.testing.wait_all_tasks_blocked()
            await send_all(client, API_VERSIONS_0 * 1000)
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(running.server.stop, 30)
                await trio.testing.wait_all_tasks_blocked()
                received = await read_to_end(client)
                client.close()
            assert answers(received)[0] == 7
            assert len(received) > LARGE_VALUE


async def test_a_bad_request_does_not_cost_a_client_the_answers_before_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        await fill(running.broker)
        with trio.fail_after(60), await running.connect(receive_buffer=4096) as client:
            bad = struct.pack(">ihhih", 10, 999, 0, 8, -1)
            await send_all(client, fetch(7, min_bytes=1) + bad + API_VERSIONS_0 * 1000)
            await trio.testing.wait_all_tasks_blocked()
            await send_all(client, API_VERSIONS_0)
            await trio.testing.wait_all_tasks_blocked()
            received = await read_to_end(client)
            assert answers(received) == [7]
            assert len(received) > LARGE_VALUE
