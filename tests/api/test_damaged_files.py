"""Files that were damaged while the broker was down: a refusal in one line, or an error row beside
rows that work. Never a traceback."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from kbroker.errors import ErrorCode, OperatorError
from kbroker.formats.batches import Record, build_batch, iter_headers
from kbroker.storage.segment.index import DATA
from tests.api.conftest import Client, Connect


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x41
    path.write_bytes(data)


async def fetch(client: Client, topic: str, partitions: int) -> dict[int, tuple[ErrorCode, bool]]:
    """By partition: the error, and whether there were records."""
    rows = [
        {
            "partition": index,
            "current_leader_epoch": -1,
            "fetch_offset": 0,
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
    return {
        row.partition_index: (row.error_code, bool(row.records)) for row in answer.responses[0].partitions
    }


async def share_fetch(client: Client, topic: str) -> list[tuple[ErrorCode, bool]]:
    """The same for a new member of a new group, with a request per partition."""
    group = {"group_id": f"readers-of-{topic}", "member_id": "m"}
    config = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": 32, "resource_name": group["group_id"], "configs": [config]}
    await client.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    joined = await client.call(
        "share_group_heartbeat", 1, **group, member_epoch=0, rack_id=None, subscribed_topic_names=[topic]
    )
    found = []
    for assigned in joined.assignment.topic_partitions:
        for index in assigned.partitions:
            topics = [
                {
                    "topic_id": assigned.topic_id,
                    "partitions": [{"partition_index": index, "acknowledgement_batches": ()}],
                }
            ]
            answer = await client.call(
                "share_fetch", 1, **group, share_session_epoch=0, max_wait=100, min_bytes=1,
                max_bytes=1 << 20, max_records=10, batch_size=10, topics=topics, forgotten_topics_data=(),
            )  # fmt: skip
            ((row,),) = [topic.partitions for topic in answer.responses]
            found.append((row.error_code, bool(row.acquired_records)))
    return found


@pytest.mark.parametrize("where", ["the CRC", "the length"])
@pytest.mark.parametrize("number", [0, 3])
async def test_state_that_is_damaged_is_refused(
    connect: Connect, tmp_path: Path, where: str, number: int
) -> None:
    """Even if the damage hides everything after it: confirmed changes must not be lost silently."""
    async with connect("segment") as client:
        for name in ("a", "b", "c"):
            await client.create_topic(name)
            await client.append(name, 1)
    (path,) = (tmp_path / "segment" / "state-segment").glob(f"*/*/{DATA}")
    position = [position for position, _ in iter_headers(path.read_bytes())][number]
    flip(path, position + (17 if where == "the CRC" else 8))
    with pytest.raises(OperatorError) as refused:
        async with connect("segment"):
            pass
    assert "\n" not in str(refused.value)


async def test_a_segment_that_was_cut_from_outside_is_reported(
    connect: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect("segment") as client:
        await client.create_topic("orders")
        await client.append("orders", 1, 2, 3)
    (path,) = (tmp_path / "segment" / "log-segment").glob(f"*/*/{DATA}")
    path.write_bytes(b"")
    async with connect("segment") as client:
        assert client.partition("orders").high_watermark == 0
    assert any(
        each.levelname == "ERROR" and "cut from outside" in each.getMessage() for each in caplog.records
    )


async def test_blocks_that_rocksdb_cannot_read_are_an_error_of_their_partition(
    connect: Connect, tmp_path: Path
) -> None:
    async with connect("rocksdb") as client:
        await client.create_topic("damaged")
        for _ in range(3):
            await client.append_raw("damaged", build_batch([Record(0, 1, None, b"x" * 500_000, ())]))
        await client.create_topic("orders", 2)
        for partition in range(2):
            await client.append("orders", 1, partition=partition)
    async with connect("rocksdb"):
        pass  # RocksDB writes a table when it is opened.
    (table,) = (
        each
        for each in (tmp_path / "rocksdb" / "log-rocksdb").rglob("*.sst")
        if each.stat().st_size > 1 << 20
    )
    flip(table, 200_000)
    async with connect("rocksdb") as client:
        assert await fetch(client, "damaged", 1) == {0: (ErrorCode.kafka_storage_error, False)}
        assert await fetch(client, "orders", 2) == {0: (ErrorCode.none, True), 1: (ErrorCode.none, True)}
        assert await share_fetch(client, "damaged") == [(ErrorCode.kafka_storage_error, False)]
        assert await share_fetch(client, "orders") == [(ErrorCode.none, True), (ErrorCode.none, True)]


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
async def test_a_directory_that_is_gone_at_the_end(connect: Connect, tmp_path: Path, engine: str) -> None:
    """If an engine cannot close cleanly, the operator gets a message and no traceback."""
    with suppress(OperatorError):
        async with connect(engine) as client:
            await client.create_topic("orders")
            (tmp_path / engine).rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(tmp_path / engine)
    async with connect(engine) as client:
        assert client.partition("orders").high_watermark == 0
