"""Nothing of a deleted topic stays in the state store: neither writes that were queued during the
search for its keys, nor writes that come later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.topics import Topic
from kbroker.errors import ErrorCode
from kbroker.share.effects import StateBatch
from kbroker.share.persister import InitializeRequest, ReadRequest, TopicPartition, WriteRequest
from kbroker.storage.spi import Change
from kbroker_control_records.partition import ControlPartition
from tests.api.conftest import Client, Connect
from tests.api.control_logs import opened
from tests.api.dead_letter_queues import until
from tests.api.share_consumers import GROUP


async def a_topic(client: Client) -> Topic:
    await client.create_topic("orders")
    topic = client.broker.topics.by_name("orders")
    assert topic is not None
    return topic


def left(client: Client, topic_id: UUID) -> list[bytes]:
    """Keys that name the topic."""
    return [key for key, _ in client.broker.state_store.scan(b"") if topic_id.bytes in key]


class Gate:
    """Blocks a committer's thread until it is opened."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Event(), threading.Event()

    def hold_next(self, commits: GroupCommit[Change]) -> None:
        """Block its next operation."""
        name = "_write" if commits._in_thread else "_sync"
        inner: Callable[..., None] = getattr(commits, name)

        def held(*items: Any) -> None:
            setattr(commits, name, inner)
            self.wait()
            inner(*items)

        setattr(commits, name, held)

    def wait(self) -> None:
        self.reached.set()
        assert self._open.wait(20)

    async def is_reached(self) -> None:
        assert await trio.to_thread.run_sync(self.reached.wait, 20)

    def open(self) -> None:
        self._open.set()


async def test_a_write_that_is_still_on_its_way(connect: Connect, every_engine: str) -> None:
    """It was queued while the topic existed, and is written after the search for the topic's
    keys."""
    async with connect(every_engine) as client:
        topic = await a_topic(client)
        key, commits = TopicPartition(topic.topic_id, 0), client.broker.state_commits
        persister, epoch = client.broker.share_state, client.partition("orders").leader_epoch
        await persister.initialize(GROUP, [InitializeRequest(key, 1, 0)])
        await persister.read(GROUP, [ReadRequest(key, epoch)])
        tombstone, behind = Gate(), Gate()
        tombstone.hold_next(commits)
        codes: list[ErrorCode] = []

        async def write() -> None:
            request = WriteRequest(key, 1, epoch, 0, 1, [StateBatch(0, 0, 2, 1)])
            codes.append((await persister.write(GROUP, [request]))[0].code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.broker.topics.delete, topic)
            await tombstone.is_reached()
            nursery.start_soon(commits.perform, behind.wait)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked()
            tombstone.open()
            await behind.is_reached()
            # that write, and the removal of the existing keys
            await until(lambda: commits.statistics().pending == 2)
            behind.open()
        assert codes == [ErrorCode.none], "it was submitted before the topic was gone"
        assert left(client, topic.topic_id) == []
    async with connect(every_engine) as client:
        assert left(client, topic.topic_id) == [], "what a crash would leave here is never looked for again"


async def test_a_log_start_that_comes_late(connect: Connect, every_engine: str) -> None:
    """The topic was deleted while the persister first had something else to write."""
    async with connect(every_engine) as client:
        topic = await a_topic(client)
        await client.append("orders", 1, 2)
        asked, go_on = trio.Event(), trio.Event()

        async def slowly(partition: Partition, offset: int, cause: str) -> None:
            asked.set()
            await go_on.wait()

        client.broker.topics.log_start_watchers.append(slowly)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.broker.topics.move_log_start, topic.partitions[0], 1)
            await asked.wait()
            await client.broker.topics.delete(topic)
            go_on.set()
        assert left(client, topic.topic_id) == []


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
async def test_a_hint_that_comes_late(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic was deleted while the control records of its log were being searched."""
    async with opened(tmp_path, engine) as client:
        topic = await a_topic(client)
        key, persister = TopicPartition(topic.topic_id, 0), client.broker.persister
        asked, go_on = trio.Event(), trio.Event()
        load = ControlPartition.load

        async def slowly(self: ControlPartition) -> None:
            await load(self)
            asked.set()
            await go_on.wait()

        monkeypatch.setattr(ControlPartition, "load", slowly)
        results: list[ErrorCode] = []

        async def initialize() -> None:
            results.extend(
                each.code for each in await persister.initialize(GROUP, [InitializeRequest(key, 1, 0)])
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(initialize)
            await asked.wait()
            await client.broker.topics.delete(topic)
            go_on.set()
        assert results == [ErrorCode.unknown_topic_or_partition]
        assert left(client, topic.topic_id) == []
    async with opened(tmp_path, engine) as client:
        assert left(client, topic.topic_id) == []
