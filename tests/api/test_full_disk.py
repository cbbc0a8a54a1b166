"""Administration on a full disk, and after a failed sync: every change is refused in its own row,
and has no effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

from kbroker.errors import ErrorCode, NoSpace, StoreFailed
from kbroker.formats.batches import ProducerInfo, Record, build_batch
from kbroker.formats.state import TopicKey
from tests.api.conftest import Client, Connect

ERRORS = [NoSpace("the disk is full"), StoreFailed("sync failed")]


@contextmanager
def refusing(client: Client, error: Exception) -> Iterator[None]:
    """The state store refuses every write meanwhile, and no space is reserved."""
    client.broker.topics.reserve.give_up()

    def refuse(changes: object) -> NoReturn:
        raise error

    commits: Any = client.broker.state_commits
    commits._write, write = refuse, commits._write
    try:
        yield
    finally:
        commits._write = write


@pytest.mark.parametrize("error", ERRORS)
async def test_topics(connect: Connect, error: Exception) -> None:
    async with connect() as client:
        await client.create_topic("a", 2)
        new = {"name": "b", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        with refusing(client, error):
            (created,) = (await client.call("create_topics", 7, topics=[new], validate_only=False)).topics
            grown = await client.call(
                "create_partitions",
                3,
                topics=[{"name": "a", "count": 3, "assignments": None}],
                validate_only=False,
            )
            deleted = await client.call("delete_topics", 6, topics=[{"name": "a", "topic_id": None}])
            trimmed = await client.call(
                "delete_records",
                2,
                topics=[{"name": "a", "partitions": [{"partition_index": 0, "offset": -1}]}],
            )
        codes = [created.error_code, grown.results[0].error_code, deleted.responses[0].error_code]
        assert codes == [ErrorCode.kafka_storage_error] * 3
        assert str(error) in (created.error_message or "")
        assert trimmed.topics[0].partitions[0].error_code is ErrorCode.none, (
            "nothing to delete, nothing to save"
        )
        assert [(topic.name, len(topic.partitions)) for topic in client.broker.topics] == [("a", 2)]
        if isinstance(error, NoSpace):
            assert {log.topic_id for log in client.broker.log_store.logs()} == {
                client.partition("a").log.topic_id
            }
            assert len(list(client.broker.log_store.logs())) == 2
        assert not client.partition("a").deleted


async def test_a_topic_is_deleted_with_the_space_that_is_set_aside(
    connect: Connect, every_engine: str
) -> None:
    async with connect(every_engine) as client:
        for name in ("a", "b"):
            await client.create_topic(name)
        reserve = client.broker.options.data_dir / "reserve"
        assert reserve.stat().st_size > 100_000
        store: Any = client.broker.state_store
        write, refused = store.write, []

        def full_until_something_goes(changes: Any) -> None:
            if reserve.exists():
                refused.append(changes)
                raise NoSpace("the disk is full")
            write(changes)

        client.broker.state_commits._write = store.write = full_until_something_goes
        (deleted,) = (
            await client.call("delete_topics", 6, topics=[{"name": "a", "topic_id": None}])
        ).responses
        assert (deleted.error_code, len(refused)) == (ErrorCode.none, 1)
        assert [topic.name for topic in client.broker.topics] == ["b"]
        assert len(list(client.broker.log_store.logs())) == 1
        assert reserve.exists(), "taken again, for the next one"
        client.broker.state_commits._write = store.write = write
    assert not reserve.exists(), "no use while no broker runs"
    async with connect(every_engine) as client:
        assert [topic.name for topic in client.broker.topics] == ["b"]


async def test_a_store_that_does_not_go_on_with_the_space_set_aside(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a")
        store: Any = client.broker.state_store

        def refuse(changes: object) -> NoReturn:
            raise NoSpace("the disk is full")

        client.broker.state_commits._write, write = refuse, store.write
        store.write = refuse
        (deleted,) = (
            await client.call("delete_topics", 6, topics=[{"name": "a", "topic_id": None}])
        ).responses
        assert deleted.error_code is ErrorCode.kafka_storage_error
        assert not client.partition("a").deleted
        assert (client.broker.options.data_dir / "reserve").exists()
        client.broker.state_commits._write = store.write = write


async def test_a_deletion_that_is_cut_off_is_finished_when_there_is_room(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(log: object) -> NoReturn:
        raise NoSpace("the disk is full")

    async with connect() as client:
        topics, store = client.broker.topics, client.broker.log_store
        await client.create_topic("a")
        with monkeypatch.context() as full_disk:
            full_disk.setattr(store, "drop", full)
            (deleted,) = (
                await client.call("delete_topics", 6, topics=[{"name": "a", "topic_id": None}])
            ).responses
            assert (deleted.error_code, len(topics)) == (ErrorCode.kafka_storage_error, 0)
            with pytest.raises(NoSpace):
                await topics.catch_up()
        assert len(list(store.logs())) == 1
        await topics.catch_up()
        assert list(store.logs()) == []
        assert list(client.broker.state_store.scan(TopicKey.namespace)) == []
        await topics.catch_up()


async def test_a_config_that_is_saved_is_in_force_although_the_engine_has_no_room(
    connect: Connect, every_engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the answer was an error, although the new value was stored and described."""

    def full(log: object, settings: object) -> NoReturn:
        raise NoSpace("the disk is full")

    async with connect(every_engine) as client:
        topics, store = client.broker.topics, client.broker.log_store
        for name in ("a", "deleted"):
            await client.create_topic(name)
        with monkeypatch.context() as full_disk:
            full_disk.setattr(store, "create", full)
            for name in ("a", "deleted"):
                value = {"name": "internal.segment.bytes", "config_operation": 0, "value": "300"}
                resource = {"resource_type": 2, "resource_name": name, "configs": [value]}
                (row,) = (
                    await client.call(
                        "incremental_alter_configs", 1, resources=[resource], validate_only=False
                    )
                ).responses
                assert row.error_code is ErrorCode.none
            await topics.catch_up()
        await client.call("delete_topics", 6, topics=[{"name": "deleted", "topic_id": None}])
        for _ in range(2):
            await topics.catch_up()
        assert len(list(store.logs())) == 1
        for _ in range(6):
            await client.append("a", 1000)
        assert len(client.partition("a").segments()) > 1


