"""The `control-records` persister: requests while changes are being written, and while the log's
start moves."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from kbroker.broker.logs.partition import Partition
from kbroker.errors import ErrorCode
from kbroker.share.effects import StateBatch
from kbroker.share.persister import InitializeRequest, ReadRequest, TopicPartition, WriteRequest
from kbroker.share_state.control_chains import ChainWalk
from kbroker_control_records import partition as control_partition
from tests.api.conftest import Client
from tests.api.control_logs import opened, persister

SECONDS = 30


class HeldCommits:
    """The logs' commits wait until `release`, in the thread where this engine writes."""

    def __init__(self, client: Client) -> None:
        self._commits: Any = client.broker.log_commits
        self._write, self._may_write = self._commits._write, threading.Event()
        assert self._commits._in_thread
        self._commits._write = self._wait_and_write

    def _wait_and_write(self, batches: object) -> None:
        assert self._may_write.wait(SECONDS)
        self._write(batches)

    def release(self) -> None:
        self._may_write.set()


async def a_log(client: Client, **configs: str) -> TopicPartition:
    topic = await client.create_topic("orders", configs=configs)
    await client.append("orders", 1, 2)
    return TopicPartition(topic.topic_id, 0)


async def test_a_state_is_asked_for_while_it_is_being_initialized(tmp_path: Path) -> None:
    """Its checkpoint cannot be read yet. A summary returns the saved state, which is none; a leader
    waits."""
    answers: dict[str, Any] = {}

    async def ask(name: str, verb: Any) -> None:
        answers[name] = await verb

    async with opened(tmp_path, "lmdb") as client:
        where = await a_log(client)
        kept = persister(client)
        await kept.initialize("another", [InitializeRequest(where, 1, 0)])  # so that the log is open
        held = HeldCommits(client)
        with trio.fail_after(SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, "initialize", kept.initialize("g", [InitializeRequest(where, 1, 2)]))
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(ask, "read", kept.read("g", [ReadRequest(where, 0)]))
                (summary,) = await kept.read_summary("g", [ReadRequest(where, 0)])
                assert (summary.code, summary.start_offset) == (ErrorCode.none, -1)
                assert not answers
                held.release()
        assert [answers[name][0].code for name in ("initialize", "read")] == [ErrorCode.none] * 2
        assert answers["read"][0].start_offset == 2


async def test_the_log_start_moves_while_a_chain_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint to be read was rewritten and then removed."""
    async with opened(tmp_path) as client:
        where = await a_log(client, **{"internal.segment.bytes": "300"})
        await persister(client).initialize("g", [InitializeRequest(where, 1, 0)])
        request = WriteRequest(where, 1, 0, 0, 1, [StateBatch(1, 1, 2, 1)])
        assert [result.code for result in await persister(client).write("g", [request])] == [ErrorCode.none]
        for _ in range(5):
            await client.append("orders", *range(20))
    async with opened(tmp_path) as client:
        partition, walk_back = client.partition("orders"), control_partition.walk_back

        async def trim_meanwhile(partition: Partition, walk: ChainWalk) -> None:
            monkeypatch.setattr(control_partition, "walk_back", walk_back)
            await client.broker.topics.move_log_start(partition, partition.high_watermark)
            await walk_back(partition, walk)

        monkeypatch.setattr(control_partition, "walk_back", trim_meanwhile)
        (found,) = await persister(client).read("g", [ReadRequest(where, partition.leader_epoch)])
        assert partition.segments()[0].base_offset > 4, "the chain that was to be read is gone"
        assert (found.code, found.batches) == (ErrorCode.none, (StateBatch(1, 1, 2, 1),))


async def test_names_that_are_asked_for_cost_no_memory(tmp_path: Path) -> None:
    async with opened(tmp_path) as client:
        where, kept = await a_log(client), persister(client)
        for number in range(50):
            await kept.read_summary(f"unknown-{number}", [ReadRequest(where, 0)])
            await kept.delete(f"never-{number}", [where])
            await kept.initialize(f"gone-{number}", [InitializeRequest(where, 1, 0)])
            assert [result.code for result in await kept.delete(f"gone-{number}", [where])] == [
                ErrorCode.none
            ]
        await kept.initialize("there", [InitializeRequest(where, 1, 0)])
        await kept.read("there", [ReadRequest(where, 0)])
        for held in (kept._logs._keys.values(), kept._logs._asked, kept._logs._read_ahead):
            assert {key.group_id for key in held} <= {"there"}


@pytest.mark.parametrize(
    ("finished", "start", "standing"),
    [([(1, 9)], 13, (13, 3)), ([], 12, (12, 2))],
    ids=[
        "two of its own and a finished record are passed",
        "two of its own are passed, and nothing was finished",
    ],
)
async def test_lag_while_a_new_start_offset_is_being_saved(
    tmp_path: Path, finished: list[tuple[int, int]], start: int, standing: tuple[int, int]
) -> None:
    """The log no longer has its old start offset. Control records that the new one passes are not
    lag, and are subtracted once."""
    async with opened(tmp_path, "lmdb") as client:
        topic = await client.create_topic("orders")
        where, kept = TopicPartition(topic.topic_id, 0), persister(client)
        await client.append("orders", *range(10))
        await kept.initialize("g", [InitializeRequest(where, 1, 0)])
        batches = [StateBatch(first, last, 2, 1) for first, last in finished]
        complete = sum(last + 1 - first for first, last in finished)
        await kept.write("g", [WriteRequest(where, 1, 0, 0, complete, batches)])
        await client.append("orders", *range(3))
        await client.broker.topics.move_log_start(client.partition("orders"), 10)
        held = HeldCommits(client)
        with trio.fail_after(SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kept.write, "g", [WriteRequest(where, 1, 0, start, 0, [])])
                await trio.testing.wait_all_tasks_blocked()
                (summary,) = await kept.read_summary("g", [ReadRequest(where, 0)])
                assert summary.stands_from is not None
                assert summary.stands_from(10) == standing
                held.release()
