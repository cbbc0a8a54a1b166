"""Records that are kept beside the log, so that a few unfinished ones do not hold all of it
(broker/queues/kept_records.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

import pytest
import trio

from kbroker.broker.logs.retention import apply_retention
from kbroker.broker.queues.dead_letter_writer import NotYet
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import Record, build_batch, iter_headers, iter_records
from kbroker.formats.compression import Codec
from kbroker.formats.parked_records import ParkedKey, end_of
from kbroker.share import archiving, log_start
from kbroker.share.effects import Persist
from kbroker.share.persister import Result, TopicPartition, WriteRequest
from tests.api.conftest import Client, Connect
from tests.api.dead_letter_queues import COPY, ENABLED, NAME, QUEUE, batches_of, until
from tests.api.share_consumers import (
    ACCEPT,
    GROUP,
    REJECT,
    RELEASE,
    RENEW,
    Member,
    acquired,
    rows,
    sent,
    set_up_group,
)
from tests.api.test_lag_above_a_log_start import in_flight
from tests.api.test_lost_log import lose
from tests.api.test_parked_records import engine_of, parked
from tests.api.test_queue_retention import heartbeat_of, removed
from tests.api.test_work_queue import FAST, heartbeat, lag

pytestmark = pytest.mark.usefixtures("parks_at_once", "queues_are_left_alone")

SEGMENT = {"internal.segment.bytes": "1000", "kbroker.queue.retention": "workqueue"}
SCHEDULING = {"kbroker.queue.scheduling": "true", "kbroker.share.in.flight.limit": "undecided"}
LONG_LOCKS = {name: value for name, value in FAST.items() if "lock" not in name}
DELAY_MS = 1500
MONTH_MS = 30 * 86_400_000
TIME_MS = 1_700_000_000_000
BATCHES = 40


def record(number: int, *headers: tuple[str, bytes]) -> Record:
    return Record(0, TIME_MS + number, b"k%d" % number, b"v%d" % number, headers)


async def begin(
    client: Client, settings: Mapping[str, str], topic: Mapping[str, str] = SEGMENT
) -> tuple[UUID, int]:
    row = await client.create_topic("orders", configs=topic)
    await set_up_group(client, {"share.auto.offset.reset": "earliest", **settings})
    await heartbeat(client, "m1", 0)
    return row.topic_id, 0


async def fill(client: Client, batches: int = BATCHES, first: int = 0, codec: Codec = Codec.NONE) -> None:
    """Batches of five records, about ten of them to a segment."""
    for number in range(first, first + 5 * batches, 5):
        await client.append_raw(
            "orders", build_batch([record(number + each) for each in range(5)], codec=codec)
        )


async def look(client: Client, times: int = 2) -> int:
    """The log's start after several retention checks."""
    topic, broker = client.broker.topics.by_name("orders"), client.broker
    for _ in range(times):
        await apply_retention(
            broker.topics, topic.partitions[0], topic.config, broker.held_logs, broker.kept_records
        )
    return topic.partitions[0].log_start_offset


async def take(
    member: Member,
    key: tuple[UUID, int],
    *,
    hold: frozenset[int] | set[int] = frozenset(),
    wait_ms: int = 5000,
) -> list[tuple[int, int]]:
    """Fetch until nothing is left, and accept everything except `hold`. Returns (offset, delivery
    count) of all. `wait_ms`: for the first record."""
    taken: list[tuple[int, int]] = []
    while found := acquired(
        await member.fetch([key] if member.epoch == 0 else (), wait_ms=100 if taken else wait_ms)
    ):
        each = [(offset, count) for first, last, count in found for offset in range(first, last + 1)]
        taken += each
        acks = [(offset, offset, [ACCEPT]) for offset, _ in each if offset not in hold]
        if acks:
            await member.acknowledge({key: acks})
    return taken


def kept(client: Client, key: tuple[UUID, int]) -> list[int]:
    parking = engine_of(client, key).parking
    assert parking is not None
    return sorted(offset for offset, row in parking.rows.items() if row.kept)


def records_of(answer: object) -> list[Record]:
    data = b"".join(bytes(row.records) for row in rows(answer).values())
    return [each for position, _ in iter_headers(data) for each in iter_records(data, position)]


