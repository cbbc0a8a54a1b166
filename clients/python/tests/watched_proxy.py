"""A proxy on the test's own event loop, which stops a chosen request: it passes the request on, and
holds its answer back for ever, or breaks the connection when the broker has answered."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from kbroker_client.background import Background

_SIZE = struct.Struct(">i")
_GONE = (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError)


class WatchedProxy:
    def __init__(self, broker_port: int, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self._broker_port = broker_port
        self.watch(0)

    def watch(self, number: int, *, is_broken: bool = False) -> None:
        """Stop the request with this number, of those that arrive from now on; 0: none.
        `is_broken`: break its connection."""
        self.requests = 0
        self.stopped = anyio.Event()
        """Set when the request has been passed on, and its answer is held back."""
        self.ended = anyio.Event()
        """Set when its connection has ended."""
        self._number = number
        self._is_broken = is_broken

    async def serve(self, client: SocketStream) -> None:
        broker = await anyio.connect_tcp("127.0.0.1", self._broker_port)
        link = _Link(client, broker)
        async with client, broker, anyio.create_task_group() as tasks:
            tasks.start_soon(link.pass_answers)
            with suppress(*_GONE):
                await self._pass_requests(link)
            tasks.cancel_scope.cancel()
        if link.is_stopped:
            self.ended.set()

    async def _pass_requests(self, link: _Link) -> None:
        """Until the connection ends, or the chosen request has broken it."""
        requests = BufferedByteReceiveStream(link.client)
        while True:
            head = await requests.receive_exactly(_SIZE.size)
            frame = head + await requests.receive_exactly(*_SIZE.unpack(head))
            self.requests += 1
            link.is_stopped |= self.requests == self._number
            await link.broker.send(frame)
            if link.is_stopped and self._is_broken:
                await link.answered.wait()
                return
            if link.is_stopped:
                self.stopped.set()


class _Link:
    """A client's connection, and that to the broker. The client sends one request at a time."""

    def __init__(self, client: ByteStream, broker: ByteStream) -> None:
        self.client = client
        self.broker = broker
        self.is_stopped = False
        self.answered = anyio.Event()
        """Set when the broker has answered the stopped request."""

    async def pass_answers(self) -> None:
        with suppress(*_GONE):
            while True:
                answer = await self.broker.receive()
                if self.is_stopped:
                    self.answered.set()
                else:
                    await self.client.send(answer)


@asynccontextmanager
async def open_watched_proxy(broker_port: int) -> AsyncIterator[WatchedProxy]:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        proxy = WatchedProxy(broker_port, listener.extra(SocketAttribute.local_port))
        background = Background()
        await background.open()
        try:
            background.start(lambda: listener.serve(proxy.serve))
            yield proxy
        finally:
            background.cancel()
            await background.wait()
