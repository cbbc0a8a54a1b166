"""Records that retention and DeleteRecords remove although a share group has not finished them
appear in the log and the metrics.

The expected number comes from the log and from the test's acknowledgements, offset by offset.
Control records in the log do not count.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio

from kbroker.broker.broker import open_broker
from kbroker.broker.logs.removed_records import RemovedRecords
from kbroker.broker.logs.retention import apply_retention, run_retention
from kbroker.broker.options import StartOptions
from kbroker.clock import wall_clock_ms
from kbroker.formats.batches import Record, build_batch, iter_headers
from kbroker.metrics_export.exposition import MetricsExport
from kbroker.settings.altering import BrokerConfig
from kbroker.share.persister import Persister, ReadRequest, ReadResult, SummaryResult, adapted_persister
from tests.api.conftest import ENGINES, Client
from tests.api.dead_letter_queues import until
from tests.api.share_consumers import ACCEPT, GROUP, REJECT, RELEASE, Member, acquired, set_up_group
from tests.api.test_delete_records import delete
from tests.metrics.world import parse, scrape_text

Key = tuple[UUID, int]
TOPIC = "orders"
METRIC = "kbroker_share_group_removed_records_total"


@asynccontextmanager
async def opened(
    directory: Path, engine: str = "memory", persister: str = "default"
) -> AsyncIterator[Client]:
    config = BrokerConfig({"kbroker.persister": persister, "log.segment.bytes": "1048576"})
    options = StartOptions(data_dir=directory, storage=engine, state_storage=engine, config=config)
    async with open_broker(options) as broker:
        yield Client(broker)


async def join(client: Client, group_id: str = GROUP, topic: str = TOPIC, reset: str = "earliest") -> None:
    """As a real member does, so that the group has share state of all partitions."""
    await set_up_group(client, {"share.auto.offset.reset": reset}, group_id)
    fields = {"group_id": group_id, "member_id": "m", "rack_id": None, "subscribed_topic_names": [topic]}
    assert (await client.call("share_group_heartbeat", 1, member_epoch=0, **fields)).error_code == 0
    await client.call(
        "share_group_heartbeat", 1, **{**fields, "member_epoch": -1, "subscribed_topic_names": None}
    )


async def work(client: Client, key: Key, group_id: str = GROUP) -> tuple[Member, set[int]]:
    """Acquire 20 records: accept the first 5 and two in between, reject one, release one, hold the
    others.

    Returns the member and the finished offsets.
    """
    member = Member(client.another(2), "m", group_id)
    taken: list[int] = []
    while len(taken) < 20:
        found = acquired(
            await member.fetch([key], max_records=20 - len(taken), share_acquire_mode=1, wait_ms=5000)
        )
        taken += [offset for first, last, _ in found for offset in range(first, last + 1)]
    for places, answer in ((range(5), ACCEPT), ((7, 8), ACCEPT), ((9,), REJECT), ((10,), RELEASE)):
        for place in places:
            await member.acknowledge({key: [(taken[place], taken[place], [answer])]})
    return member, {taken[place] for place in (*range(5), 7, 8, 9)}


def data_offsets(client: Client, key: Key) -> list[int]:
    """Of records that producers wrote."""
    partition = client.broker.topics.partition(*key)
    assert partition is not None
    views = client.broker.log_store.read(
        partition.log, partition.log_start_offset, max_bytes=1 << 30, end_offset=partition.high_watermark
    )
    headers = [header for view in views for _, header in iter_headers(view)]
    found = [
        offset
        for header in headers
        if not header.is_control
        for offset in range(header.base_offset, header.last_offset + 1)
    ]
    return [offset for offset in found if offset >= partition.log_start_offset]


async def unloaded(client: Client) -> None:
    """Wait until everything released by the session is saved and the share-partition is
    unloaded."""
    await until(lambda: not client.broker.share_partitions.loaded())


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines since the last time."""
    found = [record for record in caplog.records if record.name.endswith("removed_records")]
    lines = [record.getMessage() for record in found if record.levelname == "WARNING"]
    caplog.clear()
    return lines


async def counted(client: Client) -> dict[str, float]:
    samples = parse(await scrape_text(MetricsExport(client.broker))).get(METRIC, {})
    return {dict(labels)["group"]: value for labels, value in samples.items() if value}


def line(records: int, index: int = 0, group_id: str = GROUP) -> str:
    removed = f"DeleteRecords removed {records} records of {TOPIC}-{index}"
    return f"{removed} that share group {group_id} was not done with"


