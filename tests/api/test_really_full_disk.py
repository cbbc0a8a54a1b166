"""A disk without a free byte: deleting a topic makes room. On a small tmpfs, so it needs the right to mount one; skipped without it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kbroker.broker.broker import Broker, open_broker
from kbroker.broker.options import StartOptions
from kbroker.config import BrokerConfig
from kbroker.errors import ErrorCode, NoSpace
from kbroker.records import Record, build_batch
from tests.api.conftest import Client
from tests.broker.appending import append
from tests.small_disk import small_disk

DISK_BYTES = 64 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


@pytest.mark.parametrize("engine", ["segment", "lmdb"])
async def test_deleting_a_topic_makes_room(disk: Path, engine: str) -> None:
    """Not so on RocksDB and SQLite: see docs/durability.md."""
    options = StartOptions(
        data_dir=disk / "data", storage=engine, state_storage=engine, config=BrokerConfig({}), listen=("127.0.0.1", 9092)
    )
    async with open_broker(options) as broker:
        client = Client(broker)
        for name in ("full", "kept"):
            await client.create_topic(name)
        await client.append("kept", 1000)
        await produce_until_full(broker)
        fill_the_rest(disk)
        (deleted,) = (await client.call("delete_topics", 6, topics=[{"name": "full", "topic_id": None}])).responses
        assert deleted.error_code is ErrorCode.none
        for _ in range(10):
            await append(client.partition("kept"), batch(100_000))
    async with open_broker(options) as broker:
        assert [topic.name for topic in broker.topics] == ["kept"]
        assert Client(broker).partition("kept").high_watermark == 11


@pytest.mark.parametrize("engine", ["segment", "lmdb"])
async def test_what_a_killed_broker_had_set_aside_is_room_for_the_next_start(disk: Path, engine: str) -> None:
    options = StartOptions(
        data_dir=disk / "data", storage=engine, state_storage=engine, config=BrokerConfig({}), listen=("127.0.0.1", 9092)
    )
    async with open_broker(options) as broker:
        await Client(broker).create_topic("full")
        await produce_until_full(broker)
        reserve = disk / "data" / "reserve"
        size_bytes = reserve.stat().st_size
        os.link(reserve, disk / "left")
    (disk / "left").rename(reserve)  # as if the broker had been killed
    fill_the_rest(disk)
    async with open_broker(options) as broker:
        assert 0 < reserve.stat().st_size < size_bytes, "set aside anew, from what was free"
        (deleted,) = (await Client(broker).call("delete_topics", 6, topics=[{"name": "full", "topic_id": None}])).responses
        assert deleted.error_code is ErrorCode.none


async def test_deleting_an_empty_topic_leaves_something_set_aside(disk: Path) -> None:
    options = StartOptions(
        data_dir=disk / "data", storage="segment", state_storage="segment", config=BrokerConfig({}), listen=("127.0.0.1", 9092)
    )
    async with open_broker(options) as broker:
        client = Client(broker)
        for name in ("full", "empty"):
            await client.create_topic(name)
        await produce_until_full(broker)
        fill_the_rest(disk)
        with suppress(NoSpace):
            while True:
                await broker.state.commit([(b"x", bytes(10_000))])
        for name in ("empty", "full"):
            (deleted,) = (await client.call("delete_topics", 6, topics=[{"name": name, "topic_id": None}])).responses
            assert deleted.error_code is ErrorCode.none, name
            fill_the_rest(disk)


def batch(size_bytes: int) -> bytes:
    return build_batch([Record(0, 1000, None, bytes(size_bytes), ())])


async def produce_until_full(broker: Broker) -> None:
    topic = broker.topics.by_name("full")
    assert topic is not None
    for size_bytes in (900_000, 1000):
        with suppress(NoSpace):
            while True:
                await append(topic.partitions[0], batch(size_bytes))


def fill_the_rest(disk: Path) -> None:
    fd = os.open(disk / "ballast", os.O_WRONLY | os.O_CREAT)
    try:
        with suppress(OSError):
            while os.write(fd, bytes(4096)):
                pass
    finally:
        os.close(fd)
    found = os.statvfs(disk)
    assert found.f_bavail == 0
