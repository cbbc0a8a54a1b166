"""What kbroker adds to share groups, over a log that is compacted meanwhile: parked and scheduled
records, the time to live, the order of keys, retention for groups, and dead letters."""

from __future__ import annotations

import pytest
import trio

from kbroker.broker.queues import expiry
from kbroker.clock import wall_clock_ms
from kbroker.formats.batches import ProducerInfo
from kbroker.formats.compression import Codec
from tests.api.compacted_logs import (
    compact,
    compacted_topic,
    keyed,
    layout,
    put,
    put_long,
    put_sparse,
)
from tests.api.conftest import Connect
from tests.api.dead_letter_queues import (
    COPY,
    ENABLED,
    NAME,
    QUEUE,
    counters_of,
    letters_of,
    offsets_of,
    until,
)
from tests.api.share_consumers import ACCEPT, REJECT, RELEASE, Member, acquired, rows, sent, set_up_group
from tests.api.test_compacted_queues import MODES, finish, lag_of, read_all, take
from tests.api.test_parked_records import engine_of, parked
from tests.api.test_work_queue import heartbeat

pytestmark = pytest.mark.usefixtures("without_lingering", "parks_at_once")

DELAYED = {"kbroker.queue.redelivery.delay.ms": "300", "kbroker.queue.redelivery.jitter": "0"}
SCANS = {"kbroker.share.in.flight.limit": "undecided"}
LATER = (("kbroker-delay-ms", b"600"),)


GONE = {
    "batch": [keyed("k"), keyed("gone"), keyed("l")],
    "record": [keyed("k", "gone", "l")],
    "compressed": [keyed("k", "gone", "l", codec=Codec.LZ4)],
    "emptied": [keyed("k"), keyed("gone", producer=ProducerInfo(1, 0, 0)), keyed("l")],
}


@pytest.mark.parametrize("how", GONE)
async def test_a_parked_record_is_compacted_away(connect: Connect, every_engine: str, how: str) -> None:
    async with connect(every_engine) as client:
        key = await compacted_topic(client, group=DELAYED)
        await put(client, *GONE[how], keyed("gone"), keyed("y"))
        member = Member(client, "M1")
        answer = await take(member, key, 1, 3)
        assert sent(answer) == [0, 1, 2]
        await member.acknowledge({key: [(0, 2, [RELEASE])]})
        assert parked(client, key) == 3
        await compact(client)
        came: list[int] = []
        with trio.fail_after(20):
            while len(came) < 4 or parked(client, key):
                answer = await member.fetch(wait_ms=200, share_acquire_mode=1)
                came += sent(answer)
                await finish(member, key, answer)
        assert sorted(came) == [0, 2, 3, 4]
        assert engine_of(client, key).start_offset == 5


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
async def test_a_scheduled_record_is_compacted_away(connect: Connect, codec: Codec) -> None:
    async with connect() as client:
        key = await compacted_topic(client, group={**SCANS, "kbroker.queue.scheduling": "true"})
        await put(client, keyed("k", "gone", "l", headers=LATER, codec=codec), keyed("gone"), keyed("y"))
        member = Member(client, "M1")
        found = await take(member, key, 1)
        assert sent(found) == [3, 4]
        assert parked(client, key) == 3
        await compact(client)
        await finish(member, key, found)
        came: list[int] = []
        with trio.fail_after(10):
            while parked(client, key):
                again = await member.fetch(wait_ms=200, share_acquire_mode=1)
                assert {count for _, _, count in acquired(again)} <= {1}
                came += sent(again)
                await finish(member, key, again)
        assert came == [0, 2]
        assert lag_of(client, key) == 0


