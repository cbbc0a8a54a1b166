"""What a broker that stops owes to requests that it has received: it does them, so it answers them."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import trio
import trio.testing

from kbroker.broker.broker import open_broker
from kbroker.broker.options import StartOptions
from kbroker.config import BrokerConfig
from kbroker.server import Server, bind

API_VERSIONS_0 = struct.pack(">ihhih", 10, 18, 0, 7, -1)


async def test_a_request_that_lies_in_the_socket_is_answered(tmp_path: Path) -> None:
    """Regression: its connection was shut down as idle in both directions; the request was done and its answer could not be sent."""
    options = StartOptions(
        data_dir=tmp_path, storage="memory", state_storage="memory", config=BrokerConfig({}), listen=("127.0.0.1", 0)
    )
    listener = bind(options.listen)
    try:
        async with open_broker(options) as broker, trio.open_nursery() as nursery:
            server = Server(broker)
            nursery.start_soon(server.serve, listener)
            with trio.fail_after(30), socket.create_connection(listener.getsockname()) as client:
                while not server.statistics().connections:
                    await trio.testing.wait_all_tasks_blocked()
                client.sendall(API_VERSIONS_0)
                await server.stop(grace_s=10)  # its first part runs before any other task
                client.settimeout(10)
                assert struct.unpack(">ii", client.recv(8, socket.MSG_WAITALL))[1] == 7
            nursery.cancel_scope.cancel()
    finally:
        listener.close()
