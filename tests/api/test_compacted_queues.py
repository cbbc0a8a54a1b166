"""Share groups over the holes of a compacted log: acquisition, acknowledgement, start offset."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kbroker.formats.batches import ProducerInfo
from kbroker.formats.compression import Codec
from tests.api.compacted_logs import (
    Key,
    compact,
    compacted_topic,
    keyed,
    layout,
    put,
    put_long,
    put_sparse,
)
from tests.api.conftest import Client, Connect
from tests.api.dead_letter_queues import set_up_topic
from tests.api.share_consumers import ACCEPT, GAP, RELEASE, Member, acquired, batches, rows, sent
from tests.api.test_parked_records import engine_of

CODECS = [Codec.NONE, Codec.LZ4]
MODES = [0, 1]
PREFETCH = {"kbroker.queue.prefetch": "3"}


async def take(member: Member, key: Key, mode: int, most: int = 500) -> Any:
    """The first fetch waits for the state to be loaded."""
    first = member.epoch == 0
    return await member.fetch(
        [key] if first else (), max_records=most, share_acquire_mode=mode, wait_ms=500 if first else 0
    )


def lag_of(client: Client, key: Key) -> int:
    engine = engine_of(client, key)
    end_offset = client.partition("orders").high_watermark
    return end_offset - engine.start_offset - engine.window.complete


async def finish(member: Member, key: Key, answer: Any) -> list[int]:
    """Acknowledge as clients do: records are accepted, missing offsets are gaps. Returns the
    offsets of the records."""
    there = set(sent(answer))
    acks = [
        (first, last, [ACCEPT if offset in there else GAP for offset in range(first, last + 1)])
        for first, last, _ in acquired(answer)
    ]
    if acks:
        answer = await member.acknowledge({key: acks})
        assert rows(answer)[key].error_code == 0
    taken = [range(first, last + 1) for first, last, _ in acks]
    return sorted(offset for offset in there if any(offset in each for each in taken))


async def read_all(client: Client, key: Key, mode: int, most: int, name: str = "M") -> list[int]:
    """Every record, until a fetch finds nothing."""
    member, found = Member(client.another(7), name), list[int]()
    while acquired(answer := await take(member, key, mode, most)):
        found += await finish(member, key, answer)
    return found


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("most", [1, 3, 500])
async def test_holes_are_passed(
    connect: Connect, every_engine: str, codec: Codec, mode: int, most: int
) -> None:  # ACQ-6, SPSO-4
    async with connect(every_engine) as client:
        key = await compacted_topic(client)
        await put_sparse(client, codec)
        assert await read_all(client, key, mode, most) == [0, 2, 3, 8, 10, 12, 13, 14]
        assert engine_of(client, key).start_offset == 15
        assert lag_of(client, key) == 0


@pytest.mark.parametrize("codec", CODECS)
async def test_exact_fetches_take_records_that_are_there(connect: Connect, codec: Codec) -> None:
    async with connect() as client:
        key = await compacted_topic(client)
        await put_sparse(client, codec)
        member = Member(client, "M1")
        found: list[int] = []
        while taken := acquired(answer := await take(member, key, 1, 3)):
            offsets = [each for first, last, _ in taken for each in range(first, last + 1)]
            assert offsets == sent(answer)
            assert 0 < len(offsets) <= 3
            found += offsets
        assert found == [0, 2, 3, 8, 10, 12, 13, 14]


async def test_the_room_of_a_prefetch_limit_is_not_used_by_holes(connect: Connect) -> None:
    async with connect() as client:
        key = await compacted_topic(client, group=PREFETCH)
        await put_sparse(client)
        answer = await take(Member(client, "M1"), key, 0)
        assert sent(answer) == [0, 2, 3]


async def put_empties(client: Client) -> None:
    """Batches without records before, between and behind others: the last ones of producers."""
    await put(
        client,
        keyed("a"),
        keyed("a", producer=ProducerInfo(1, 0, 0)),
        keyed("a", producer=ProducerInfo(2, 0, 0)),
        keyed("b"),
        keyed("a", "a", producer=ProducerInfo(3, 0, 0)),
        keyed("a"),
    )
    await put(client, keyed("z"))
    await compact(client)


@pytest.mark.parametrize("mode", MODES)
async def test_empty_batches_are_not_handed_out(connect: Connect, every_engine: str, mode: int) -> None:
    async with connect(every_engine) as client:
        key = await compacted_topic(client)
        await put_empties(client)
        assert [each[:2] for each in layout(client) if not each[2]] == [(1, 1), (2, 2), (4, 5)]
        member = Member(client, "M1")
        answer = await take(member, key, mode)
        assert [each[:2] for each in acquired(answer)] == [(3, 3), (6, 7)]
        assert sent(answer) == [3, 6, 7]
        assert all(first not in (1, 2, 4) for first, _ in batches(answer))
        await finish(member, key, answer)
        assert engine_of(client, key).start_offset == 8
        assert lag_of(client, key) == 0


async def test_an_empty_batch_at_the_end(connect: Connect, every_engine: str) -> None:
    """The group continues behind it."""
    async with connect(every_engine) as client:
        key = await compacted_topic(client)
        await put(client, keyed("a"), keyed("b"), keyed("a", producer=ProducerInfo(1, 0, 0)))
        assert len(await read_all(client, key, 0, 500)) == 3
        await put(client, keyed("b", producer=ProducerInfo(1, 0, 1)), keyed("b"), keyed("z"))
        await compact(client)
        assert (3, 3, []) in layout(client)
        assert await read_all(client, key, 1, 1, "N") == [4, 5]
        assert engine_of(client, key).start_offset == 6


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("offsets", [600, 5000, 900_000, 3_000_000])
@pytest.mark.parametrize("limit", ["span", "undecided"])
async def test_a_long_hole(connect: Connect, mode: int, offsets: int, limit: str) -> None:
    """It delays the records behind it at most until those before it are finished."""
    async with connect() as client:
        key = await compacted_topic(client, group={"kbroker.share.in.flight.limit": limit})
        await put(client, keyed("first"))
        await put_long(client, "gone", offsets)
        await put(client, keyed("gone"), keyed("last"))
        await compact(client)
        behind = offsets + 1
        assert layout(client)[1:] == [(behind, behind, [behind]), (behind + 1, behind + 1, [behind + 1])]
        member = Member(client, "M1")
        answer = await take(member, key, mode, 1)
        assert acquired(answer) == [(0, 0, 1)]
        with trio.fail_after(10):
            other = Member(client.another(2), "M2")
            there = await take(other, key, mode, 1)
        held = len(engine_of(client, key).window.states)
        assert held <= 1 << 20
        await finish(member, key, answer)
        if acquired(there):
            await finish(other, key, there)
        rest = await read_all(client, key, mode, 1, "M3")
        assert [*sent(there), *rest] == [behind, behind + 1]
        assert engine_of(client, key).start_offset == behind + 2


@pytest.mark.parametrize("mode", MODES)
async def test_a_long_hole_at_the_start(connect: Connect, mode: int) -> None:
    async with connect() as client:
        key = await compacted_topic(client)
        await put_long(client, "gone", 3_000_000)
        await put(client, keyed("gone"), keyed("last"))
        await compact(client)
        assert await read_all(client, key, mode, 1) == [3_000_000, 3_000_001]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["batch", "record", "emptied"])
async def test_a_released_record_is_compacted_away(
    connect: Connect, every_engine: str, mode: int, how: str
) -> None:  # ISO-9
    producer = ProducerInfo(1, 0, 0)
    log = {
        "batch": [keyed("k"), keyed("gone"), keyed("l")],
        "record": [keyed("k", "gone", "l")],
        "emptied": [keyed("k"), keyed("gone", producer=producer), keyed("l")],
    }[how]
    async with connect(every_engine) as client:
        key = await compacted_topic(client)
        await put(client, *log, keyed("z"))
        member = Member(client, "M1")
        answer = await take(member, key, mode, 3)
        assert sent(answer) == [0, 1, 2]
        await member.acknowledge({key: [(0, 2, [RELEASE])]})
        await put(client, keyed("gone"), keyed("y"))
        await compact(client)
        with trio.fail_after(10):
            assert await read_all(client, key, mode, 500, "M2") == [0, 2, 3, 4, 5]
        assert engine_of(client, key).start_offset == 6
        assert lag_of(client, key) == 0


@pytest.mark.parametrize("mode", MODES)
async def test_a_held_record_is_compacted_away(  # ISO-8
    connect: Connect, every_engine: str, mode: int
) -> None:
    async with connect(every_engine) as client:
        key = await compacted_topic(client)
        await put(client, keyed("a"), keyed("b"), keyed("z"))
        member = Member(client, "M1")
        answer = await take(member, key, mode)
        await put(client, keyed("a"), keyed("b"), keyed("y"))
        await compact(client)
        assert [each[0] for each in layout(client)] == [2, 3, 4, 5]
        assert await finish(member, key, answer) == [0, 1, 2]
        assert await read_all(client, key, mode, 500, "M2") == [3, 4, 5]
        assert engine_of(client, key).start_offset == 6


@pytest.mark.parametrize("mode", MODES)
async def test_the_policy_changes_while_a_group_reads(connect: Connect, mode: int) -> None:
    async with connect() as client:
        key = await compacted_topic(client)
        await put(client, keyed("a"), keyed("b"), keyed("a"), keyed("z"))
        member, found = Member(client, "M1"), list[int]()
        found += await finish(member, key, await take(member, key, mode, 1))
        for policy in ("delete", "compact", "compact,delete"):
            await set_up_topic(client, "orders", {"cleanup.policy": policy})
            await compact(client)
            assert ((0, 0, [0]) in layout(client)) is (policy == "delete")
            await put(client, keyed("b"), keyed("z"))
            found += await finish(member, key, await take(member, key, mode, 1))
        found += await read_all(client, key, mode, 500, "M2")
        assert found == sorted(set(found))
        assert {offset for _, _, offsets in layout(client) for offset in offsets} <= set(found)
        assert lag_of(client, key) == 0


@pytest.mark.parametrize("mode", MODES)
async def test_a_restart_in_the_middle(connect: Connect, every_engine: str, mode: int) -> None:
    if every_engine == "memory":
        pytest.skip("it forgets")
    async with connect(every_engine) as client:
        key = await compacted_topic(client)
        await put_sparse(client)
        member = Member(client, "M1")
        answer = await take(member, key, 1)
        assert sent(answer) == [0, 2, 3, 8, 10, 12, 13, 14]
        answer = await member.acknowledge({key: [(0, 0, [ACCEPT]), (3, 3, [RELEASE]), (10, 10, [ACCEPT])]})
        assert rows(answer)[key].error_code == 0
    async with connect(every_engine) as client:
        assert await read_all(client, key, mode, 500) == [2, 3, 8, 12, 13, 14]
        assert engine_of(client, key).start_offset == 15
        assert lag_of(client, key) == 0