async def schedule(client: Client, delay_ms: int, codec: Codec = Codec.NONE) -> int:
    """A batch whose third record is scheduled, by a header. Returns its offset."""
    headers = ("kbroker-deliver-at", str(wall_clock_ms() + delay_ms).encode()), ("colour", b"blue")
    batch = [record(0), record(1), record(2, *headers), record(3), record(4)]
    return await client.append_raw("orders", build_batch(batch, codec=codec)) + 2


class TestScheduled:
    @pytest.mark.parametrize("persister", ["default", "control-records"])
    async def test_a_job_for_later_does_not_hold_the_log(
        self, connect: Connect, every_engine: str, persister: str
    ) -> None:
        config = {**FAST, "kbroker.persister": persister}
        async with connect(every_engine, config) as client:
            key = await begin(client, SCHEDULING)
            job = await schedule(client, DELAY_MS, Codec.LZ4)
            await fill(client, first=5)
            member = Member(client, "m1")
            assert len(await take(member, key)) == 5 * BATCHES + 4
            start = await look(client)
            assert start > 100
            assert (kept(client, key), await lag(client)) == ([job], 1)
            assert removed(client) == 0
            (shown,) = (await in_flight(client))["share_partitions"]
            assert (shown["first_parked"], shown["first_parked_sent_ms"]) == (job, TIME_MS + 2)
        async with connect(every_engine, config) as client:
            assert await lag(client) == 1
            member = Member(client, "m2")
            answer = await member.fetch([key], wait_ms=5000)
            assert (acquired(answer), sent(answer)) == ([(job, job, 1)], [job])
            (found,) = records_of(answer)
            assert found[1:4] == (TIME_MS + 2, b"k2", b"v2")
            assert found.headers[1] == ("colour", b"blue")
            await member.acknowledge({key: [(job, job, [ACCEPT])]})
            assert (await lag(client), parked(client, key)) == (0, 0)
            assert await keeps(client, key) == 0

    async def test_a_job_for_next_month_stays_through_all_traffic(self, connect: Connect) -> None:
        async with connect("segment", FAST) as client:
            key = await begin(client, SCHEDULING)
            await schedule(client, MONTH_MS)
            member = Member(client, "m1")
            for turn in range(4):
                await fill(client, first=5 + 5 * BATCHES * turn)
                await take(member, key)
                await look(client)
                segments = client.partition("orders").segments()
                assert len(segments) <= 2
            assert (parked(client, key), await lag(client)) == (1, 1)

    async def test_many_jobs_for_later_hold_the_log(self, connect: Connect) -> None:
        """To keep them would need as much space again as the log."""
        async with connect("segment", FAST) as client:
            key = await begin(client, SCHEDULING)
            due = {"kbroker-deliver-at": str(wall_clock_ms() + MONTH_MS).encode()}
            for number in range(BATCHES):
                await client.append_raw("orders", build_batch([record(number, *due.items())] * 5))
            await take(Member(client, "m1"), key)
            start = await look(client, 4)
            assert (start, parked(client, key), removed(client)) == (0, 5 * BATCHES, 0)


