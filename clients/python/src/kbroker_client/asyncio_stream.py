"""A connection's byte stream under asyncio with less work for each request than anyio's.

anyio's stream stops and starts reading around each receive, with two system calls, and lets other
tasks run after each send. A connection sends one request and waits for its answer, so neither is
needed: half of the loop's turns, and a quarter of the calls of a request, are left out. anyio still
connects, since it tries the addresses of a name in parallel.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

_MOST_BUFFERED_BYTES: Final = 1 << 20
"""More than that of a peer that sends without being asked is left in the kernel."""


def lighter(stream: ByteStream) -> ByteStream:
    """The same connection; also for streams of other event loops, which are returned as they
    are."""
    transport = getattr(stream, "_transport", None)
    if not isinstance(transport, asyncio.Transport):
        return stream
    return _AsyncioStream(transport)


class _AsyncioStream(asyncio.Protocol, ByteStream):
    """One task receives and one task sends at a time."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._received: deque[bytes] = deque()
        self._buffered = 0
        self._is_closed = self._is_over = self._is_paused = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        transport.set_protocol(self)
        transport.resume_reading()

    # -- the stream
    # ----------------------------------------------------------------------------------------------

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while not self._received:
            if self._is_over:
                raise self._reason(anyio.EndOfStream)
            if self._reader is not None and not self._reader.done():
                raise anyio.BusyResourceError("reading from")
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        data = self._received.popleft()
        if len(data) > max_bytes:
            self._received.appendleft(data[max_bytes:])
            data = data[:max_bytes]
        self._buffered -= len(data)
        if self._is_paused and self._buffered <= _MOST_BUFFERED_BYTES:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    async def send(self, item: bytes) -> None:
        if self._is_over:
            raise self._reason(anyio.BrokenResourceError)
        self._transport.write(item)
        if self._writer is not None:
            await self._writer
            if self._is_over:
                raise self._reason(anyio.BrokenResourceError)

    async def send_eof(self) -> None:
        self._transport.write_eof()

    async def aclose(self) -> None:
        self._is_closed = self._is_over = True
        self._transport.abort()
        self._wake()
        await anyio.lowlevel.checkpoint()

    def _reason(self, otherwise: type[Exception]) -> Exception:
        if self._is_closed:
            return anyio.ClosedResourceError()
        if self._error is None:
            return otherwise()
        error = anyio.BrokenResourceError()
        error.__cause__ = self._error
        return error

    # -- called by the transport
    # ----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._received.append(bytes(data))
        self._buffered += len(data)
        if self._buffered > _MOST_BUFFERED_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def eof_received(self) -> bool:
        self._is_over = True
        self._wake()
        return False  # The transport closes itself.

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over, self._error = True, error
        self._wake()

    def pause_writing(self) -> None:
        self._writer = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)
        self._writer = None

    def _wake(self) -> None:
        for waiting in (self._reader, self._writer):
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
