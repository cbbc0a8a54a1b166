"""DeleteTopics: by name and id, every refusal, and that nothing of the topic is left anywhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio

from kbroker.errors import ErrorCode
from kbroker.formats.state import ConfigKey, ResourceType, TopicKey, share_topic_prefix
from tests.api.conftest import Client, Connect, versions


async def delete(client: Client, *topics: tuple[str | None, UUID | None]) -> list[Any]:
    rows = [{"name": name, "topic_id": topic_id} for name, topic_id in topics]
    return list((await client.call("delete_topics", 6, topics=rows)).responses)


@pytest.mark.parametrize("version", versions("delete_topics"))
async def test_every_version_deletes_by_name(connect: Connect, version: int) -> None:  # BASE-18
    async with connect() as client:
        await client.create_topic("a", 2)
        named = {
            "topic_names": ["a", "b"],
            "topics": [{"name": name, "topic_id": None} for name in ("a", "b")],
        }
        rows = (await client.call("delete_topics", version, **named)).responses
        codes = {row.name: row.error_code for row in rows}
        assert codes == {"a": ErrorCode.none, "b": ErrorCode.unknown_topic_or_partition}
        assert client.broker.topics.by_name("a") is None


async def test_by_id(connect: Connect) -> None:  # BASE-18
    async with connect() as client:
        topic_id = (await client.create_topic("a")).topic_id
        unknown = uuid4()
        rows = await delete(client, (None, topic_id), (None, unknown))
        deleted, missing = sorted(rows, key=lambda row: row.name is None)
        assert (deleted.name, deleted.topic_id, deleted.error_code) == ("a", topic_id, ErrorCode.none)
        assert (missing.name, missing.topic_id, missing.error_code) == (
            None,
            unknown,
            ErrorCode.unknown_topic_id,
        )


async def test_both_neither_and_duplicates_are_invalid(connect: Connect) -> None:  # BASE-18
    async with connect() as client:
        topic_id = (await client.create_topic("a")).topic_id
        other_id = (await client.create_topic("b")).topic_id
        cases: list[list[tuple[str | None, UUID | None]]] = [
            [("a", topic_id)],
            [(None, None)],
            [("a", None), ("a", None)],
            [(None, topic_id), (None, topic_id)],
            [("c", None), ("c", None)],
        ]
        for case in cases:
            assert [row.error_code for row in await delete(client, *case)] == [ErrorCode.invalid_request], (
                case
            )
        for both in ([(None, other_id), ("b", None)], [("b", None), (None, other_id)]):
            (row,) = await delete(client, *both)
            assert (row.error_code, row.name, row.topic_id) == (ErrorCode.invalid_request, "b", other_id)
        assert {topic.name for topic in client.broker.topics} == {"a", "b"}


async def test_a_name_listed_twice_does_not_spoil_its_id(connect: Connect) -> None:  # BASE-18
    async with connect() as client:
        topic_id = (await client.create_topic("a")).topic_id
        rows = await delete(client, ("a", None), ("a", None), (None, topic_id))
        assert {(row.topic_id, row.error_code) for row in rows} == {
            (None, ErrorCode.invalid_request),
            (topic_id, ErrorCode.none),
        }


async def test_answers_come_in_the_order_of_the_request(connect: Connect) -> None:
    async with connect() as client:
        names = [f"t{i}" for i in range(20)]
        assert [row.name for row in await delete(client, *((name, None) for name in names))] == names


async def test_an_id_listed_twice_beside_its_name(connect: Connect) -> None:  # BASE-18
    async with connect() as client:
        topic_id = (await client.create_topic("a")).topic_id
        rows = await delete(client, (None, topic_id), (None, topic_id), ("a", None))
        assert [(row.name, row.error_code) for row in rows] == [
            (None, ErrorCode.invalid_request),
            ("a", ErrorCode.invalid_request),
        ]
        assert client.broker.topics.by_name("a") is not None


@pytest.mark.parametrize(("version", "code"), [(2, ErrorCode.invalid_request), (3, 73), (6, 73)])
async def test_where_deletion_is_disabled(connect: Connect, version: int, code: int) -> None:
    async with connect(config={"delete.topic.enable": "false"}) as client:
        await client.create_topic("a")
        named = {
            "topic_names": ["a", "b"],
            "topics": [{"name": name, "topic_id": None} for name in ("a", "b")],
        }
        rows = (await client.call("delete_topics", version, **named)).responses
        assert [row.error_code for row in rows] == [code, code]
        assert client.broker.topics.by_name("a") is not None


async def test_two_clients_delete_the_same_topic(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a", 3)
        codes: list[ErrorCode] = []

        async def one() -> None:
            codes.append((await delete(client, ("a", None)))[0].error_code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            nursery.start_soon(one)
        assert sorted(codes) == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]


async def test_deleting_while_it_is_altered_and_grown(connect: Connect, every_engine: str) -> None:
    """In any order, no log and no state of the topic is left."""
    async with connect(every_engine) as client:
        topic_id = (await client.create_topic("a", 3)).topic_id
        change = {"name": "retention.ms", "config_operation": 0, "value": "5000"}
        resource = {"resource_type": 2, "resource_name": "a", "configs": [change]}
        growth = {"name": "a", "count": 5, "assignments": None}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: client.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
            )
            nursery.start_soon(lambda: delete(client, ("a", None)))
            nursery.start_soon(
                lambda: client.call("create_partitions", 3, topics=[growth], validate_only=False)
            )
        assert client.broker.topics.by_name("a") is None
        assert not [log for log in client.broker.log_store.logs() if log.topic_id == topic_id]
        store = client.broker.state_store
        assert store.get(TopicKey(topic_id).encode()) is None
        assert store.get(ConfigKey(ResourceType.TOPIC, "a").encode()) is None


async def test_it_is_gone_after_a_restart_and_its_name_is_free(connect: Connect, every_engine: str) -> None:
    async with connect(every_engine) as client:
        old_id = (await client.create_topic("a", 2, {"retention.ms": "1000"})).topic_id
        await client.append("a", 1000)
        (row,) = await delete(client, ("a", None))
        assert row.error_code is ErrorCode.none
    async with connect(every_engine) as client:
        assert len(client.broker.topics) == 0
        assert not [log for log in client.broker.log_store.logs() if log.topic_id == old_id]
        new = await client.create_topic("a")
        found = client.broker.topics.by_name("a")
        assert new.topic_id != old_id
        assert found is not None
        assert (found.configs, found.partitions[0].high_watermark) == ({}, 0)


async def test_share_groups_forget_it(connect: Connect) -> None:  # INIT-9, SC-49
    async with connect() as client:
        topic_id = (await client.create_topic("a", 2)).topic_id
        joined = await client.call(
            "share_group_heartbeat",
            1,
            group_id="g",
            member_id="m",
            member_epoch=0,
            rack_id=None,
            subscribed_topic_names=("a",),
        )
        assert [each.topic_id for each in joined.assignment.topic_partitions] == [topic_id]
        assert list(client.broker.state_store.scan(share_topic_prefix(topic_id)))
        assert client.broker.share_state.coordinator.states.statistics().loaded == 2
        await delete(client, ("a", None))
        assert not list(client.broker.state_store.scan(share_topic_prefix(topic_id)))
        assert client.broker.share_state.coordinator.states.statistics().loaded == 0
        assert not list(client.broker.share_group_service.coordinator.topic_ids())


class _Readers:
    """Requests that read topic `a`, over and over; `codes` are those of all rows."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.codes: set[ErrorCode] = set()

    async def fetch(self) -> None:
        row = {
            "current_leader_epoch": -1,
            "fetch_offset": 0,
            "log_start_offset": -1,
            "last_fetched_epoch": -1,
        }
        rows = [{**row, "partition": index, "partition_max_bytes": 1 << 20} for index in range(2)]
        fields = {
            "replica_id": -1,
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": 1 << 20,
            "isolation_level": 0,
            "rack_id": "",
        }
        session = {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": ()}
        answer = await self._client.call(
            "fetch", 12, topics=[{"topic": "a", "partitions": rows}], **fields, **session
        )
        self.codes.update(row.error_code for row in answer.responses[0].partitions)

    async def look_up(self) -> None:
        rows = [
            {"partition_index": i, "current_leader_epoch": -1, "timestamp": stamp}
            for i, stamp in ((0, -3), (1, 1500))
        ]
        answer = await self._client.call(
            "list_offsets", 11, replica_id=-1, isolation_level=0, topics=[{"name": "a", "partitions": rows}]
        )
        self.codes.update(row.error_code for row in answer.topics[0].partitions)

    async def trim(self) -> None:
        rows = [{"partition_index": 2, "offset": 1}]
        answer = await self._client.call("delete_records", 2, topics=[{"name": "a", "partitions": rows}])
        self.codes.add(answer.topics[0].partitions[0].error_code)

    async def measure(self) -> None:
        await self._client.call("describe_log_dirs", 5, topics=None)

    async def repeat(self, request: Callable[[], Awaitable[None]], deleted: trio.Event) -> None:
        while not deleted.is_set():
            await request()
            await trio.lowlevel.checkpoint()
        await request()


async def test_requests_that_meet_a_deletion_get_codes(connect: Connect, every_engine: str) -> None:
    """Before, it exists; afterwards it is unknown; in between nothing fails otherwise."""
    async with connect(every_engine) as client:
        topic_id = (await client.create_topic("a", 3, {"internal.segment.bytes": "1"})).topic_id
        for index in range(3):
            for _ in range(3):  # Segments other than the last are read in a thread.
                await client.append("a", 1000, 2000, partition=index)
        readers, deleted = _Readers(client), trio.Event()
        async with trio.open_nursery() as nursery:
            for request in (readers.fetch, readers.look_up, readers.trim, readers.measure):
                nursery.start_soon(readers.repeat, request, deleted)
            for _ in range(10):
                await trio.lowlevel.checkpoint()
            assert (await delete(client, (None, topic_id)))[0].error_code is ErrorCode.none
            deleted.set()
        assert ErrorCode.unknown_topic_or_partition in readers.codes
        assert readers.codes <= {ErrorCode.none, ErrorCode.unknown_topic_or_partition}
