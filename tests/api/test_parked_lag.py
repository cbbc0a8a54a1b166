"""Parked records are lag, with every persister and store; those that the log has lost are not.

There are twelve records. Some are passed to the persister as parked, in the form that the share
engine writes. Expected numbers are counted by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker.broker.groups import share_groups as coordinators
from kbroker.broker.queues.parked_left import due_parked, parked_left
from kbroker.cli.inflight_view import draw
from kbroker.client.queues.report import _by_state
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode
from kbroker.share.effects import StateBatch
from kbroker.share.lag import ParkedLeft
from kbroker.share.parked import Lane, Parked, ParkingChange
from kbroker.share.persister import PARKED, ReadRequest, TopicPartition, WriteRequest
from tests.api.conftest import ENGINES, Client, Connect
from tests.api.dead_letter_queues import until
from tests.api.share_consumers import ACCEPT, GROUP, Member, acquired
from tests.api.test_lag_above_a_log_start import (
    AGE,
    LAG,
    PERSISTERS,
    RECORDS,
    YOUNGEST_S,
    check,
    delete_before,
    described,
    in_flight,
    opened,
    scraped,
)
from tests.api.test_lost_log import append, lose
from tests.api.test_removed_records import counted, line, said

WAITING = (1, 2, 4, 7)
DUE_MS = 4_000_000_000_000


async def begun(client: Client, now_ms: int) -> TopicPartition:
    topic = await client.create_topic("orders")
    for age in range(RECORDS):
        await client.append("orders", now_ms - 1000 * YOUNGEST_S * (RECORDS - age))
    rows = [{"topic_name": "orders", "partitions": [{"partition_index": 0, "start_offset": 0}]}]
    assert (await client.call("alter_share_group_offsets", 0, group_id=GROUP, topics=rows)).error_code == 0
    return TopicPartition(topic.topic_id, 0)


async def park(client: Client, key: TopicPartition, *offsets: int, start: int = 5) -> None:
    """The start offset passes 0 to 4; parked records after it are archived in the window."""
    partition = client.broker.topics.partition(*key)
    assert partition is not None
    epoch = partition.leader_epoch
    (state,) = await client.broker.persister.read(GROUP, [ReadRequest(key, epoch)])
    changes = [
        ParkingChange(each, (), Parked(each, Lane.SCHEDULE, DUE_MS + each, 1, epoch)) for each in offsets
    ]
    batches = [StateBatch(each, each, 4, 1) for each in offsets if each >= start]
    request = WriteRequest(
        key, state.state_epoch, epoch, start, len(batches), batches, changes, state.waiting + len(changes)
    )
    (result,) = await client.broker.persister.write(GROUP, [request])
    assert result.code is ErrorCode.none


async def parked(client: Client, key: TopicPartition) -> list[int]:
    rows = client.broker.persister.waiting_rows
    assert rows is not None
    return [each.offset for each in await rows.read_from(GROUP, key, PARKED, 0, None, 100)]


@pytest.mark.parametrize("persister", PERSISTERS)
@pytest.mark.parametrize("engine", ENGINES)
async def test_what_waits_is_lag(tmp_path: Path, engine: str, persister: str) -> None:
    """Not loaded, loaded, and after a restart; but not below the log's start."""
    now_ms = wall_clock_ms()
    async with opened(tmp_path, engine, persister) as client:
        key = await begun(client, now_ms)
        await park(client, key, *WAITING)
        await check(client, 3 + 6 + 1, YOUNGEST_S * (RECORDS - 1), now_ms)
        assert not client.broker.share_partitions.loaded()
    async with opened(tmp_path, engine, persister) as client:
        await check(client, 10, YOUNGEST_S * (RECORDS - 1), now_ms)
        member = Member(client.another(2), "M1")
        assert acquired(await member.fetch([key], wait_ms=5000)) == [(5, 6, 1), (8, RECORDS - 1, 1)]
        assert len(client.broker.share_partitions.loaded()) == 1
        document = await in_flight(client)
        (shown,) = document["share_partitions"]
        assert (shown["parked"], shown["next_due_ms"]) == (4, DUE_MS + 1)
        assert (shown["first_parked"], shown["first_parked_sent_ms"]) == (min(WAITING), None), (
            "the log has it"
        )
        left_s = (DUE_MS + 1 - document["now_ms"]) / 1000
        assert f"4 parked, the next one is due in {left_s:,.1f} s" in draw(document, 80)[2].plain
        await check(client, 10, YOUNGEST_S * (RECORDS - 1), now_ms)
        await delete_before(client, 2)
        await check(client, 9, YOUNGEST_S * (RECORDS - 2), now_ms)
        await member.acknowledge({key: [(5, 6, [ACCEPT]), (8, RECORDS - 1, [ACCEPT])]})
        await check(client, 3, YOUNGEST_S * (RECORDS - 2), now_ms)
        await delete_before(client, 3)
        await check(client, 2, YOUNGEST_S * (RECORDS - 4), now_ms)
        member.client.disconnect()
        await until(lambda: not client.broker.share_partitions.loaded())
        await check(client, 2, YOUNGEST_S * (RECORDS - 4), now_ms)
        await delete_before(client, RECORDS)
        assert (await described(client))[1] == 0
        samples = await scraped(client)
        assert list(samples[LAG].values()) == list(samples[AGE].values()) == [0]


