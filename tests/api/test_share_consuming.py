"""ShareFetch and ShareAcknowledge through their handlers, on a real broker: the traces observed on
a running Kafka 4.4, the session rules, waiting and waking, and the effects of a disconnect and a
restart. The engine's own rules are tested in tests/share."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
import trio

from kbroker.broker.commits.waiting import Waiter
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode
from kbroker.share.persister import TopicPartition
from tests.api.conftest import Client, Connect
from tests.api.share_consumers import (
    ACCEPT,
    FAST,
    GROUP,
    NO_ID,
    REJECT,
    RELEASE,
    RENEW,
    Member,
    acquired,
    batches,
    initialize,
    prepare,
    rows,
    sent,
    set_up_group,
)


async def test_the_engine_trace_of_a_running_kafka(connect: Connect, every_engine: str) -> None:
    # FET-35, RPC-41, ACK-9, ACK-24, ACK-28, SES-23, SES-26
    """Observed on Kafka 4.4.0: limit 5, two batches of five."""
    async with connect(engine=every_engine) as client:
        key = await prepare(client, 5, 5)
        one, two = Member(client, "M1"), Member(client.another(2), "M2")
        first = await one.fetch([key], max_records=5, wait_ms=5000)
        assert acquired(first) == [(0, 4, 1)]
        assert first.acquisition_lock_timeout.total_seconds() == 30
        assert acquired(await two.fetch([key], max_records=5)) == [(5, 9, 1)]
        assert rows(await two.acknowledge({key: [(5, 9, [ACCEPT])]}))[key].error_code == 0
        answer = await one.acknowledge({key: [(0, 4, [ACCEPT, ACCEPT, RELEASE, REJECT, ACCEPT])]})
        assert rows(answer)[key].error_code == 0
        again = await two.fetch(max_records=5)
        assert (acquired(again), batches(again)) == ([(2, 2, 2)], [(0, 4)])
        assert rows(await two.acknowledge({key: [(2, 2, [RENEW])]}, renew=True))[key].error_code == 0
        assert (
            rows(await one.acknowledge({key: [(2, 2, [ACCEPT])]}))[key].error_code
            == ErrorCode.invalid_record_state
        )
        two.client.disconnect()
        final = await one.fetch(max_records=5, wait_ms=5000)
        assert acquired(final) == [(2, 2, 3)]
        assert rows(await one.acknowledge({key: [(2, 2, [ACCEPT])]}))[key].error_code == 0
        assert acquired(await one.fetch()) == []


async def test_the_session_trace_of_a_running_kafka(connect: Connect) -> None:
    # SES-2..4, SES-6, SES-11, SES-12, SES-15, SES-29, FET-1, FET-8, FET-34, RPC-24, RPC-40
    """Observed on Kafka 4.4.0."""
    async with connect() as client:
        topic_id, _ = await prepare(client, partitions=2)
        a, b = (topic_id, 0), (topic_id, 1)
        member = Member(client, "M1")
        assert (await member.acknowledge({}, epoch=1)).error_code == ErrorCode.share_session_not_found
        opened = await member.fetch([a], epoch=0, wait_ms=100)
        assert list(rows(opened)) == [a]
        assert rows(await member.fetch(epoch=1)) == {}
        assert (await member.acknowledge({}, epoch=2)).error_code == 0
        assert (await member.fetch(epoch=2)).error_code == ErrorCode.invalid_share_session_epoch
        answer = await member.fetch(acks={b: [(0, 0, [ACCEPT])]}, forget=[b], epoch=3)
        assert list(rows(answer)) == [b]
        assert rows(answer)[b].acknowledge_error_code == ErrorCode.unknown_topic_or_partition, "not loaded"
        assert (
            await member.fetch(acks={a: [(0, 0, [ACCEPT])]}, epoch=0)
        ).error_code == ErrorCode.invalid_request
        assert (await member.acknowledge({}, epoch=4)).error_code == 0, (
            "the refused request did not touch the session"
        )
        assert (await member.fetch([a], epoch=0)).error_code == 0
        assert (await member.acknowledge({}, epoch=-1)).error_code == 0
        assert (await member.acknowledge({}, epoch=1)).error_code == ErrorCode.share_session_not_found


@pytest.mark.parametrize("version", [1, 2])
async def test_every_version(connect: Connect, version: int) -> None:  # RPC-2, RPC-19, FET-16, FET-26, LOAD-3
    async with connect() as client:
        key = await prepare(client, 3)
        member = Member(client, "M1")
        assert acquired(await member.fetch([key], wait_ms=5000, version=version)) == [(0, 2, 1)]
        answer = await member.acknowledge({key: [(0, 2, [ACCEPT])]}, version=version)
        assert rows(answer)[key].error_code == 0


async def test_a_session_does_not_grow_by_what_a_client_names(connect: Connect) -> None:
    async with connect() as client:
        topic_id, _ = await prepare(client, 3, partitions=2)
        a, b = (topic_id, 0), (topic_id, 1)
        member = Member(client, "M1")
        await member.fetch([a, b], wait_ms=5000)
        await member.acknowledge({(UUID(int=number), 0): [(0, 0, [ACCEPT])] for number in range(500)})
        await member.fetch(forget=[b, *((topic_id, index) for index in range(2, 500))])
        found = client.broker.share_partitions.sessions.statistics()
        assert (found.sessions, found.partitions, found.held_elsewhere) == (1, 1, 1)


async def test_identity_is_checked_first(connect: Connect) -> None:  # RPC-17, RPC-18
    async with connect() as client:
        for group_id, member_id in ((None, "m"), ("g", ""), ("g", None), ("g", "x" * 37)):
            member = Member(client, member_id, group_id)  # type: ignore[arg-type]
            assert (await member.fetch()).error_code == ErrorCode.invalid_request
            assert (await member.acknowledge({}, epoch=1)).error_code == ErrorCode.invalid_request


async def test_a_group_without_a_name_is_refused_in_its_rows(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect() as client:
        key = await prepare(client, 1)
        answer = await Member(client, "m", "").fetch([key], wait_ms=50)
        assert [row.error_code for row in rows(answer).values()] == [ErrorCode.unknown_server_error]
        assert "Traceback" not in caplog.text


async def test_acknowledgements_come_with_a_fetch(connect: Connect) -> None:  # RPC-38, RPC-39
    async with connect() as client:
        key = await prepare(client, 2, 2)
        member = Member(client, "M1")
        assert acquired(await member.fetch([key], max_records=2, wait_ms=5000)) == [(0, 1, 1)]
        answer = await member.fetch(acks={key: [(0, 1, [RELEASE])]}, max_records=2)
        assert rows(answer)[key].acknowledge_error_code == 0
        assert acquired(answer) == [(0, 1, 2)], "what is released may come in the same answer"


# RPC-25, RPC-34, ACK-15
async def test_bad_acknowledgements_are_their_partitions_business(connect: Connect) -> None:
    async with connect() as client:
        topic_id, _ = await prepare(client, 3, partitions=2)
        a, b = (topic_id, 0), (topic_id, 1)
        member = Member(client, "M1")
        await member.fetch([a, b], wait_ms=500)
        answer = await member.acknowledge(
            {
                a: [(0, 2, [ACCEPT])],
                b: [(5, 1, [ACCEPT])],
                (NO_ID, 0): [(0, 0, [ACCEPT])],
                (topic_id, 7): [(0, 0, [ACCEPT])],
            }
        )
        assert {key: row.error_code for key, row in rows(answer).items()} == {
            a: 0,
            b: ErrorCode.invalid_request,
            (NO_ID, 0): ErrorCode.unknown_topic_id,
            (topic_id, 7): ErrorCode.unknown_topic_or_partition,
        }


async def test_an_unknown_topic_is_its_rows_error_only(connect: Connect) -> None:  # RPC-35
    async with connect() as client:
        key = await prepare(client, 1)
        answer = await Member(client, "M1").fetch([key, (NO_ID, 0)], wait_ms=5000)
        assert rows(answer)[NO_ID, 0].error_code == ErrorCode.unknown_topic_id
        assert acquired(answer) == [(0, 0, 1)]


@pytest.mark.parametrize("limits", [{"max_records": 0}, {"max_records": -1}, {"max_bytes": 0}])
async def test_no_limits_no_rows(connect: Connect, limits: dict[str, int]) -> None:  # RPC-45, FET-2, FET-15
    async with connect() as client:
        key = await prepare(client, 1)
        with trio.fail_after(5):
            assert rows(await Member(client, "M1").fetch([key], wait_ms=60_000, **limits)) == {}  # type: ignore[arg-type]


async def test_a_renewing_fetch_has_zero_limits(connect: Connect) -> None:  # RPC-21, RPC-22
    async with connect() as client:
        key = await prepare(client, 1)
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000)
        answer = await member.fetch(acks={key: [(0, 0, [RENEW])]}, is_renew_ack=True)
        assert answer.error_code == ErrorCode.invalid_request
        zero = {"max_bytes": 0, "min_bytes": 0, "max_records": 0, "batch_size": 0, "wait_ms": 0}
        answer = await member.fetch(acks={key: [(0, 0, [RENEW])]}, is_renew_ack=True, **zero)  # type: ignore[arg-type]
        assert (answer.error_code, rows(answer)[key].acknowledge_error_code) == (0, 0)


async def test_record_limit_stops_within_a_batch(connect: Connect) -> None:  # NEXT-11, FET-35
    async with connect() as client:
        key = await prepare(client, 10)
        answer = await Member(client, "M1").fetch([key], max_records=4, share_acquire_mode=1, wait_ms=5000)
        assert (acquired(answer), batches(answer)) == ([(0, 3, 1)], [(0, 3)])


# NEXT-11, FET-35
async def test_record_limit_sends_only_what_is_taken(connect: Connect, every_engine: str) -> None:
    """One record at a time of a large batch, several members; one releases its record."""
    async with connect(engine=every_engine) as client:
        key = await prepare(client, 300, 3)
        one, two = Member(client, "M1"), Member(client.another(2), "M2")
        limit = {"max_records": 1, "share_acquire_mode": 1, "wait_ms": 5000}
        for offset in range(0, 100, 2):
            for member, expected in ((one, offset), (two, offset + 1)):
                answer = await member.fetch([] if member.epoch else [key], **limit)
                assert (acquired(answer), sent(answer)) == ([(expected, expected, 1)], [expected])
        await one.acknowledge({key: [(42, 42, [RELEASE])]})
        assert sent(await two.fetch(**limit)) == [42]
        assert sent(await one.fetch(**limit)) == [100]
        answer = await two.fetch(max_records=500, share_acquire_mode=1)
        assert sent(answer) == list(range(101, 303))
        assert [header[1] for header in batches(answer)] == [299, 302]


async def test_the_session_table_has_an_end(connect: Connect) -> None:  # SES-16, SES-20
    config = {"group.share.max.share.sessions": "2", "group.share.max.size": "2"}
    async with connect(config=config) as client:
        key = await prepare(client)
        members = [Member(client.another(number), f"M{number}") for number in range(3)]
        for member in members[:2]:
            assert (await member.fetch([key])).error_code == 0
        assert (await members[2].fetch([key])).error_code == ErrorCode.share_session_limit_reached
        members[0].client.disconnect()
        assert (await members[2].fetch([key])).error_code == 0


class TestWaiting:
    async def waits_until(self, client: Client, member: Member, key: tuple[UUID, int], happens: Any) -> Any:
        answers: list[Any] = []

        async def wait() -> None:
            answers.append(await member.fetch([key], wait_ms=60_000))

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert answers == []
                await happens()
        return answers[0]

    async def test_for_a_new_record(self, connect: Connect) -> None:  # FET-24
        async with connect() as client:
            key = await prepare(client)
            answer = await self.waits_until(
                client, Member(client, "M1"), key, lambda: client.append("orders", 5, 6)
            )
            assert acquired(answer) == [(0, 1, 1)]

    async def test_for_a_release(self, connect: Connect) -> None:  # FET-29
        async with connect() as client:
            key = await prepare(client, 2)
            one, two = Member(client, "M1"), Member(client.another(2), "M2")
            await one.fetch([key], wait_ms=5000)
            answer = await self.waits_until(
                client, two, key, lambda: one.acknowledge({key: [(0, 1, [RELEASE])]})
            )
            assert acquired(answer) == [(0, 1, 2)]

    async def test_is_not_ended_where_an_acknowledgement_leaves_nothing(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with connect() as client:
            key = await prepare(client, 2)
            one, two = Member(client, "M1"), Member(client.another(2), "M2")
            await one.fetch([key], wait_ms=5000)
            woken: list[str] = []
            wake = Waiter.wake

            def tell(waiter: Waiter) -> None:
                woken.append(told[-1])
                wake(waiter)

            told = ["acknowledged"]
            monkeypatch.setattr(Waiter, "wake", tell)

            async def acknowledge_and_produce() -> None:
                await one.acknowledge({key: [(0, 1, [ACCEPT])]})
                told.append("produced")
                await client.append("orders", 5)

            answer = await self.waits_until(client, two, key, acknowledge_and_produce)
            assert (acquired(answer), woken) == ([(2, 2, 1)], ["produced"])

    async def test_for_room_that_retention_has_made(self, connect: Connect) -> None:  # FET-30
        """The share-partition had reached its lock limit. The acknowledgement alone makes no room,
        since its record is not at the front."""
        async with connect() as client:
            key = await prepare(client, *[10] * 15)
            await set_up_group(client, {"share.partition.max.record.locks": "100"})
            one, two = Member(client, "M1"), Member(client.another(2), "M2")
            assert acquired(await one.fetch([key], wait_ms=5000))[-1][1] == 99

            async def delete_and_acknowledge() -> None:
                await client.call(
                    "delete_records",
                    2,
                    topics=[{"name": "orders", "partitions": [{"partition_index": 0, "offset": 80}]}],
                )
                await one.acknowledge({key: [(90, 99, [ACCEPT])]})

            answer = await self.waits_until(client, two, key, delete_and_acknowledge)
            assert acquired(answer)[0][0] == 100

    async def test_for_a_closed_connection(self, connect: Connect) -> None:  # FET-29, SES-23
        async with connect() as client:
            key = await prepare(client, 2)
            one, two = Member(client.another(3), "M1"), Member(client.another(2), "M2")
            await one.fetch([key], wait_ms=5000)

            async def hang_up() -> None:
                one.client.disconnect()

            assert acquired(await self.waits_until(client, two, key, hang_up)) == [(0, 1, 2)]

    async def test_for_a_closed_session(self, connect: Connect) -> None:  # FET-29, SES-12
        async with connect() as client:
            key = await prepare(client, 2)
            one, two = Member(client, "M1"), Member(client.another(2), "M2")
            await one.fetch([key], wait_ms=5000)
            answer = await self.waits_until(client, two, key, lambda: one.acknowledge({}, epoch=-1))
            assert acquired(answer) == [(0, 1, 2)]

    async def test_for_a_lock_to_run_out(self, connect: Connect) -> None:  # FET-25, ACK-9, ACK-31
        async with connect(config=FAST) as client:
            key = await prepare(client, 2)
            one, two = Member(client, "M1"), Member(client.another(2), "M2")
            await one.fetch([key], wait_ms=5000)

            async def nothing() -> None:
                await trio.lowlevel.checkpoint()

            assert acquired(await self.waits_until(client, two, key, nothing)) == [(0, 1, 2)]
            late = await one.acknowledge({key: [(0, 1, [ACCEPT])]})
            assert rows(late)[key].error_code == ErrorCode.invalid_record_state

    async def test_no_longer_than_asked(self, connect: Connect) -> None:  # FET-23, RPC-59
        async with connect() as client:
            key = await prepare(client)
            with trio.fail_after(10):
                assert acquired(await Member(client, "M1").fetch([key], wait_ms=50)) == []

    async def test_a_deleted_topic_ends_the_wait(self, connect: Connect) -> None:  # FET-28, FET-29, FET-33
        async with connect() as client:
            key = await prepare(client)
            delete = lambda: client.call("delete_topics", 6, topics=[{"name": "orders", "topic_id": None}])  # noqa: E731
            answer = await self.waits_until(client, Member(client, "M1"), key, delete)
            assert rows(answer)[key].error_code == ErrorCode.unknown_topic_or_partition


async def test_epoch_0_over_an_open_session_releases_its_records(connect: Connect) -> None:  # SES-5
    async with connect() as client:
        key = await prepare(client, 2)
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000)
        assert acquired(await member.fetch([key], epoch=0, wait_ms=5000)) == [(0, 1, 2)]


async def test_a_waiting_fetch_of_a_replaced_session_acquires_nothing(connect: Connect) -> None:  # SES-22
    async with connect() as client:
        key = await prepare(client)
        old, new = Member(client, "M1"), Member(client.another(2), "M1")
        answers: list[Any] = []

        async def wait() -> None:
            answers.append(await old.fetch([key], wait_ms=60_000))

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked(0.05)
                await new.fetch([key])
        assert (answers[0].error_code, acquired(answers[0])) == (0, []), "the waiting fetch gets no error"
        await client.append("orders", 5)
        assert acquired(await new.fetch([key], wait_ms=5000)) == [(0, 0, 1)]


# SES-27
async def test_a_forgotten_partition_is_released_with_the_session_and_not_before(connect: Connect) -> None:
    """A client that loses a partition while it processes a record may still acknowledge it."""
    async with connect() as client:
        key = await prepare(client, 3)
        one, two = Member(client, "M1"), Member(client.another(2), "M2")
        await one.fetch([key], wait_ms=5000)
        await one.fetch(acks={key: [(0, 0, [ACCEPT])]}, forget=[key])
        assert acquired(await two.fetch([key])) == []
        assert rows(await one.acknowledge({key: [(1, 1, [ACCEPT])]}))[key].error_code == 0
        await one.acknowledge({}, epoch=-1)
        assert acquired(await two.fetch(wait_ms=5000)) == [(2, 2, 2)]


async def test_the_delivery_limit(connect: Connect) -> None:  # REC-6
    async with connect(config={"group.share.delivery.count.limit": "2"}) as client:
        key = await prepare(client, 1, 1)
        member = Member(client, "M1")
        assert acquired(await member.fetch([key], max_records=1, wait_ms=5000)) == [(0, 0, 1)]
        answer = await member.fetch(acks={key: [(0, 0, [RELEASE])]}, max_records=1)
        assert acquired(answer) == [(0, 0, 2)]
        answer = await member.fetch(acks={key: [(0, 0, [RELEASE])]}, max_records=5)
        assert acquired(answer) == [(1, 1, 1)], "delivered twice, released twice: given up"


async def test_retention_moves_the_start_of_a_live_share_partition(
    connect: Connect, every_engine: str
) -> None:
    # FET-30, LSO-1, LSO-5, LSO-9, LSO-10
    async with connect(engine=every_engine) as client:
        key = await prepare(client, 2, 2, 2)
        member = Member(client, "M1")
        assert acquired(await member.fetch([key], max_records=2, wait_ms=5000)) == [(0, 1, 1)]
        data = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 4}]}]
        deleted = await client.call("delete_records", 2, topics=data)
        assert deleted.topics[0].partitions[0].low_watermark == 4
        answer = await member.fetch(acks={key: [(0, 1, [ACCEPT])]}, wait_ms=5000)
        assert rows(answer)[key].acknowledge_error_code == 0, "acknowledging what retention took is fine"
        assert acquired(answer) == [(4, 5, 1)]


@pytest.mark.parametrize("engine_name", ["segment", "lmdb", "rocksdb"])
async def test_what_a_restart_keeps(connect: Connect, engine_name: str) -> None:  # REC-13, LOAD-1, LOAD-12
    async with connect(engine=engine_name) as client:
        key = await prepare(client, 2, 2, 2)
        member = Member(client, "M1")
        await member.fetch([key], wait_ms=5000)
        await member.acknowledge({key: [(0, 1, [ACCEPT]), (2, 3, [RELEASE])]})
    async with connect(engine=engine_name) as client:
        answer = await Member(client, "M2").fetch([key], wait_ms=5000)
        assert acquired(answer) == [(2, 3, 2), (4, 5, 1)], (
            "an acquisition that nobody acknowledged is not counted"
        )


async def test_latest_is_decided_once(connect: Connect) -> None:  # LOAD-2, LOAD-6
    """A restart before the first acknowledgement must not skip records produced since the first
    fetch."""
    async with connect(engine="segment") as client:
        topic = await client.create_topic("orders")
        key = (topic.topic_id, 0)
        await client.append("orders", 1, 2)
        await initialize(client, topic.topic_id, 1)
        assert acquired(await Member(client, "M1").fetch([key], wait_ms=100)) == []
        await client.append("orders", 3)
    async with connect(engine="segment") as client:
        await client.append("orders", 4)
        assert acquired(await Member(client, "M1").fetch([key], wait_ms=5000)) == [(2, 3, 1)]


async def test_a_batch_that_cannot_be_read_fails_its_share_partition_only(connect: Connect) -> None:  # FET-17
    """Damage on disk; a payload that contradicts its header does not cause this
    (test_odd_batches.py)."""
    async with connect() as client:
        topic = await client.create_topic("orders")
        await client.append("orders", wall_clock_ms())
        store: Any = client.broker.log_store
        batches = store._logs[client.partition("orders").log].segments[0].batches
        whole = batches[0]
        batches[0] = whole._replace(data=bytes(len(whole.data)))
        await set_up_group(client, {"share.auto.offset.reset": "by_duration:PT1H"})
        await initialize(client, topic.topic_id, 1)
        failed = await Member(client, "m").fetch([(topic.topic_id, 0)], wait_ms=1000)
        assert rows(failed)[topic.topic_id, 0].error_code == ErrorCode.unknown_server_error
        batches[0] = whole
        await set_up_group(client, {"share.auto.offset.reset": "earliest"})
        assert acquired(await Member(client, "n").fetch([(topic.topic_id, 0)], wait_ms=5000)) == [(0, 0, 1)]


async def test_settings_altered_while_a_share_partition_loads(connect: Connect) -> None:  # CFG-42
    async with connect() as client:
        key = await prepare(client, 1)
        client.broker.share_partitions.find_or_load(GROUP, TopicPartition(*key))
        await set_up_group(client, {"share.record.lock.duration.ms": "20000"})
        await Member(client, "m").fetch([key], wait_ms=5000)
        loaded = client.broker.share_partitions.find(GROUP, TopicPartition(*key))
        assert loaded is not None
        assert loaded.engine is not None
        assert loaded.engine.settings.lock_duration_ms == 20_000


async def test_a_persister_that_raises_leaves_no_record_pending(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ACK-20, RPC-57
    async def fail(group_id: str, requests: object) -> None:
        raise OSError("no way to the persister")

    async with connect() as client:
        key = await prepare(client, 1)
        member = Member(client, "m")
        assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 0, 1)]
        with monkeypatch.context() as broken:
            broken.setattr(client.broker.persister, "write", fail)
            refused = await member.acknowledge({key: [(0, 0, [ACCEPT])]})
            assert rows(refused)[key].error_code == ErrorCode.unknown_server_error
        assert rows(await member.acknowledge({key: [(0, 0, [ACCEPT])]}))[key].error_code == 0


async def test_a_session_of_many_partitions(connect: Connect) -> None:
    """A session's first answer has a row for each loaded partition, later ones only for those with
    records and for added ones."""
    async with connect() as client:
        topic_id, _ = await prepare(client, partitions=40)
        keys = [(topic_id, partition) for partition in range(40)]
        member = Member(client, "M1")
        with trio.fail_after(20):
            while len(rows(await member.fetch(keys[:30], epoch=0, wait_ms=5))) < 30:
                pass
            assert rows(await member.fetch(wait_ms=5)) == {}
            await client.append("orders", 1, 2, partition=13)
            answer = await member.fetch(wait_ms=5000)
            assert set(rows(answer)) == {keys[13]}
            assert [last - first + 1 for first, last, _ in acquired(answer)] == [2]
            told = set(rows(await member.fetch(keys[30:], wait_ms=5)))
            while told != set(keys[30:]):
                more = set(rows(await member.fetch(wait_ms=5)))
                assert not told & more, "once for each"
                told |= more


async def test_locks_that_run_out_are_in_the_log_with_their_number(
    connect: Connect, jump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if "ran out" in record.getMessage()]

    async with connect(config=FAST) as client:
        key = await prepare(client, 30)
        await set_up_group(client, {"share.delivery.count.limit": "2"})
        for given_up in (False, True):
            member = Member(client, "m")
            assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 29, 1 + given_up)]
            await member.acknowledge({key: [(0, 9, [RENEW])]}, renew=True)
            for seconds in (1.1, 1.1, 61):
                jump_clock.jump(seconds)
                await trio.testing.wait_all_tasks_blocked(0.02)
        assert len(lines()) == 2
        assert "group g1: the locks of 30 records ran out in the last " in lines()[0]
        assert "they are delivered again" in lines()[0]
        assert "30 of them were given up at share.delivery.count.limit; " in lines()[1]