@pytest.mark.parametrize("error", ERRORS)
async def test_records(connect: Connect, error: Exception) -> None:
    async with connect() as client:
        await client.create_topic("a")
        await client.append("a", 1000, 2000)
        with refusing(client, error):
            answer = await client.call(
                "delete_records",
                2,
                topics=[{"name": "a", "partitions": [{"partition_index": 0, "offset": 1}]}],
            )
        row = answer.topics[0].partitions[0]
        assert (row.error_code, row.low_watermark) == (ErrorCode.kafka_storage_error, -1)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("api", ["incremental_alter_configs", "alter_configs"])
async def test_settings(connect: Connect, api: str, error: Exception) -> None:
    async with connect() as client:
        await client.create_topic("a")
        settings = {
            (2, "a"): "retention.ms",
            (32, "g"): "share.record.lock.duration.ms",
            (4, ""): "group.share.assignment.interval.ms",
        }
        resources = [
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [{"name": key, "config_operation": 0, "value": "15000"}],
            }
            for (kind, name), key in settings.items()
        ]
        with refusing(client, error):
            answer = await client.call(api, 1, resources=resources, validate_only=False)
        assert [row.error_code for row in answer.responses] == [ErrorCode.kafka_storage_error] * 3
        assert [row.error_message for row in answer.responses] == [str(error)] * 3
        assert next(iter(client.broker.topics)).configs == {}
        assert client.broker.configs.groups_with_configs() == []
        assert client.broker.config["group.share.assignment.interval.ms"] == 1000


@pytest.mark.parametrize("error", ERRORS)
async def test_share_state(connect: Connect, error: Exception) -> None:
    async with connect() as client:
        topic_id = (await client.create_topic("a")).topic_id

        async def initialize() -> Any:
            rows = [{"partition": 0, "state_epoch": 1, "start_offset": 0}]
            answer = await client.call(
                "initialize_share_group_state",
                0,
                group_id="g",
                topics=[{"topic_id": topic_id, "partitions": rows}],
            )
            return answer.results[0].partitions[0].error_code

        with refusing(client, error):
            assert await initialize() is ErrorCode.coordinator_not_available
        expected = ErrorCode.none if isinstance(error, NoSpace) else ErrorCode.coordinator_not_available
        assert await initialize() is expected


@pytest.mark.parametrize("error", ERRORS)
async def test_the_end_of_the_broker(
    connect: Connect, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The state of producers that it would save is in the log as well."""

    def refuse(changes: object) -> NoReturn:
        raise error

    async with connect() as client:
        await client.create_topic("a")
        await client.append_raw(
            "a", build_batch([Record(0, 1000, None, b"x", ())], producer=ProducerInfo(7, 0, 0))
        )
        commits: Any = client.broker.state_commits
        commits._write = refuse
    assert f"producer state was not saved: {error}" in caplog.text


async def test_joining_where_the_state_cannot_even_be_read(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(prefix: bytes) -> NoReturn:
        raise StoreFailed("closed")

    async with connect() as client:
        fields = {
            "group_id": "g",
            "member_id": "M1",
            "member_epoch": 0,
            "rack_id": None,
            "subscribed_topic_names": ["a"],
        }
        with refusing(client, StoreFailed("sync failed")), monkeypatch.context() as unreadable:
            unreadable.setattr(client.broker.state_store, "scan", fail)
            answer = await client.call("share_group_heartbeat", 1, **fields)
        assert answer.error_code == ErrorCode.coordinator_not_available
        assert (await client.call("list_groups", 5, states_filter=(), types_filter=())).error_code == 0