class TestHeld:
    @pytest.mark.parametrize("persister", ["default", "control-records"])
    async def test_a_held_head_stays_held_and_does_not_hold_the_log(
        self, connect: Connect, every_engine: str, persister: str
    ) -> None:
        config = {**LONG_LOCKS, "kbroker.persister": persister}
        async with connect(every_engine, config) as client:
            key = await begin(client, {})
            await fill(client)
            worker, others = Member(client, "m1"), Member(client.another(2), "m2")
            head, count = await one(worker, key)
            assert count == 1
            assert len(await take(others, key)) == 5 * BATCHES - 1
            start = await look(client)
            assert start > 100
            assert (kept(client, key), await lag(client), removed(client)) == ([head], 1, 0)
            assert await take(others, key, wait_ms=100) == [], "it is held"
            answer = await others.acknowledge({key: [(head, head, [ACCEPT])]})
            assert rows(answer)[key].error_code == 121
            answer = await worker.acknowledge({key: [(head, head, [RENEW])]}, renew=True)
            assert rows(answer)[key].error_code == 0
            answer = await worker.acknowledge({key: [(head, head, [RELEASE])]})
            assert rows(answer)[key].error_code == 0
            assert await one(others, key) == (head, 2)
        async with connect(every_engine, config) as client:
            member = Member(client, "m3")
            answer = await member.fetch([key], wait_ms=5000)
            assert acquired(answer) == [(head, head, 2)], "a stop counts no delivery"
            (found,) = records_of(answer)
            assert found == record(0)._replace(offset=head)
            assert rows(await member.acknowledge({key: [(head, head, [ACCEPT])]}))[key].error_code == 0
            assert (await lag(client), parked(client, key)) == (0, 0)
        async with connect(every_engine, config) as client:
            assert await take(Member(client, "m4"), key, wait_ms=300) == []

    async def test_its_lock_runs_out(self, connect: Connect) -> None:
        async with connect("segment", FAST) as client:
            key = await begin(client, {})
            await fill(client)
            worker, others = Member(client, "m1"), Member(client.another(2), "m2")
            assert await one(worker, key) == (0, 1)
            held = {7, 8, 33}
            assert len(await take(others, key, hold=held)) == 5 * BATCHES - 1
            assert await look(client) > 100
            assert kept(client, key) == [0, *sorted(held)]
            found = await take(others, key)
            assert sorted(found) == [(offset, 2) for offset in (0, *sorted(held))], "each lock has run out"
            assert rows(await worker.acknowledge({key: [(0, 0, [ACCEPT])]}))[key].error_code == 121
            assert await lag(client) == 0

    async def test_its_holder_is_gone(self, connect: Connect) -> None:
        async with connect("segment", LONG_LOCKS) as client:
            key = await begin(client, {})
            await fill(client)
            other = client.another(9)
            await one(Member(other, "gone"), key)
            member = Member(client, "m1")
            await take(member, key)
            assert await look(client) > 100
            other.disconnect()
            assert await take(member, key) == [(0, 2)]

    async def test_a_rejection_becomes_a_dead_letter_with_a_copy(
        self, connect: Connect, every_engine: str
    ) -> None:
        copies = {COPY: "true", "kbroker.errors.deadletterqueue.keep.headers.enable": "true"}
        async with connect(every_engine, LONG_LOCKS) as client:
            await client.create_topic(QUEUE, configs=ENABLED)
            key = await begin(client, {NAME: QUEUE, **copies})
            await fill(client)
            worker, others = Member(client, "m1"), Member(client.another(2), "m2")
            await one(worker, key)
            await take(others, key)
            assert await look(client) > 100
            await worker.acknowledge({key: [(0, 0, [REJECT])]})
            await until(lambda: client.partition(QUEUE).high_watermark == 1 and parked(client, key) == 0)
            ((letter,),) = batches_of(client)
            assert (letter.key, letter.value) == (b"k0", b"v0")

    async def test_a_dead_letter_that_cannot_be_written_does_not_hold_the_log(self, connect: Connect) -> None:
        """ARCHIVING records are kept as well, with their cause; the copy is complete when the topic
        becomes writable."""
        copies = {NAME: QUEUE, COPY: "true", "share.delivery.count.limit": "2"}
        async with connect("segment", LONG_LOCKS) as client:
            key = await begin(client, copies)
            await fill(client)
            worker, others = Member(client, "m1"), Member(client.another(2), "m2")
            await one(worker, key)
            await take(others, key)
            failing = stop_dead_letters(client)
            # After the restart the broker writes as soon as it has started.
            await client.create_topic(QUEUE, configs=ENABLED)
            await worker.acknowledge({key: [(0, 0, [REJECT])]})
            await until(lambda: failing.calls > 0)
            await until(
                lambda: (
                    not engine_of(client, key).statistics().archiving
                    or archiving.has_dead_letters(engine_of(client, key))
                )
            )
            assert await look(client) > 100
            assert kept(client, key) == [0]
        async with connect("segment", LONG_LOCKS) as client:
            await until(lambda: client.partition(QUEUE).high_watermark == 1)
            ((letter,),) = batches_of(client)
            assert (letter.key, letter.value) == (b"k0", b"v0")
            assert dict(letter.headers)["__dlq.errors.message"] == b"Offset rejected by client."