@pytest.mark.parametrize("persister", ["default", "control-records"])
@pytest.mark.parametrize("engine", ENGINES)
async def test_the_number_is_right_in_memory_and_after_a_restart(
    tmp_path: Path, engine: str, persister: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path / "data", engine, persister) as client:
        topic = await client.create_topic(TOPIC)
        key = (topic.topic_id, 0)
        await join(client)
        for _ in range(40):
            await client.append(TOPIC, 1000)
        member, done = await work(client, key)
        offsets = data_offsets(client, key)
        assert await delete(client, offsets[3], topic=TOPIC) == (0, offsets[3])
        assert said(caplog) == [], "all of that was done"
        for place in (12, 25):  # Inside the acquired range, and after it.
            lost = [each for each in data_offsets(client, key) if each < offsets[place] and each not in done]
            assert await delete(client, offsets[place], topic=TOPIC) == (0, offsets[place])
            assert said(caplog) == [line(len(lost))]
        assert await counted(client) == {GROUP: 4 + 13}
        if engine == "memory":
            return
        await member.fetch(epoch=-1)
    async with opened(tmp_path / "data", engine, persister) as client:
        offsets = data_offsets(client, key)
        assert client.broker.share_partitions.loaded() == []
        assert await delete(client, offsets[5], topic=TOPIC) == (0, offsets[5])
        assert said(caplog) == [line(5)]
        assert await counted(client) == {GROUP: 5}
        assert client.broker.share_partitions.loaded() == [], "counted, and not loaded"


@pytest.mark.parametrize("persister", ["default", "control-records"])
@pytest.mark.parametrize("engine", ENGINES[1:])
async def test_what_was_done_behind_the_start_offset_does_not_count_after_a_restart_either(
    tmp_path: Path, engine: str, persister: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path / "data", engine, persister) as client:
        topic = await client.create_topic(TOPIC)
        key = (topic.topic_id, 0)
        await join(client)
        for _ in range(40):
            await client.append(TOPIC, 1000)
        member, done = await work(client, key)
        await member.fetch(epoch=-1)
        offsets = data_offsets(client, key)
    async with opened(tmp_path / "data", engine, persister) as client:
        for place in (3, 8, 12, 25):
            lost = [each for each in data_offsets(client, key) if each < offsets[place] and each not in done]
            assert await delete(client, offsets[place], topic=TOPIC) == (0, offsets[place])
            assert said(caplog) == ([line(len(lost))] if lost else [])
        assert await counted(client) == {GROUP: 4 + 13}


async def test_each_group_has_its_own_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(tmp_path / "data") as client:
        topic = await client.create_topic(TOPIC)
        for _ in range(40):
            await client.append(TOPIC, 1000)
        await join(client)
        await join(client, "fast")
        await join(client, "new", reset="latest")  # Has never fetched: it holds nothing.
        await join(client, "elsewhere", topic="other")
        await work(client, (topic.topic_id, 0))
        member = Member(client.another(3), "f", "fast")
        await member.fetch([(topic.topic_id, 0)], wait_ms=5000)
        await member.acknowledge({(topic.topic_id, 0): [(0, 29, [ACCEPT])]})
        await delete(client, -1, topic=TOPIC)
        assert sorted(said(caplog)) == sorted([line(40 - 8), line(10, group_id="fast")])
        await client.append(TOPIC, 1000)
        await delete(client, -1, topic=TOPIC)
        assert await counted(client) == {GROUP: 33, "fast": 11}
        assert (await client.call("delete_groups", 2, groups_names=["fast"])).results[0].error_code == 0
        assert await counted(client) == {GROUP: 33}


@pytest.mark.parametrize("persister", ["noop"])
async def test_a_persister_that_keeps_nothing(
    tmp_path: Path, persister: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path / "data", persister=persister) as client:
        topic = await client.create_topic(TOPIC)
        await join(client)
        for _ in range(40):
            await client.append(TOPIC, 1000)
        member, _ = await work(client, (topic.topic_id, 0))
        await delete(client, 12, topic=TOPIC)
        assert said(caplog) == [line(4)]
        await member.fetch(epoch=-1)
        await unloaded(client)
        await delete(client, 20, topic=TOPIC)
        assert said(caplog) == [], "nobody knows of the group's state any more"


async def test_retention_says_what_to_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(tmp_path / "data", "segment") as client:
        await client.create_topic(TOPIC, 1, {"internal.segment.bytes": "400", "retention.bytes": "900"})
        await join(client, "a b")
        for index in range(20):
            await client.append_raw(TOPIC, build_batch([Record(0, wall_clock_ms(), None, b"%100d" % index)]))
        partition = client.partition(TOPIC)
        topic = client.broker.topics.by_name(TOPIC)
        assert topic is not None
        assert (await delete(client, 1, topic=TOPIC))[1] == 1
        assert said(caplog) == [], "the group has not begun: what it finds first is where it begins"
        key = (topic.topic_id, 0)
        await Member(client.another(2), "m", "a b").fetch([key], max_records=1, wait_ms=5000)
        await apply_retention(client.broker.topics, partition, topic.config)
        assert partition.log_start_offset > 1
        assert said(caplog) == [
            f"retention removed {partition.log_start_offset - 1} records of orders-0 that share group a b "
            "was not done with: it needs more consumers, or the topic a greater retention.ms or "
            "retention.bytes; kbroker share-groups describe 'a b' shows whether anybody works in it"
        ]


