"""DescribeTopicPartitions: names in order, pages, cursors, and the rows of missing topics."""

from __future__ import annotations

from typing import Any

from kbroker.errors import ErrorCode
from tests.api.conftest import Client, Connect

Cursor = tuple[str, int]


async def describe(client: Client, *names: str, limit: int = 2000, cursor: Cursor | None = None) -> Any:
    return await client.call(
        "describe_topic_partitions",
        0,
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]},
    )


def shown(answer: Any) -> tuple[list[tuple[str, list[int]]], Cursor | None]:
    rows = [(row.name, [partition.partition_index for partition in row.partitions]) for row in answer.topics]
    assert all(row.error_code == 0 for row in answer.topics)
    cursor = answer.next_cursor
    return rows, None if cursor is None else (cursor.topic_name, cursor.partition_index)


async def topics(client: Client) -> None:
    for name, partitions in (("c", 1), ("a", 3), ("b", 2)):
        await client.create_topic(name, partitions)


async def test_all_topics_by_name(connect: Connect) -> None:
    async with connect() as client:
        await topics(client)
        answer = await describe(client)
        assert shown(answer) == ([("a", [0, 1, 2]), ("b", [0, 1]), ("c", [0])], None)
        row = answer.topics[0]
        found = client.broker.topics.by_name("a")
        assert found is not None
        assert (row.topic_id, row.is_internal) == (found.topic_id, False)
        partition = row.partitions[0]
        assert (
            partition.leader_id,
            partition.leader_epoch,
            partition.replica_nodes,
            partition.isr_nodes,
        ) == (1, 0, (1,), (1,))
        assert (partition.eligible_leader_replicas, partition.last_known_elr, partition.offline_replicas) == (
            (),
            (),
            (),
        )


async def test_pages_follow_each_other(connect: Connect) -> None:
    async with connect() as client:
        await topics(client)
        pages = []
        cursor: Cursor | None = None
        while True:
            rows, cursor = shown(await describe(client, limit=2, cursor=cursor))
            pages.append(rows)
            if cursor is None:
                break
        assert pages == [[("a", [0, 1])], [("a", [2]), ("b", [0])], [("b", [1]), ("c", [0])]]


async def test_a_page_that_ends_with_a_topic_points_to_the_next(connect: Connect) -> None:
    async with connect() as client:
        await topics(client)
        assert shown(await describe(client, limit=3)) == ([("a", [0, 1, 2])], ("b", 0))


async def test_a_limit_of_nothing_counts_as_one(connect: Connect) -> None:  # BASE-19
    async with connect() as client:
        await topics(client)
        for limit in (0, -5):
            assert shown(await describe(client, limit=limit)) == ([("a", [0])], ("a", 1))


async def test_named_topics_in_order_and_once(connect: Connect) -> None:
    async with connect() as client:
        await topics(client)
        assert shown(await describe(client, "c", "a", "c")) == ([("a", [0, 1, 2]), ("c", [0])], None)
        assert shown(await describe(client, "c", "b", "a", cursor=("b", 1))) == (
            [("b", [1]), ("c", [0])],
            None,
        )


async def test_a_cursor_of_a_topic_that_is_gone_goes_on_behind_it(connect: Connect) -> None:
    async with connect() as client:
        await topics(client)
        assert shown(await describe(client, cursor=("aa", 1))) == ([("b", [0, 1]), ("c", [0])], None)
        assert shown(await describe(client, cursor=("a", 9))) == (
            [("a", []), ("b", [0, 1]), ("c", [0])],
            None,
        )


async def test_invalid_cursors(connect: Connect) -> None:  # BASE-19
    async with connect() as client:
        await topics(client)
        for cursor in (("c", 0), ("a", -1)):
            answer = await describe(client, "a", "b", cursor=cursor)
            assert [(row.name, row.error_code) for row in answer.topics] == [
                ("a", ErrorCode.invalid_request),
                ("b", ErrorCode.invalid_request),
            ]
            assert {(row.topic_id, row.topic_authorized_operations) for row in answer.topics} == {
                (None, -(1 << 31))
            }
            assert answer.next_cursor is None


async def test_topics_that_there_are_not(connect: Connect) -> None:
    async with connect() as client:
        await topics(client)
        answer = await describe(client, "a", "no spaces", "unknown")
        assert [(row.name, row.error_code, len(row.partitions)) for row in answer.topics] == [
            ("a", ErrorCode.none, 3),
            ("no spaces", ErrorCode.invalid_topic_exception, 0),
            ("unknown", ErrorCode.unknown_topic_or_partition, 0),
        ]
        assert {row.topic_authorized_operations for row in answer.topics} == {3576}, (
            "all, whether it is there or not"
        )
        (row,) = (await describe(client, "")).topics
        assert (row.error_code, row.topic_id) == (ErrorCode.invalid_topic_exception, None)
