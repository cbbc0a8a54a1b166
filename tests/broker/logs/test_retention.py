"""Retention by time and by size: which segments are removed, on every engine, with an active share
group."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from kbroker.broker.broker import open_broker
from kbroker.broker.logs.retention import apply_retention, new_log_start
from kbroker.broker.options import StartOptions
from kbroker.clock import wall_clock_ms
from kbroker.formats.batches import Record, build_batch
from kbroker.settings.altering import BrokerConfig
from kbroker.storage.spi import SegmentInfo
from tests.broker.appending import append

NOW_MS = 1_000_000
OLD, YOUNG = NOW_MS - 5_000, NOW_MS - 10


def segments(*parts: tuple[int, int, int]) -> list[SegmentInfo]:
    """(records, bytes, max timestamp) of each segment."""
    found, offset = [], 0
    for records, size_bytes, timestamp_ms in parts:
        found.append(SegmentInfo(offset, offset + records, size_bytes, timestamp_ms))
        offset += records
    return found


@pytest.mark.parametrize(
    ("parts", "retention_ms", "retention_bytes", "start"),
    [
        pytest.param([(10, 100, OLD), (10, 100, YOUNG)], -1, -1, 0, id="no limits"),
        pytest.param([(10, 100, OLD), (10, 100, OLD), (10, 100, YOUNG)], 1000, -1, 20, id="old ones go"),
        pytest.param(
            [(10, 100, OLD), (10, 100, YOUNG), (10, 100, OLD)], 1000, -1, 10, id="only from the front"
        ),
        pytest.param([(10, 100, OLD), (10, 100, OLD)], 1000, -1, 20, id="the active segment too"),
        pytest.param([(10, 100, OLD), (0, 0, -1)], 1000, -1, 10, id="an empty active segment stays"),
        pytest.param(
            [(10, 100, -1), (10, 100, OLD)], 1000, -1, 20, id="without a timestamp it goes with what follows"
        ),
        pytest.param([(10, 100, -1), (10, 100, YOUNG)], 1000, -1, 0, id="or stays with it"),
        pytest.param(
            [(10, 100, OLD), (10, 100, -1)], 1000, -1, 10, id="without a timestamp it does not age by itself"
        ),
        pytest.param([(10, 100, YOUNG)] * 4, -1, 250, 10, id="by size: down to the limit, not below"),
        pytest.param([(10, 100, YOUNG)] * 4, -1, 200, 20, id="by size, exactly"),
        pytest.param([(10, 100, YOUNG)] * 4, -1, 0, 30, id="the active segment stays for size"),
        pytest.param([(10, 100, OLD)] + [(10, 100, YOUNG)] * 3, 1000, 100, 30, id="the stricter one decides"),
        pytest.param([(10, 100, OLD)], 0, -1, 10, id="retention.ms=0"),
    ],
)
def test_new_log_start(
    parts: list[tuple[int, int, int]], retention_ms: int, retention_bytes: int, start: int
) -> None:
    found = new_log_start(
        segments(*parts),
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        now_ms=NOW_MS,
        visible_end=10_000,
    )
    assert found == start


def test_nothing_that_is_not_visible_yet_is_removed() -> None:
    parts = segments((10, 100, OLD), (10, 100, OLD))
    assert new_log_start(parts, retention_ms=1000, retention_bytes=0, now_ms=NOW_MS, visible_end=15) == 10


@pytest.mark.parametrize("engine", ["memory", "segment", "lmdb", "rocksdb"])
async def test_on_every_engine(tmp_path: Path, engine: str) -> None:
    options = StartOptions(
        data_dir=tmp_path / "data", storage=engine, state_storage=engine, config=BrokerConfig({})
    )
    configs = {"internal.segment.bytes": "400", "retention.bytes": "900"}
    async with open_broker(options) as broker:
        topic = await broker.topics.create("orders", 1, configs)
        partition = topic.partitions[0]
        for index in range(20):
            batch = build_batch([Record(0, wall_clock_ms(), None, b"%100d" % index)])
            await append(partition, batch)
        assert len(partition.segments()) > 3
        assert await apply_retention(broker.topics, partition, topic.config)
        start = partition.log_start_offset
        assert 0 < start < 20
        assert partition.segments()[0].base_offset == start
        assert sum(segment.size_bytes for segment in partition.segments()) <= 900 + 400
        assert not await apply_retention(broker.topics, partition, topic.config), "nothing is left to do"
        topic_id: UUID = topic.topic_id
    if engine == "memory":
        return
    async with open_broker(options) as broker:
        again = broker.topics.by_id(topic_id)
        assert again is not None
        assert (again.partitions[0].log_start_offset, again.partitions[0].high_watermark) == (start, 20)


@pytest.mark.parametrize("engine", ["memory", "segment", "lmdb", "rocksdb"])
async def test_everything_too_old_leaves_an_empty_log_that_goes_on(tmp_path: Path, engine: str) -> None:
    options = StartOptions(
        data_dir=tmp_path / "data", storage=engine, state_storage=engine, config=BrokerConfig({})
    )
    async with open_broker(options) as broker:
        topic = await broker.topics.create("orders", 1, {"retention.ms": "1000"})
        partition = topic.partitions[0]
        await append(partition, build_batch([Record(0, 1, None, b"old"), Record(0, 2, None, b"old")]))
        assert await apply_retention(broker.topics, partition, topic.config)
        assert (partition.log_start_offset, partition.high_watermark) == (2, 2)
        assert await append(partition, build_batch([Record(0, wall_clock_ms(), None, b"new")])) == 2
        views = await partition.read(2, max_bytes=1000, end_offset=3)
        assert len(views) == 1
