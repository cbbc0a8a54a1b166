"""A share group as a work queue: one record per member, waits before a redelivery, locks that the
broker renews."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from kbroker.broker.commits.deadlines import now_ms
from kbroker.formats.batches import Record, build_batch
from kbroker.formats.compression import Codec
from tests.api.conftest import Client, Connect
from tests.api.dead_letter_queues import until
from tests.api.share_consumers import (
    ACCEPT,
    GROUP,
    REJECT,
    RELEASE,
    Member,
    acquired,
    initialize,
    prepare,
    rows,
    sent,
    set_up_group,
)

LOCK_MS, DELAY_MS = 1000, 100
PREFETCH = {"kbroker.queue.prefetch": "1"}
REDELIVERY = {
    "kbroker.queue.redelivery.delay.ms": str(DELAY_MS),
    "kbroker.queue.redelivery.max.ms": "250",
    "kbroker.queue.redelivery.jitter": "0",
}
LONG_JOBS = {"kbroker.queue.lock.max.ms": "300000"}


FAST = {
    **{f"group.share.{bound}record.lock.duration.ms": "1000" for bound in ("min.", "")},
    **{f"group.share.{bound}session.timeout.ms": "2500" for bound in ("min.", "")},
    **{f"group.share.{bound}heartbeat.interval.ms": "500" for bound in ("min.", "")},
}


async def members(client: Client, count: int) -> list[Member]:
    return [Member(client.another(2 + number), f"m{number}") for number in range(count)]


async def lag(client: Client) -> int:
    groups = [{"group_id": GROUP, "topics": None}]
    (group,) = (await client.call("describe_share_group_offsets", 1, groups=groups)).groups
    assert group.topics, "the group has share state"
    return sum(row.lag for topic in group.topics for row in topic.partitions)


async def heartbeat(client: Client, member_id: str, epoch: int) -> int:
    """Returns its member epoch."""
    names = ["orders"] if epoch == 0 else None
    fields = {"group_id": GROUP, "member_id": member_id, "rack_id": None, "subscribed_topic_names": names}
    answer = await client.call("share_group_heartbeat", 1, member_epoch=epoch, **fields)
    assert answer.error_code == 0
    return int(answer.member_epoch)


class TestPrefetch:
    async def test_each_member_gets_one_record_of_a_batch(self, connect: Connect, every_engine: str) -> None:
        async with connect(every_engine) as client:
            key = await prepare(client, 10)
            await set_up_group(client, PREFETCH)
            first, second = await members(client, 2)
            for offset, member in enumerate((first, second)):
                answer = await member.fetch([key], wait_ms=5000)
                assert acquired(answer) == [(offset, offset, 1)]
                assert sent(answer) == [offset], "what a client is not sent it acknowledges as a gap"
            assert acquired(await first.fetch()) == [], "it has no room"
            assert acquired(await first.fetch(acks={key: [(0, 0, [ACCEPT])]})) == [(2, 2, 1)], (
                "its own answer makes room"
            )
            assert acquired(await second.fetch(acks={key: [(1, 1, [REJECT])]})) == [(3, 3, 1)]
            refused = await second.fetch(acks={key: [(0, 0, [ACCEPT])]})
            assert acquired(refused) == [], "a refused acknowledgement leaves it busy"
            assert acquired(await second.fetch(acks={key: [(3, 3, [RELEASE])]})) == [(3, 3, 2)]

    @pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
    async def test_a_compressed_batch_is_cut_as_well(self, connect: Connect, codec: Codec) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            records = [Record(0, 1, None, b"a job", ())] * 1000
            await client.append_raw("orders", build_batch(records, codec=codec))
            await set_up_group(client, PREFETCH)
            first, second = await members(client, 2)
            for offset, member in enumerate((first, second)):
                answer = await member.fetch([key], wait_ms=5000)
                assert (acquired(answer), sent(answer)) == ([(offset, offset, 1)], [offset])
            answer = await first.fetch(acks={key: [(0, 0, [RELEASE])]})
            assert (acquired(answer), sent(answer)) == ([(0, 0, 2)], [0])
            assert client.broker.opened_batches.statistics().misses == 1

    async def test_the_limit_is_over_all_partitions(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            (topic_id, _) = await prepare(client, partitions=3)
            for index in range(3):
                await client.append("orders", 1, 2, 3, partition=index)
            await set_up_group(client, {"kbroker.queue.prefetch": "4"})
            (member,) = await members(client, 1)
            keys = [(topic_id, index) for index in range(3)]
            taken = acquired(await member.fetch(keys, wait_ms=5000, max_records=500))
            await until(lambda: all(each.engine for each in client.broker.share_partitions.loaded()))
            while more := acquired(await member.fetch(forget=keys[:1])):
                taken += more
            assert sum(last + 1 - first for first, last, _ in taken) == 4
            assert client.broker.share_partitions.held[GROUP].of("m0") == 4

    async def test_the_limit_is_altered_while_records_are_held(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client, 10)
            (member,) = await members(client, 1)
            assert acquired(await member.fetch([key], wait_ms=5000, max_records=3, share_acquire_mode=1)) == [
                (0, 2, 1)
            ]
            assert not client.broker.share_partitions.held
            await set_up_group(client, {"kbroker.queue.prefetch": "2"})
            assert client.broker.share_partitions.held[GROUP].counts() == {"m0": 3}, "nothing is released"
            assert acquired(await member.fetch(acks={key: [(0, 0, [ACCEPT])]})) == []
            assert acquired(await member.fetch(acks={key: [(1, 1, [ACCEPT])]})) == [(3, 3, 1)]
            await set_up_group(client, {"kbroker.queue.prefetch": "0"})
            assert not client.broker.share_partitions.held
            assert acquired(await member.fetch()) == [(4, 9, 1)]

    async def test_a_record_wakes_the_member_that_waits_longest(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, PREFETCH)
            waiting = await members(client, 5)
            got: list[tuple[str, Any]] = []
            for member in waiting:
                assert acquired(await member.fetch([key], wait_ms=10)) == []

            async def wait(member: Member) -> None:
                got.append((member.member_id, acquired(await member.fetch(wait_ms=20_000))))

            async with trio.open_nursery() as nursery:
                for member in waiting:
                    nursery.start_soon(wait, member)
                    await trio.testing.wait_all_tasks_blocked()
                for offset in range(5):
                    await client.append("orders", 1000)
                    await until(lambda expected=offset + 1: len(got) == expected)
                    assert got[offset:] == [(f"m{offset}", [(offset, offset, 1)])]
            held = client.broker.share_partitions.held[GROUP]
            assert (held.counts(), held.notify) == ({f"m{number}": 1 for number in range(5)}, {})

    async def test_a_member_that_leaves_passes_its_turn_on(self, connect: Connect) -> None:
        """It was woken, and left before it could acquire the record, or at least respond with
        it."""
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, PREFETCH)
            first, second = await members(client, 2)
            for member in (first, second):
                assert acquired(await member.fetch([key], wait_ms=10)) == []
            async with trio.open_nursery() as nursery:
                scope = trio.CancelScope()

                async def leave() -> None:
                    with scope:
                        await first.fetch(wait_ms=20_000)

                nursery.start_soon(leave)
                await trio.testing.wait_all_tasks_blocked()

                async def stay() -> None:
                    ((offset, _, _),) = acquired(await second.fetch(wait_ms=20_000))
                    assert offset == 0

                nursery.start_soon(stay)
                await trio.testing.wait_all_tasks_blocked()
                await client.append("orders", 1000)
                scope.cancel()
                first.client.disconnect()


class TestRedelivery:
    async def test_a_released_record_waits_longer_each_time(
        self, connect: Connect, every_engine: str
    ) -> None:
        async with connect(every_engine, FAST) as client:
            key = await prepare(client, 2)
            await set_up_group(client, {**PREFETCH, **REDELIVERY})
            await heartbeat(client, "m0", 0)
            (member,) = await members(client, 1)
            assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 0, 1)]
            for delivery, least_ms in zip(range(2, 6), (100, 200, 250, 250), strict=True):
                began = now_ms()
                await member.acknowledge({key: [(0, 0, [RELEASE])]})
                while (got := acquired(await member.fetch(wait_ms=5000))) != [(0, 0, delivery)]:
                    assert got == [(1, 1, 1)], "others are not held up"
                    await member.acknowledge({key: [(1, 1, [ACCEPT])]})
                assert now_ms() - began >= least_ms
            await member.acknowledge({key: [(0, 0, [RELEASE])]})
            assert await lag(client) == 0, "the limit: given up at once"

    @pytest.mark.parametrize("in_order", [True, False])
    async def test_a_session_that_ends(self, connect: Connect, in_order: bool) -> None:
        """A record that crashes every worker must wait. A worker that leaves cleanly releases its
        records."""
        async with connect(config=FAST) as client:
            key = await prepare(client, 1)
            await set_up_group(client, {**PREFETCH, **REDELIVERY})
            first, second = await members(client, 2)
            assert acquired(await first.fetch([key], wait_ms=5000)) == [(0, 0, 1)]
            began = now_ms()
            if in_order:
                await first.fetch(epoch=-1)
            else:
                first.client.disconnect()
            engine = client.broker.share_partitions.loaded()[0].engine
            assert engine is not None
            await until(lambda: not engine.statistics().writes_under_way)
            if in_order:
                assert engine.statistics().waiting == 0
            assert acquired(await second.fetch([key], wait_ms=5000)) == [(0, 0, 2)]
            assert in_order or now_ms() - began >= DELAY_MS

    async def test_a_lock_that_runs_out_delays(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client, 1)
            await set_up_group(client, {**PREFETCH, **REDELIVERY})
            first, second = await members(client, 2)
            began = now_ms()
            assert acquired(await first.fetch([key], wait_ms=5000)) == [(0, 0, 1)]
            assert acquired(await second.fetch([key], wait_ms=20_000)) == [(0, 0, 2)]
            assert now_ms() - began >= LOCK_MS + DELAY_MS
            assert client.broker.share_partitions.held[GROUP].counts() == {"m1": 1}

    async def test_many_releases_are_no_busy_loop(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client, 1000)
            await set_up_group(client, {**REDELIVERY, "kbroker.queue.redelivery.jitter": "0.5"})
            (member,) = await members(client, 1)
            assert acquired(await member.fetch([key], wait_ms=5000, max_records=1000)) == [(0, 999, 1)]
            began = now_ms()
            await member.acknowledge({key: [(0, 999, [RELEASE])]})
            got = fetches = 0
            while got < 1000:
                answer = acquired(await member.fetch(wait_ms=5000, max_records=1000))
                got += sum(last + 1 - first for first, last, _ in answer)
                fetches += 1
            assert now_ms() - began >= DELAY_MS
            assert fetches <= 1000

    async def test_a_broker_that_stops_counts_no_delivery(self, connect: Connect) -> None:
        for _ in range(3):
            async with connect("segment") as client:
                if client.broker.topics.by_name("orders") is None:
                    await prepare(client, 3)
                key = (client.partition("orders").log.topic_id, 0)
                (member,) = await members(client, 1)
                assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 2, 1)]
                client.broker.start_closing()
                member.client.disconnect()


class TestLongJobs:
    async def test_the_lock_lasts_as_long_as_its_holder_lives(
        self, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client, 1)
            await set_up_group(client, {**PREFETCH, **LONG_JOBS})
            first, second = await members(client, 2)
            epoch = await heartbeat(first.client, "m0", 0)
            began = now_ms()
            assert acquired(await first.fetch([key], wait_ms=5000)) == [(0, 0, 1)]
            while now_ms() - began < 3.5 * LOCK_MS:
                assert acquired(await second.fetch([key] if second.epoch == 0 else (), wait_ms=200)) == []
                epoch = await heartbeat(first.client, "m0", epoch)
            answer = await first.acknowledge({key: [(0, 0, [ACCEPT])]})
            assert answer.responses[0].partitions[0].error_code == 0
            engine = client.broker.share_partitions.loaded()[0].engine
            assert engine is not None
            assert engine.statistics().prolonged_locks >= 3
        assert "locks" not in caplog.text

    async def test_not_beyond_the_limit(self, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client, 1)
            await set_up_group(client, {**PREFETCH, "kbroker.queue.lock.max.ms": "2200"})
            first, second = await members(client, 2)
            epoch = await heartbeat(first.client, "m0", 0)
            began = now_ms()
            assert acquired(await first.fetch([key], wait_ms=5000)) == [(0, 0, 1)]
            while acquired(await second.fetch([key] if second.epoch == 0 else (), wait_ms=200)) != [
                (0, 0, 2)
            ]:
                epoch = await heartbeat(first.client, "m0", epoch)
            assert now_ms() - began >= 2200
        assert "group g1: consumers that are alive held 1 records for 2200 ms" in caplog.text

    async def test_a_holder_without_heartbeats(self, connect: Connect) -> None:
        """A frozen process keeps its connection: its session ends."""
        async with connect(config=FAST) as client:
            key = await prepare(client, 1)
            await set_up_group(client, {**PREFETCH, **LONG_JOBS})
            first, second = await members(client, 2)
            await heartbeat(first.client, "m0", 0)
            assert acquired(await first.fetch([key], wait_ms=5000)) == [(0, 0, 1)]
            assert acquired(await second.fetch([key], wait_ms=20_000)) == [(0, 0, 2)]
            engine = client.broker.share_partitions.loaded()[0].engine
            assert engine is not None
            assert engine.statistics().prolonged_locks >= 1


class TestPaused:
    async def test_nobody_is_given_records_until_it_is_resumed(
        self, connect: Connect, every_engine: str
    ) -> None:
        async with connect(every_engine, FAST) as client:
            key = await prepare(client, 3)
            await set_up_group(client, PREFETCH)
            first, second = await members(client, 2)
            assert acquired(await first.fetch([key], wait_ms=5000)) == [(0, 0, 1)]
            await set_up_group(client, {"kbroker.queue.paused": "true"})
            assert acquired(await second.fetch([key], wait_ms=10)) == []
            assert acquired(await first.fetch(acks={key: [(0, 0, [ACCEPT])]}, wait_ms=10)) == []
        async with connect(every_engine, FAST) as client:
            (member,) = await members(client, 1)
            assert acquired(await member.fetch([key], wait_ms=50)) == [], "a restart resumes nothing"
            async with trio.open_nursery() as nursery:
                got: list[Any] = []

                async def wait() -> None:
                    got.extend(acquired(await member.fetch(wait_ms=20_000)))

                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                await set_up_group(client, {"kbroker.queue.paused": "false"})
            assert got == [(1, 1, 1)]


class TestPriorities:
    async def test_the_most_urgent_topic_comes_first(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            keys = {}
            for name in ("bulk", "other", "urgent"):
                keys[(await client.create_topic(name)).topic_id, 0] = name
                await client.append(name, 1, 2)
            for topic_id, _ in keys:
                await initialize(client, topic_id, 1)
            priorities = {
                "kbroker.queue.priorities": "urgent=10, bulk=1",
                "share.auto.offset.reset": "earliest",
            }
            await set_up_group(client, {**PREFETCH, **priorities})
            (member,) = await members(client, 1)
            answer = await member.fetch(list(keys), wait_ms=5000)
            taken = []
            while found := [
                (key, row.acquired_records) for key, row in rows(answer).items() if row.acquired_records
            ]:
                ((key, (run,)),) = found
                taken.append(keys[key])
                if len(taken) == 3:
                    await client.append("urgent", 3)
                answer = await member.fetch(
                    acks={key: [(run.first_offset, run.last_offset, [ACCEPT])]}, wait_ms=20
                )
            assert taken == ["urgent", "urgent", "bulk", "urgent", "bulk", "other", "other"]

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ("urgent", "found 'urgent'"),
            ("a=1,a=2", "Topic a is named twice"),
            ("a=1001", "numbers from 0 to 1000"),
            ("=1", "found '=1'"),
        ],
    )
    async def test_nonsense_is_refused(self, connect: Connect, value: str, message: str) -> None:
        async with connect(config=FAST) as client:
            configs = [{"name": "kbroker.queue.priorities", "config_operation": 0, "value": value}]
            resources = [{"resource_type": 32, "resource_name": GROUP, "configs": configs}]
            (row,) = (
                await client.call("incremental_alter_configs", 1, resources=resources, validate_only=False)
            ).responses
            assert row.error_code != 0
            assert message in row.error_message