class TestOperator:
    async def test_a_purge_takes_what_is_kept(
        self, connect: Connect, every_engine: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Even if the log already begins there."""
        async with connect(every_engine, LONG_LOCKS) as client:
            key = await begin(client, SCHEDULING)
            job = await schedule(client, MONTH_MS)
            await fill(client, first=5)
            worker, others = Member(client, "m1"), Member(client.another(2), "m2")
            await one(worker, key)
            await take(others, key)
            start = await look(client)
            assert kept(client, key) == [0, job]
            caplog.clear()
            await delete_before(client, start)
            assert (
                "DeleteRecords removed 2 records of orders-0 that share group g1 was not done with"
                in caplog.text
            )
            assert (await lag(client), removed(client)) == (0, 2)
            assert rows(await worker.acknowledge({key: [(0, 0, [ACCEPT])]}))[key].error_code == 0, (
                "as of any record that is gone"
            )
            caplog.clear()
            await delete_before(client, start)
            assert not caplog.text
        async with connect(every_engine, LONG_LOCKS) as client:
            assert await lag(client) == 0
            assert await take(Member(client, "m3"), key, wait_ms=300) == []

    async def test_a_purge_of_a_group_that_is_not_in_memory(self, connect: Connect) -> None:
        async with connect("segment", FAST) as client:
            key = await begin(client, SCHEDULING)
            job = await schedule(client, MONTH_MS)
            await fill(client, first=5)
            await take(Member(client, "m1"), key)
            assert await look(client) > job
            await set_up_group(client, {"kbroker.queue.scheduling": "false"})
        async with connect("segment", FAST) as client:
            await delete_before(client, -1)
            assert not client.broker.share_partitions.loaded()
            assert (await lag(client), removed(client)) == (0, 1)

    async def test_new_start_offsets_take_what_is_kept(
        self, connect: Connect, every_engine: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with connect(every_engine, FAST) as client:
            key = await begin(client, SCHEDULING)
            job = await schedule(client, MONTH_MS)
            await fill(client, first=5)
            member = Member(client, "m1")
            await take(member, key)
            start = await look(client)
            assert start > job
            await member.fetch(epoch=-1)
            await heartbeat(client, "m1", -1)
            wanted = [{"topic_name": "orders", "partitions": [{"partition_index": 0, "start_offset": start}]}]
            assert (
                await client.call("alter_share_group_offsets", 0, group_id=GROUP, topics=wanted)
            ).error_code == 0
            assert (
                "a new start offset removed 1 records of orders-0 that share group g1 was not done with"
                in caplog.text
            )
            assert (await keeps(client, key), removed(client)) == (0, 1)
            caplog.clear()
            assert (
                await client.call("alter_share_group_offsets", 0, group_id=GROUP, topics=wanted)
            ).error_code == 0
            assert "removed" not in caplog.text

    async def test_a_group_that_begins_anew_or_is_deleted_has_nothing_kept(self, connect: Connect) -> None:
        async with connect("segment", FAST) as client:
            key = await begin(client, SCHEDULING)
            job = await schedule(client, MONTH_MS)
            await fill(client, first=5)
            member = Member(client, "m1")
            await take(member, key)
            assert await look(client) > job
            assert await keeps(client, key) == 1
            await member.fetch(epoch=-1)
            await heartbeat(client, "m1", -1)
            (row,) = (await client.call("delete_groups", 2, groups_names=[GROUP])).results
            assert row.error_code == 0
            assert await keeps(client, key) == 0
            await client.broker.parked_cleaner.work(ParkedKey.namespace)
            store = client.broker.parked_cleaner._keys
            assert store is not None
            assert not list(store.scan_range(ParkedKey.namespace, end_of(ParkedKey.namespace)))


class TestLooks:
    async def test_what_was_just_closed_is_looked_at_the_next_time(self, connect: Connect) -> None:
        async with connect("segment", LONG_LOCKS) as client:
            key = await begin(client, {})
            await fill(client)
            closed = client.partition("orders").segments()[-2]
            worker, others = Member(client, "m1"), Member(client.another(2), "m2")
            while (taken := await one(worker, key))[0] < closed.base_offset:
                await worker.acknowledge({key: [(taken[0], taken[0], [ACCEPT])]})
            await take(others, key)
            assert await look(client, 1) == closed.base_offset
            assert await keeps(client, key) == 0
            assert await look(client, 1) == closed.end_offset
            assert kept(client, key) == [closed.base_offset]

    async def test_who_holds_a_log_is_told(self, connect: Connect) -> None:
        async with connect("segment", LONG_LOCKS) as client:
            key = await begin(client, {})
            await set_up_group(client, {"share.auto.offset.reset": "earliest"}, "slow")
            await heartbeat_of(client, "slow")
            await fill(client)
            assert len(await take(Member(client, "m1"), key)) == 5 * BATCHES
            await look(client)
            partition = client.partition("orders")
            closed_bytes = sum(each.size_bytes for each in partition.segments()[:-1])
            alone = {GROUP: 0, "slow": closed_bytes}
            together = {GROUP: closed_bytes, "slow": closed_bytes}
            assert client.broker.held_logs.known(partition) == (
                {GROUP: 5 * BATCHES, "slow": 0},
                alone,
                together,
            )
            await take(Member(client.another(5), "s1", "slow"), key)
            assert await look(client) > 100
            assert client.broker.held_logs.known(partition).held_bytes == {GROUP: 0, "slow": 0}


class TestFailures:
    async def test_the_log_stays_while_the_state_cannot_be_saved(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with connect("segment", LONG_LOCKS) as client:
            key = await begin(client, {})
            await fill(client)
            worker, others = Member(client, "m1"), Member(client.another(2), "m2")
            await one(worker, key)
            await take(others, key)
            write = client.broker.persister.write

            async def fail(group_id: str, requests: Sequence[WriteRequest]) -> list[Result]:
                return [
                    Result(each.partition, ErrorCode.coordinator_not_available, "no") for each in requests
                ]

            with monkeypatch.context() as patched:
                patched.setattr(client.broker.persister, "write", fail)
                with pytest.raises(KafkaError):
                    await look(client, 1)
            assert client.broker.persister.write == write
            assert client.partition("orders").log_start_offset == 0
            assert rows(await worker.acknowledge({key: [(0, 0, [RENEW])]}, renew=True))[key].error_code == 0
            assert await look(client) > 100
            assert kept(client, key) == [0]
            assert rows(await worker.acknowledge({key: [(0, 0, [ACCEPT])]}))[key].error_code == 0
        async with connect("segment", LONG_LOCKS) as client:
            assert await lag(client) == 0

    async def test_acknowledged_while_it_leaves(
        self, connect: Connect, every_engine: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The member's acknowledgement arrives while the record is being kept: it is not
        redelivered, not even after a restart."""
        async with connect(every_engine, LONG_LOCKS) as client:
            key = await begin(client, {})
            await fill(client)
            worker, others = Member(client, "m1"), Member(client.another(2), "m2")
            await one(worker, key)
            await take(others, key)
            leave, began = log_start.leave, trio.Event()

            def leave_and_say(*args: object, now_ms: float) -> Persist | None:
                began.set()
                return leave(*args, now_ms=now_ms)

            monkeypatch.setattr(log_start, "leave", leave_and_say)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(look, client, 1)
                await began.wait()
                assert rows(await worker.acknowledge({key: [(0, 0, [ACCEPT])]}))[key].error_code == 0
            assert (await lag(client), parked(client, key)) == (0, 0)
        async with connect(every_engine, LONG_LOCKS) as client:
            assert await lag(client) == 0
            assert await take(Member(client, "m3"), key, wait_ms=300) == []

    async def test_a_power_cut_takes_the_log_and_not_what_is_kept(
        self, connect: Connect, every_engine: str, tmp_path: Path
    ) -> None:
        """The log's end is lost. Kept records are before it and survive, although they were parked
        before the restart. Records that were still in the log are lost with it, and new records get
        their offsets."""
        if every_engine == "memory":
            pytest.skip("it has no disk")
        async with connect(every_engine, FAST, durability="os") as client:
            key = await begin(client, SCHEDULING)
            job = await schedule(client, MONTH_MS)
            await fill(client, first=5)
            await take(Member(client, "m1"), key)
            start = await look(client)
            lost = await schedule(client, MONTH_MS)
            assert await take(Member(client.another(7), "m2"), key, wait_ms=500)
            assert (parked(client, key), await keeps(client, key)) == (2, 1)
        lose(tmp_path / every_engine, every_engine, key[0], start)
        async with connect(every_engine, FAST) as client:
            await fill(client, 1)
            assert [offset for offset, _ in await take(Member(client, "m3"), key)] == list(
                range(start, start + 5)
            )
            assert (parked(client, key), await keeps(client, key), await lag(client)) == (1, 1, 1)
            assert engine_of(client, key).start_offset > job
            assert lost > job


class TestGroups:
    async def test_each_group_keeps_its_own(self, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
        async with connect("segment", LONG_LOCKS) as client:
            key = await begin(client, {})
            await set_up_group(client, {"share.auto.offset.reset": "earliest"}, "slow")
            await heartbeat_of(client, "slow")
            await fill(client)
            workers = {}
            for number, group_id in enumerate((GROUP, "slow")):
                worker = workers[group_id] = Member(client.another(10 + number), "w", group_id)
                others = Member(client.another(20 + number), "o", group_id)
                assert await one(worker, key) == (0, 1)
                await take(others, key, hold={20} if number else set())
            with monkeypatch.context() as nearly_full:
                nearly_full.setattr(client.broker.disk_floor, "kept_room", lambda: 200)
                assert await look(client) == 0, "there is room for two of three copies"
            assert await look(client) > 100
            assert [await keeps(client, key, group_id) for group_id in (GROUP, "slow")] == [1, 2]
            assert rows(await workers[GROUP].acknowledge({key: [(0, 0, [ACCEPT])]}))[key].error_code == 0
            assert rows(await workers["slow"].acknowledge({key: [(0, 0, [RELEASE])]}))[key].error_code == 0
            assert await one(workers["slow"], key) == (0, 2)
            assert await take(Member(client.another(30), "x"), key, wait_ms=100) == []

    async def test_a_group_that_has_not_begun_holds_all(self, connect: Connect) -> None:
        async with connect("segment", LONG_LOCKS) as client:
            key = await begin(client, {})
            await set_up_group(client, {"share.auto.offset.reset": "earliest"}, "new")
            await heartbeat_of(client, "new")
            await fill(client)
            await one(Member(client, "m1"), key)
            await take(Member(client.another(2), "m2"), key)
            assert await look(client, 3) == 0
            assert await keeps(client, key) == 0
            assert client.broker.share_partitions.find("new", TopicPartition(*key)) is None

    async def test_a_backlog_stays_in_the_log(self, connect: Connect) -> None:
        async with connect("segment", LONG_LOCKS) as client:
            key = await begin(client, {})
            await fill(client)
            await one(Member(client, "m1"), key)
            assert await look(client, 3) == 0
            assert await keeps(client, key) == 0

    async def test_retention_of_unfinished_keeps_where_it_asks(self, connect: Connect) -> None:
        async with connect("segment", LONG_LOCKS) as client:
            key = await begin(
                client, {}, {**SEGMENT, "kbroker.queue.retention": "unfinished", "retention.ms": "-1"}
            )
            await fill(client)
            await one(Member(client, "m1"), key)
            await take(Member(client.another(2), "m2"), key)
            assert await look(client, 3) == 0, "nothing is to go"
            topic = client.broker.topics.by_name("orders")
            await client.broker.topics.set_configs(topic, {**topic.configs, "retention.bytes": "3000"})
            assert 0 < await look(client, 1) < 5 * BATCHES
            assert await keeps(client, key) == 1


async def one(member: Member, key: tuple[UUID, int]) -> tuple[int, int]:
    """One record that the member holds: its offset and delivery count."""
    add = [key] if member.epoch == 0 else ()
    answer = await member.fetch(add, wait_ms=5000, max_records=1, share_acquire_mode=1)
    ((first, last, count),) = acquired(answer)
    assert (first, sent(answer)) == (last, [first])
    return first, count


async def keeps(client: Client, key: tuple[UUID, int], group_id: str = GROUP) -> int:
    """How many records of the group are kept, by the saved state."""
    rows = client.broker.persister.waiting_rows
    assert rows is not None
    return await rows.count(group_id, TopicPartition(*key), 0, 1 << 40, kept=True)


async def delete_before(client: Client, offset: int) -> None:
    rows = [{"partition_index": 0, "offset": offset}]
    answer = await client.call("delete_records", 2, topics=[{"name": "orders", "partitions": rows}])
    assert answer.topics[0].partitions[0].error_code == 0


class Failing:
    """Makes writes of dead letters fail."""

    def __init__(self) -> None:
        self.calls = 0

    async def find_partition(self, *_: object) -> object:
        self.calls += 1
        raise NotYet("for a test")


def stop_dead_letters(client: Client) -> Failing:
    failing = Failing()
    client.broker.dead_letters._writer.find_partition = failing.find_partition  # type: ignore[method-assign, assignment]
    return failing
