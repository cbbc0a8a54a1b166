"""kbroker.queue.retention: records that share groups have not finished stay, and in a work queue
finished records are removed."""

from __future__ import annotations

from collections import Counter
from threading import get_ident
from typing import Any
from uuid import UUID

import pytest

from kbroker.broker.logs.retention import apply_retention
from kbroker.broker.queues import held_logs
from kbroker.broker.queues.held_logs import queue_log_start
from kbroker.clock import wall_clock_ms
from kbroker.storage.segment import segment
from kbroker.storage.segment.index import SegmentIndex
from kbroker.storage.spi import SegmentInfo
from tests.api.conftest import Client, Connect
from tests.api.share_consumers import ACCEPT, GROUP, REJECT, Member, acquired, set_up_group
from tests.api.test_work_queue import FAST

SEGMENT = {"internal.segment.bytes": "400"}
SEGMENTS = [SegmentInfo(0, 10, 1 << 20, 1), SegmentInfo(10, 20, 1 << 20, 1), SegmentInfo(20, 30, 1 << 20, 1)]


@pytest.mark.parametrize(
    ("asked", "held_from", "removes_finished", "start"),
    [
        (20, None, False, 20),
        (20, None, True, 20),
        (20, 15, False, 10),
        (20, 25, False, 20),
        (30, 30, False, 30),
        (30, 29, False, 20),
        (0, 30, False, 0),
        (0, 15, True, 10),
        (20, 15, True, 10),
        (0, 30, True, 30),
        (0, 5, True, 0),
    ],
)
def test_where_a_held_log_begins(
    asked: int, held_from: int | None, removes_finished: bool, start: int
) -> None:
    assert queue_log_start(SEGMENTS, asked, held_from, removes_finished=removes_finished) == start


def test_a_small_active_segment_stays() -> None:
    segments = [*SEGMENTS[:2], SegmentInfo(20, 30, 1000, 1)]
    assert queue_log_start(segments, 0, 30, removes_finished=True) == 20


async def fill(
    client: Client, configs: dict[str, str], groups: tuple[str, ...] = (GROUP,)
) -> tuple[UUID, int]:
    """20 batches of one record, three or four to a segment, and groups that begin at the first
    one."""
    topic = await client.create_topic("orders", configs={**SEGMENT, **configs})
    for _ in range(20):
        await client.append("orders", *[wall_clock_ms()] * 10)
    for group_id in groups:
        await set_up_group(client, {"share.auto.offset.reset": "earliest"}, group_id)
        await heartbeat_of(client, group_id)
    return (topic.topic_id, 0)


async def heartbeat_of(client: Client, group_id: str, epoch: int = 0) -> None:
    names = ["orders"] if epoch == 0 else None
    fields = {"group_id": group_id, "member_id": "m0", "rack_id": None, "subscribed_topic_names": names}
    assert (await client.call("share_group_heartbeat", 1, member_epoch=epoch, **fields)).error_code == 0


async def retain(client: Client) -> int:
    """The log's start after a check."""
    topic = client.broker.topics.by_name("orders")
    await apply_retention(client.broker.topics, topic.partitions[0], topic.config, client.broker.held_logs)
    return topic.partitions[0].log_start_offset


def removed(client: Client, group_id: str = GROUP) -> int:
    metrics = client.broker.share_partitions.metrics.get(group_id)
    return 0 if metrics is None else metrics.removed_records


async def finish(client: Client, key: tuple[UUID, int], last: int, group_id: str = GROUP) -> None:
    """All records up to this one are accepted."""
    member = Member(client.another(100 + last), f"f{last}", group_id)
    taken = acquired(await member.fetch([key], wait_ms=5000, max_records=1000))
    assert taken[0][0] <= last
    acks = [(first, min(end, last), [ACCEPT]) for first, end, _ in taken if first <= last]
    await member.acknowledge({key: acks})
    await member.fetch(epoch=-1)


