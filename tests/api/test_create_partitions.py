"""CreatePartitions: every version, every refusal, two concurrent requests, and the state after a
restart."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kbroker.api.replica_assignments import MAX_PARTITIONS_PER_REQUEST
from kbroker.errors import ErrorCode
from tests.api.conftest import Client, Connect, versions

Row = tuple[ErrorCode, str | None]


def growth(name: str, count: int, *brokers: tuple[int, ...]) -> dict[str, Any]:
    return {"name": name, "count": count, "assignments": [{"broker_ids": ids} for ids in brokers] or None}


async def grow(
    client: Client, *topics: dict[str, Any], version: int = 3, validate_only: bool = False
) -> list[tuple[ErrorCode, str | None]]:
    answer = await client.call("create_partitions", version, topics=topics, validate_only=validate_only)
    return [(row.error_code, row.error_message) for row in answer.results]


def partitions(client: Client, name: str) -> int:
    topic = client.broker.topics.by_name(name)
    assert topic is not None
    return len(topic.partitions)


@pytest.mark.parametrize("version", versions("create_partitions"))
async def test_every_version_grows(connect: Connect, version: int) -> None:
    async with connect() as client:
        await client.create_topic("a", 2)
        assert await grow(client, growth("a", 4, (1,), (1,)), version=version) == [(ErrorCode.none, None)]
        assert partitions(client, "a") == 4
        assert await client.append("a", 1000, partition=3) == 0


@pytest.mark.parametrize(
    ("wanted", "code", "message"),
    [
        pytest.param(growth("x", 3), ErrorCode.unknown_topic_or_partition, None, id="unknown"),
        pytest.param(
            growth("a", 2), ErrorCode.invalid_partitions, "Topic already has 2 partition(s).", id="same"
        ),
        pytest.param(
            growth("a", 1),
            ErrorCode.invalid_partitions,
            "The topic a currently has 2 partition(s); 1 would not be an increase.",
            id="lower",
        ),
        pytest.param(growth("a", -1), ErrorCode.invalid_partitions, None, id="negative"),
        pytest.param(
            growth("a", 4, (1,)), ErrorCode.invalid_replica_assignment, None, id="one assignment for two"
        ),
        pytest.param(growth("a", 3, (7,)), ErrorCode.invalid_replica_assignment, None, id="other broker"),
        pytest.param(
            growth("a", MAX_PARTITIONS_PER_REQUEST + 3), ErrorCode.policy_violation, None, id="too many"
        ),
    ],
)
# BASE-17
async def test_refused(
    connect: Connect, wanted: dict[str, Any], code: ErrorCode, message: str | None
) -> None:
    async with connect() as client:
        await client.create_topic("a", 2)
        ((found, text),) = await grow(client, wanted)
        assert found is code
        assert message in (None, text)
        assert partitions(client, "a") == 2


async def test_duplicates_are_refused(connect: Connect) -> None:  # BASE-17
    async with connect() as client:
        await client.create_topic("a")
        assert await grow(client, growth("a", 2), growth("a", 3)) == [
            (ErrorCode.invalid_request, "Duplicate topic name.")
        ]
        assert partitions(client, "a") == 1


async def test_the_bound_is_for_the_whole_request(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a")
        await client.create_topic("b")
        answer = await grow(
            client, growth("a", MAX_PARTITIONS_PER_REQUEST), growth("b", 3), validate_only=True
        )
        assert [code for code, _ in answer] == [ErrorCode.none, ErrorCode.policy_violation]


async def test_validate_only_changes_nothing(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a")
        assert await grow(client, growth("a", 2), validate_only=True) == [(ErrorCode.none, None)]
        assert partitions(client, "a") == 1


async def test_two_clients_grow_the_same_topic(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a")
        codes: list[ErrorCode] = []

        async def one() -> None:
            codes.append((await grow(client, growth("a", 3)))[0][0])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            nursery.start_soon(one)
        assert sorted(codes) == [ErrorCode.none, ErrorCode.invalid_partitions]
        assert partitions(client, "a") == 3


async def test_partitions_are_there_after_a_restart(connect: Connect, every_engine: str) -> None:
    async with connect(every_engine) as client:
        await client.create_topic("a")
        await grow(client, growth("a", 3))
        await client.append("a", 1000, 2000, partition=2)
    async with connect(every_engine) as client:
        topic = client.broker.topics.by_name("a")
        assert topic is not None
        assert [partition.high_watermark for partition in topic.partitions] == [0, 0, 2]
