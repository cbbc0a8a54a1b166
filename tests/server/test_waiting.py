"""Requests that wait, on real sockets: they end when their time is over or their peer hangs up,
even if bytes of a later request are unread."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
import trio

from kbroker.protocol.messages import build, encode, request_schema
from tests.metrics.world import World, opened

FETCH = 1
VERSION = 13


def fetch_frame(topic_id: UUID, wait_ms: int) -> bytes:
    schema = request_schema(FETCH, VERSION)
    row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    body = {
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1000,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic_id": topic_id, "partitions": [row]}],
        "forgotten_topics_data": (),
    }
    payload = struct.pack(">hhihx", FETCH, VERSION, 7, -1) + encode(build(schema, body))
    return struct.pack(">i", len(payload)) + payload


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[tuple[World, trio.SocketStream, UUID]]:
    """A broker with an empty topic, and a connection to it."""
    with trio.fail_after(30):
        async with opened(path) as world:
            topic = await world.client.create_topic("orders")
            stream = await trio.open_tcp_stream(*world.address)
            async with stream:
                yield world, stream, topic.topic_id


async def until_waiting(world: World, count: int) -> None:
    while world.broker.metrics.fetch.waiting != count:  # noqa: ASYNC110 - the server tells nobody
        await trio.sleep(0.001)


async def read_answer(stream: trio.SocketStream) -> bytes:
    received = b""
    while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
        part = await stream.receive_some()
        assert part, "closed while an answer was expected"
        received += part
    return received


@pytest.mark.parametrize("behind", [b"", b"\x00", fetch_frame(UUID(int=1), 1)])
@pytest.mark.parametrize("how", [socket.SHUT_WR, None])
async def test_a_fetch_ends_with_its_peer(tmp_path: Path, behind: bytes, how: int | None) -> None:
    async with served(tmp_path) as (world, stream, topic_id):
        await stream.send_all(fetch_frame(topic_id, 600_000) + behind)
        await until_waiting(world, 1)
        if how is None:
            await stream.aclose()
        else:
            stream.socket.shutdown(how)
        await until_waiting(world, 0)
        assert len(world.client.partition("orders").waiters) == 0
        while world.broker.metrics.connections:  # noqa: ASYNC110
            await trio.sleep(0.001)


async def test_each_fetch_of_a_connection_has_its_own_time(tmp_path: Path) -> None:
    """A later fetch may wait for less, or more, than the rest of an earlier one's timer."""
    async with served(tmp_path) as (world, stream, topic_id):
        await stream.send_all(fetch_frame(topic_id, 600_000))
        await until_waiting(world, 1)
        await world.client.append("orders", 5)
        assert len(await read_answer(stream)) > 100
        assert world.broker.deadlines.statistics().scheduled == 1
        other = await world.client.create_topic("empty")
        for wait_ms in (20, 5, 40, 1):
            await stream.send_all(fetch_frame(other.topic_id, wait_ms))
            await read_answer(stream)
        assert world.broker.metrics.fetch.expired == 4
        assert world.broker.deadlines.statistics().scheduled <= 2
