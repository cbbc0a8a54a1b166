"""Batches whose headers were damaged on disk: a client that fetches one gets an error, all others
are served, and nothing stalls."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kbroker import plugins
from kbroker.errors import ErrorCode
from kbroker.formats.batches import ProducerInfo, Record, build_batch, iter_headers, stamp
from kbroker.storage.segment.index import DATA
from kbroker.storage.spi import LogId, StampedBatch
from tests.api.conftest import Client, Connect

ENGINES = ["segment", "lmdb", "rocksdb"]
CORRUPT = ErrorCode.corrupt_message


def put(layout: str, at: int, value: int) -> Callable[[bytearray], None]:
    return lambda batch: struct.pack_into(layout, batch, at, value)


def zeros(batch: bytearray) -> None:
    batch[:] = bytes(len(batch))


DAMAGES: dict[str, Callable[[bytearray], None]] = {
    "no length": put(">i", 8, 0),
    "a length that goes nowhere": put(">i", 8, -12),
    "a negative length": put(">i", 8, -100),
    "a length beyond the end": put(">i", 8, 1 << 30),
    "a length that is too small": put(">i", 8, 50),
    "another magic": put(">b", 16, 0x55),
    "an offset far behind": put(">q", 0, 1 << 60),
    "an offset before": put(">q", 0, 0),
    "a negative offset": put(">q", 0, -5),
    "a negative last offset": put(">i", 23, -1),
    "zeros": zeros,
}


def stamped(log: LogId, offset: int, damage: Callable[[bytearray], None] | None = None) -> StampedBatch:
    batch = bytearray(build_batch([Record(0, 1, None, b"x" * 200, ())]))
    stamp(batch, base_offset=offset, leader_epoch=0)
    if damage is not None:
        damage(batch)
    return StampedBatch(log, offset, offset, 1, batch)


@asynccontextmanager
async def damaged(
    connect: Connect,
    home: Path,
    engine: str,
    damage: Callable[[bytearray], None],
    bad: int,
    *,
    in_one_write: bool = False,
) -> AsyncIterator[Client]:
    """A broker with the topic `damaged`, which has three batches of which number `bad` is invalid,
    and `orders`, with one batch in each of two partitions."""
    async with connect(engine) as client:
        await client.create_topic("damaged")
        await client.create_topic("orders", 2)
        for partition in range(2):
            await client.append("orders", 1, partition=partition)
        log = client.partition("damaged").log
    store = plugins.log_store_factory(engine).open(home / engine / f"log-{engine}", {}, 0)
    batches = [stamped(log, offset, damage if offset == bad else None) for offset in range(3)]
    for write in [batches] if in_one_write else [[batch] for batch in batches]:
        store.write(write, now_ms=0)
    store.sync()
    store.close()
    async with connect(engine) as client:
        assert client.partition("damaged").high_watermark == 3
        yield client


async def fetch(
    client: Client, topic: str, offset: int = 0, partitions: int = 1
) -> list[tuple[ErrorCode, list[int]]]:
    """By partition: the error, and the base offsets of the batches."""
    rows = [
        {
            "partition": index,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
        for index in range(partitions)
    ]
    answer = await client.call(
        "fetch", 11, replica_id=-1, max_wait=0, min_bytes=0, max_bytes=1 << 20, isolation_level=0,
        session_id=0, session_epoch=-1, topics=[{"topic": topic, "partitions": rows}],
        forgotten_topics_data=(), rack_id="",
    )  # fmt: skip
    return [(row.error_code, offsets_of(row.records)) for row in answer.responses[0].partitions]


def offsets_of(records: Any) -> list[int]:
    return [header.base_offset for _, header in iter_headers(bytes(records or b""))]


class Member:
    """Member of a new share group; its session spans its fetches."""

    def __init__(self, client: Client, topics: list[str]) -> None:
        self._client = client
        self._topics = topics
        self._epoch = 0

    async def join(self) -> None:
        config = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
        resource = {"resource_type": 32, "resource_name": "g", "configs": [config]}
        await self._client.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
        joined = await self._client.call(
            "share_group_heartbeat",
            1,
            group_id="g",
            member_id="m",
            member_epoch=0,
            rack_id=None,
            subscribed_topic_names=self._topics,
        )
        self._assigned = joined.assignment.topic_partitions

    async def fetch(self) -> dict[str, list[tuple[ErrorCode, list[int]]]]:
        """By topic, for each of its partitions: the error and the acquired offsets."""
        rows = [
            [{"partition_index": index, "acknowledgement_batches": ()} for index in each.partitions]
            for each in self._assigned
        ]
        topics = [
            {"topic_id": each.topic_id, "partitions": row}
            for each, row in zip(self._assigned, rows, strict=True)
        ]
        answer = await self._client.call(
            "share_fetch", 1, group_id="g", member_id="m", share_session_epoch=self._epoch, max_wait=50,
            min_bytes=1, max_bytes=1 << 20, max_records=10, batch_size=10,
            topics=topics if self._epoch == 0 else (), forgotten_topics_data=(),
        )  # fmt: skip
        self._epoch += 1
        found: dict[str, list[tuple[ErrorCode, list[int]]]] = {}
        for topic in answer.responses:
            name = self._client.broker.topics.by_id(topic.topic_id).name  # type: ignore[union-attr]
            for row in topic.partitions:
                taken = [
                    offset
                    for each in row.acquired_records
                    for offset in range(each.first_offset, each.last_offset + 1)
                ]
                found.setdefault(name, []).append((row.error_code, taken))
        return found


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    ("engine", "in_one_write"), [("segment", False), ("lmdb", False), ("lmdb", True), ("rocksdb", True)]
)
async def test_a_fetch_of_a_damaged_batch_is_refused(
    connect: Connect,
    tmp_path: Path,
    engine: str,
    damage: str,
    in_one_write: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with damaged(connect, tmp_path, engine, DAMAGES[damage], 1, in_one_write=in_one_write) as client:
        (before,) = await fetch(client, "damaged", 0)
        assert before[0] == ErrorCode.none
        assert before[1][0] == 0
        for _ in range(3):
            assert await fetch(client, "damaged", 1) == [(CORRUPT, [])]
        assert await fetch(client, "orders", 0, partitions=2) == [
            (ErrorCode.none, [0]),
            (ErrorCode.none, [0]),
        ]
        if engine == "segment" or not in_one_write:
            assert await fetch(client, "damaged", 2) == [(ErrorCode.none, [2])]
        await client.append("damaged", 1)
        assert await fetch(client, "damaged", 3) == [(ErrorCode.none, [3])]
    assert len([record for record in caplog.records if "cannot be read at offset" in record.message]) == 1


@pytest.mark.parametrize(
    ("engine", "damage", "bad"),
    [
        *(("segment", damage, 1) for damage in DAMAGES),
        ("segment", "zeros", 0),
        ("lmdb", "another magic", 0),
        ("rocksdb", "zeros", 1),
    ],
)
async def test_a_share_fetch_of_a_damaged_batch_is_refused(
    connect: Connect, tmp_path: Path, engine: str, damage: str, bad: int
) -> None:
    """FET-31: Records before it are delivered, also in other partitions; offsets without a readable
    record are not acquired."""
    async with damaged(connect, tmp_path, engine, DAMAGES[damage], bad) as client:
        member = Member(client, ["damaged", "orders"])
        await member.join()
        first: dict[str, list[tuple[ErrorCode, list[int]]]] = {"orders": [], "damaged": []}
        # A response does not wait for share-partitions that are still loading.
        while len(first["orders"]) < 2 or not first["damaged"]:
            for name, found in (await member.fetch()).items():
                first[name] += [(error, taken) for error, taken in found if error or taken]
        assert first["orders"] == [(ErrorCode.none, [0]), (ErrorCode.none, [0])]
        assert first["damaged"][0] == ((ErrorCode.none, [0]) if bad == 1 else (CORRUPT, []))
        assert (await member.fetch())["damaged"] == [(CORRUPT, [])]
        await client.append("orders", 1)
        assert (ErrorCode.none, [1]) in (await member.fetch())["orders"]


async def test_every_damaged_byte_of_a_header(connect: Connect, tmp_path: Path) -> None:
    """In a segment, under a running broker. Bytes under the CRC, and the leader epoch, are for the
    consumer to check. The last offset delta is under the CRC as well, but the broker detects its
    damage."""
    async with connect("segment") as client:
        await client.create_topic("damaged")
        for _ in range(3):
            await client.append_raw("damaged", build_batch([Record(0, 1, None, b"x" * 200, ())]))
        (path,) = (tmp_path / "segment" / "log-segment").glob(f"*/*/{DATA}")
        with path.open("rb") as file:
            content = file.read(4096)
        start = [position for position, _ in iter_headers(content)][1]
        refused = set()
        for at in range(61):
            with path.open("r+b") as file:
                file.seek(start + at)
                file.write(bytes([content[start + at] ^ 0x41]))
            ((error, offsets),) = await fetch(client, "damaged", 1)
            assert (error, offsets) == (CORRUPT, []) or (error == ErrorCode.none and offsets[0] == 1)
            if error:
                refused.add(at)
            with path.open("r+b") as file:
                file.seek(start)
                file.write(content[start : start + 61])
        assert refused == {*range(12), 16, *range(23, 27)}
        assert await fetch(client, "damaged", 0) == [(ErrorCode.none, [0, 1, 2])]


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_look_up_by_time_that_meets_a_damaged_batch_is_refused(
    connect: Connect, tmp_path: Path, engine: str
) -> None:
    async with damaged(connect, tmp_path, engine, zeros, 0, in_one_write=True) as client:
        topics = [
            {
                "name": "damaged",
                "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": 1}],
            }
        ]
        answer = await client.call("list_offsets", 7, replica_id=-1, isolation_level=0, topics=topics)
        assert answer.topics[0].partitions[0].error_code == CORRUPT


@pytest.mark.parametrize("engine", ENGINES)
async def test_idempotent_producers_go_on_behind_a_damaged_batch(
    connect: Connect, tmp_path: Path, engine: str
) -> None:
    """Their state cannot be read from there on."""
    async with damaged(connect, tmp_path, engine, zeros, 1, in_one_write=True) as client:
        batch = build_batch([Record(0, 1, None, b"x", ())], producer=ProducerInfo(7, 0, 0))
        assert await client.append_raw("damaged", batch) == 3
        assert await client.append_raw("damaged", batch) == 3
