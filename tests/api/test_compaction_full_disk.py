"""A pass over a log on a disk without a free byte. Uses a small tmpfs, so it needs the right to
mount one; skipped without it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kbroker.broker.broker import open_broker
from kbroker.broker.options import StartOptions
from kbroker.settings.altering import BrokerConfig
from tests.api.conftest import Client
from tests.api.test_compaction import append, compact, keyed, stored
from tests.api.test_really_full_disk import fill_the_rest
from tests.small_disk import small_disk

DISK_BYTES = 96 << 20
VALUE_CHARACTERS = 50_000
CONFIGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": str(4 << 20),
    "min.cleanable.dirty.ratio": "0",
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


def options_of(disk: Path, engine: str) -> StartOptions:
    return StartOptions(
        data_dir=disk / "data",
        storage=engine,
        state_storage=engine,
        config=BrokerConfig({"log.cleaner.backoff.ms": "3600000"}),
        listen=("127.0.0.1", 9092),
    )


async def write(client: Client, topic: object, keys: Iterator[str], chooser: random.Random) -> dict[str, str]:
    """Returns the latest value of each key."""
    values: dict[str, str] = {}
    for key in keys:
        values[key] = chooser.randbytes(VALUE_CHARACTERS // 2).hex()
        await append(client, topic, keyed((key, values[key])))
    return values


async def latest(client: Client, topic: object) -> Mapping[str, str | None]:
    return dict((await stored(client, topic)).values())


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
async def test_a_pass_waits_for_space(disk: Path, engine: str, caplog: pytest.LogCaptureFixture) -> None:
    """All but a few records stay, so a segment needs about its own size beside it. The first pass
    is made while there is space."""
    chooser = random.Random(1)
    async with open_broker(options_of(disk, engine)) as broker:
        client = Client(broker)
        topic = (await client.create_topic("a", configs=CONFIGS)).topic_id
        values = await write(client, topic, (f"k{number % 100}" for number in range(200)), chooser)
        await compact(client)
        assert broker.log_cleaner.statistics().passes == 1
        values |= await write(client, topic, (f"k{number}" for number in range(0, 300, 3)), chooser)
        fill_the_rest(disk)
        await compact(client)
        assert "compaction of a-0 has to wait" in caplog.text
        counted = broker.log_cleaner.statistics()
        assert (counted.passes, counted.uncleanable) == (1, 0)
        assert await latest(client, topic) == values
        os.unlink(disk / "ballast")
        broker.disk_floor.look()  # As it does from time to time, before it lets producers continue.
        values |= await write(client, topic, (f"k{number}" for number in range(0, 300, 50)), chooser)
        await compact(client)
        counted = broker.log_cleaner.statistics()
        assert (counted.passes, counted.uncleanable) == (2, 0)
        assert await latest(client, topic) == values
    async with open_broker(options_of(disk, engine)) as broker:
        assert await latest(Client(broker), topic) == values
