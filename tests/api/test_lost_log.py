"""Share state of records that a power cut removed from the log, which is possible with durability
`os`: see queues/loading.py.

The power cut is simulated by truncating the log while no broker runs. State of the lost records
must not apply to new records with their offsets, whenever the group returns; state of other records
must stay.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from kbroker import plugins
from kbroker.storage.data_dir import DataDirectory
from kbroker.storage.spi import LogId
from tests.api.conftest import Client, Connect
from tests.api.share_consumers import ACCEPT, GROUP, RELEASE, Member, acquired, prepare, set_up_group
from tests.api.test_share_group_offsets import alter, known, starts


def lose(data_dir: Path, engine: str, topic_id: UUID, end_offset: int) -> None:
    with DataDirectory.open(data_dir, engine, engine) as directory:
        store = plugins.log_store_factory(engine).open(directory.log_path, {}, 0)
        store.truncate(LogId(topic_id, 0), end_offset)
        store.close()


async def done_with(client: Client, key: tuple[UUID, int], *acks: tuple[int, int, list[int]]) -> None:
    member = Member(client, "m")
    assert acquired(await member.fetch([key], wait_ms=5000)) != []
    assert (await member.acknowledge({key: acks})).error_code == 0
    await member.acknowledge({}, epoch=-1)


async def append(client: Client, count: int) -> None:
    for number in range(count):
        await client.append("orders", number)


@pytest.mark.parametrize("appended_before", [0, 3, 8])
async def test_acknowledgements_of_lost_records_are_not_those_of_new_ones(
    connect: Connect, every_engine: str, tmp_path: Path, appended_before: int
) -> None:  # LOAD-18
    """However many of the lost offsets are reused before the group returns."""
    async with connect(engine=every_engine) as client:
        key = await prepare(client, *[1] * 10)
        await done_with(client, key, (0, 1, [ACCEPT]), (2, 2, [RELEASE]), (3, 9, [ACCEPT]))
    lose(tmp_path / every_engine, every_engine, key[0], 5)
    async with connect(engine=every_engine) as client:
        await append(client, appended_before)
        member = Member(client, "m")
        first = acquired(await member.fetch([key], wait_ms=5000, max_records=1))
        assert first == [(2, 2, 2)], "what is still there is as it was"
        await append(client, 8 - appended_before)
        assert acquired(await member.fetch(wait_ms=5000)) == [(5, 12, 1)]
        await member.acknowledge({key: [(2, 2, [ACCEPT]), (5, 12, [ACCEPT])]})
        await member.acknowledge({}, epoch=-1)
    async with connect(engine=every_engine) as client:
        assert acquired(await Member(client, "m").fetch([key], wait_ms=10)) == [], (
            "records finished since are not delivered again"
        )
        assert (await starts(client) or {0: (13, 0)})[0][1] == 0


# LOAD-18
async def test_a_group_that_comes_back_much_later(
    connect: Connect, every_engine: str, tmp_path: Path
) -> None:
    """Even after a further restart: the log's end at that time does not show how much was lost."""
    async with connect(engine=every_engine) as client:
        key = await prepare(client, *[1] * 10)
        await done_with(client, key, (0, 9, [ACCEPT]))
    lose(tmp_path / every_engine, every_engine, key[0], 5)
    async with connect(engine=every_engine) as client:
        await append(client, 3)
    async with connect(engine=every_engine) as client:
        await append(client, 4)
    async with connect(engine=every_engine) as client:
        assert acquired(await Member(client, "m").fetch([key], wait_ms=5000)) == [(5, 11, 1)]


@pytest.mark.parametrize("way", ["latest", "altered to the end", "altered to an old offset"])
# LOAD-18
async def test_a_start_offset_that_the_log_had(
    connect: Connect, every_engine: str, tmp_path: Path, way: str
) -> None:
    """Nothing was delivered, but the log had records before the start offset: new ones at their
    offsets are different records."""
    async with connect(engine=every_engine) as client:
        key = await known(client, *[1] * 10)
        if way == "latest":
            await set_up_group(client, {"share.auto.offset.reset": "latest"})
            await alter(client, -1)
            assert acquired(await Member(client, "m").fetch([key], wait_ms=300)) == []
            assert await starts(client) == {0: (10, 0)}
        else:
            assert await alter(client, 10 if "end" in way else 8) == [0]
    lose(tmp_path / every_engine, every_engine, key[0], 5)
    async with connect(engine=every_engine) as client:
        await append(client, 6)
        assert acquired(await Member(client, "m").fetch([key], wait_ms=5000)) == [(5, 10, 1)]
        assert await starts(client) == {0: (5, 6)}


# LOAD-18, LSO-11
async def test_a_start_offset_beyond_the_end_stays(
    connect: Connect, every_engine: str, tmp_path: Path
) -> None:
    async with connect(engine=every_engine) as client:
        key = await known(client, *[1] * 10)
        assert await alter(client, 12) == [0]
    lose(tmp_path / every_engine, every_engine, key[0], 5)
    async with connect(engine=every_engine) as client:
        member = Member(client, "m")
        await append(client, 6)
        assert acquired(await member.fetch([key], wait_ms=10)) == []
        await append(client, 3)
        assert acquired(await member.fetch(wait_ms=5000)) == [(12, 13, 1)]


async def test_what_was_cut_is_said_once(
    connect: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(engine="segment") as client:
        key = await prepare(client, *[1] * 10)
        await done_with(client, key, (0, 9, [ACCEPT]))
    lose(tmp_path / "segment", "segment", key[0], 5)
    for _ in range(2):
        async with connect(engine="segment") as client:
            await Member(client, "m").fetch([key], wait_ms=300)
    (line,) = [
        record.getMessage() for record in caplog.records if "which the log has lost" in record.getMessage()
    ]
    assert (
        line == f"share-partition {GROUP}:orders-0: state of records from 5 on, which the log has lost, is "
        "removed (start offset was 0)"
    )
