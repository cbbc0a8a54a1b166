"""The `control-records` persister: deleted state stays deleted, whatever becomes of the record that
deletes it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kbroker.broker.broker import open_broker
from kbroker.broker.logs.retention import apply_retention
from kbroker.broker.options import StartOptions
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, StoreFailed
from kbroker.formats.batches import Record, build_batch
from kbroker.settings.altering import BrokerConfig
from kbroker.share.effects import StateBatch
from kbroker.share.persister import InitializeRequest, TopicPartition, WriteRequest
from tests.api.conftest import ENGINES, Client
from tests.api.control_logs import Key, batches_of, controls, hint, opened, persister, read_state
from tests.api.share_consumers import GROUP

KEPT = [each for each in ENGINES if each != "memory"]
engines = pytest.mark.parametrize("engine", KEPT)
OTHER = "other"


async def write(client: Client, key: Key, group_id: str, offset: int, *, state_epoch: int) -> ErrorCode:
    leader_epoch = client.partition("orders").leader_epoch
    request = WriteRequest(
        TopicPartition(*key), state_epoch, leader_epoch, offset, 0, [StateBatch(offset, offset, 2, 1)]
    )
    return (await persister(client).write(group_id, [request]))[0].code


async def begin(client: Client, key: Key, group_id: str, state_epoch: int, start_offset: int) -> ErrorCode:
    request = InitializeRequest(TopicPartition(*key), state_epoch, start_offset)
    return (await persister(client).initialize(group_id, [request]))[0].code


async def delete(client: Client, key: Key, group_id: str) -> ErrorCode:
    return (await persister(client).delete(group_id, [TopicPartition(*key)]))[0].code


async def delete_records(client: Client, offset: int) -> int:
    data = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": offset}]}]
    return int((await client.call("delete_records", 2, topics=data)).topics[0].partitions[0].low_watermark)


async def a_group_with_state(client: Client, group_id: str = GROUP) -> Key:
    """At state epoch 7: a recreated group with a lower epoch is fenced if this state still
    exists."""
    topic = client.broker.topics.by_name("orders") or await client.create_topic("orders")
    key = (topic.topic_id, 0)
    await client.append("orders", 1, 2, 3)
    assert await begin(client, key, group_id, 7, 0) is ErrorCode.none
    assert (await read_state(client, key, group_id)).code is ErrorCode.none
    for offset in (1, 2):
        assert await write(client, key, group_id, offset, state_epoch=7) is ErrorCode.none
    return key


async def is_gone_for_good(client: Client, key: Key) -> None:
    """A new group with that name is not fenced, and has the state that it wrote."""
    found = await read_state(client, key)
    assert (found.code, found.state_epoch, found.batches) == (ErrorCode.invalid_request, 0, ()), (
        "as where there never was any"
    )
    assert await begin(client, key, GROUP, 1, 3) is ErrorCode.none
    found = await read_state(client, key)
    assert (found.code, found.state_epoch, found.start_offset, found.batches) == (ErrorCode.none, 1, 3, ())
    assert await write(client, key, GROUP, 5, state_epoch=1) is ErrorCode.none


@engines
@pytest.mark.parametrize("hinted", ["at the start", "behind the state"])
async def test_the_log_start_moves_past_the_deletion(tmp_path: Path, engine: str, hinted: str) -> None:
    """The log's start is inside a segment, so that the deleted state can still be read. The hint
    that a crash leaves has that state."""
    async with opened(tmp_path / "a", engine) as client:
        key = await a_group_with_state(client)
        if hinted == "behind the state":
            await client.broker.state_housekeeping.work(wall_clock_ms())
        seen = hint(client, key)
        assert seen is not None
        assert (GROUP in seen.groups) is (hinted == "behind the state")
        assert await delete(client, key, GROUP) is ErrorCode.none
        purged = client.partition("orders").high_watermark
        await client.append("orders", 4)
        assert await delete_records(client, purged) == purged
        deletion = controls(client, key)[-1]
        assert deletion[1].is_deletion, "it is stored still, below the log's start"
        shutil.copytree(tmp_path / "a", tmp_path / "b")  # as kill -9 leaves it
    for _ in range(2):
        async with opened(tmp_path / "b", engine) as client:
            await is_gone_for_good(client, key)
            assert await delete(client, key, GROUP) is ErrorCode.none
    async with opened(tmp_path / "a", engine) as client:  # as a clean stop leaves it
        await is_gone_for_good(client, key)


@engines
async def test_another_group_lives_on_where_one_was_deleted(tmp_path: Path, engine: str) -> None:
    """The log's start passes the checkpoints of both, and the deletion of one."""
    async with opened(tmp_path / "a", engine) as client:
        key = await a_group_with_state(client)
        await a_group_with_state(client, OTHER)
        before = await read_state(client, key, OTHER)
        await client.broker.state_housekeeping.work(wall_clock_ms())
        assert await delete(client, key, GROUP) is ErrorCode.none
        purged = client.partition("orders").high_watermark
        assert await delete_records(client, purged) == purged
        assert [(at, each.group_id) for at, each in controls(client, key) if at >= purged] == [
            (purged, OTHER)
        ]
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    async with opened(tmp_path / "b", engine) as client:
        found = await read_state(client, key, OTHER)
        assert (found.state_epoch, found.start_offset, found.batches) == (
            7,
            before.start_offset,
            before.batches,
        )
        await is_gone_for_good(client, key)
        assert (await read_state(client, key, OTHER)).batches == before.batches
        assert persister(client).control_statistics().scanned < purged, (
            "nothing was looked for in all of the log"
        )