@pytest.mark.parametrize("persister", PERSISTERS)
async def test_what_a_log_start_takes_is_counted_and_dropped_at_the_load(
    tmp_path: Path, persister: str, caplog: pytest.LogCaptureFixture
) -> None:
    now_ms = wall_clock_ms()
    async with opened(tmp_path, "segment", persister) as client:
        key = await begun(client, now_ms)
        await park(client, key, *WAITING)
        said(caplog)
        await delete_before(client, 3)
        assert said(caplog) == [line(2)]
        assert await parked(client, key) == [1, 2, 4, 7], "nobody has loaded it"
        member = Member(client.another(2), "M1")
        assert acquired(await member.fetch([key], wait_ms=5000)) == [(5, 6, 1), (8, RECORDS - 1, 1)]
        assert await parked(client, key) == [4, 7]
        said(caplog)
        await delete_before(client, 7)
        assert said(caplog) == [line(3)]
        assert await counted(client) == {GROUP: 5}


@pytest.mark.parametrize("appended_before", [0, 3, 8])
async def test_what_a_power_cut_took_from_the_log_waits_no_more(
    connect: Connect, every_engine: str, tmp_path: Path, appended_before: int
) -> None:
    """New records get the lost offsets, but are different ones. The remaining records wait as
    before. (Control records are lost with the log:
    tests/broker/persisters/test_control_parking.py.)"""
    async with connect(engine=every_engine) as client:
        key = await begun(client, wall_clock_ms())
        await park(client, key, 1, 2, 6, 9, 11, start=12)
    lose(tmp_path / every_engine, every_engine, key.topic_id, 7)
    async with connect(engine=every_engine) as client:
        await append(client, appended_before)
    async with connect(engine=every_engine) as client:
        await append(client, 8 - appended_before)
        member = Member(client, "m")
        assert acquired(await member.fetch([key], wait_ms=5000)) == [(7, 14, 1)]
        assert await parked(client, key) == [1, 2, 6]
        assert (await described(client))[1] == 8 + 3
        await member.acknowledge({key: [(7, 14, [ACCEPT])]})
        await member.acknowledge({}, epoch=-1)
    async with connect(engine=every_engine) as client:
        assert (await described(client))[1] == 3
        assert acquired(await Member(client, "m").fetch([key], wait_ms=10)) == []
        assert await parked(client, key) == [1, 2, 6]


async def test_what_comes_meanwhile_is_no_lag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's end must be that of the summary's moment: otherwise control records appended while
    parked records are counted would be lag."""
    now_ms = wall_clock_ms()

    async with opened(tmp_path, "segment", "control-records") as client:
        key = await begun(client, now_ms)
        await park(client, key, *WAITING)
        before = await described(client)

        async def after_a_write(*arguments: Any, **options: Any) -> ParkedLeft:
            await park(client, key)
            return await parked_left(*arguments, **options)

        monkeypatch.setattr(coordinators, "parked_left", after_a_write)
        assert await described(client) == before


@pytest.mark.parametrize("persister", PERSISTERS)
async def test_what_is_due_is_told_from_what_waits(tmp_path: Path, every_engine: str, persister: str) -> None:
    """By the store alone: memory has only the first records of each lane."""
    async with opened(tmp_path, every_engine, persister) as client:
        key = await begun(client, wall_clock_ms())
        await park(client, key, *WAITING)
        due_ms = [DUE_MS + each for each in WAITING]
        assert await due_parked(client.broker.persister, GROUP, key, DUE_MS) == (0, due_ms[0])
        assert await due_parked(client.broker.persister, GROUP, key, due_ms[1]) == (2, due_ms[2])
        assert await due_parked(client.broker.persister, GROUP, key, due_ms[3]) == (4, None)


def test_due_jobs_that_lie_in_the_store_alone_are_ready() -> None:
    held = {"first_offset": 1, "last_offset": 2, "state": "acquired"}
    partition = {"parked": 3005, "parked_due": 3000, "ranges": [], "parked_ranges": [held]}
    counts = _by_state([partition])
    assert counts["acquired"] == 2
    assert counts["waiting"] == 5
