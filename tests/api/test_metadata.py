"""Metadata by name and by id, over its versions."""

from __future__ import annotations

from uuid import uuid4

import pytest

from kbroker.errors import ErrorCode
from tests.api.conftest import Connect

OPTIONS = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}


@pytest.mark.parametrize("version", range(14))
async def test_by_name(connect: Connect, version: int) -> None:  # BASE-7
    async with connect() as client:
        await client.create_topic("orders", 2)
        asked = [{"name": "orders", "topic_id": None}, {"name": "nothing", "topic_id": None}]
        found, missing = (await client.call("metadata", version, topics=asked, **OPTIONS)).topics[:2]
        assert (found.name, found.error_code, len(found.partitions)) == ("orders", ErrorCode.none, 2)
        # Before v4 a client cannot say that it wants no topic made.
        expected = ErrorCode.none if version < 4 else ErrorCode.unknown_topic_or_partition
        assert (missing.name, missing.error_code) == ("nothing", expected)


@pytest.mark.parametrize("version", [12, 13])
async def test_by_id(connect: Connect, version: int) -> None:  # BASE-9, BASE-10
    async with connect() as client:
        topic_id, unknown = (await client.create_topic("orders")).topic_id, uuid4()
        asked = [{"name": None, "topic_id": each} for each in (topic_id, unknown, None)]
        rows = (await client.call("metadata", version, topics=asked, **OPTIONS)).topics
        assert [(row.name, row.topic_id, row.error_code) for row in rows] == [
            ("orders", topic_id, ErrorCode.none),
            (None, unknown, ErrorCode.unknown_topic_id),
            (None, None, ErrorCode.invalid_request),
        ]


@pytest.mark.parametrize("version", [10, 11])
async def test_versions_that_have_the_id_and_may_not_use_it(connect: Connect, version: int) -> None:  # BASE-10
    """Their answers cannot carry a topic without a name."""
    async with connect() as client:
        topic_id = (await client.create_topic("orders")).topic_id
        asked = [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": None}, {"name": "orders", "topic_id": topic_id}]
        rows = (await client.call("metadata", version, topics=asked, **OPTIONS)).topics
        assert [(row.name, row.error_code) for row in rows] == [
            ("", ErrorCode.invalid_request), ("", ErrorCode.invalid_request), ("orders", ErrorCode.invalid_request)
        ]  # fmt: skip


async def test_one_request_does_not_create_partitions_without_end(connect: Connect) -> None:
    async with connect(config={"num.partitions": "4000"}) as client:
        asked = [{"name": name, "topic_id": None} for name in ("a", "b", "c", "a", "not/legal")]
        options = {**OPTIONS, "allow_auto_topic_creation": True}
        rows = (await client.call("metadata", 9, topics=asked, **options)).topics
        refused, invalid = ErrorCode.policy_violation, ErrorCode.invalid_topic_exception
        assert [row.error_code for row in rows] == [refused, refused, refused, refused, invalid]
        (row,) = (await client.call("metadata", 9, topics=asked[:1], **options)).topics
        assert (row.error_code, len(row.partitions)) == (ErrorCode.none, 4000)
        rows = (await client.call("metadata", 9, topics=asked[:3], **options)).topics
        assert [row.error_code for row in rows] == [ErrorCode.none] * 3
