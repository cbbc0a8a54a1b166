"""OffsetForLeaderEpoch: the offsets at which the lives of the broker began and ended in a log."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.errors import ErrorCode
from tests.api.conftest import Client, Connect, versions


async def ends(
    client: Client, *epochs: int, current: int = -1, version: int = 4, topic: str = "a", partition: int = 0
) -> list[Any]:
    asked = [
        {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch} for epoch in epochs
    ]
    answer = await client.call(
        "offset_for_leader_epoch", version, replica_id=-1, topics=[{"topic": topic, "partitions": asked}]
    )
    (found,) = answer.topics
    assert found.topic == topic
    assert {row.partition for row in found.partitions} == {partition}
    return [(row.error_code, row.leader_epoch, row.end_offset) for row in found.partitions]


@pytest.mark.parametrize("version", versions("offset_for_leader_epoch"))
async def test_every_version(connect: Connect, version: int) -> None:
    async with connect() as client:
        await client.create_topic("a")
        await client.append("a", 1000, 2000)
        assert await ends(client, 0, version=version) == [(ErrorCode.none, 0, 2)]


async def test_three_lives(connect: Connect, every_engine: str) -> None:  # BASE-53
    """Epochs 0 and 2 wrote, 1 did not: it ended where 0 ended. A future epoch is unknown, without
    an error."""
    async with connect(every_engine) as client:
        await client.create_topic("a")
        await client.append("a", 1000, 2000)
    async with connect(every_engine) as client:
        assert await ends(client, 0, 1) == [(ErrorCode.none, 0, 2), (ErrorCode.none, 1, 2)]
    async with connect(every_engine) as client:
        await client.append("a", 3000)
        assert await ends(client, 0, 1, 2, 3, -1) == [
            (ErrorCode.none, 0, 2),
            (ErrorCode.none, 0, 2),
            (ErrorCode.none, 2, 3),
            (ErrorCode.none, -1, -1),
            (ErrorCode.none, -1, -1),
        ]


async def test_an_epoch_older_than_every_write_ended_where_the_first_one_began(connect: Connect) -> None:
    """Otherwise a client that joined before the first record would conclude that the log was
    truncated."""
    async with connect() as client:
        await client.create_topic("a")
    async with connect() as client:
        assert await ends(client, 0) == [(ErrorCode.none, 0, 0)]
        await client.append("a", 1000)
        assert await ends(client, 0) == [(ErrorCode.none, 0, 0)]


async def test_ends_begin_with_what_is_left(connect: Connect) -> None:  # BASE-53
    """Any epoch below the existing ones, even a negative one, ended where the log begins; only -1
    means no epoch."""
    async with connect() as client:
        await client.create_topic("a")
        await client.append("a", 1000, 2000, 3000)
        await client.broker.topics.move_log_start(client.partition("a"), 2)
        assert await ends(client, 0, -1, -2) == [
            (ErrorCode.none, 0, 3),
            (ErrorCode.none, -1, -1),
            (ErrorCode.none, -2, 2),
        ]


async def test_refused(connect: Connect) -> None:  # BASE-53
    async with connect() as client:
        await client.create_topic("a")
    async with connect() as client:
        assert await ends(client, 1, current=1) == [(ErrorCode.none, 1, 0)]
        assert await ends(client, 1, current=0) == [(ErrorCode.fenced_leader_epoch, -1, -1)]
        assert await ends(client, 1, current=-2) == [(ErrorCode.fenced_leader_epoch, -1, -1)]
        assert await ends(client, 1, current=2) == [(ErrorCode.unknown_leader_epoch, -1, -1)]
        assert await ends(client, 1, topic="b") == [(ErrorCode.unknown_topic_or_partition, -1, -1)]
        assert await ends(client, 1, partition=1) == [(ErrorCode.unknown_topic_or_partition, -1, -1)]
