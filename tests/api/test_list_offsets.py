"""ListOffsets: every version, every special timestamp, look-ups by time, fencing and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kbroker.errors import ErrorCode
from kbroker.formats.batches import Record, build_batch
from tests.api.conftest import Client, Connect, versions

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
Found = tuple[ErrorCode, int, int]
NOTHING = (ErrorCode.none, -1, -1)


async def rows(
    client: Client, *asked: tuple[int, int], version: int = 11, topic: str = "a", epoch: int = -1
) -> list[Any]:
    """`asked`: (partition, timestamp) for each row."""
    partitions = [
        {"partition_index": index, "current_leader_epoch": epoch, "timestamp": timestamp}
        for index, timestamp in asked
    ]
    answer = await client.call(
        "list_offsets",
        version,
        replica_id=-1,
        isolation_level=1,
        topics=[{"name": topic, "partitions": partitions}],
    )
    (found,) = answer.topics
    assert found.name == topic
    return list(found.partitions)


async def offset(client: Client, timestamp: int, **more: Any) -> Found:
    """(code, offset, timestamp) for partition 0."""
    (row,) = await rows(client, (0, timestamp), **more)
    return row.error_code, row.offset, row.timestamp


@pytest.mark.parametrize("version", versions("list_offsets"))
async def test_every_version(connect: Connect, version: int) -> None:
    async with connect() as client:
        await client.create_topic("a", 2)
        await client.append("a", 1000, 2000, 3000)
        latest, empty = await rows(client, (0, LATEST), (1, LATEST), version=version)
        assert (latest.partition_index, latest.error_code, latest.offset, latest.timestamp) == (
            0,
            ErrorCode.none,
            3,
            -1,
        )
        assert (empty.partition_index, empty.error_code, empty.offset, empty.timestamp) == (
            1,
            ErrorCode.none,
            0,
            -1,
        )
        if version >= 4:
            assert (latest.leader_epoch, empty.leader_epoch) == (0, 0)
        assert await offset(client, EARLIEST, version=version) == (ErrorCode.none, 0, -1)
        assert await offset(client, 1500, version=version) == (ErrorCode.none, 1, 2000)


@pytest.mark.parametrize(
    ("timestamp", "first_version", "found"),
    [
        (MAX_TIMESTAMP, 7, (0, 1, 2000)),
        (EARLIEST_LOCAL, 8, (0, 0, -1)),
        (LATEST_TIERED, 9, NOTHING),
        (-6, 11, NOTHING),
        (-99, 99, ()),
    ],
)
# BASE-50
async def test_special_timestamps_by_version(
    connect: Connect, timestamp: int, first_version: int, found: Found
) -> None:
    async with connect() as client:
        await client.create_topic("a")
        await client.append("a", 1000, 2000, 2000, 500)
        for version in versions("list_offsets"):
            expected = found if version >= first_version else (ErrorCode.unsupported_version, -1, -1)
            assert await offset(client, timestamp, version=version) == expected, version


async def test_by_time(connect: Connect, every_engine: str) -> None:  # BASE-51
    async with connect(every_engine) as client:
        await client.create_topic("a")
        await client.append("a", 1000, 3000, 2000)
        await client.append("a", 2500, 9000)
        expected = {
            0: (0, 1000),
            1000: (0, 1000),
            1001: (1, 3000),
            3000: (1, 3000),
            3001: (4, 9000),
            9000: (4, 9000),
            9001: (-1, -1),
        }
        for timestamp, found in expected.items():
            assert await offset(client, timestamp) == (ErrorCode.none, *found), timestamp
        assert await offset(client, MAX_TIMESTAMP) == (ErrorCode.none, 4, 9000)


async def test_an_empty_partition_has_no_records_to_find(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a")
        assert await offset(client, 0) == NOTHING
        assert await offset(client, MAX_TIMESTAMP) == NOTHING
        (row,) = await rows(client, (0, EARLIEST))
        assert (row.offset, row.leader_epoch) == (0, 0)


async def test_what_was_deleted_is_not_found(connect: Connect, every_engine: str) -> None:
    async with connect(every_engine) as client:
        await client.create_topic("a")
        await client.append("a", 9000, 1000, 2000)
        await client.append("a", 5000, 5000)
        await client.broker.topics.move_log_start(client.partition("a"), 1)
        assert await offset(client, EARLIEST) == (ErrorCode.none, 1, -1)
        assert await offset(client, EARLIEST_LOCAL) == (ErrorCode.none, 1, -1)
        assert await offset(client, 0) == (ErrorCode.none, 1, 1000)
        assert await offset(client, 8000) == NOTHING
        assert await offset(client, MAX_TIMESTAMP) == (ErrorCode.none, 3, 5000)
        await client.broker.topics.move_log_start(client.partition("a"), 5)
        assert await offset(client, MAX_TIMESTAMP) == NOTHING


async def test_the_greatest_timestamp_waits_for_a_batch_that_is_being_saved(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a")
        await client.append("a", 1000)
        counts = trio.Event()
        batch = build_batch([Record(0, 7000, None, b"x", ())])
        client.partition("a").append(batch, 7000, lambda error: counts.set())
        found = await offset(client, MAX_TIMESTAMP)
        assert found in ((ErrorCode.none, 0, 1000), (ErrorCode.none, 1, 7000))
        await counts.wait()
        assert await offset(client, MAX_TIMESTAMP) == (ErrorCode.none, 1, 7000)


async def test_epochs_of_several_lives(connect: Connect, every_engine: str) -> None:
    async with connect(every_engine) as client:
        await client.create_topic("a")
        await client.append("a", 1000)
        first = client.partition("a").leader_epoch
    async with connect(every_engine) as client:
        await client.append("a", 2000)
    async with connect(every_engine) as client:
        epochs = [
            (await rows(client, (0, timestamp)))[0].leader_epoch
            for timestamp in (EARLIEST, 1000, 1001, MAX_TIMESTAMP, LATEST)
        ]
        assert epochs == [first, first, first + 1, first + 1, first + 2]
        codes = [(await offset(client, LATEST, epoch=first + life))[0] for life in (1, 2, 3)]
        assert codes == [ErrorCode.fenced_leader_epoch, ErrorCode.none, ErrorCode.unknown_leader_epoch]


async def test_refused_rows(connect: Connect) -> None:  # BASE-52
    async with connect() as client:
        await client.create_topic("a", 2)
        assert await offset(client, LATEST, topic="b") == (ErrorCode.unknown_topic_or_partition, -1, -1)
        codes = [row.error_code for row in await rows(client, (2, LATEST), (-1, LATEST), (0, LATEST))]
        assert codes == [
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.none,
        ]
        found = await rows(client, (0, LATEST), (1, LATEST), (0, EARLIEST))
        assert [(row.partition_index, row.error_code) for row in found] == [
            (0, ErrorCode.invalid_request),
            (1, ErrorCode.none),
        ]
        assert [row.error_code for row in await rows(client, (0, -100), (2, -100))] == [
            ErrorCode.unsupported_version
        ] * 2
        assert await offset(client, LATEST, epoch=-2) == (ErrorCode.fenced_leader_epoch, -1, -1)


async def test_an_unknown_isolation_level_refuses_every_row(connect: Connect) -> None:  # BASE-46
    async with connect() as client:
        await client.create_topic("a")
        topics = [
            {"name": name, "partitions": [{"partition_index": 0, "timestamp": LATEST}]} for name in ("a", "b")
        ]
        answer = await client.call("list_offsets", 7, replica_id=-1, isolation_level=2, topics=topics)
        assert [row.error_code for topic in answer.topics for row in topic.partitions] == [
            ErrorCode.unknown_server_error
        ] * 2
