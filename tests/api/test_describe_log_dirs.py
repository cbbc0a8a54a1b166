"""DescribeLogDirs: sizes per partition, and the disk's."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.errors import ErrorCode
from tests.api.conftest import Client, Connect, versions


async def describe(client: Client, topics: list[tuple[str, list[int]]] | None, version: int = 5) -> Any:
    asked = None if topics is None else [{"topic": name, "partitions": indexes} for name, indexes in topics]
    answer = await client.call("describe_log_dirs", version, topics=asked)
    if version >= 3:
        assert answer.error_code is ErrorCode.none
    (result,) = answer.results
    return result


def sizes(result: Any) -> dict[str, dict[int, int]]:
    return {
        topic.name: {each.partition_index: each.partition_size for each in topic.partitions}
        for topic in result.topics
    }


@pytest.mark.parametrize("version", versions("describe_log_dirs"))
async def test_every_version(connect: Connect, version: int) -> None:
    async with connect() as client:
        await client.create_topic("a", 2)
        await client.append("a", 1000, partition=1)
        result = await describe(client, None, version)
        assert result.error_code is ErrorCode.none
        assert result.log_dir == str(client.broker.options.data_dir)
        (batch,) = await client.partition("a", 1).read(0, max_bytes=1 << 20, end_offset=1)
        assert sizes(result) == {"a": {0: 0, 1: len(batch)}}
        row = result.topics[0].partitions[0]
        assert (row.offset_lag, row.is_future_key) == (0, False)
        if version >= 4:
            assert 0 < result.usable_bytes < result.total_bytes
        if version >= 5:
            assert result.is_cordoned is False


async def test_only_what_was_asked_for_and_exists(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a", 3)
        await client.create_topic("b")
        assert sizes(await describe(client, [("a", [2, 0, 7]), ("x", [0])])) == {"a": {0: 0, 2: 0}}
        assert sizes(await describe(client, [])) == {}


async def test_sizes_grow_with_the_log_on_every_engine(connect: Connect, every_engine: str) -> None:
    async with connect(every_engine) as client:
        await client.create_topic("a")
        await client.append("a", 1000)
        one = sizes(await describe(client, None))["a"][0]
        await client.append("a", 1000)
        assert sizes(await describe(client, None))["a"][0] >= 2 * one > 0
