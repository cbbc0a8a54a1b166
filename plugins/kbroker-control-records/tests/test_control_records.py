"""The `control-records` persister in a real broker: what it writes to the logs, and that clients do
not notice."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from kbroker.formats.state import ShareStateKey
from kbroker.metrics_export.exposition import MetricsExport
from kbroker.share.persister import ReadRequest, TopicPartition
from tests.api.conftest import ENGINES
from tests.api.control_logs import (
    CHECKPOINT,
    DELTA,
    Key,
    controls,
    data_offsets,
    drain,
    hint,
    lag,
    opened,
    persister,
)
from tests.api.dead_letter_queues import QUEUE, all_done, letters_of, offsets_of, prepare_dead_letters, reject
from tests.api.share_consumers import ACCEPT, GROUP, Member, acquired, initialize, prepare, set_up_group
from tests.metrics.world import parse, scrape_text, total


async def test_what_is_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as client:
        key = await prepare(client, 3)
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000)
        await member.acknowledge({key: [(0, 1, [ACCEPT])]})
        found = controls(client, key)
        assert [control.type for _, control in found] == [CHECKPOINT] + [DELTA] * (len(found) - 1)
        assert [control.back_offset for _, control in found[1:]] == [offset for offset, _ in found[:-1]]
        assert {control.group_id for _, control in found} == {GROUP}
        assert list(client.broker.state_store.scan(ShareStateKey.namespace)) == []
        seen = hint(client, key)
        assert seen is not None
        assert (seen.is_open, seen.offset, seen.groups) == (True, 3, {})
    async with opened(tmp_path) as client:
        seen = hint(client, key)
        assert seen is not None
        assert (seen.is_open, seen.groups[GROUP].newest) == (False, found[-1][0])


@pytest.mark.parametrize("engine", ENGINES)
async def test_it_does_not_feed_itself(tmp_path: Path, engine: str) -> None:
    """Once all records are acknowledged, further fetches change nothing, and control records of
    other groups are not lag."""
    groups = [f"g{number}" for number in range(4)]
    async with opened(tmp_path, engine) as client:
        key = await prepare(client, 5, 5)
        for group_id in groups:
            await set_up_group(client, {"share.auto.offset.reset": "earliest"}, group_id)
            await initialize(client, key[0], 1, group_id)
        members = [
            Member(client.another(10 + number), "M", group_id) for number, group_id in enumerate(groups)
        ]
        for member in members:
            assert acquired(await member.fetch([key], max_records=100, wait_ms=5000)) == [(0, 9, 1)]
        for number in range(10):
            for member in members:
                await member.acknowledge({key: [(number, number, [ACCEPT])]})
        end = client.partition("orders").high_watermark
        for _ in range(3):
            for member in members:
                assert acquired(await member.fetch()) == []
        assert client.partition("orders").high_watermark == end
        for loaded in client.broker.share_partitions.loaded():
            assert loaded.engine is not None
            statistics = loaded.engine.statistics()
            assert (
                statistics.in_flight,
                statistics.start_offset,
                loaded.engine.window.next_fetch_offset(),
            ) == (
                0,
                end,
                end,
            )
        await client.append("orders", 5)
        assert acquired(await members[2].fetch(wait_ms=5000)) == [(end, end, 1)]
        statistics = client.broker.share_partitions.find("g2", TopicPartition(*key)).engine.statistics()  # type: ignore[union-attr]
        assert statistics.in_flight == 1


async def test_a_waiting_fetch_sleeps_through_others_acknowledgements(tmp_path: Path) -> None:
    async with opened(tmp_path) as client:
        key = await prepare(client, 4)
        worker, idle = Member(client, "M1"), Member(client.another(2), "M2")
        await worker.fetch([key], wait_ms=5000)
        answers: list[Any] = []

        async def wait() -> None:
            answers.append(await idle.fetch([key], wait_ms=60_000))

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked(0.05)
                (waiter,) = client.partition("orders").waiters
                end = client.partition("orders").high_watermark
                await initialize(client, key[0], 1, "another")
                assert client.partition("orders").high_watermark == end + 1
                assert not waiter.woken
                await client.append("orders", 5)
        assert acquired(answers[0]) == [(end + 1, end + 1, 1)]


async def test_lag_counts_records_alone(tmp_path: Path) -> None:
    rng = random.Random(3)
    async with opened(tmp_path) as client:
        key = await prepare(client, 2)
        members = [
            Member(client.another(10 + number), "M", group_id)
            for number, group_id in enumerate(("a", "b", "c"))
        ]
        for member in members:
            await set_up_group(client, {"share.auto.offset.reset": "earliest"}, member.group_id)
            await initialize(client, key[0], 1, member.group_id)
        done: dict[str, set[int]] = {member.group_id: set() for member in members}
        held: dict[str, list[int]] = {member.group_id: [] for member in members}
        for member in members:
            await member.fetch([key], wait_ms=5000)
            held[member.group_id] = [0, 1]
        for _ in range(120):
            member = rng.choice(members)
            mine = held[member.group_id]
            if rng.random() < 0.3:
                await client.append("orders", *range(rng.randrange(1, 4)))
            elif mine and rng.random() < 0.7:
                offset = mine.pop(rng.randrange(len(mine)))
                await member.acknowledge({key: [(offset, offset, [ACCEPT])]})
                done[member.group_id].add(offset)
            else:
                mine += [
                    offset
                    for first, last, _ in acquired(await member.fetch(max_records=2))
                    for offset in range(first, last + 1)
                ]
            for group_id, finished in done.items():
                summary = (
                    await persister(client).read_summary(group_id, [ReadRequest(TopicPartition(*key), 0)])
                )[0]
                behind = (
                    client.partition("orders").high_watermark
                    - summary.start_offset
                    - summary.delivery_complete_count
                )
                assert behind == len(data_offsets(client, key) - finished)
    async with opened(tmp_path) as client:
        for group_id, finished in done.items():
            summary = (
                await persister(client).read_summary(group_id, [ReadRequest(TopicPartition(*key), 0)])
            )[0]
            behind = (
                client.partition("orders").high_watermark
                - summary.start_offset
                - summary.delivery_complete_count
            )
            assert behind == len(data_offsets(client, key) - finished), (
                "after a restart they are looked for in the log"
            )


async def test_lag_that_an_administrator_sees(tmp_path: Path) -> None:
    async with opened(tmp_path) as client:
        key = await prepare(client, 6)
        member = Member(client, "M1")
        await client.call(
            "share_group_heartbeat",
            1,
            group_id=GROUP,
            member_id="M1",
            member_epoch=0,
            rack_id=None,
            subscribed_topic_names=["orders"],
        )
        await member.fetch([key], wait_ms=5000)
        for offset in (0, 1, 4):
            await member.acknowledge({key: [(offset, offset, [ACCEPT])]})
        assert await lag(client) == 3
        samples = parse(await scrape_text(MetricsExport(client.broker)))
        assert total(samples, "kbroker_share_partition_lag") == 3
        assert total(samples, "kbroker_share_state_records_total") == len(controls(client, key))
        assert total(samples, "kbroker_share_state_write_seconds") >= 3


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("accepted", "kept"), [(12, 0), (12, 2), (7, 0), (7, 4), (0, 3)])
async def test_lag_above_a_log_start_that_has_moved(
    tmp_path: Path, engine: str, accepted: int, kept: int
) -> None:
    """Before a restart and after it: records and control records that were removed with the log's
    start are not lag."""
    async with opened(tmp_path, engine) as client:
        key = await prepare(client, *[4] * 3)
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000)
        rng = random.Random(accepted)
        finished = rng.sample(range(12), accepted)
        for offset in finished:
            await member.acknowledge({key: [(offset, offset, [ACCEPT])]})
        assert await lag(client) == 12 - accepted
        later = [await client.append("orders", 1) for _ in range(kept)]
        start = later[0] if later else client.partition("orders").high_watermark
        data = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": start}]}]
        assert (await client.call("delete_records", 2, topics=data)).topics[0].partitions[
            0
        ].low_watermark == start
        assert await lag(client) == kept
    async with opened(tmp_path, engine) as client:
        assert await lag(client) == kept
        await client.append("orders", 1, 2, 3)
        assert await lag(client) == kept + 3
        assert len(await drain(client, key)) == kept + 3
        assert await lag(client) == 0


async def test_lag_above_a_log_start_among_records_that_are_done(tmp_path: Path) -> None:
    async with opened(tmp_path) as client:
        key = await prepare(client, 12)
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000)
        for offset in (1, 2, 5, 6, 9):
            await member.acknowledge({key: [(offset, offset, [ACCEPT])]})
        data = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 6}]}]
        await client.call("delete_records", 2, topics=data)
        assert await lag(client) == 4
    async with opened(tmp_path) as client:
        assert await lag(client) == 4


# -- dead letters
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["segment", "rocksdb"])
async def test_dead_letters_are_written_once(tmp_path: Path, engine: str) -> None:
    """With a restart after each of them, clean or as after a crash; the dead letter topic is itself
    a queue, with control records between the dead letters."""
    home = tmp_path / "0"
    letters: list[int] = []
    key: Key | None = None
    for life in range(4):
        async with opened(home, engine) as client:
            if key is None:
                key = await prepare_dead_letters(client, *[1] * 8)
                await set_up_group(client, {"share.auto.offset.reset": "earliest"}, "undertaker")
                await initialize(client, client.partition(QUEUE).log.topic_id, 1, "undertaker")
            await reject(client, key, 2 * life, member_id=f"M{life}")
            await all_done(client)
            dead = (client.partition(QUEUE).log.topic_id, 0)
            letters += await drain(client, dead, "undertaker")
            copy = tmp_path / str(life + 1)
            shutil.copytree(home, copy)
        home = copy if life % 2 else home
    async with opened(home, engine) as client:
        await all_done(client)
        assert await drain(client, dead, "undertaker") == []
        assert offsets_of(letters_of(client)) == [0, 2, 4, 6]
        assert letters == sorted(data_offsets(client, dead))
        assert await drain(client, key) == [1, 3, 5, 7]
