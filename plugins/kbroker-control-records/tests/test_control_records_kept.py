"""The `control-records` persister finds its state again: after stops, crashes and power cuts, with
retention running, and beside damage."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.broker.logs.retention import apply_retention
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, NoSpace
from kbroker.formats.batches import Record, build_batch
from kbroker.formats.state import ControlHint
from kbroker.share.effects import StateBatch
from kbroker.share.persister import ReadRequest, TopicPartition, WriteRequest
from kbroker.storage.segment import log_store as segment_store
from kbroker.storage.spi import LogId
from kbroker_control_records import partition as control_partition
from tests.api.conftest import ENGINES, Client
from tests.api.control_logs import (
    CHECKPOINT,
    DELTA,
    Key,
    batches_of,
    controls,
    data_offsets,
    drain,
    hint,
    opened,
    persister,
    read_state,
)
from tests.api.share_consumers import (
    ACCEPT,
    GROUP,
    RELEASE,
    Member,
    acquired,
    initialize,
    prepare,
    rows,
    set_up_group,
)


async def work_a_little(client: Client) -> tuple[Key, list[int]]:
    """A group that has accepted some records and released others; returns the records left to
    deliver."""
    key = await prepare(client, 4, 4, 4)
    member = Member(client, "M1")
    await member.fetch([key], wait_ms=5000)
    await member.acknowledge({key: [(0, 2, [ACCEPT]), (5, 5, [ACCEPT])]})
    await client.append("orders", 1, 2)
    await member.acknowledge({key: [(3, 3, [RELEASE]), (6, 9, [ACCEPT])]})
    later = sorted(offset for offset in data_offsets(client, key) if offset > 11)
    return key, [3, 4, 10, 11, *later]


@pytest.mark.parametrize("engine", ENGINES)
async def test_after_a_clean_stop_nothing_is_looked_for(tmp_path: Path, engine: str) -> None:
    async with opened(tmp_path, engine) as client:
        key, left = await work_a_little(client)
    for _ in range(2):
        async with opened(tmp_path, engine) as client:
            await client.append("orders", 7)
            left.append(client.partition("orders").high_watermark - 1)
            assert (await read_state(client, key)).code is ErrorCode.none
            assert persister(client).control_statistics().scanned == 0
    async with opened(tmp_path, engine) as client:
        assert await drain(client, key) == left
    async with opened(tmp_path, engine) as client:
        assert await drain(client, key) == []


async def test_after_a_crash_the_tail_is_looked_through(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as client:
        await client.create_topic("orders")
        await client.append("orders", *range(500))
        key = (client.partition("orders").log.topic_id, 0)
        await set_up_group(client, {"share.auto.offset.reset": "latest"})
        await initialize(client, key[0], 1)
        member = Member(client, "M1")
        await client.broker.share_partitions.load(GROUP, TopicPartition(*key))
        await member.fetch([key])
        await client.append("orders", *range(4))
        ((first, last, _),) = acquired(await member.fetch(wait_ms=5000))
        await member.acknowledge({key: [(first, first + 1, [ACCEPT])]})
        shutil.copytree(tmp_path / "a", tmp_path / "b")  # as kill -9 leaves it
        shutil.copytree(tmp_path / "a", tmp_path / "c")
    for directory in ("b", "c"):
        async with opened(tmp_path / directory) as client:
            assert await drain(client, key) == [last - 1, last]
            scanned = persister(client).control_statistics().scanned
            assert 0 < scanned < 40, "not the records that were there before"


async def test_hints_are_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_partition, "HINT_BYTES", 500)
    async with opened(tmp_path / "a") as client:
        key = await prepare(client, 100)
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000)
        for offset in range(40):
            await member.acknowledge({key: [(offset, offset, [ACCEPT])]})
        await client.broker.state_commits.commit([])
        seen = hint(client, key)
        assert seen is not None
        assert seen.is_open
        assert seen.offset > client.partition("orders").high_watermark - 10
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    async with opened(tmp_path / "b") as client:
        assert await drain(client, key) == list(range(40, 100))
        assert persister(client).control_statistics().scanned < 10


async def test_a_power_cut_that_takes_the_newest_records(tmp_path: Path) -> None:
    """With durability `os` a hint on disk may refer to records that are not on disk."""
    async with opened(tmp_path) as client:
        key, _ = await work_a_little(client)
        cut = controls(client, key)[-1][0]
    store = segment_store.LOG_STORE.open(tmp_path / "log-segment", {}, 1)
    store.truncate(LogId(*key), cut)
    store.sync()
    store.close()
    async with opened(tmp_path) as client:
        await client.append("orders", 7)
        found = await read_state(client, key)
        assert found.code is ErrorCode.none
        assert [(batch.first_offset, batch.last_offset) for batch in found.batches] == [(0, 2), (5, 5)], (
            "the last one is lost"
        )
        assert persister(client).control_statistics().scanned > cut - 2
    async with opened(tmp_path) as client:
        assert await drain(client, key) == sorted(data_offsets(client, key) - {0, 1, 2, 5})
        assert persister(client).control_statistics().scanned == 0, "and the hint is right again"


async def test_many_at_work_with_restarts(tmp_path: Path) -> None:
    """Producers and two groups on one log, interleaved at random: each group finishes each record
    exactly once."""
    rng = random.Random(11)
    done: dict[str, set[int]] = {"a": set(), "b": set()}
    key: Key | None = None
    for life in range(4):
        async with opened(
            tmp_path, **{"share.coordinator.snapshot.update.records.per.snapshot": "7"}
        ) as client:
            if key is None:
                key = await prepare(client, 3)
                for group_id in done:
                    await set_up_group(client, {"share.auto.offset.reset": "earliest"}, group_id)
                    await initialize(client, key[0], 1, group_id)

            async def produce(client: Client = client) -> None:
                for _ in range(25):
                    await client.append("orders", *range(rng.randrange(1, 4)))

            async def consume(
                group_id: str, number: int, key: Key = key, client: Client = client, life: int = life
            ) -> None:
                member = Member(client.another(20 + number), f"M{life}", group_id)
                answer = await member.fetch([key], max_records=3, wait_ms=5000)
                for _ in range(25):
                    acks = [(first, last, [ACCEPT]) for first, last, _ in acquired(answer)]
                    finished = {offset for first, last, _ in acks for offset in range(first, last + 1)}
                    answer = await member.fetch(acks={key: acks} if acks else None, max_records=3, wait_ms=20)
                    assert not acks or rows(answer)[key].acknowledge_error_code == 0
                    assert not finished & done[group_id]
                    done[group_id] |= finished
                await member.fetch(epoch=-1)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce)
                nursery.start_soon(consume, "a", 0)
                nursery.start_soon(consume, "b", 1)
    assert key is not None
    async with opened(tmp_path) as client:
        for group_id, finished in done.items():
            rest = await drain(client, key, group_id=group_id)
            assert not finished & set(rest)
            assert finished | set(rest) == data_offsets(client, key)


# -- retention, deletion, trouble
# -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
async def test_the_log_start_moves_past_a_checkpoint(tmp_path: Path, engine: str) -> None:
    async with opened(tmp_path, engine) as client:
        key, _ = await work_a_little(client)
        before = await read_state(client, key)
        start = controls(client, key)[0][0] + 1
        data = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": start}]}]
        assert (await client.call("delete_records", 2, topics=data)).topics[0].partitions[
            0
        ].low_watermark == start
        newest = controls(client, key)[-1]
        assert newest[1].type is CHECKPOINT
        data = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": -1}]}]
        end = client.partition("orders").high_watermark
        assert (await client.call("delete_records", 2, topics=data)).topics[0].partitions[
            0
        ].low_watermark == end
        assert controls(client, key)[-1][0] == end
    async with opened(tmp_path, engine) as client:
        found = await read_state(client, key)
        assert (found.code, found.start_offset, found.batches) == (
            ErrorCode.none,
            before.start_offset,
            before.batches,
        )
        assert await drain(client, key) == []
        offset = await client.append("orders", 1)
        assert await drain(client, key) == [offset]


async def test_retention_by_time_ends(tmp_path: Path) -> None:
    """An old segment is removed, and its checkpoint is rewritten. The new one is not old, so the
    next round does nothing."""
    async with opened(tmp_path) as client:
        topic = await client.create_topic("orders", configs={"retention.ms": "1000"})
        key = (topic.topic_id, 0)
        old = wall_clock_ms() - 10_000
        for _ in range(4):
            await client.append("orders", old, old, old)
        await set_up_group(client, {"share.auto.offset.reset": "earliest"})
        await initialize(client, key[0], 1)
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000)
        await member.acknowledge({key: [(0, 4, [ACCEPT])]})
        partition, config = client.partition("orders"), client.broker.topics.by_name("orders").config  # type: ignore[union-attr]
        assert await apply_retention(client.broker.topics, partition, config)
        end, start = partition.high_watermark, partition.log_start_offset
        for _ in range(3):
            assert not await apply_retention(client.broker.topics, partition, config)
        assert (partition.high_watermark, partition.log_start_offset) == (end, start)
        await client.append("orders", wall_clock_ms())
    async with opened(tmp_path) as client:
        assert await drain(client, key) == [end]


async def test_retention_by_size_keeps_the_state(tmp_path: Path) -> None:
    async with opened(tmp_path) as client:
        topic = await client.create_topic(
            "orders", configs={"internal.segment.bytes": "2000", "retention.bytes": "6000"}
        )
        key = (topic.topic_id, 0)
        await client.append("orders", *range(20))
        await set_up_group(client, {"share.auto.offset.reset": "earliest"})
        await initialize(client, key[0], 1)
        member = Member(client, "M1")
        assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 19, 1)]
        await member.acknowledge({key: [(0, 9, [ACCEPT])]})
        partition, config = client.partition("orders"), client.broker.topics.by_name("orders").config  # type: ignore[union-attr]
        for _ in range(60):
            batch = build_batch([Record(0, wall_clock_ms(), None, bytes(300))])
            await client.append_raw("orders", batch)
            await apply_retention(client.broker.topics, partition, config)
        first = min(offset for offset, _ in controls(client, key))
        assert first >= partition.log_start_offset > 20
        assert sum(segment.size_bytes for segment in partition.segments()) < 6000 + 2000 + 2000
    async with opened(tmp_path) as client:
        assert await drain(client, key) == sorted(data_offsets(client, key))


async def test_a_checkpoint_larger_than_a_segment(tmp_path: Path) -> None:
    async with opened(tmp_path) as client:
        topic = await client.create_topic(
            "orders", configs={"internal.segment.bytes": "1000", "max.message.bytes": "900"}
        )
        key = (topic.topic_id, 0)
        await initialize(client, key[0], 1)
        where = TopicPartition(*key)
        await read_state(client, key)
        batches = [StateBatch(2 * number, 2 * number, 2, 1) for number in range(400)]
        request = WriteRequest(where, 0, 1, 0, 400, batches)
        assert [result.code for result in await persister(client).write(GROUP, [request])] == [ErrorCode.none]
    async with opened(tmp_path) as client:
        found = await read_state(client, key)
        assert len(found.batches) == 400


async def test_a_deleted_topic_leaves_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as client:
        key, _ = await work_a_little(client)
        await client.call("delete_topics", 6, topics=[{"name": "orders", "topic_id": None}])
        assert hint(client, key) is None
        assert (await persister(client).read(GROUP, [ReadRequest(TopicPartition(*key), 99)]))[
            0
        ].code is not ErrorCode.none
        await client.broker.state_housekeeping.work(wall_clock_ms())
        assert persister(client).control_statistics().logs == persister(client).statistics().loaded == 0
        again = await prepare(client, 2)
        assert await drain(client, again) == [0, 1]


async def test_cold_checkpoints(tmp_path: Path) -> None:
    async with opened(tmp_path) as client:
        key, left = await work_a_little(client)
        assert controls(client, key)[-1][1].type is DELTA
        await client.broker.state_housekeeping.work(wall_clock_ms() + 300_001)
        offset, control = controls(client, key)[-1]
        assert control.type is CHECKPOINT
        assert hint(client, key) == ControlHint(offset + 1, True, {GROUP: (offset, offset)})  # type: ignore[dict-item]
        await client.broker.state_housekeeping.work(wall_clock_ms() + 900_001)
        assert controls(client, key)[-1][0] == offset, "once"
    async with opened(tmp_path) as client:
        assert await drain(client, key) == left


async def test_a_full_disk_refuses_an_acknowledgement_and_nothing_else_breaks(tmp_path: Path) -> None:
    async with opened(tmp_path) as client:
        key = await prepare(client, 4)
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000)
        await member.acknowledge({key: [(0, 0, [ACCEPT])]})
        commits: Any = client.broker.log_commits
        write = commits._write

        def refuse(batches: object) -> None:
            raise NoSpace("full")

        commits._write = refuse
        answers: list[Any] = []

        async def acknowledge(number: int) -> None:
            answers.append(await persister(client).write(GROUP, [write_request(client, key, number)]))

        async with trio.open_nursery() as nursery:
            for number in (1, 2):
                nursery.start_soon(acknowledge, number)
        assert [results[0].code for results in answers] == [ErrorCode.coordinator_not_available] * 2
        answer = await member.acknowledge({key: [(1, 1, [ACCEPT])]})
        assert rows(answer)[key].error_code == ErrorCode.coordinator_not_available
        commits._write = write
        answer = await member.acknowledge({key: [(2, 2, [ACCEPT])]})
        assert rows(answer)[key].error_code == 0
    async with opened(tmp_path) as client:
        assert await drain(client, key) == [1, 3]


def write_request(client: Client, key: Key, offset: int) -> WriteRequest:
    engine = client.broker.share_partitions.find(GROUP, TopicPartition(*key)).engine  # type: ignore[union-attr]
    assert engine is not None
    return WriteRequest(
        TopicPartition(*key),
        engine.saves.state_epoch,
        engine.saves.leader_epoch,
        0,
        1,
        [StateBatch(offset, offset, 2, 1)],
    )


async def test_a_damaged_control_record_is_its_groups_trouble_only(tmp_path: Path) -> None:
    async with opened(tmp_path) as client:
        key, _ = await work_a_little(client)
        newest = next(
            (view, position, header)
            for view, position, header in reversed([*batches_of(client, key)])
            if header.is_control
        )
        damaged = bytes(newest[0][newest[1] : newest[1] + newest[2].size_bytes])
        await set_up_group(client, {"share.auto.offset.reset": "earliest"}, "other")
        await initialize(client, key[0], 1, "other")
    (path,) = (tmp_path / "log-segment").rglob("data.ninja")
    content = path.read_bytes()
    place = content.index(damaged) + len(damaged) - 5
    path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
    async with opened(tmp_path) as client:
        codes = [(await read_state(client, key, group_id)).code for group_id in (GROUP, "other")]
        assert codes[0] not in (ErrorCode.none, ErrorCode.invalid_request), (
            "not as if there had never been any state"
        )
        assert len(await drain(client, key, group_id="other")) == 14


async def test_the_log_start_stays_where_no_checkpoint_can_be_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as client:
        key, _ = await work_a_little(client)
        before = await read_state(client, key)
        partition, commits = client.partition("orders"), client.broker.log_commits
        write, partition_end = commits._write, partition.high_watermark

        def refuse(batches: object) -> None:
            raise NoSpace("full")

        commits._write = refuse
        with pytest.raises(NoSpace):
            await client.broker.topics.move_log_start(partition, partition_end, to_free_space=True)
        assert partition.log_start_offset == 0
        assert not client.broker.topics.reserve.is_there, "what is set aside for deletions was tried"
        commits._write = write
        assert await read_state(client, key) == before
        await client.broker.topics.move_log_start(partition, partition_end, to_free_space=True)
        assert partition.log_start_offset == partition_end
    async with opened(tmp_path) as client:
        assert (await read_state(client, key)).batches == before.batches
