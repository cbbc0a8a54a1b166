"""A disk without a free byte: deleting a topic frees space, and so does a work queue with a stuck
job. Uses a small tmpfs, so it needs the right to mount one; skipped without it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kbroker.broker.broker import Broker
from kbroker.broker.logs.retention import apply_retention
from kbroker.errors import ErrorCode, NoSpace
from kbroker.formats.batches import Record, build_batch
from tests.api.conftest import Client
from tests.api.share_consumers import ACCEPT, GROUP, RELEASE, Member, acquired, rows, sent, set_up_group
from tests.broker.appending import append
from tests.small_disk import broker_on, fill_the_rest, small_disk

DISK_BYTES = 64 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


@pytest.mark.parametrize("engine", ["segment", "lmdb"])
async def test_deleting_a_topic_makes_room(disk: Path, engine: str) -> None:
    """Not with RocksDB and SQLite: see docs/durability.md."""
    async with broker_on(disk, engine) as broker:
        client = Client(broker)
        for name in ("full", "kept"):
            await client.create_topic(name)
        await client.append("kept", 1000)
        await produce_until_full(broker)
        fill_the_rest(disk)
        (deleted,) = (
            await client.call("delete_topics", 6, topics=[{"name": "full", "topic_id": None}])
        ).responses
        assert deleted.error_code is ErrorCode.none
        for _ in range(10):
            await append(client.partition("kept"), batch(100_000))
    async with broker_on(disk, engine) as broker:
        assert [topic.name for topic in broker.topics] == ["kept"]
        assert Client(broker).partition("kept").high_watermark == 11


@pytest.mark.parametrize("engine", ["segment", "lmdb"])
async def test_what_a_killed_broker_had_set_aside_is_room_for_the_next_start(disk: Path, engine: str) -> None:
    async with broker_on(disk, engine) as broker:
        await Client(broker).create_topic("full")
        await produce_until_full(broker)
        reserve = disk / "data" / "reserve"
        size_bytes = reserve.stat().st_size
        os.link(reserve, disk / "left")
    (disk / "left").rename(reserve)  # as if the broker had been killed
    fill_the_rest(disk)
    async with broker_on(disk, engine) as broker:
        assert 0 < reserve.stat().st_size < size_bytes, "reserved again, from the free space"
        (deleted,) = (
            await Client(broker).call("delete_topics", 6, topics=[{"name": "full", "topic_id": None}])
        ).responses
        assert deleted.error_code is ErrorCode.none


async def test_deleting_an_empty_topic_leaves_something_set_aside(disk: Path) -> None:
    async with broker_on(disk, "segment") as broker:
        client = Client(broker)
        for name in ("full", "empty"):
            await client.create_topic(name)
        await produce_until_full(broker)
        fill_the_rest(disk)
        with suppress(NoSpace):
            while True:
                await broker.state_commits.commit([(b"x", bytes(10_000))])
        for name in ("empty", "full"):
            (deleted,) = (
                await client.call("delete_topics", 6, topics=[{"name": name, "topic_id": None}])
            ).responses
            assert deleted.error_code is ErrorCode.none, name
            fill_the_rest(disk)


@pytest.mark.parametrize("engine", ["segment", "lmdb"])
async def test_a_held_job_does_not_keep_the_disk_full(disk: Path, engine: str) -> None:
    """It is kept, using the reserved space, and all finished records are removed."""
    async with broker_on(disk, engine) as broker:
        client = Client(broker)
        configs = {"kbroker.queue.retention": "workqueue", "internal.segment.bytes": str(4 << 20)}
        row = await client.create_topic("full", configs=configs)
        await set_up_group(client, {"share.auto.offset.reset": "earliest"})
        names = {
            "group_id": GROUP,
            "member_id": "m",
            "member_epoch": 0,
            "rack_id": None,
            "subscribed_topic_names": ["full"],
        }
        assert (await client.call("share_group_heartbeat", 1, **names)).error_code == 0
        key, topic = (row.topic_id, 0), broker.topics.by_name("full")
        await append(topic.partitions[0], batch(100))
        worker, others = Member(client, "m1"), Member(client.another(2), "m2")
        assert acquired(await worker.fetch([key], wait_ms=5000)) == [(0, 0, 1)]
        for offset in range(1, 31):
            await append(topic.partitions[0], batch(900_000))
            assert acquired(await others.fetch([key] if offset == 1 else (), wait_ms=5000)) == [
                (offset, offset, 1)
            ]
            await others.acknowledge({key: [(offset, offset, [ACCEPT])]})
        await produce_until_full(broker)
        fill_the_rest(disk)
        assert broker.topics.reserve.is_there
        for _ in range(2):
            await apply_retention(
                broker.topics, topic.partitions[0], topic.config, broker.held_logs, broker.kept_records
            )
        assert topic.partitions[0].log_start_offset > 20
        for _ in range(10 if engine == "segment" else 0):  # LMDB's file does not get smaller.
            await append(topic.partitions[0], batch(100_000))
        answer = await worker.acknowledge({key: [(0, 0, [RELEASE])]})
        assert rows(answer)[key].error_code == 0
        for _ in range(10):  # Its bytes are read beside the fetches.
            answer = await others.fetch(wait_ms=5000, max_records=1, share_acquire_mode=1)
            if acquired(answer) == [(0, 0, 2)]:
                break
        assert (acquired(answer), sent(answer)) == ([(0, 0, 2)], [0])


def batch(size_bytes: int) -> bytes:
    return build_batch([Record(0, 1000, None, bytes(size_bytes), ())])


async def produce_until_full(broker: Broker) -> None:
    topic = broker.topics.by_name("full")
    assert topic is not None
    for size_bytes in (900_000, 1000):
        with suppress(NoSpace):
            while True:
                await append(topic.partitions[0], batch(size_bytes))
