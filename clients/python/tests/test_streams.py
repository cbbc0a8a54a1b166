"""The stream of asyncio's connections: as anyio's, with one peer that misbehaves in each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import ByteStream

from kbroker_client import asyncio_stream
from kbroker_client.asyncio_stream import lighter

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[ByteStream, ByteStream]]:
    """A client's stream, and its peer's."""
    accepted = anyio.Event()
    peers: list[ByteStream] = []
    done = anyio.Event()

    async def hold(peer: ByteStream) -> None:
        peers.append(peer)
        accepted.set()
        await done.wait()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, hold)
        stream = lighter(await anyio.connect_tcp("127.0.0.1", port))
        await accepted.wait()
        try:
            yield stream, peers[0]
        finally:
            await anyio.aclose_forcefully(stream)
            await anyio.aclose_forcefully(peers[0])
            done.set()
            tasks.cancel_scope.cancel()


async def test_it_is_in_use(anyio_backend: str) -> None:
    """anyio's own is taken if its transport is not found any more: slower, so this tells."""
    async with connected() as (stream, _):
        assert (type(stream).__module__ == asyncio_stream.__name__) == (anyio_backend == "asyncio")


async def test_bytes_in_both_directions() -> None:
    async with connected() as (stream, peer):
        await stream.send(b"ping")
        assert await peer.receive() == b"ping"
        await peer.send(b"pong")
        assert await stream.receive(2) == b"po"
        assert await stream.receive() == b"ng"


async def test_a_peer_that_closes() -> None:
    async with connected() as (stream, peer):
        await peer.send(b"last words")
        await peer.aclose()
        assert await stream.receive() == b"last words"
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()
        with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
            await send_much(stream)


async def send_much(stream: ByteStream) -> None:
    for _ in range(100):  # The kernel takes some.
        await stream.send(b"x" * 65536)


async def test_closing_ends_a_receive_that_waits() -> None:
    async with connected() as (stream, _), anyio.create_task_group() as tasks:

        async def wait() -> None:
            with pytest.raises(anyio.ClosedResourceError):
                await stream.receive()

        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        await stream.aclose()


async def test_one_task_receives_at_a_time() -> None:
    async with connected() as (stream, _), anyio.create_task_group() as tasks:
        tasks.start_soon(stream.receive)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await stream.receive()
        tasks.cancel_scope.cancel()


async def test_a_cancelled_receive_loses_nothing() -> None:
    async with connected() as (stream, peer):
        with anyio.move_on_after(0.05):
            await stream.receive()
        await peer.send(b"later")
        assert await stream.receive() == b"later"


async def test_a_slow_peer_holds_the_sender_back() -> None:
    size = 32 << 20
    async with connected() as (stream, peer), anyio.create_task_group() as tasks:
        tasks.start_soon(stream.send, bytes(size))
        taken = 0
        while taken < size:
            taken += len(await peer.receive(1 << 20))


async def test_a_peer_that_sends_too_much_is_held_back() -> None:
    """Of bytes that nobody asked for, some stay with the peer."""
    size, sent = 64 << 20, 0
    async with connected() as (stream, peer):
        with anyio.move_on_after(1.0):
            while sent < size:
                await peer.send(bytes(1 << 18))
                sent += 1 << 18
        assert sent < size
        taken = 0
        while taken < sent:
            taken += len(await stream.receive(1 << 20))
