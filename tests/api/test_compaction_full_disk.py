"""A pass over a log on a disk without a free byte. Uses a small tmpfs, so it needs the right to
mount one; skipped without it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.api.conftest import Client
from tests.api.test_compaction import append, compact, keyed, stored
from tests.small_disk import broker_on, fill_the_rest, small_disk

DISK_BYTES = 96 << 20
VALUE_CHARACTERS = 50_000
CONFIGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": str(4 << 20),
    "min.cleanable.dirty.ratio": "0",
}
NO_CLEANER = {"log.cleaner.backoff.ms": "3600000"}
NO_FLOOR = {**NO_CLEANER, "kbroker.disk.min.free.bytes": "0"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


async def write(client: Client, topic: object, keys: Iterator[str], chooser: random.Random) -> dict[str, str]:
    """Returns the latest value of each key."""
    values: dict[str, str] = {}
    for key in keys:
        values[key] = chooser.randbytes(VALUE_CHARACTERS // 2).hex()
        await append(client, topic, keyed((key, values[key])))
    return values


async def latest(client: Client, topic: object) -> Mapping[str, str | None]:
    return dict((await stored(client, topic)).values())


async def fill(client: Client, disk: Path, chooser: random.Random) -> tuple[object, dict[str, str]]:
    """A log of which nearly everything stays, so that a segment needs about its own size beside it.
    The first pass is made while there is space. Returns the topic and the values of its keys."""
    topic = (await client.create_topic("a", configs=CONFIGS)).topic_id
    values = await write(client, topic, (f"k{number % 100}" for number in range(200)), chooser)
    await compact(client)
    assert client.broker.log_cleaner.statistics().passes == 1
    values |= await write(client, topic, (f"k{number}" for number in range(0, 300, 3)), chooser)
    return topic, values


async def compact_with_room(
    client: Client, topic: object, values: dict[str, str], chooser: random.Random
) -> None:
    values |= await write(client, topic, (f"k{number}" for number in range(0, 300, 50)), chooser)
    await compact(client)
    counted = client.broker.log_cleaner.statistics()
    assert (counted.passes, counted.uncleanable) == (2, 0)
    assert await latest(client, topic) == values


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
async def test_a_pass_leaves_what_producers_must(
    disk: Path, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Below kbroker.disk.min.free.bytes no pass begins."""
    chooser = random.Random(1)
    async with broker_on(disk, engine, **NO_CLEANER) as broker:
        client, cleaner = Client(broker), broker.log_cleaner
        topic, values = await fill(client, disk, chooser)
        fill_the_rest(disk)
        before = cleaner.statistics().read_bytes
        for _ in range(2):
            await compact(client)
        assert caplog.text.count("compaction of a-0 has to wait: the disk is nearly full") == 1
        counted = cleaner.statistics()
        assert (counted.passes, counted.read_bytes, counted.uncleanable) == (1, before, 0)
        assert await latest(client, topic) == values
        os.unlink(disk / "ballast")
        broker.disk_floor.look()  # As it does from time to time, before it lets producers continue.
        await compact_with_room(client, topic, values, chooser)
    async with broker_on(disk, engine, **NO_CLEANER) as broker:
        assert await latest(Client(broker), topic) == values


async def test_lmdb_compacts_in_pages_that_are_free(disk: Path) -> None:
    """It writes the new contents piece by piece, and each piece frees the pages of old ones."""
    chooser = random.Random(1)
    async with broker_on(disk, "lmdb", **NO_FLOOR) as broker:
        client = Client(broker)
        topic, values = await fill(client, disk, chooser)
        fill_the_rest(disk)
        await compact(client)
        counted = broker.log_cleaner.statistics()
        assert (counted.passes, counted.uncleanable) == (2, 0)
        assert await latest(client, topic) == values


@pytest.mark.parametrize("engine", ["segment", "rocksdb"])
async def test_a_pass_without_room_is_not_repeated(
    disk: Path, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each attempt would read the log again. Without a floor the pass begins on the full disk."""
    chooser = random.Random(1)
    async with broker_on(disk, engine, **NO_FLOOR) as broker:
        client, cleaner = Client(broker), broker.log_cleaner
        topic, values = await fill(client, disk, chooser)
        fill_the_rest(disk)
        before = cleaner.statistics().read_bytes
        await compact(client)
        assert "compaction of a-0 has to wait" in caplog.text
        after = cleaner.statistics().read_bytes
        assert after > before
        await compact(client)
        counted = cleaner.statistics()
        assert (counted.passes, counted.read_bytes, counted.uncleanable) == (1, after, 0)
        assert await latest(client, topic) == values
        os.unlink(disk / "ballast")
        await compact_with_room(client, topic, values, chooser)
    async with broker_on(disk, engine, **NO_FLOOR) as broker:
        assert await latest(Client(broker), topic) == values


async def test_a_pass_stops_at_the_floor(disk: Path) -> None:
    """It begins above the limit. It ends before its new segment is as large as the room above."""
    chooser = random.Random(1)
    async with broker_on(disk, "segment", **NO_CLEANER) as broker:
        client, cleaner = Client(broker), broker.log_cleaner
        topic, values = await fill(client, disk, chooser)
        leave_free(disk, broker.disk_floor.statistics().floor_bytes + (1 << 19))
        before = cleaner.statistics().read_bytes
        await compact(client)
        counted = cleaner.statistics()
        assert (counted.passes, counted.uncleanable) == (1, 0)
        assert counted.read_bytes > before
        assert not broker.disk_floor.is_short, "its new segment is gone"
        os.unlink(disk / "ballast")
        await compact_with_room(client, topic, values, chooser)


def leave_free(disk: Path, size_bytes: int) -> None:
    found = os.statvfs(disk)
    with (disk / "ballast").open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, found.f_bavail * found.f_frsize - size_bytes)