async def test_a_round_of_retention_asks_only_for_what_moves(
    tmp_path: Path, jump_clock: trio.testing.MockClock
) -> None:
    async with opened(tmp_path / "data", "segment") as client:
        topic = await client.create_topic(
            TOPIC, 50, {"internal.segment.bytes": "400", "retention.bytes": "900"}
        )
        await join(client)
        member = Member(client, "m")
        for index in range(50):
            await client.append(TOPIC, wall_clock_ms(), partition=index)
        await member.fetch([(topic.topic_id, index) for index in range(50)], wait_ms=5000)
        await member.fetch(epoch=-1)
    async with opened(tmp_path / "data", "segment") as client:
        before = client.broker.share_state.statistics().loads
        for index in range(20):
            await client.append_raw(
                TOPIC, build_batch([Record(0, wall_clock_ms(), None, b"%100d" % index)]), 7
            )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_retention, client.broker.topics, 1000)
            while not client.partition(TOPIC, 7).log_start_offset:
                await trio.testing.wait_all_tasks_blocked(0.01)
                jump_clock.jump(1)
            nursery.cancel_scope.cancel()
        assert client.broker.share_state.statistics().loads == before + 1
        assert client.broker.share_partitions.loaded() == []


class FiveVerbs:
    """Another author's persister: it has only the required methods, and may be slow or fail."""

    def __init__(self, persister: Persister) -> None:
        self._persister = persister
        self.reads = 0
        self.never: trio.Event | None = None
        self.failure: Exception | None = None

    async def read_summary(self, group_id: str, requests: Sequence[ReadRequest]) -> list[SummaryResult]:
        if self.never is not None:
            await self.never.wait()
        if self.failure is not None:
            raise self.failure
        return await self._persister.read_summary(group_id, requests)

    async def read(self, group_id: str, requests: Sequence[ReadRequest]) -> list[ReadResult]:
        self.reads += 1
        return await self._persister.read(group_id, requests)

    def __getattr__(self, name: str) -> Any:
        if name in ("initialize", "write", "delete", "aclose"):
            return getattr(self._persister, name)
        raise AttributeError(name)


def use(client: Client) -> FiveVerbs:
    verbs = FiveVerbs(client.broker.persister)
    groups = client.broker.share_group_service.coordinator.groups_of

    def groups_of(key: Any) -> Iterable[str]:
        return groups(key)

    removed = RemovedRecords(adapted_persister(verbs), client.broker.share_partitions, groups_of)
    client.broker.topics.log_start_watchers[-1] = removed.before_removal
    return verbs


async def test_by_the_five_verbs_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(tmp_path / "data") as client:
        topic = await client.create_topic(TOPIC, 2)
        verbs = use(client)
        await join(client)
        for index in (0, 1):
            for _ in range(40):
                await client.append(TOPIC, 1000, partition=index)
        member, _ = await work(client, (topic.topic_id, 0))
        await member.fetch([(topic.topic_id, 1)], wait_ms=5000)
        await member.fetch(epoch=-1)
        await unloaded(client)
        for offset, lost in ((3, 0), (8, 2), (12, 2), (25, 13)):
            await delete(client, offset, topic=TOPIC)
            assert said(caplog) == ([line(lost)] if lost else [])
        assert verbs.reads == 3
        await delete(client, 25, topic=TOPIC, partition=1)
        assert said(caplog) == [line(25, 1)]
        assert verbs.reads == 3, "nothing of it was done: the summary says it all"


async def test_a_persister_that_fails_or_hangs_does_not_keep_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, jump_clock: trio.testing.MockClock
) -> None:
    async with opened(tmp_path / "data") as client:
        await client.create_topic(TOPIC)
        verbs = use(client)
        await join(client)
        await client.append(TOPIC, *[1000] * 10)
        verbs.failure = RuntimeError("no connection")
        assert await delete(client, 3, topic=TOPIC) == (0, 3)
        begin = "DeleteRecords of orders-0: what share group g1 is not done with could not be counted: "
        assert said(caplog) == [f"{begin}the persister failed"]
        verbs.never = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(delete, client, 5, topic=TOPIC))
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert client.partition(TOPIC).log_start_offset == 3
            jump_clock.jump(6)
        assert client.partition(TOPIC).log_start_offset == 5
        assert said(caplog) == [f"{begin}the persister did not answer within 5 s"]
