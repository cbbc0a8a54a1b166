"""The stored parts of a classic group: their state after a restart, and after a failed save."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from kbroker.groups.classic.messages import ClassicGroupSettings, JoinReply, SyncReply
from kbroker.groups.classic.state import ClassicGroup, GroupState
from kbroker.groups.ids import CLASSIC
from kbroker.groups.outcome import Answer, Records
from kbroker.groups.stored_times import StoredTimes
from tests.groups.classic.world import GROUP, NOT_SAVED, OK, Member, World, protocols

REBALANCING = ErrorCode.rebalance_in_progress
NOT_AVAILABLE = ErrorCode.coordinator_not_available
SUBSCRIBED_TO_A = b"\0\0\0\0\0\1\0\1a\xff\xff\xff\xff"


@pytest.fixture
def world() -> World:
    return World()


def static(world: World, name: str) -> Member:
    return Member(world, name, instance_id=f"static-{name}")


# --- saving ---


def test_assignments_are_given_when_they_are_saved(world: World) -> None:
    a, b = Member(world, "a"), Member(world, "b")
    a.enter()
    b.enter()
    a.join()
    b.note_id()
    world.patient = True
    before, leading = b.sync(), a.sync(a, b)
    after = Member(world, "b", member_id=b.member_id, joining=b.joining).sync()
    assert (leading.reply, after.reply) == (None, None)
    assert before.code is REBALANCING
    assert world.state is GroupState.COMPLETING
    world.save()
    assert (leading.reply.assignment, after.reply.assignment) == (b"a", b"b")
    assert world.state is GroupState.STABLE


def test_a_leader_that_asks_again_while_it_is_saved_waits_for_that(world: World) -> None:
    a = Member(world, "a")
    a.enter()
    world.patient = True
    first, second = a.sync(a), a.sync()
    assert (first.code, second.reply, len(world.flying)) == (REBALANCING, None, 1)
    world.save()
    assert second.reply.assignment == b"a"


def test_a_generation_that_ends_before_it_is_saved_never_begins(world: World) -> None:
    a, b = Member(world, "a"), Member(world, "b")
    a.enter()
    world.patient = True
    leading = a.sync(a)
    b.enter()
    assert leading.code is REBALANCING
    world.save()
    assert world.state is GroupState.PREPARING
    a.join()
    assert a.generation == 2
    assert world.state is GroupState.COMPLETING


def test_a_generation_that_cannot_be_saved_is_followed_by_another(world: World) -> None:
    a, b = Member(world, "a"), Member(world, "b")
    world.form(a)
    b.enter()
    a.join()
    b.note_id()
    following = b.sync()
    world.patient = True
    leading = a.sync(a, b)
    world.fail()
    assert leading.reply == NOT_SAVED
    assert following.reply == SyncReply(NOT_AVAILABLE)
    assert world.state is GroupState.PREPARING
    assert world.stored() is not None
    assert a.heartbeat() is REBALANCING
    world.patient = False
    a.join()
    b.join()
    assert a.sync(a, b).reply.assignment == b"a"
    assert a.generation == 3


def test_a_static_member_that_cannot_be_saved_comes_again(world: World) -> None:
    a, b = static(world, "a"), static(world, "b")
    world.form(a, b)
    world.patient = True
    new = static(world, "b")
    new.join()
    assert new.joining.reply is None
    world.fail()
    assert new.joining.reply == NOT_SAVED
    assert a.heartbeat() is REBALANCING
    world.patient = False
    new.join()
    a.join()
    assert new.joining.reply.generation_id == 3
    assert len(world.group.members) == 2


def test_an_empty_group_that_cannot_be_saved_stays_empty(world: World) -> None:
    a = Member(world, "a")
    world.form(a)
    world.patient = True
    world.leave(a)
    world.fail()
    assert world.state is GroupState.EMPTY
    stored = world.stored()
    assert stored is not None
    assert len(stored.members) == 1


def test_a_deletion_that_cannot_be_saved_brings_the_group_back(world: World) -> None:
    a = Member(world, "a")
    world.form(a)
    world.leave(a)
    world.patient = True
    world.carry_out(world.groups.delete(GROUP))
    assert world.groups.get(GROUP) is None
    world.fail()
    assert (world.state, world.group.generation) == (GroupState.EMPTY, 2)
    assert world.group_ids.type_of(GROUP) == CLASSIC


# --- restarts ---


def test_members_of_a_stable_generation_go_on_after_a_restart(world: World) -> None:
    a, b = static(world, "a"), Member(world, "b", offers=protocols("range", "roundrobin"))
    world.form(a, b)
    stored = world.stored()
    world.now_ms += 1_000
    world.start()
    assert (world.state, world.group.leader, world.group.protocol_name) == (
        GroupState.STABLE,
        a.member_id,
        "range",
    )
    assert stored is not None
    assert world.group.since_ms == stored.current_state_timestamp
    assert [a.heartbeat(), b.heartbeat()] == [OK, OK]
    assert b.sync().reply.assignment == b"b"
    assert b.commit() is OK
    world.pass_time(10_000)
    assert world.state is GroupState.EMPTY
    assert world.groups.empty_since_ms(GROUP) == world.now_ms


def test_what_was_not_stable_is_lost_in_a_restart(world: World) -> None:
    a, b = Member(world, "a"), Member(world, "b")
    world.form(a)
    b.enter()
    a.join()
    world.start()
    assert a.heartbeat() is ErrorCode.illegal_generation
    assert b.heartbeat() is ErrorCode.unknown_member_id
    assert a.heartbeat(1) is OK


def test_a_group_that_is_too_large_after_a_restart_rebalances(world: World) -> None:
    a, b = Member(world, "a"), Member(world, "b")
    world.form(a, b)
    world.settings = ClassicGroupSettings(max_size=1, initial_rebalance_delay_ms=0)
    world.start()
    assert world.state is GroupState.PREPARING
    a.join()
    assert b.join().reply == JoinReply(ErrorCode.group_max_size_reached)
    assert a.joining.code is OK


def test_an_empty_group_comes_back(world: World) -> None:
    a = Member(world, "a")
    world.form(a)
    world.leave(a)
    since_ms = world.now_ms
    world.now_ms += 5_000
    world.start()
    assert (world.state, world.group.protocol_type, world.group.generation) == (
        GroupState.EMPTY,
        "consumer",
        2,
    )
    assert world.groups.empty_since_ms(GROUP) == since_ms
    assert world.groups.is_empty(GROUP)


# --- offsets ---


def test_subscriptions_of_consumers_are_known(world: World) -> None:
    a = Member(world, "a", offers=protocols("range", metadata=SUBSCRIBED_TO_A))
    a.enter()
    assert not world.groups.may_expire(GROUP)
    a.sync(a)
    assert world.groups.may_expire(GROUP)
    assert [world.groups.subscribed(GROUP)(name) for name in "ab"] == [True, False]
    world.start()
    assert [world.groups.subscribed(GROUP)(name) for name in "ab"] == [True, False]
    world.leave(a)
    assert not world.groups.subscribed(GROUP)("a")


@pytest.mark.parametrize("metadata", [b"", b"\0", b"\0\0\0\0\0\1\0\5a", b"\0\0\x7f\xff\xff\xff"])
def test_consumers_whose_subscriptions_nobody_can_read_keep_everything(world: World, metadata: bytes) -> None:
    world.form(Member(world, "a", offers=protocols("range", metadata=metadata)))
    assert world.groups.subscribed(GROUP)("anything")
    assert not world.groups.may_expire(GROUP)


def test_offsets_of_other_protocol_types(world: World) -> None:
    a = Member(world, "a")
    a.enter(protocol_type="connect")
    a.sync(a, protocol_type="connect")
    assert not world.groups.subscribed(GROUP)("anything")
    assert not world.groups.may_expire(GROUP)
    with pytest.raises(Exception, match="non_empty_group"):
        world.groups.check_offset_delete(GROUP)
    world.leave(a)
    world.groups.check_offset_delete(GROUP)
    assert world.groups.may_expire(GROUP)


def test_a_group_of_offsets_alone(world: World) -> None:
    world.groups.ensure(GROUP, now_ms=world.now_ms)
    world.groups.ensure(GROUP, now_ms=world.now_ms)
    assert world.groups.ids() == (GROUP,)
    assert world.groups.empty_since_ms(GROUP) is None
    assert world.groups.may_expire(GROUP)
    assert world.groups.is_empty(GROUP)
    Member(world, "a").join()
    assert not world.groups.is_empty(GROUP)


# --- conversion ---


def test_taken_out_and_put_in_again(world: World) -> None:
    a, b = Member(world, "a"), Member(world, "b")
    world.form(a)
    waiting = b.enter()
    records = Records(GROUP, StoredTimes())
    group = world.groups.take_out(GROUP, records)
    assert records.effects == [Answer(waiting, JoinReply(REBALANCING, member_id=b.member_id))]
    assert world.group_ids.type_of(GROUP) is None
    assert world.groups.next_deadline_ms() is None or world.groups.expire(10**12).changes == ()

    record = world.stored()
    assert record is not None
    group = ClassicGroup.from_record(GROUP, record, StoredTimes(), world.now_ms)
    records = Records(GROUP, StoredTimes())
    world.groups.put_in(group, records, rebalance=True, now_ms=world.now_ms)
    assert len(records.changes) == 1
    assert a.heartbeat(1) is REBALANCING
    a.join()
    assert a.generation == 2
