"""DeleteRecords: the log start moves up, for readers at once and permanently after a restart."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kbroker.errors import ErrorCode
from tests.api.conftest import Client, Connect, versions

HIGH_WATERMARK = -1


async def delete(
    client: Client, offset: int, *, topic: str = "a", partition: int = 0, version: int = 2
) -> tuple[ErrorCode, int]:
    """(code, low watermark)"""
    asked = [{"partition_index": partition, "offset": offset}]
    answer: Any = await client.call("delete_records", version, topics=[{"name": topic, "partitions": asked}])
    (found,) = answer.topics
    (row,) = found.partitions
    assert (found.name, row.partition_index) == (topic, partition)
    return row.error_code, row.low_watermark


async def five_records(client: Client) -> None:
    await client.create_topic("a")
    await client.append("a", 1000, 2000, 3000)
    await client.append("a", 4000, 5000)


@pytest.mark.parametrize("version", versions("delete_records"))
async def test_every_version(connect: Connect, version: int) -> None:
    async with connect() as client:
        await five_records(client)
        assert await delete(client, 2, version=version) == (ErrorCode.none, 2)
        assert client.partition("a").log_start_offset == 2


async def test_below_the_start_changes_nothing(connect: Connect) -> None:  # BASE-55
    async with connect() as client:
        await five_records(client)
        assert await delete(client, 3) == (ErrorCode.none, 3)
        assert await delete(client, 1) == (ErrorCode.none, 3)
        assert await delete(client, 3) == (ErrorCode.none, 3)


async def test_refused(connect: Connect) -> None:  # BASE-56, BASE-57
    async with connect() as client:
        await five_records(client)
        assert await delete(client, 6) == (ErrorCode.offset_out_of_range, -1)
        assert await delete(client, -2) == (ErrorCode.offset_out_of_range, -1)
        assert await delete(client, 0, topic="b") == (ErrorCode.unknown_topic_or_partition, -1)
        assert await delete(client, 0, partition=1) == (ErrorCode.unknown_topic_or_partition, -1)
        assert await delete(client, 0, topic="__consumer_offsets") == (ErrorCode.invalid_topic_exception, -1)
        assert client.partition("a").log_start_offset == 0


async def test_a_partition_listed_twice_counts_once(connect: Connect) -> None:
    """The last row is used, also over several rows of a topic; a topic without partitions gets no
    answer."""
    async with connect() as client:
        await five_records(client)
        topics = [
            {
                "name": name,
                "partitions": [{"partition_index": index, "offset": offset} for index, offset in asked],
            }
            for name, asked in (
                ("a", [(0, 4), (0, 9)]),
                ("b", [(0, 0)]),
                ("c", []),
                ("a", [(1, 0), (0, 2)]),
                ("b", [(0, 1)]),
            )
        ]
        answer = await client.call("delete_records", 2, topics=topics)
        rows = [
            (topic.name, row.partition_index, row.error_code, row.low_watermark)
            for topic in answer.topics
            for row in topic.partitions
        ]
        unknown = ErrorCode.unknown_topic_or_partition
        assert rows == [("a", 0, ErrorCode.none, 2), ("a", 1, unknown, -1), ("b", 0, unknown, -1)]
        assert [topic.name for topic in answer.topics] == ["a", "b"]


@pytest.mark.parametrize(("offset", "start"), [(2, 2), (HIGH_WATERMARK, 5)])
# BASE-54
async def test_deleted_records_do_not_come_back(
    connect: Connect, every_engine: str, offset: int, start: int
) -> None:
    async with connect(every_engine) as client:
        await five_records(client)
        assert await delete(client, offset) == (ErrorCode.none, start)
    async with connect(every_engine) as client:
        partition = client.partition("a")
        assert (partition.log_start_offset, partition.high_watermark) == (start, 5)
        assert await client.append("a", 6000) == 5


async def test_two_clients_delete_up_to_different_offsets(connect: Connect, every_engine: str) -> None:
    """The lower one must not be stored last."""
    async with connect(every_engine) as client:
        await five_records(client)
        async with trio.open_nursery() as nursery:
            for offset in (2, 4, 1, 3):
                nursery.start_soon(delete, client, offset)
        assert client.partition("a").log_start_offset == 4
    async with connect(every_engine) as client:
        assert client.partition("a").log_start_offset == 4
