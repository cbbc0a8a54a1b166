"""Records that wait for their redelivery outside the in-flight window."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing

from kbroker.broker.commits.deadlines import now_ms
from kbroker.formats.batches import Record, build_batch
from kbroker.formats.compression import Codec
from kbroker.share import offers
from kbroker.share.effects import AcquiredRange
from kbroker.share.persister import TopicPartition
from kbroker.share.record_state import RecordState
from kbroker.share.share_partition import SharePartition
from tests.api.conftest import Client, Connect
from tests.api.dead_letter_queues import until
from tests.api.share_consumers import (
    ACCEPT,
    GROUP,
    REJECT,
    RELEASE,
    Member,
    acquired,
    prepare,
    sent,
    set_up_group,
)
from tests.api.test_work_queue import FAST, heartbeat, lag

pytestmark = pytest.mark.usefixtures("parks_at_once")

DELAY_MS = 300
SETTINGS = {"kbroker.queue.redelivery.delay.ms": str(DELAY_MS), "kbroker.queue.redelivery.jitter": "0"}


def is_loaded(client: Client, key: tuple[UUID, int]) -> bool:
    loaded = client.broker.share_partitions.find(GROUP, TopicPartition(*key))
    return loaded is not None and loaded.engine is not None


def engine_of(client: Client, key: tuple[UUID, int]) -> SharePartition:
    loaded = client.broker.share_partitions.find(GROUP, TopicPartition(*key))
    assert loaded is not None
    assert loaded.engine is not None
    return loaded.engine


def parked(client: Client, key: tuple[UUID, int]) -> int:
    return engine_of(client, key).statistics().parked


class TestParkedRecords:
    async def test_a_release_is_parked_and_comes_back(self, connect: Connect, every_engine: str) -> None:
        async with connect(every_engine, config=FAST) as client:
            key = await prepare(client, 5)
            await set_up_group(client, SETTINGS)
            await heartbeat(client, "m1", 0)
            member = Member(client, "m1")
            assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 4, 1)]
            released_at = trio.current_time()
            assert (
                acquired(
                    await member.fetch(acks={key: [(0, 0, [RELEASE]), (1, 1, [ACCEPT]), (2, 3, [RELEASE])]})
                )
                == []
            )
            assert parked(client, key) == 3
            assert await lag(client) == 4
            assert acquired(await member.fetch(acks={key: [(4, 4, [ACCEPT])]})) == []
            assert engine_of(client, key).start_offset == 5, "nothing holds the window back"
            await client.append("orders", 1)
            answer = await member.fetch(wait_ms=100)
            assert acquired(answer) == [(5, 5, 1)]
            answer = await member.fetch(wait_ms=5000)
            assert trio.current_time() - released_at >= DELAY_MS / 1000
            assert (acquired(answer), sent(answer)) == ([(0, 0, 2), (2, 3, 2)], [0, 2, 3])
            acks = [(0, 0, [ACCEPT]), (2, 2, [ACCEPT]), (3, 3, [RELEASE]), (5, 5, [ACCEPT])]
            assert acquired(await member.fetch(acks={key: acks})) == []
            assert (parked(client, key), await lag(client)) == (1, 1)
            assert acquired(await member.fetch(wait_ms=5000)) == [(3, 3, 3)]
            await member.fetch(acks={key: [(3, 3, [ACCEPT])]})
            assert (parked(client, key), await lag(client)) == (0, 0)

    async def test_it_survives_a_restart(self, connect: Connect, every_engine: str) -> None:
        async with connect(every_engine, config=FAST) as client:
            key = await prepare(client, 3)
            await set_up_group(client, SETTINGS)
            await heartbeat(client, "m1", 0)
            member = Member(client, "m1")
            await member.fetch([key], wait_ms=5000)
            await member.fetch(acks={key: [(0, 1, [RELEASE]), (2, 2, [ACCEPT])]})
            assert await lag(client) == 2
        async with connect(every_engine, config=FAST) as client:
            assert await lag(client) == 2
            member = Member(client, "m2")
            assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 1, 2)]
        async with connect(every_engine, config=FAST) as client:
            member = Member(client, "m3")
            assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 1, 2)], (
                "a stop counts no delivery"
            )
            await member.fetch(acks={key: [(0, 1, [ACCEPT])]})
        async with connect(every_engine, config=FAST) as client:
            assert await lag(client) == 0
            assert acquired(await Member(client, "m4").fetch([key], wait_ms=500)) == []

    @pytest.mark.parametrize("codec", list(Codec))
    async def test_many_of_one_batch_come_in_one_answer(self, connect: Connect, codec: Codec) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            for _ in range(3):
                await client.append_raw(
                    "orders", build_batch([Record(0, 1, None, b"x" * 100, ())] * 100, codec=codec)
                )
            await set_up_group(client, SETTINGS)
            await heartbeat(client, "m1", 0)
            member = Member(client, "m1")
            assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 299, 1)]
            released = [(first, first, [RELEASE]) for first in range(0, 300, 3)]
            rest = [(first + 1, first + 2, [ACCEPT]) for first in range(0, 300, 3)]
            assert acquired(await member.fetch(acks={key: sorted(released + rest)})) == []
            answer = await member.fetch(wait_ms=5000)
            assert acquired(answer) == [(first, first, 2) for first in range(0, 300, 3)]
            assert sent(answer) == list(range(0, 300, 3))

    async def test_one_of_a_batch_is_taken_while_that_is_read(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The others of the batch are sent once."""
        async with connect(config=FAST) as client:
            key = await prepare(client, 5)
            await set_up_group(client, SETTINGS)
            await heartbeat(client, "m1", 0)
            member, partition = Member(client, "m1"), client.partition("orders")
            assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 4, 1)]
            assert acquired(await member.fetch(acks={key: [(0, 4, [RELEASE])]})) == []
            engine, read = engine_of(client, key), partition.read_batches
            taken: list[AcquiredRange] = []

            async def read_meanwhile(*args: Any, **options: Any) -> Any:
                views = await read(*args, **options)
                if not taken:
                    taken.extend(engine.acquire_parked("m2", [3], now_ms=now_ms()))
                return views

            await until(lambda: offers.parked_ready(engine) == 5)
            monkeypatch.setattr(partition, "read_if_warm", lambda *_: None)
            monkeypatch.setattr(partition, "read_batches", read_meanwhile)
            answer = await member.fetch(wait_ms=5000)
            assert taken == [(3, 3, 2)]
            assert (acquired(answer), sent(answer)) == ([(0, 2, 2), (4, 4, 2)], [0, 1, 2, 4])
            assert engine.parking is not None
            assert engine.parking.window.states.count(RecordState.ACQUIRED) == 5

    @pytest.mark.parametrize("is_cancelled", [False, True])
    async def test_members_do_not_read_the_same_records(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
    ) -> None:
        """The second one begins when the first has read its records, or has hung up."""
        async with connect(config=FAST) as client:
            key = await prepare(client, 5)
            # A group with a prefetch limit acquires exactly as many as its members ask for.
            await set_up_group(client, {**SETTINGS, "kbroker.queue.prefetch": "100"})
            members = [Member(client, "m1"), Member(client, "m2")]
            for member in members:
                await heartbeat(client, member.member_id, 0)
            assert acquired(await members[0].fetch([key], wait_ms=5000)) == [(0, 4, 1)]
            assert acquired(await members[1].fetch([key])) == []
            assert acquired(await members[0].fetch(acks={key: [(0, 4, [RELEASE])]})) == []
            partition, engine = client.partition("orders"), engine_of(client, key)
            await until(lambda: offers.parked_ready(engine) == 5)
            read, may_read, asked, found = partition.read_batches, trio.Event(), [], {}

            async def read_later(offsets: Any, *rest: Any) -> Any:
                asked.append(list(offsets))
                await may_read.wait()
                return await read(offsets, *rest)

            async def fetch(member: Member, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
                with trio.CancelScope() as scope:
                    task_status.started(scope)
                    found[member.member_id] = acquired(await member.fetch(wait_ms=5000, max_records=3))

            monkeypatch.setattr(partition, "read_if_warm", lambda *_: None)
            monkeypatch.setattr(partition, "read_batches", read_later)
            async with trio.open_nursery() as nursery:
                first = await nursery.start(fetch, members[0])
                await until(lambda: len(asked) == 1)
                nursery.start_soon(fetch, members[1])
                await trio.testing.wait_all_tasks_blocked()
                assert len(asked) == 1
                if is_cancelled:
                    first.cancel()
                may_read.set()
            if is_cancelled:
                assert found == {"m2": [(0, 2, 2)]}
            else:
                assert found == {"m1": [(0, 2, 2)], "m2": [(3, 4, 2)]}
            assert len(asked) == 2

    async def test_a_fetch_waits_for_locks_and_not_longer(self, connect: Connect) -> None:
        """150 that are ready, of which members may hold 100."""
        async with connect() as client:
            key = await prepare(client, *[10] * 15)
            await set_up_group(client, {**SETTINGS, "share.partition.max.record.locks": "100"})
            await heartbeat(client, "m1", 0)
            first, second = Member(client, "m1"), Member(client.another(2), "m2")
            taken: list[tuple[int, int, list[int]]] = []

            async def take(count: int) -> None:
                taken.clear()
                while sum(last + 1 - begin for begin, last, _ in taken) < count:
                    found = acquired(await first.fetch([] if first.epoch else [key], wait_ms=5000))
                    taken.extend((begin, last, [RELEASE]) for begin, last, _ in found)

            for count in (100, 50):
                await take(count)
                await first.acknowledge({key: taken})
            parking = engine_of(client, key).parking
            await until(lambda: parking is not None and parking.ready == 150)
            await take(100)

            async def accept() -> None:
                await trio.testing.wait_all_tasks_blocked(0.05)
                await first.acknowledge({key: [(begin, last, [ACCEPT]) for begin, last, _ in taken]})

            with trio.fail_after(20):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(accept)
                    assert acquired(await second.fetch([key], wait_ms=60_000)) == [(100, 149, 2)]

    async def test_a_rejection_becomes_a_dead_letter(self, connect: Connect, every_engine: str) -> None:
        async with connect(every_engine, config=FAST) as client:
            key = await prepare(client, 2)
            await client.create_topic("dlq", configs={"errors.deadletterqueue.group.enable": "true"})
            dead_letters = {"errors.deadletterqueue.topic.name": "dlq", "share.delivery.count.limit": "3"}
            await set_up_group(client, {**SETTINGS, **dead_letters})
            await heartbeat(client, "m1", 0)
            member = Member(client, "m1")
            await member.fetch([key], wait_ms=5000)
            await member.fetch(acks={key: [(0, 1, [RELEASE])]})
            assert acquired(await member.fetch(wait_ms=5000)) == [(0, 1, 2)]
            await member.fetch(acks={key: [(0, 0, [REJECT]), (1, 1, [RELEASE])]})
            assert acquired(await member.fetch(wait_ms=5000)) == [(1, 1, 3)]
            await member.fetch(acks={key: [(1, 1, [RELEASE])]})
            await until(lambda: client.partition("dlq").high_watermark == 2 and parked(client, key) == 0)
            with trio.fail_after(20):
                while await lag(client):  # until that is saved
                    await trio.lowlevel.checkpoint()

    async def test_a_parked_record_holds_the_log(self, connect: Connect, every_engine: str) -> None:
        """Of a topic with kbroker.queue.retention; DeleteRecords still removes it, and it is no
        longer lag."""
        async with connect(every_engine, config=FAST) as client:
            key = await prepare(client, 1, 1, 1)
            await set_up_group(client, SETTINGS)
            await heartbeat(client, "m1", 0)
            member = Member(client, "m1")
            taken = acquired(await member.fetch([key], wait_ms=5000))
            acks = [(first, last, [ACCEPT] if first != 1 else [RELEASE]) for first, last, _ in taken]
            if len(taken) == 1:
                acks = [(0, 0, [ACCEPT]), (1, 1, [RELEASE]), (2, 2, [ACCEPT])]
            await member.fetch(acks={key: acks})
            assert (engine_of(client, key).start_offset, parked(client, key)) == (3, 1)
            assert await client.broker.held_logs.holders(client.partition("orders")) == {GROUP: 1}
            rows = [{"partition_index": 0, "offset": -1}]
            await client.call("delete_records", 2, topics=[{"name": "orders", "partitions": rows}])
            assert await lag(client) == 0
            assert acquired(await member.fetch()) == []
            await until(lambda: parked(client, key) == 0)
            assert await client.broker.held_logs.holders(client.partition("orders")) == {GROUP: 3}
            assert client.broker.share_partitions.metrics[GROUP].removed_records == 1

    async def test_a_record_that_is_being_parked_holds_the_log(
        self, connect: Connect, every_engine: str
    ) -> None:
        """Its place in the window is final, and its key cannot be read yet."""
        async with connect(every_engine, config=FAST) as client:
            key = await prepare(client, 2)
            await set_up_group(client, SETTINGS)
            await heartbeat(client, "m1", 0)
            member = Member(client, "m1")
            await member.fetch([key], wait_ms=5000)
            gate, held = threading.Event(), dict[str, int]()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.broker.state_commits.perform, gate.wait)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(partial(member.acknowledge, {key: [(0, 0, [RELEASE]), (1, 1, [ACCEPT])]}))
                await trio.testing.wait_all_tasks_blocked()

                async def look() -> None:
                    held.update(await client.broker.held_logs.holders(client.partition("orders")))

                nursery.start_soon(look)
                await trio.testing.wait_all_tasks_blocked()
                gate.set()
            assert held == {GROUP: 0}
