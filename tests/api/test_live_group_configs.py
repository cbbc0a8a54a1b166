"""Settings of an active group: each share.* config is in force as soon as its alteration is
answered."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
import trio

from kbroker.errors import ErrorCode
from kbroker.settings.altering import Scope
from kbroker.settings.queue import ASSIGNMENT as ASSIGNOR
from tests.api.conftest import Client, Connect
from tests.api.share_consumers import (
    ACCEPT,
    GROUP,
    RELEASE,
    RENEW,
    Member,
    acquired,
    initialize,
    prepare,
    rows,
    set_up_group,
)
from tests.api.test_alter_configs import DELETE, OK, alter, resource
from tests.api.test_describe_configs import describe

LOCK, LIMIT, LOCKS = (
    "share.record.lock.duration.ms",
    "share.delivery.count.limit",
    "share.partition.max.record.locks",
)
RESET, RENEWALS, ISOLATION = (
    "share.auto.offset.reset",
    "share.renew.acknowledge.enable",
    "share.isolation.level",
)
SESSION, HEARTBEAT, ASSIGNMENT = (
    "share.session.timeout.ms",
    "share.heartbeat.interval.ms",
    "share.assignment.interval.ms",
)


async def heartbeat(client: Client, member: str, epoch: int, *topics: str) -> Any:
    return await client.call(
        "share_group_heartbeat", 1, group_id=GROUP, member_id=member, member_epoch=epoch, rack_id=None,
        subscribed_topic_names=topics or None,
    )  # fmt: skip


def partitions(answer: Any) -> int | None:
    return (
        None
        if answer.assignment is None
        else sum(len(topic.partitions) for topic in answer.assignment.topic_partitions)
    )


# CFG-42, ACK-24, ACK-30, RPC-41
async def test_lock_duration(connect: Connect, jump_clock: trio.testing.MockClock) -> None:
    """Existing locks keep their duration; a renewal uses the present one."""
    async with connect() as client:
        key = await prepare(client, 1, 1)
        member = Member(client, "m")
        assert acquired(await member.fetch([key], max_records=1, wait_ms=5000)) == [(0, 0, 1)]
        await set_up_group(client, {LOCK: "20000"})
        answer = await member.fetch(max_records=1)
        assert (acquired(answer), answer.acquisition_lock_timeout.total_seconds()) == ([(1, 1, 1)], 20)
        jump_clock.jump(21)
        other = Member(client.another(2), "other")
        assert acquired(await other.fetch([key], wait_ms=5000)) == [(1, 1, 2)]
        jump_clock.jump(10)
        assert acquired(await other.fetch(wait_ms=5000)) == [(0, 0, 2)]
        await set_up_group(client, {LOCK: "40000"})
        assert rows(await other.acknowledge({key: [(0, 0, [RENEW])]}, renew=True))[key].error_code == 0
        jump_clock.jump(31)
        assert acquired(await Member(client.another(3), "third").fetch([key], wait_ms=5000)) == [(1, 1, 3)]


async def test_shorter_locks_leave_no_deadlines_behind(
    connect: Connect, jump_clock: trio.testing.MockClock
) -> None:
    """Each shorter lock has an earlier deadline. The deadlines that it replaced must not be added
    again after later locks."""
    async with connect() as client:
        key = await prepare(client, 1, 1, 1, 1)
        member = Member(client, "m")
        for duration in ("50000", "40000", "30000", "20000"):
            await set_up_group(client, {LOCK: duration})
            assert len(acquired(await member.fetch([key], max_records=1, wait_ms=5000))) == 1
        await set_up_group(client, {LOCK: "60000"})
        for wait_s in (21, 10, 10):
            jump_clock.jump(wait_s)
            await trio.testing.wait_all_tasks_blocked()
        await member.acknowledge({key: [(0, 0, [RENEW])]}, renew=True)
        jump_clock.jump(10)
        await trio.testing.wait_all_tasks_blocked()
        assert client.broker.deadlines.statistics().scheduled == 1


async def test_delivery_count_limit(connect: Connect) -> None:  # CFG-42, REC-6
    async with connect() as client:
        key = await prepare(client, 1, 1)
        member = Member(client, "m")
        await member.fetch([key], max_records=1, wait_ms=5000)
        assert acquired(await member.fetch(acks={key: [(0, 0, [RELEASE])]}, max_records=1)) == [(0, 0, 2)]
        await set_up_group(client, {LIMIT: "2"})
        assert acquired(await member.fetch(acks={key: [(0, 0, [RELEASE])]}, max_records=1)) == [(1, 1, 1)], (
            "0 was archived"
        )
        await set_up_group(client, {LIMIT: "3"})
        assert acquired(await member.fetch(acks={key: [(1, 1, [RELEASE])]})) == [(1, 1, 2)]
        assert acquired(await member.fetch(acks={key: [(1, 1, [RELEASE])]})) == [(1, 1, 3)]


async def test_record_locks(connect: Connect) -> None:  # CFG-42, ACQ-2
    """The alteration wakes a fetch that waits for room."""
    async with connect() as client:
        key = await prepare(client, *[20] * 8)
        await set_up_group(client, {LOCKS: "100"})
        member = Member(client, "m")
        assert (
            sum(last - first + 1 for first, last, _ in acquired(await member.fetch([key], wait_ms=5000)))
            == 100
        )
        assert acquired(await member.fetch()) == []
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_raise_locks, client)
                assert acquired(await member.fetch(wait_ms=60_000)) == [(100, 159, 1)]
        await set_up_group(client, {LOCKS: "120"})
        await client.append("orders", 1)
        assert acquired(await member.fetch()) == []


async def _raise_locks(client: Client) -> None:
    await trio.testing.wait_all_tasks_blocked(0.05)
    await set_up_group(client, {LOCKS: "300"})


async def test_renewals(connect: Connect) -> None:  # CFG-42, ACK-27
    async with connect() as client:
        key = await prepare(client, 1)
        member = Member(client, "m")
        await member.fetch([key], wait_ms=5000)
        for value, code in (("false", ErrorCode.invalid_record_state), ("true", ErrorCode.none)):
            await set_up_group(client, {RENEWALS: value})
            assert (
                rows(await member.acknowledge({key: [(0, 0, [RENEW])]}, renew=True))[key].error_code == code
            )


async def test_reset_policy(connect: Connect) -> None:  # CFG-42, LOAD-7, LOAD-8
    """It only affects partitions without a start offset."""
    async with connect() as client:
        topic_id = (await client.create_topic("orders", 2)).topic_id
        await initialize(client, topic_id, 2)
        member = Member(client, "m")
        for index in (0, 1):
            await client.append("orders", 1, partition=index)
        assert acquired(await member.fetch([(topic_id, 0)], wait_ms=100)) == [], "latest"
        await set_up_group(client, {RESET: "earliest"})
        await client.append("orders", 1, partition=0)
        answer = await member.fetch([(topic_id, 1)], max_records=1, wait_ms=5000)
        more = await member.fetch(wait_ms=5000) if len(acquired(answer)) < 2 else answer
        found = {
            key: row.acquired_records[0].first_offset
            for each in (answer, more)
            for key, row in rows(each).items()
            if row.records
        }
        assert found == {(topic_id, 0): 1, (topic_id, 1): 0}
        await member.acknowledge({(topic_id, 1): [(0, 0, [ACCEPT])]}, epoch=-1)


async def test_isolation_level(connect: Connect) -> None:  # CFG-19, CFG-42, ISO-7
    async with connect() as client:
        key = await prepare(client, 1, 1)
        member = Member(client, "m")
        assert acquired(await member.fetch([key], max_records=1, wait_ms=5000)) == [(0, 0, 1)]
        await set_up_group(client, {ISOLATION: "read_committed"})
        assert acquired(await member.fetch()) == [(1, 1, 1)]


async def test_session_timeout_and_heartbeat_interval(
    connect: Connect, jump_clock: trio.testing.MockClock
) -> None:
    # CFG-42, GRP-24
    config = {"group.share.min.session.timeout.ms": "1000", "group.share.min.heartbeat.interval.ms": "1000"}
    async with connect(config=config) as client:
        await client.create_topic("orders")
        joined = await heartbeat(client, "m", 0, "orders")
        assert joined.heartbeat_interval.total_seconds() == 5
        await set_up_group(client, {SESSION: "6000", HEARTBEAT: "2000"})
        again = await heartbeat(client, "m", joined.member_epoch)
        assert again.heartbeat_interval.total_seconds() == 2
        jump_clock.jump(4)
        assert (await heartbeat(client, "m", again.member_epoch)).error_code == 0
        jump_clock.jump(8)
        await trio.testing.wait_all_tasks_blocked()
        assert (await heartbeat(client, "m", again.member_epoch)).error_code == ErrorCode.unknown_member_id


@pytest.mark.parametrize("whose", ["group", "broker"])
async def test_assignment_interval(connect: Connect, jump_clock: trio.testing.MockClock, whose: str) -> None:
    # CFG-11, CFG-42, GRP-31
    """When a member leaves, a new assignment is due; it is made when the interval has passed since
    the last one."""
    broker_s = (
        resource(4, "", (f"group.{ASSIGNMENT}", "15000")),
        resource(4, "", (f"group.{ASSIGNMENT}", "0")),
    )
    group_s = resource(32, GROUP, (ASSIGNMENT, "15000")), resource(32, GROUP, (ASSIGNMENT, "0"))
    long, short = group_s if whose == "group" else broker_s
    async with connect() as client:
        await client.create_topic("orders", 2)
        await heartbeat(client, "m", 0, "orders")
        left = await heartbeat(client, "n", 0, "orders")
        epoch = (await heartbeat(client, "m", 0, "orders")).member_epoch
        assert await alter(client, long) == [OK]
        await heartbeat(client, "n", -1)
        jump_clock.jump(2)
        waiting = await heartbeat(client, "m", epoch)
        assert (waiting.member_epoch, partitions(waiting)) == (epoch, None)
        assert await alter(client, short) == [OK]
        due = await heartbeat(client, "m", epoch)
        assert (due.member_epoch, partitions(due)) == (left.member_epoch + 1, 2)


async def test_the_assignor(connect: Connect, every_engine: str) -> None:
    """A group that sends no heartbeats has its new targets when the alteration is answered; a
    restart keeps them and the setting."""
    async with connect(every_engine) as client:
        await client.create_topic("orders", 4)
        epochs = {}
        for member in ("m", "n"):
            epochs[member] = (await heartbeat(client, member, 0, "orders")).member_epoch
        epochs["m"] = (await heartbeat(client, "m", epochs["m"], "orders")).member_epoch
        before = await _group_of(client)
        assert await alter(client, resource(32, GROUP, (ASSIGNOR, "all"))) == [OK]
        group = await _group_of(client)
        assert (group.assignor_name, group.group_epoch, group.assignment_epoch) == (
            "all",
            before.group_epoch + 1,
            before.group_epoch + 1,
        )
        assert [partitions(await heartbeat(client, member, epochs[member])) for member in ("m", "n")] == [
            4,
            4,
        ]
    if every_engine == "memory":
        return
    async with connect(every_engine) as client:
        assert (await _group_of(client)).assignor_name == "all"
        assert partitions(await heartbeat(client, "m", group.group_epoch, "orders")) == 4
        assert partitions(await heartbeat(client, "late", 0, "orders")) == 4
        (wrong,) = await alter(client, resource(32, GROUP, (ASSIGNOR, "everything")))
        assert wrong != OK
        assert await alter(client, resource(32, GROUP, (ASSIGNOR, DELETE, None))) == [OK]
        group = await _group_of(client)
        assert (group.assignor_name, group.group_epoch) == ("simple", group.assignment_epoch)
        answers = [await heartbeat(client, member, 0, "orders") for member in ("m", "n", "late")]
        assert sorted(partitions(answer) or 0 for answer in answers) == [1, 1, 2]


async def _group_of(client: Client) -> Any:
    (group,) = (
        await client.call("share_group_describe", 1, group_ids=[GROUP], include_authorized_operations=False)
    ).groups
    return group


async def test_what_is_unset_is_the_brokers_again(connect: Connect) -> None:  # CFG-35, CFG-42
    async with connect() as client:
        key = await prepare(client, 1, 1)
        await set_up_group(client, {LOCK: "20000"})
        member = Member(client, "m")
        assert (
            await member.fetch([key], max_records=1, wait_ms=5000)
        ).acquisition_lock_timeout.total_seconds() == 20
        assert await alter(client, resource(32, GROUP, (LOCK, DELETE, None))) == [OK]
        assert (await member.fetch()).acquisition_lock_timeout.total_seconds() == 30


# CFG-24
async def test_bounds_that_were_narrowed(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    """Earlier values are kept, and the nearest value within the bounds applies."""
    async with connect("segment") as client:
        await client.create_topic("orders")
        await set_up_group(client, {LOCK: "50000", RESET: "earliest"})
    async with connect("segment", config={"group.share.max.record.lock.duration.ms": "40000"}) as client:
        assert [record.args[:3] for record in caplog.records if record.name.endswith("configs")] == [
            (GROUP, LOCK, "50000")
        ]
        topic = client.broker.topics.by_name("orders")
        assert topic is not None
        assert await _lock_duration_s(client, topic.topic_id) == 40
        (row,) = (await describe(client, Scope.GROUP.value, GROUP, (LOCK,))).configs
        assert (row.value, row.config_source, row.synonyms[0].value) == ("40000", 8, "50000")
    async with connect("segment") as client:
        assert await _lock_duration_s(client, topic.topic_id) == 50


async def _lock_duration_s(client: Client, topic_id: UUID) -> float:
    return float((await Member(client, "m").fetch([(topic_id, 0)])).acquisition_lock_timeout.total_seconds())


async def test_settings_go_with_a_deleted_group(connect: Connect) -> None:  # CFG-41
    async with connect("segment") as client:
        await client.create_topic("orders")
        for group_id in (GROUP, "other"):
            await set_up_group(client, {LOCK: "20000"}, group_id)
        await heartbeat(client, "m", 0, "orders")
        await heartbeat(client, "m", -1)
        assert [
            row.error_code
            for row in (await client.call("delete_groups", 2, groups_names=[GROUP, "nobody"])).results
        ] == [
            ErrorCode.none,
            ErrorCode.group_id_not_found,
        ]
        assert await _groups_with_settings(client) == ["other"]
        await heartbeat(client, "m", 0, "orders")
        assert (await Member(client, "m").fetch()).acquisition_lock_timeout.total_seconds() == 30
    async with connect("segment") as client:
        assert await _groups_with_settings(client) == ["other"]


async def _groups_with_settings(client: Client) -> list[str]:
    answer = await client.call("list_config_resources", 1, resource_types=[Scope.GROUP.value])
    return [row.resource_name for row in answer.config_resources]