@engines
async def test_a_group_that_was_made_anew_before_the_log_start_moved(tmp_path: Path, engine: str) -> None:
    async with opened(tmp_path / "a", engine) as client:
        key = await a_group_with_state(client)
        await client.broker.state_housekeeping.work(wall_clock_ms())
        assert await delete(client, key, GROUP) is ErrorCode.none
        purged = client.partition("orders").high_watermark
        assert await begin(client, key, GROUP, 1, 3) is ErrorCode.none
        await delete_records(client, purged)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        await delete_records(client, client.partition("orders").high_watermark)
        shutil.copytree(tmp_path / "a", tmp_path / "c")
    for directory in ("a", "b", "c"):
        async with opened(tmp_path / directory, engine) as client:
            found = await read_state(client, key)
            assert (found.code, found.state_epoch, found.start_offset, found.batches) == (
                ErrorCode.none,
                1,
                3,
                (),
            )


@engines
async def test_retention_takes_the_deletion_and_not_all_that_it_cancels(tmp_path: Path, engine: str) -> None:
    """Engines that keep chunks leave some records below the start, and so does a crash between the
    log's new start and the removal of segments."""
    async with opened(tmp_path / "a", engine) as client:
        await client.create_topic(
            "orders", configs={"internal.segment.bytes": "3000", "retention.bytes": "4000"}
        )
        key = await a_group_with_state(client)
        await client.broker.state_housekeeping.work(wall_clock_ms())
        assert await delete(client, key, GROUP) is ErrorCode.none
        partition, config = client.partition("orders"), client.broker.topics.by_name("orders").config  # type: ignore[union-attr]
        deleted_at = controls(client, key)[-1][0]
        store, trim = client.broker.log_store, client.broker.log_store.trim
        store.trim = lambda *_: None  # type: ignore[method-assign]
        while partition.log_start_offset <= deleted_at:
            await client.append_raw("orders", build_batch([Record(0, wall_clock_ms(), None, bytes(300))]))
            await apply_retention(client.broker.topics, partition, config)
        assert len([*batches_of(client, key)]) == partition.high_watermark - 2, "all is there"
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        store.trim = trim  # type: ignore[method-assign]
        await client.broker.topics.move_log_start(partition, partition.log_start_offset + 1)
        shutil.copytree(tmp_path / "a", tmp_path / "c")
    for directory in ("a", "b", "c"):
        async with opened(tmp_path / directory, engine) as client:
            await is_gone_for_good(client, key)


async def test_another_persister_moved_the_log_start(tmp_path: Path) -> None:
    """Another persister ignores control records, and may run until the group no longer exists."""
    async with opened(tmp_path / "a") as client:
        key = await a_group_with_state(client)
        await client.broker.state_housekeeping.work(wall_clock_ms())
        assert await delete(client, key, GROUP) is ErrorCode.none
        last = await client.append("orders", 4)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    options = StartOptions(
        data_dir=tmp_path / "b", storage="segment", state_storage="segment", config=BrokerConfig({})
    )
    async with open_broker(options) as broker:
        client = Client(broker)
        assert await delete_records(client, last) == last
    async with opened(tmp_path / "b") as client:
        await is_gone_for_good(client, key)


# -- a power cut
# --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def opened_with_os(directory: Path) -> AsyncIterator[Client]:
    config = BrokerConfig({"kbroker.persister": "control-records"})
    options = StartOptions(
        data_dir=directory, storage="segment", state_storage="segment", durability="os", config=config
    )
    async with open_broker(options) as broker:
        yield Client(broker)


async def test_beginnings_and_ends_are_synced_with_durability_os(tmp_path: Path) -> None:
    """The group's next change is in the other store, and must not survive alone."""
    async with opened_with_os(tmp_path) as client:
        key = await a_group_with_state(client)
        partition, logs = client.partition("orders"), client.broker.log_commits
        seen, sync = list[int](), logs._sync

        def noted() -> None:
            seen.append(partition.high_watermark)
            sync()

        logs._sync = noted
        assert await write(client, key, GROUP, 3, state_epoch=7) is ErrorCode.none
        assert seen == [], "an acknowledgement may be lost, and the record redelivered"
        assert await delete(client, key, GROUP) is ErrorCode.none
        assert seen == [partition.high_watermark], "after the deletion, before the answer"
        assert await begin(client, key, GROUP, 1, 0) is ErrorCode.none
        assert seen == [partition.high_watermark - 1, partition.high_watermark]


async def test_what_cannot_be_synced_is_not_done(tmp_path: Path) -> None:
    async with opened_with_os(tmp_path) as client:
        key = await a_group_with_state(client)

        def fails() -> None:
            raise StoreFailed("the disk is gone")

        client.broker.log_commits._sync = fails
        assert await delete(client, key, GROUP) is ErrorCode.coordinator_not_available
        assert await begin(client, key, OTHER, 1, 0) is ErrorCode.coordinator_not_available