class TestUnfinished:
    async def test_retention_takes_what_is_finished_alone(self, connect: Connect, every_engine: str) -> None:
        async with connect(every_engine, FAST) as client:
            key = await fill(client, {"kbroker.queue.retention": "unfinished", "retention.bytes": "0"})
            assert await retain(client) == 0, "nobody has begun"
            await finish(client, key, 99)
            start = await retain(client)
            assert 50 < start <= 100
            assert removed(client) == 0
            await finish(client, key, 199)
            assert 150 < await retain(client) < 200

    async def test_the_slowest_group_decides_until_it_is_deleted(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await fill(
                client, {"kbroker.queue.retention": "unfinished", "retention.bytes": "0"}, (GROUP, "slow")
            )
            await finish(client, key, 199)
            assert await retain(client) == 0
            assert await client.broker.held_logs.holders(client.partition("orders")) == {
                GROUP: 200,
                "slow": 0,
            }
            await heartbeat_of(client, "slow", -1)
            (row,) = (await client.call("delete_groups", 2, groups_names=["slow"])).results
            assert row.error_code == 0
            assert await retain(client) > 150

    @pytest.mark.parametrize(
        ("policy", "holds"), [("earliest", True), ("latest", False), ("by_duration:PT1H", True)]
    )
    async def test_a_group_that_has_not_begun(self, connect: Connect, policy: str, holds: bool) -> None:
        async with connect(config=FAST) as client:
            await fill(client, {"kbroker.queue.retention": "unfinished", "retention.bytes": "0"})
            await set_up_group(client, {"share.auto.offset.reset": policy})
            assert (await retain(client) == 0) == holds

    async def test_the_hard_cap(self, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
        async with connect(config=FAST) as client:
            caps = {"kbroker.queue.retention": "unfinished", "kbroker.queue.retention.max.bytes": "1000"}
            key = await fill(client, caps)
            await finish(client, key, 19)
            start = await retain(client)
            assert start > 100
            assert removed(client) == start - 20
            (line,) = [each.getMessage() for each in caplog.records if " removed " in each.getMessage()]
            limit = "kbroker.queue.retention.max.bytes"
            assert line.startswith(f"{limit} removed {start - 20} records of orders-0")
            assert f"or the topic a greater {limit};" in line

    async def test_a_topic_of_dead_letters_refuses_it(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            configs = {"errors.deadletterqueue.group.enable": "true", "kbroker.queue.retention": "workqueue"}
            rows = [{"name": name, "value": value} for name, value in configs.items()]
            topic = {
                "name": "dlq",
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": (),
                "configs": rows,
            }
            (row,) = (await client.call("create_topics", 7, topics=[topic], validate_only=False)).topics
            assert row.error_code == 40
            assert "must be time for a topic of dead letters" in row.error_message


class TestWorkQueue:
    async def test_what_is_finished_goes_whatever_its_age(
        self, connect: Connect, every_engine: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(held_logs, "_ROLL_FROM_BYTES", 1)
        async with connect(every_engine, FAST) as client:
            key = await fill(client, {"kbroker.queue.retention": "workqueue"})
            assert await retain(client) == 0
            await finish(client, key, 119)
            assert 80 < await retain(client) <= 120
            await finish(client, key, 199)
            assert await retain(client) == 200, "the active segment as well"
            await client.append("orders", wall_clock_ms())
            member = Member(client.another(7), "m7")
            assert acquired(await member.fetch([key], wait_ms=5000)) == [(200, 200, 1)]
            assert await retain(client) == 200
            await member.acknowledge({key: [(200, 200, [REJECT])]})
            assert await retain(client) == 201
            assert removed(client) == 0
        async with connect(every_engine, FAST) as client:
            partition = client.partition("orders")
            assert (partition.log_start_offset, partition.high_watermark) == (201, 201)

    async def test_without_a_group_nothing_goes(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            await fill(client, {"kbroker.queue.retention": "workqueue"}, ())
            assert await retain(client) == 0


async def test_the_first_look_at_old_segments_is_in_a_thread(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens a file for each of them. A queue of 100 GB has more than 10 000."""
    async with connect(engine="segment") as client:
        await fill(client, {"kbroker.queue.retention": "workqueue"})
    async with connect(engine="segment") as client:
        loop, infos = get_ident(), Counter[bool]()
        load = segment.load_index

        def watched(*arguments: Any) -> SegmentIndex:
            infos[get_ident() == loop] += 1
            return load(*arguments)

        monkeypatch.setattr(segment, "load_index", watched)
        broker = client.broker
        topic = broker.topics.by_name("orders")
        assert topic is not None
        await apply_retention(
            broker.topics, topic.partitions[0], topic.config, broker.held_logs, broker.kept_records
        )
        assert infos[False] > 3
        assert not infos[True]