GROUPS = {
    "schedules": {"kbroker.queue.scheduling": "true"},
    "ttl": {"kbroker.queue.ttl.ms": "3600000"},
    "ordered": {"kbroker.queue.ordering": "key"},
}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("mode", MODES)
async def test_scans_pass_holes(connect: Connect, every_engine: str, group: str, mode: int) -> None:
    async with connect(every_engine) as client:
        key = await compacted_topic(client, group={**SCANS, **GROUPS[group]})
        await put_sparse(client)
        member, found = Member(client, "M1"), list[int]()
        with trio.fail_after(20):
            while len(found) < 8:
                answer = await member.fetch(
                    [key] if member.epoch == 0 else (), wait_ms=500, share_acquire_mode=mode
                )
                found += await finish(member, key, answer)
        assert sorted(found) == [0, 2, 3, 8, 10, 12, 13, 14]
        await until(lambda: engine_of(client, key).start_offset == 15)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("offsets", [1000, 3_000_000])
async def test_scans_pass_a_long_hole(connect: Connect, group: str, offsets: int) -> None:
    async with connect() as client:
        key = await compacted_topic(client, group={**SCANS, **GROUPS[group]})
        await put(client, keyed("first"))
        await put_long(client, "gone", offsets)
        await put(client, keyed("gone"), keyed("last"))
        await compact(client)
        member, found = Member(client, "M1"), list[int]()
        with trio.fail_after(20):
            while len(found) < 3:
                answer = await member.fetch(
                    [key] if member.epoch == 0 else (), wait_ms=500, share_acquire_mode=1
                )
                found += await finish(member, key, answer)
        assert found == [0, offsets + 1, offsets + 2]


async def test_only_records_that_are_there_expire(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connect() as client:
        key = await compacted_topic(client, group={**SCANS, "kbroker.queue.ttl.ms": "3600000"})
        await client.create_topic(QUEUE, 1, configs=ENABLED)
        await set_up_group(client, {NAME: QUEUE})
        await put_sparse(client)
        step, real = [0], wall_clock_ms
        monkeypatch.setattr(expiry, "wall_clock_ms", lambda: real() + step[0])
        answer = await take(member := Member(client, "M1"), key, 1, 1)
        assert sent(answer) == [0]
        step[0] = 7_200_000
        await until(lambda: len(letters_of(client)) == 7)
        assert sorted(offsets_of(letters_of(client))) == [2, 3, 8, 10, 12, 13, 14]
        await finish(member, key, answer)
        await until(lambda: engine_of(client, key).start_offset == 15)


@pytest.mark.parametrize("policy", ["unfinished", "workqueue"])
async def test_unfinished_records_are_not_compacted(connect: Connect, policy: str) -> None:
    async with connect() as client:
        key = await compacted_topic(client, {"kbroker.queue.retention": policy})
        await heartbeat(client, "L", 0)
        await put(client, *(keyed("k") for _ in range(6)))
        await compact(client)
        assert len(layout(client)) == 6, "nobody has begun"
        member = Member(client, "M1")
        answer = await take(member, key, 1, 3)
        await finish(member, key, answer)
        await compact(client)
        assert [each[0] for each in layout(client)] == [2, 3, 4, 5]
        assert await read_all(client, key, 1, 500, "M2") == [3, 4, 5]
        await compact(client)
        assert [each[0] for each in layout(client)] == [4, 5]


@pytest.mark.parametrize("copies", [False, True])
async def test_a_compacted_topic_takes_dead_letters_with_keys(connect: Connect, copies: bool) -> None:
    async with connect() as client:
        key = await compacted_topic(client, group={NAME: QUEUE, COPY: str(copies).lower()})
        await client.create_topic(QUEUE, 1, configs={**ENABLED, "cleanup.policy": "compact"})
        await put(client, keyed("a", "b"))
        member = Member(client, "M1")
        await take(member, key, 1)
        answer = await member.acknowledge({key: [(0, 0, [REJECT]), (1, 1, [ACCEPT])]})
        assert rows(answer)[key].error_code == 0
        await until(lambda: engine_of(client, key).start_offset == 2)
        assert offsets_of(letters_of(client)) == ([0] if copies else [])
        assert counters_of(client).refused == (0 if copies else 1)
