"""Producers with acks=0, on real sockets: they are held back by the disk, and lose nothing that
they would have with an answer but the answer."""

from __future__ import annotations

import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from kbroker.broker.logs.partition import Partition
from kbroker.errors import StoreFailed
from kbroker.formats.batches import Record, build_batch
from kbroker.protocol.messages import build, encode, request_schema
from kbroker.server.peer import Peer
from tests.metrics.world import World, blocked, opened

PRODUCE, LIST_OFFSETS = 0, 2
MIB = 1 << 20
RECORD_BYTES = 100_000
TWO_BURSTS = 2 * (MIB + RECORD_BYTES)
PATIENCE_S = 60
FRAMES = 640
"""64 MB, more than the kernel keeps of a connection."""


def frame_of(api_key: int, version: int, **fields: Any) -> bytes:
    """With correlation id 7."""
    payload = struct.pack(">hhihx", api_key, version, 7, -1) + encode(
        build(request_schema(api_key, version), fields)
    )
    return struct.pack(">i", len(payload)) + payload


def silent(size: int = RECORD_BYTES) -> bytes:
    """A Produce with acks=0."""
    rows = [{"index": 0, "records": build_batch([Record(0, 1000, None, bytes(size), ())])}]
    topics = [{"name": "orders", "partition_data": rows}]
    return frame_of(PRODUCE, 9, transactional_id=None, acks=0, timeout=1000, topic_data=topics)


def latest() -> bytes:
    rows = [{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    return frame_of(LIST_OFFSETS, 6, replica_id=-1, isolation_level=0, topics=rows)


@asynccontextmanager
async def producing(path: Path) -> AsyncIterator[tuple[World, Partition, trio.SocketStream]]:
    with trio.fail_after(60):
        async with opened(path) as world:
            await world.client.create_topic("orders")
            async with await trio.open_tcp_stream(*world.address) as stream:
                yield world, world.client.partition("orders"), stream


async def until_appended(partition: Partition, end_offset: int) -> None:
    while partition.next_offset < end_offset:  # noqa: ASYNC110 - the server tells nobody
        await trio.sleep(0.001)


async def until_closed(stream: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError):  # It was closed with bytes unread.
        assert await stream.receive_some() == b""


async def held_back(path: Path, at_least_bytes: int = 0) -> int:
    """How many bytes of a producer that never pauses are appended while a sync lasts. The sync ends
    when the server waits, after so many bytes at least."""
    async with producing(path) as (world, partition, stream), trio.open_nursery() as nursery:

        async def send() -> None:
            for _ in range(FRAMES):
                await stream.send_all(silent())

        with blocked(world.broker.log_commits):
            nursery.start_soon(send)
            await until_appended(partition, 1)
            with trio.fail_after(PATIENCE_S):
                while partition.appended_bytes < at_least_bytes:  # noqa: ASYNC110
                    await trio.sleep(0.001)
            await trio.testing.wait_all_tasks_blocked(0.2)
            assert partition.high_watermark == 0
            appended = partition.appended_bytes
        await until_appended(partition, FRAMES)
        while partition.high_watermark < FRAMES:  # noqa: ASYNC110
            await trio.sleep(0.001)
        return appended


async def test_a_producer_is_held_back_by_the_disk(tmp_path: Path) -> None:
    assert await held_back(tmp_path) <= TWO_BURSTS


async def test_a_producer_that_is_not_held_back_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def confirm(_: Peer) -> None:
        pass

    monkeypatch.setattr(Peer, "_confirm", confirm)
    too_much = 2 * TWO_BURSTS + 1
    assert await held_back(tmp_path, too_much) >= too_much


async def test_the_next_burst_is_received_during_a_commit(tmp_path: Path) -> None:
    """But not the one after that."""
    async with producing(tmp_path) as (world, partition, stream):
        with blocked(world.broker.log_commits):
            for number in (1, 2):
                await stream.send_all(silent(1000))
                await until_appended(partition, number)
            await stream.send_all(silent(1000))
            await trio.testing.wait_all_tasks_blocked(0.1)
            assert (partition.next_offset, partition.high_watermark) == (2, 0)
        await until_appended(partition, 3)


@pytest.mark.parametrize("is_one_burst", [True, False])
async def test_the_next_request_of_the_connection_sees_the_batch(tmp_path: Path, is_one_burst: bool) -> None:
    async with producing(tmp_path) as (_, partition, stream):
        await stream.send_all(silent(1000) + (latest() if is_one_burst else b""))
        if not is_one_burst:
            await until_appended(partition, 1)
            await stream.send_all(latest())
        answer = bytearray()
        while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
            answer += await stream.receive_some()
        (end_offset,) = struct.unpack(">q", answer[-15:-7])
        assert end_offset == 1


async def test_a_failed_sync_ends_the_connection(tmp_path: Path) -> None:
    async with producing(tmp_path) as (world, partition, stream):
        may_fail = threading.Event()

        def fail() -> None:
            may_fail.wait()
            raise StoreFailed("EIO")

        world.broker.log_commits._sync = fail
        await stream.send_all(silent(1000))
        await until_appended(partition, 1)
        may_fail.set()
        await stream.send_all(latest())
        await until_closed(stream)
        assert partition.high_watermark == 0


async def test_a_refused_batch_ends_the_connection_at_once(tmp_path: Path) -> None:
    async with producing(tmp_path) as (_, _, stream):
        await stream.send_all(silent(2 * MIB))  # larger than max.message.bytes
        await until_closed(stream)


async def test_a_client_that_leaves_at_once_has_sent_its_batches(tmp_path: Path) -> None:
    async with producing(tmp_path) as (world, partition, stream):
        with blocked(world.broker.log_commits):
            await stream.send_all(silent(1000) * 3)
            await until_appended(partition, 3)
            await stream.aclose()
            await trio.testing.wait_all_tasks_blocked(0.05)
        while partition.high_watermark < 3:  # noqa: ASYNC110
            await trio.sleep(0.001)
