"""How a classic group gets from one generation to the next, and what happens when members are
late."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from kbroker.groups.classic.messages import ClassicGroupSettings, JoinReply
from kbroker.groups.classic.state import TRANSITIONS, ClassicEvent, GroupState
from tests.groups.classic.world import OK, Member, World, beat_all, protocols

REBALANCING = ErrorCode.rebalance_in_progress
UNKNOWN = ErrorCode.unknown_member_id


@pytest.fixture
def world() -> World:
    return World()


def members(world: World, names: str) -> list[Member]:
    return [Member(world, name) for name in names]


def test_each_state_but_dead_can_be_left_and_each_is_reached() -> None:
    assert {before for before, _ in TRANSITIONS} == set(GroupState) - {GroupState.DEAD}
    assert set(TRANSITIONS.values()) == set(GroupState)
    assert {event for _, event in TRANSITIONS} == set(ClassicEvent)


def test_one_member_from_empty_to_stable(world: World) -> None:
    (a,) = members(world, "a")
    reply = a.enter().reply
    assert reply == JoinReply(
        generation_id=1,
        protocol_type="consumer",
        protocol_name="range",
        leader=a.member_id,
        member_id=a.member_id,
        members=reply.members,
    )
    assert [row.member_id for row in reply.members] == [a.member_id]
    assert world.state is GroupState.COMPLETING
    a.sync(a)
    assert a.assignment() == b"a"
    assert world.state is GroupState.STABLE
    assert a.heartbeat() is OK


def test_a_second_member_waits_for_the_first_to_join_again(world: World) -> None:
    a, b = members(world, "ab")
    world.form(a)
    waiting = b.enter()
    assert waiting.reply is None
    assert world.state is GroupState.PREPARING
    assert a.heartbeat() is REBALANCING
    a.join(protocols=protocols("range", metadata=b"of a"))
    assert waiting.code is OK
    assert (a.generation, waiting.reply.generation_id) == (2, 2)
    assert waiting.reply.members == ()
    assert [(row.member_id, row.metadata) for row in a.joining.reply.members] == [
        (a.member_id, b"of a"),
        (b.member_id, b""),
    ]


def test_followers_wait_for_the_leader_and_all_get_their_own(world: World) -> None:
    a, b, c = members(world, "abc")
    world.form(a, b, c)
    assert [member.assignment() for member in (a, b, c)] == [b"a", b"b", b"c"]
    assert beat_all((a, b, c)) == [OK] * 3


def test_a_member_that_the_leader_forgot_gets_nothing(world: World) -> None:
    a, b = members(world, "ab")
    a.enter()
    b.enter()
    a.join()
    waiting = b.sync()
    assert waiting.reply is None
    a.sync(a)
    assert b.assignment() == b""


def test_sync_of_a_stable_group_gives_the_assignment_again(world: World) -> None:
    (a,) = members(world, "a")
    world.form(a)
    assert a.sync(a).reply.assignment == b"a"


def test_a_member_that_comes_while_the_others_sync_makes_them_join_again(world: World) -> None:
    a, b, c = members(world, "abc")
    a.enter()
    b.enter()
    a.join()
    waiting = b.sync()
    c.enter()
    assert waiting.code is REBALANCING
    assert a.sync(a, b).code is REBALANCING
    assert a.heartbeat() is REBALANCING
    a.join()
    b.join()
    assert c.joining.reply.generation_id == 3


def test_joining_again_with_the_same_while_the_others_sync_repeats_the_answer(world: World) -> None:
    a, b = members(world, "ab")
    a.enter()
    b.enter()
    a.join()
    first = a.joining.reply
    assert a.join().reply == first
    assert b.join().reply.generation_id == 2
    assert b.join(protocols=protocols("range", metadata=b"else")).reply is None


def test_followers_of_a_stable_group_rebalance_it_with_something_else_only(world: World) -> None:
    a, b = members(world, "ab")
    world.form(a, b)
    assert b.join().reply.generation_id == 2
    assert world.state is GroupState.STABLE
    b.join(protocols=protocols("range", metadata=b"else"))
    assert world.state is GroupState.PREPARING


def test_the_leader_of_a_stable_group_rebalances_it_by_joining(world: World) -> None:
    a, b = members(world, "ab")
    world.form(a, b)
    assert a.join().reply is None
    assert b.heartbeat() is REBALANCING


def test_rebalance_timeout_goes_on_without_the_missing(world: World) -> None:
    a, b = members(world, "ab")
    world.form(a)
    b.enter(rebalance_timeout_ms=20_000)
    while world.now_ms < 1_059_000:
        world.pass_time(5_000)
        assert a.heartbeat() in (REBALANCING, UNKNOWN)
        assert b.joining.reply is None or world.now_ms >= 1_060_000
    world.pass_time(5_000)
    assert b.joining.code is OK
    assert b.leads()
    assert a.heartbeat() is UNKNOWN


def test_a_session_that_ends_removes_the_member(world: World) -> None:
    a, b = members(world, "ab")
    world.form(a, b)
    world.pass_time(9_000)
    assert b.heartbeat() is OK
    world.pass_time(1_000)
    assert world.state is GroupState.PREPARING
    assert a.heartbeat() is UNKNOWN
    b.join()
    assert b.leads()
    assert b.generation == 3


def test_who_waits_to_join_has_no_session_to_lose(world: World) -> None:
    a, b = members(world, "ab")
    world.form(a, b)
    c = Member(world, "c")
    c.enter()
    a.join()
    for _ in range(11):
        world.pass_time(5_000)
        assert b.heartbeat() is REBALANCING
    b.join()
    assert [member.joining.code for member in (a, b, c)] == [OK] * 3


def test_the_first_join_is_given_up_after_five_minutes(world: World) -> None:
    a, b = members(world, "ab")
    world.form(a)
    b.enter(rebalance_timeout_ms=1_000_000)
    for _ in range(33):
        world.pass_time(9_000)
        a.heartbeat()
    assert b.joining.reply is None
    world.pass_time(3_000)
    assert b.joining.reply == JoinReply(UNKNOWN)
    assert world.state is GroupState.PREPARING


def test_a_dead_leader_leaves_the_sync_to_the_next(world: World) -> None:
    a, b = members(world, "ab")
    a.enter()
    b.enter()
    a.join()
    waiting = b.sync()
    world.pass_time(10_000)
    assert waiting.code is REBALANCING
    b.join()
    assert b.leads()
    assert b.sync(b).reply.assignment == b"b"


def test_members_that_do_not_sync_are_removed(world: World) -> None:
    a, b = members(world, "ab")
    a.enter(session_timeout_ms=100_000)
    b.enter(session_timeout_ms=100_000)
    a.join(session_timeout_ms=100_000)
    a.sync(a, b)
    assert world.state is GroupState.STABLE
    world.pass_time(60_000)
    assert world.state is GroupState.PREPARING
    assert b.heartbeat() is UNKNOWN
    assert a.heartbeat() is REBALANCING


def test_nobody_syncs_and_the_group_is_empty(world: World) -> None:
    (a,) = members(world, "a")
    a.enter(session_timeout_ms=100_000)
    world.pass_time(60_000)
    assert world.state is GroupState.EMPTY
    assert world.group.generation == 2


def test_the_last_to_leave_makes_the_group_empty_and_that_is_stored(world: World) -> None:
    (a,) = members(world, "a")
    world.form(a)
    world.leave(a)
    assert world.state is GroupState.EMPTY
    stored = world.stored()
    assert stored is not None
    assert (stored.generation, stored.members, stored.protocol_type, stored.current_state_timestamp) == (
        2,
        (),
        "consumer",
        world.now_ms,
    )
    assert world.groups.next_deadline_ms() is None or world.groups.expire(10**12).changes == ()


def test_initial_delay_is_prolonged_while_members_come() -> None:
    world = World(ClassicGroupSettings(initial_rebalance_delay_ms=3_000))
    a, b, c = members(world, "abc")
    a.enter()
    world.pass_time(2_000)
    b.enter()
    world.pass_time(1_000)
    assert a.joining.reply is None
    world.pass_time(2_000)
    c.enter()
    world.pass_time(3_999)
    assert a.joining.reply is None
    world.pass_time(1)
    assert {member.joining.reply.generation_id for member in (a, b, c)} == {1}


def test_initial_delay_ends_with_the_rebalance_timeout() -> None:
    world = World(ClassicGroupSettings(initial_rebalance_delay_ms=3_000))
    first = Member(world, "first")
    first.enter(rebalance_timeout_ms=8_000)
    others = []
    for number in range(7):
        world.pass_time(1_000)
        others.append(Member(world, str(number)))
        others[-1].enter(rebalance_timeout_ms=8_000)
    assert first.joining.reply is None
    world.pass_time(1_000)
    assert first.joining.code is OK
    assert {other.joining.code for other in others} == {OK}


def test_initial_delay_is_not_cut_short_by_all_having_joined() -> None:
    world = World(ClassicGroupSettings(initial_rebalance_delay_ms=3_000))
    a, b = members(world, "ab")
    a.enter()
    b.enter()
    world.leave(b)
    world.pass_time(5_999)
    assert a.joining.reply is None
    world.pass_time(1)
    assert a.joining.code is OK


def test_a_pending_member_is_waited_for_until_its_session_ends(world: World) -> None:
    a, b = members(world, "ab")
    world.form(a)
    b.join()
    a.join()
    assert world.state is GroupState.PREPARING
    world.pass_time(10_000)
    assert a.joining.code is OK
    assert b.join().code is UNKNOWN


def test_a_second_request_answers_the_first(world: World) -> None:
    a, b = members(world, "ab")
    world.form(a)
    first = b.enter()
    second = b.join()
    assert first.reply == JoinReply(REBALANCING, member_id=b.member_id)
    assert second.reply is None
    a.join()
    b.note_id()
    waiting = b.sync()
    again = b.sync()
    assert waiting.code is REBALANCING
    a.sync(a, b)
    assert again.reply.assignment == b"b"


def test_static_members_that_are_all_late_are_waited_for_once_more(world: World) -> None:
    a, b = Member(world, "a", instance_id="static-a"), Member(world, "b", instance_id="static-b")
    c = Member(world, "c")
    world.form(a, b)
    c.enter()
    world.leave(c)
    for _ in range(7):
        world.pass_time(9_000)
        assert beat_all((a, b)) == [REBALANCING] * 2
    assert a.join().reply is None
    for _ in range(7):
        world.pass_time(9_000)
        b.heartbeat()
    assert a.joining.code is OK
    assert a.leads()


def test_static_members_that_give_nobody_time_do_not_keep_the_timers_busy(world: World) -> None:
    """Regression: with a rebalance timeout of 0, the rebalance of such a group ended over and over,
    as fast as the timers ran, until a session ended."""
    a, b = Member(world, "a", instance_id="static-a"), Member(world, "b")
    a.enter(rebalance_timeout_ms=0)
    a.sync(a)
    b.enter(rebalance_timeout_ms=0)
    world.leave(b)
    for _ in range(3):
        world.carry_out(world.groups.expire(world.now_ms))
    assert world.state is GroupState.PREPARING
    deadline_ms = world.groups.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms >= world.now_ms + 1_000
    world.pass_time(60_000)
    assert world.state is GroupState.EMPTY


def test_late_and_over_in_the_same_moment(world: World) -> None:
    a, b = members(world, "ab")
    a.enter(rebalance_timeout_ms=10_000)
    a.sync(a)
    b.enter(rebalance_timeout_ms=10_000)
    world.pass_time(10_000)
    assert b.joining.reply.generation_id == 2
    assert (world.state, set(world.group.members)) == (GroupState.COMPLETING, {b.member_id})


def test_an_older_generation_that_is_saved_late_gives_nothing_to_the_next(world: World) -> None:
    a, b = members(world, "ab")
    a.enter()
    world.patient = True
    a.sync(a)
    b.enter()
    a.join()
    a.sync(a, b)
    b.note_id()
    following = b.sync()
    world.save()
    assert following.reply is None
    assert world.state is GroupState.COMPLETING
    world.save()
    assert world.state is GroupState.STABLE
    assert following.reply.assignment == b"b"
