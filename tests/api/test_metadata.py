"""Metadata by name and by id, over its versions."""

from __future__ import annotations

from uuid import uuid4

import pytest

from kbroker.errors import ErrorCode
from tests.api.conftest import Connect

OPTIONS = {
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
    "include_cluster_authorized_operations": False,
}


@pytest.mark.parametrize("version", range(14))
async def test_by_name(connect: Connect, version: int) -> None:  # BASE-7
    async with connect() as client:
        await client.create_topic("orders", 2)
        asked = [{"name": "orders", "topic_id": None}, {"name": "nothing", "topic_id": None}]
        found, missing = (await client.call("metadata", version, topics=asked, **OPTIONS)).topics[:2]
        assert (found.name, found.error_code, len(found.partitions)) == ("orders", ErrorCode.none, 2)
        # Before v4 a client cannot say that no topic may be created.
        expected = ErrorCode.none if version < 4 else ErrorCode.unknown_topic_or_partition
        assert (missing.name, missing.error_code) == ("nothing", expected)


@pytest.mark.parametrize("version", [12, 13])
async def test_by_id(connect: Connect, version: int) -> None:  # BASE-9, BASE-10
    async with connect() as client:
        topic_id, unknown = (await client.create_topic("orders")).topic_id, uuid4()
        asked = [{"name": None, "topic_id": each} for each in (topic_id, unknown, None)]
        asked += [{"name": "orders", "topic_id": unknown}, {"name": "other", "topic_id": None}]
        rows = (await client.call("metadata", version, topics=asked, **OPTIONS)).topics
        assert [(row.name, row.topic_id, row.error_code) for row in rows] == [
            ("orders", topic_id, ErrorCode.none),
            (None, unknown, ErrorCode.unknown_topic_id),
        ]
        neither = {"name": None, "topic_id": None}
        rows = (
            await client.call(
                "metadata", version, topics=[neither, neither, {**neither, "name": "orders"}], **OPTIONS
            )
        ).topics
        assert [(row.name, row.topic_id, row.error_code) for row in rows] == [
            (None, None, ErrorCode.invalid_request),
            ("orders", topic_id, ErrorCode.none),
        ]


@pytest.mark.parametrize("version", range(8, 14))
async def test_authorized_operations(connect: Connect, version: int) -> None:
    """Every operation is allowed, also for missing topics; an unknown id has no topic to allow
    anything for."""
    async with connect() as client:
        await client.create_topic("orders")
        options = {name: True for name in OPTIONS} | {"allow_auto_topic_creation": False}
        asked = [{"name": name, "topic_id": None} for name in ("orders", "nothing", "a b")]
        answer = await client.call("metadata", version, topics=asked, **options)
        assert [row.topic_authorized_operations for row in answer.topics] == [3576] * 3
        if version <= 10:
            assert answer.cluster_authorized_operations == 8096
        if version >= 12:
            answer = await client.call(
                "metadata", version, topics=[{"name": None, "topic_id": uuid4()}], **options
            )
            assert answer.topics[0].topic_authorized_operations == -(1 << 31)


@pytest.mark.parametrize("version", [10, 11])
# BASE-10
async def test_versions_that_have_the_id_and_may_not_use_it(connect: Connect, version: int) -> None:
    """The whole request is refused, without information about the cluster. Responses in these
    versions cannot have a topic without a name."""
    async with connect() as client:
        topic_id = (await client.create_topic("orders")).topic_id
        for odd in (
            {"name": None, "topic_id": topic_id},
            {"name": None, "topic_id": None},
            {"name": "orders", "topic_id": topic_id},
        ):
            answer = await client.call(
                "metadata", version, topics=[odd, {"name": "orders", "topic_id": None}], **OPTIONS
            )
            assert [(row.name, row.topic_id) for row in answer.topics] == [
                (odd["name"] or "", odd["topic_id"]),
                ("orders", None),
            ]
            assert {row.error_code for row in answer.topics} == {ErrorCode.invalid_request}
            assert (answer.brokers, answer.cluster_id, answer.controller_id) == ((), None, -1)


async def test_one_request_does_not_create_partitions_without_end(connect: Connect) -> None:
    async with connect(config={"num.partitions": "4000"}) as client:
        asked = [{"name": name, "topic_id": None} for name in ("a", "b", "c", "a", "not/legal")]
        options = {**OPTIONS, "allow_auto_topic_creation": True}
        rows = (await client.call("metadata", 9, topics=asked, **options)).topics
        refused, invalid = ErrorCode.policy_violation, ErrorCode.invalid_topic_exception
        assert [row.error_code for row in rows] == [refused, refused, refused, invalid]
        (row,) = (await client.call("metadata", 9, topics=asked[:1], **options)).topics
        assert (row.error_code, len(row.partitions)) == (ErrorCode.none, 4000)
        rows = (await client.call("metadata", 9, topics=asked[:3], **options)).topics
        assert [row.error_code for row in rows] == [ErrorCode.none] * 3
