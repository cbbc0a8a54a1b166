"""OffsetCommit, OffsetFetch and OffsetDelete of a broker: every version and field, every engine
over a restart, many partitions, saves that fail, and kbroker's own limits. It does not repeat the
comparison with Kafka."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kbroker.errors import ErrorCode, NoSpace
from tests.api.conftest import Client, Connect, versions
from tests.metrics.world import refusing

G = "g"
NO_ID = UUID(int=0)


def named(version: int, api: str, topic: Any) -> dict[str, Any]:
    """The topic as a version identifies it."""
    return {"topic_id": topic.topic_id} if version >= 10 and api != "offset_delete" else {"name": topic.name}


async def commit(
    client: Client,
    version: int,
    topic: Any,
    rows: dict[int, tuple[int, int, str | None]],
    group: str = G,
    **more: Any,
) -> Any:
    """`rows`: offset, leader epoch and metadata by partition. Returns codes by partition."""
    partitions = [
        {
            "partition_index": number,
            "committed_offset": offset,
            "committed_leader_epoch": epoch,
            "committed_metadata": metadata,
        }
        for number, (offset, epoch, metadata) in rows.items()
    ]
    if version < 6:
        for row in partitions:
            del row["committed_leader_epoch"]
    fields: dict[str, Any] = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
    if version >= 7:
        fields["group_instance_id"] = None
    if version <= 4:
        fields["retention_time"] = -1
    topics = [{**named(version, "offset_commit", topic), "partitions": partitions}]
    answer = await client.call("offset_commit", version, **fields, topics=topics)
    return {row.partition_index: ErrorCode(row.error_code) for row in answer.topics[0].partitions}


async def fetch(
    client: Client, version: int, topic: Any, numbers: list[int] | None, group: str = G
) -> dict[int, tuple[int, int, str]]:
    """Offset, leader epoch and metadata by partition."""
    topics = (
        None if numbers is None else [{**named(version, "offset_fetch", topic), "partition_indexes": numbers}]
    )
    stable = {"require_stable": False} if version >= 7 else {}
    if version < 8:
        answer = await client.call("offset_fetch", version, group_id=group, topics=topics, **stable)
        found = answer
    else:
        member = {"member_id": None, "member_epoch": -1} if version >= 9 else {}
        answer = await client.call(
            "offset_fetch", version, groups=[{"group_id": group, "topics": topics, **member}], **stable
        )
        (found,) = answer.groups
        assert found.group_id == group
    assert getattr(found, "error_code", 0) == 0
    rows = [row for topic_row in found.topics for row in topic_row.partitions]
    assert {row.error_code for row in rows} <= {0}
    return {
        row.partition_index: (row.committed_offset, getattr(row, "committed_leader_epoch", -1), row.metadata)
        for row in rows
    }


async def test_what_one_version_commits_another_fetches(connect: Connect) -> None:
    """The oldest and the newest clients of one group."""
    async with connect() as client:
        topic = await client.create_topic("orders", 2)
        for version in versions("offset_commit"):
            codes = await commit(
                client, version, topic, {0: (version, version, f"by {version}"), 1: (version + 1, -1, None)}
            )
            assert codes == {0: ErrorCode.none, 1: ErrorCode.none}
            for other in versions("offset_fetch"):
                epoch = version if version >= 6 and other >= 5 else -1
                expected = {0: (version, epoch, f"by {version}"), 1: (version + 1, -1, "")}
                assert await fetch(client, other, topic, [0, 1]) == expected
                if other >= 2:
                    assert await fetch(client, other, topic, None) == expected


async def test_offsets_survive_a_restart(connect: Connect, every_engine: str) -> None:
    """With all committed fields. Offsets of a deleted topic do not survive, before or after a
    restart."""
    async with connect(every_engine) as client:
        orders, gone = await client.create_topic("orders", 3), await client.create_topic("gone")
        await commit(client, 9, orders, {0: (5, 3, "five"), 2: (7, -1, "é" * 4000)})
        await commit(client, 9, gone, {0: (1, -1, "")})
        await commit(client, 9, orders, {0: (1, -1, "")}, group="another")
        await client.call(
            "offset_delete",
            0,
            group_id="another",
            topics=[{"name": "orders", "partitions": [{"partition_index": 0}]}],
        )
        await client.call("delete_topics", 6, topics=[{"name": "gone", "topic_id": None}])
    async with connect(every_engine) as client:
        assert await fetch(client, 9, orders, [0, 1, 2]) == {
            0: (5, 3, "five"),
            1: (-1, -1, ""),
            2: (7, -1, "é" * 4000),
        }
        assert await fetch(client, 9, orders, [0], "another") == {0: (-1, -1, "")}
        assert await fetch(client, 9, gone, None) == {0: (5, 3, "five"), 2: (7, -1, "é" * 4000)}
        listed = await client.call("list_groups", 5, states_filter=(), types_filter=())
        assert {(row.group_id, row.group_state, row.group_type) for row in listed.groups} == {
            (G, "Empty", "classic")
        }
        await client.call("delete_groups", 2, groups_names=[G])
    async with connect(every_engine) as client:
        assert await fetch(client, 9, orders, [0]) == {0: (-1, -1, "")}
        assert not (await client.call("list_groups", 5, states_filter=(), types_filter=())).groups


async def test_many_partitions_in_one_request(connect: Connect, every_engine: str) -> None:
    """Thousands, with engines on which creating them is cheap."""
    count = 2000 if every_engine == "memory" else 200
    async with connect(every_engine) as client:
        topic = await client.create_topic("orders", count)
        codes = await commit(client, 9, topic, {number: (number, -1, "") for number in range(count + 1)})
        assert [number for number, code in codes.items() if code] == [count], (
            "one that does not exist stops no other"
        )
        expected = {number: (number, -1, "") for number in range(count)}
        assert (
            await fetch(client, 9, topic, list(range(count)))
            == await fetch(client, 9, topic, None)
            == expected
        )
        rows = [{"partition_index": number} for number in range(1, count)]
        answer = await client.call(
            "offset_delete", 0, group_id=G, topics=[{"name": "orders", "partitions": rows}]
        )
        assert {row.error_code for row in answer.topics[0].partitions} == {0}
    async with connect(every_engine) as client:
        assert await fetch(client, 9, topic, None) == {0: (0, -1, "")}


async def test_what_cannot_be_saved_is_refused_row_by_row(connect: Connect) -> None:
    """COORDINATOR_NOT_AVAILABLE: clients look up the coordinator again and retry."""
    async with connect() as client:
        topic = await client.create_topic("orders", 2)
        await commit(client, 9, topic, {0: (1, -1, "")})
        not_available, unknown = ErrorCode.coordinator_not_available, ErrorCode.unknown_topic_or_partition
        with refusing(client.broker.state_commits, NoSpace()):
            codes = await commit(client, 9, topic, {0: (2, -1, ""), 1: (2, -1, ""), 2: (2, -1, "")})
            assert codes == {0: not_available, 1: not_available, 2: unknown}
            assert await commit(client, 9, topic, {0: (2, -1, "")}, group="new") == {0: not_available}
            rows = [{"name": "orders", "partitions": [{"partition_index": 0}]}]
            answer = await client.call("offset_delete", 0, group_id=G, topics=rows)
            assert (answer.error_code, answer.topics) == (not_available, ())
            (deleted,) = (await client.call("delete_groups", 2, groups_names=[G])).results
            assert deleted.error_code == not_available
        assert await fetch(client, 9, topic, [0, 1]) == {0: (1, -1, ""), 1: (-1, -1, "")}
        groups = (await client.call("list_groups", 5, states_filter=(), types_filter=())).groups
        assert [row.group_id for row in groups] == [G]
        assert await commit(client, 9, topic, {0: (2, -1, "")}) == {0: ErrorCode.none}


@pytest.mark.parametrize("version", versions("offset_commit"))
async def test_a_group_id_that_no_key_can_hold(connect: Connect, version: int) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders")
        assert await commit(client, version, topic, {0: (1, -1, "")}, group="g" * 255) == {0: ErrorCode.none}
        assert await commit(client, version, topic, {0: (1, -1, "")}, group="g" * 256) == {
            0: ErrorCode.invalid_group_id
        }
        assert await commit(client, version, topic, {0: (1, -1, "")}, group="é" * 128) == {
            0: ErrorCode.invalid_group_id
        }
        assert await fetch(client, 9, topic, [0], group="g" * 256) == {0: (-1, -1, "")}


async def test_metadata_has_the_length_of_the_setting_and_fits_a_record(connect: Connect) -> None:
    async with connect(config={"offset.metadata.max.bytes": "100000"}) as client:
        topic = await client.create_topic("orders", 2)
        codes = await commit(client, 9, topic, {0: (1, -1, "x" * 32767), 1: (1, -1, "x" * 32768)})
        assert codes == {0: ErrorCode.none, 1: ErrorCode.offset_metadata_too_large}
        assert await fetch(client, 9, topic, None) == {0: (1, -1, "x" * 32767)}


async def test_ids_that_nobody_has(connect: Connect) -> None:
    async with connect() as client:
        topic = await client.create_topic("orders")
        unknown = ErrorCode.unknown_topic_id
        row = [
            {
                "partition_index": 0,
                "committed_offset": 1,
                "committed_leader_epoch": -1,
                "committed_metadata": "",
            }
        ]
        member = {
            "group_id": G,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
        }
        topics = [{"topic_id": each, "partitions": row} for each in (NO_ID, UUID(int=7), topic.topic_id)]
        answer = await client.call("offset_commit", 10, **member, topics=topics)
        assert [(each.topic_id or NO_ID, each.partitions[0].error_code) for each in answer.topics] == [
            (NO_ID, unknown),
            (UUID(int=7), unknown),
            (topic.topic_id, ErrorCode.none),
        ]
        wanted = [
            {"topic_id": each, "partition_indexes": [0]} for each in (NO_ID, UUID(int=7), topic.topic_id)
        ]
        groups = [{"group_id": G, "member_id": None, "member_epoch": -1, "topics": wanted}]
        (found,) = (await client.call("offset_fetch", 10, groups=groups, require_stable=True)).groups
        assert [
            (each.partitions[0].error_code, each.partitions[0].committed_offset) for each in found.topics
        ] == [
            (unknown, -1),
            (unknown, -1),
            (ErrorCode.none, 1),
        ]
