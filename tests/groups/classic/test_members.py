"""Membership of a classic group: joining, leaving, static members, and the refusals of all
others."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from kbroker.groups.classic.messages import ClassicGroupSettings, JoinReply, LeaveReply, LeaveRow, Leaving
from kbroker.groups.classic.state import GroupState
from kbroker.groups.ids import CLASSIC
from tests.groups.classic.world import GROUP, OK, Call, Member, World, protocols

UNKNOWN = ErrorCode.unknown_member_id
FENCED = ErrorCode.fenced_instance_id
REBALANCING = ErrorCode.rebalance_in_progress


@pytest.fixture
def world() -> World:
    return World()


def members(world: World, names: str) -> list[Member]:
    return [Member(world, name) for name in names]


# --- joining ---


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"group_id": ""}, ErrorCode.invalid_group_id),
        ({"group_id": "é" * 128}, ErrorCode.invalid_group_id),
        ({"session_timeout_ms": 5_999}, ErrorCode.invalid_session_timeout),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.invalid_session_timeout),
        ({"member_id": "nobody"}, UNKNOWN),
        ({"protocol_type": ""}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": ()}, ErrorCode.inconsistent_group_protocol),
    ],
)
def test_refused_before_there_is_a_group(world: World, changed: dict[str, object], code: ErrorCode) -> None:
    reply = Member(world, "a").join(**changed).reply
    assert reply == JoinReply(code, member_id=str(changed.get("member_id", "")))


def test_a_member_without_an_id_is_given_one_first(world: World) -> None:
    (a,) = members(world, "a")
    assert a.join().reply == JoinReply(ErrorCode.member_id_required, member_id="a-1")
    assert world.state is GroupState.EMPTY
    assert a.heartbeat(0) is UNKNOWN
    assert a.join().code is OK
    assert world.group.pending == set()


def test_old_clients_join_without_an_id(world: World) -> None:
    (a,) = members(world, "a")
    reply = a.join(takes_member_id=False).reply
    assert (reply.error_code, reply.member_id, reply.generation_id) == (OK, "a-1", 1)


def test_member_ids_are_cut_at_a_character(world: World) -> None:
    reply = Member(world, "é" * 60).join().reply
    assert reply.member_id == "é" * 50 + "-1"
    assert Member(world, "x" * 99 + "é").join().reply.member_id == "x" * 99 + "-2"


def test_something_in_common_is_needed(world: World) -> None:
    a, b = members(world, "ab")
    a.offers = protocols("range", "roundrobin")
    world.form(a)
    assert b.join(protocols=protocols("sticky")).code is ErrorCode.inconsistent_group_protocol
    assert b.join(protocol_type="connect").code is ErrorCode.inconsistent_group_protocol
    assert b.join(protocols=protocols("sticky", "roundrobin")).code is ErrorCode.member_id_required


def test_most_votes_among_what_all_have(world: World) -> None:
    a, b, c = members(world, "abc")
    a.offers, b.offers, c.offers = (
        protocols("one", "three", "two"),
        protocols("two", "three"),
        protocols("two", "three", "four"),
    )
    world.form(a, b, c)
    assert world.group.protocol_name == "two"
    assert {row.metadata for row in a.joining.reply.members} == {b""}


def test_a_protocol_that_is_named_twice_counts_once(world: World) -> None:
    a, b = members(world, "ab")
    a.offers = (*protocols("one", metadata=b"1"), *protocols("one", metadata=b"2"))
    world.form(a)
    assert world.group.protocol_name == "one"
    assert a.joining.reply.members[0].metadata == b"1"
    assert b.join(protocols=protocols("two")).code is ErrorCode.inconsistent_group_protocol


def test_an_empty_group_takes_another_protocol_type(world: World) -> None:
    a, b = members(world, "ab")
    world.form(a)
    world.leave(a)
    b.enter(protocol_type="connect", protocols=protocols("compatible"))
    assert (world.group.protocol_type, world.group.protocol_name, b.generation) == (
        "connect",
        "compatible",
        3,
    )
    assert b.sync(protocol_type="consumer").code is ErrorCode.inconsistent_group_protocol
    assert b.sync(b, protocol_type="connect", protocol_name="compatible").reply.assignment == b"b"


def test_a_full_group(world: World) -> None:
    world.settings = ClassicGroupSettings(max_size=2, initial_rebalance_delay_ms=0)
    a, b, c = members(world, "abc")
    world.form(a, b)
    assert c.join().reply == JoinReply(ErrorCode.group_max_size_reached)
    assert a.heartbeat() is OK
    world.leave(b)
    assert c.join().code is ErrorCode.member_id_required


def test_a_group_that_is_too_large_loses_who_joins_last(world: World) -> None:
    a, b, c = members(world, "abc")
    world.form(a, b, c)
    world.settings = ClassicGroupSettings(max_size=2, initial_rebalance_delay_ms=0)
    a.join()
    assert b.join().reply is None
    assert c.join().reply == JoinReply(ErrorCode.group_max_size_reached)
    assert [a.joining.code, b.joining.code] == [OK, OK]
    assert set(world.group.members) == {a.member_id, b.member_id}


# --- requests of members ---


def test_sync_and_heartbeat_of_strangers_and_other_generations(world: World) -> None:
    a, b = members(world, "ab")
    world.form(a)
    assert a.heartbeat(0) is ErrorCode.illegal_generation
    assert a.sync(generation=0).code is ErrorCode.illegal_generation
    assert a.sync(protocol_name="other").code is ErrorCode.inconsistent_group_protocol
    assert b.heartbeat(1) is UNKNOWN
    assert b.sync(generation=1).code is UNKNOWN
    assert b.sync(group_id="").code is ErrorCode.invalid_group_id
    assert b.sync(group_id="other").code is UNKNOWN


def test_commits_of_members(world: World) -> None:
    a, b = members(world, "ab")
    world.form(a)
    assert a.commit() is OK
    assert a.commit(generation=0) is ErrorCode.illegal_generation
    assert b.commit(generation=1) is UNKNOWN
    assert Member(world, "admin").commit() is UNKNOWN
    b.enter()
    assert a.commit() is OK
    a.join()
    assert a.commit() is REBALANCING
    world.leave(a, b)
    assert Member(world, "admin").commit() is OK
    assert a.commit() is UNKNOWN


def test_a_commit_keeps_the_session(world: World) -> None:
    (a,) = members(world, "a")
    world.form(a)
    for _ in range(4):
        world.pass_time(9_000)
        assert a.commit() is OK
    assert a.heartbeat() is OK


# --- leaving ---


def test_each_that_leaves_has_its_result(world: World) -> None:
    a, b, c = members(world, "abc")
    world.form(a, b)
    c.join()
    reply = world.leave(a, a, c, Leaving("nobody"), Leaving("", "static"))
    assert reply == LeaveReply(
        members=(
            LeaveRow(a.member_id, None),
            LeaveRow(a.member_id, None, UNKNOWN),
            LeaveRow(c.member_id, None),
            LeaveRow("nobody", None, UNKNOWN),
            LeaveRow("", "static", UNKNOWN),
        )
    )
    assert b.heartbeat() is REBALANCING
    assert c.join().code is UNKNOWN


def test_a_pending_member_that_leaves_disturbs_nobody(world: World) -> None:
    a, b = members(world, "ab")
    world.form(a)
    b.join()
    world.leave(b)
    assert a.heartbeat() is OK
    assert world.state is GroupState.STABLE


def test_a_pending_member_that_leaves_is_waited_for_no_more(world: World) -> None:
    a, b = members(world, "ab")
    world.form(a)
    b.join()
    a.join()
    assert a.joining.reply is None
    world.leave(b)
    assert a.joining.code is OK


def test_who_leaves_is_told_where_it_waits(world: World) -> None:
    a, b = members(world, "ab")
    world.form(a, b)
    waiting = b.join(protocols=protocols("range", metadata=b"else"))
    world.leave(b)
    assert waiting.reply == JoinReply(UNKNOWN)
    b.member_id = ""
    b.enter()
    a.join()
    syncing = b.sync()
    world.leave(b)
    assert syncing.code is UNKNOWN
    assert a.heartbeat() is REBALANCING


def test_leaving_a_group_that_is_not_there(world: World) -> None:
    assert world.leave(Leaving("nobody")) == LeaveReply(members=(LeaveRow("nobody", None, UNKNOWN),))


# --- static members ---


def static(world: World, name: str) -> Member:
    return Member(world, name, instance_id=f"static-{name}")


def back(member: Member) -> Member:
    """The same instance after a restart, without its member id."""
    return Member(member.world, member.name, instance_id=member.instance_id, offers=member.offers)


def test_a_static_member_joins_with_its_first_request(world: World) -> None:
    a = static(world, "a")
    world.form(a)
    assert a.member_id == "static-a-1"
    assert a.joining.reply.members[0].group_instance_id == "static-a"


def test_a_static_member_that_comes_back_keeps_what_it_had(world: World) -> None:
    a, b = static(world, "a"), static(world, "b")
    world.form(a, b)
    new = back(b)
    reply = new.join().reply
    assert (reply.error_code, reply.generation_id, reply.leader, reply.members) == (OK, 2, a.member_id, ())
    assert new.member_id != b.member_id
    assert new.sync().reply.assignment == b"b"
    assert [a.heartbeat(), new.heartbeat(), b.heartbeat()] == [OK, OK, FENCED]
    assert b.sync().code is FENCED
    assert b.join().code is FENCED
    assert b.commit() is FENCED
    stored = world.stored()
    assert stored is not None
    assert {(row.member_id, row.assignment) for row in stored.members} == {
        (a.member_id, b"a"),
        (new.member_id, b"b"),
    }


@pytest.mark.parametrize("can_skip", [True, False])
def test_a_static_leader_that_comes_back_need_not_share_out(world: World, can_skip: bool) -> None:
    a, b = static(world, "a"), static(world, "b")
    world.form(a, b)
    new = back(a)
    reply = new.join(can_skip_assignment=can_skip).reply
    if can_skip:
        assert (reply.leader, reply.skip_assignment, len(reply.members)) == (new.member_id, True, 2)
    else:
        assert (reply.leader, reply.skip_assignment, reply.members) == (a.member_id, False, ())
    assert world.group.leader == new.member_id
    assert new.sync().reply.assignment == b"a"


def test_a_static_member_that_comes_back_and_moves_the_vote_rebalances(world: World) -> None:
    a, b = static(world, "a"), static(world, "b")
    a.offers = b.offers = protocols("range", "sticky")
    world.form(a, b)
    new = back(b)
    assert new.join(protocols=protocols("sticky")).reply is None
    assert a.heartbeat() is REBALANCING
    a.join()
    assert new.joining.reply.protocol_name == "sticky"


def test_a_static_member_that_comes_back_while_the_others_sync(world: World) -> None:
    a, b = static(world, "a"), static(world, "b")
    a.join()
    b.join()
    a.join()
    waiting = b.sync()
    new = back(b)
    assert new.join().reply is None
    assert waiting.code is FENCED
    assert a.sync(a, b).code is REBALANCING
    a.join()
    assert new.joining.reply.generation_id == 3


def test_a_static_member_that_comes_back_while_it_waits_to_join(world: World) -> None:
    a, b = static(world, "a"), static(world, "b")
    world.form(a)
    waiting = b.join()
    new = back(b)
    new.join()
    assert waiting.code is FENCED
    a.join()
    assert new.joining.code is OK
    assert len(world.group.members) == 2


def test_static_members_stay_until_their_session_ends(world: World) -> None:
    a, b, c = static(world, "a"), static(world, "b"), Member(world, "c")
    world.form(a, b)
    c.enter(rebalance_timeout_ms=7_000, session_timeout_ms=100_000)
    a.join(rebalance_timeout_ms=7_000, session_timeout_ms=100_000)
    for _ in range(8):
        world.pass_time(9_000)
        if a.joining.reply is None:
            assert b.heartbeat() is REBALANCING
    assert a.joining.code is OK
    assert b.member_id in {row.member_id for row in a.joining.reply.members}


def test_when_only_static_members_are_left_they_are_waited_for(world: World) -> None:
    a, b = static(world, "a"), static(world, "b")
    world.form(a, b)
    c = Member(world, "c")
    c.enter()
    world.leave(c)
    for _ in range(20):
        world.pass_time(9_000)
        assert [a.heartbeat(), b.heartbeat()] == [REBALANCING] * 2
    assert b.join().reply is None
    assert a.join().code is OK
    assert len(world.group.members) == 2


def test_an_administrator_removes_static_members_by_name(world: World) -> None:
    a, b = static(world, "a"), static(world, "b")
    world.form(a, b)
    reply = world.leave(Leaving("", "static-b"), Leaving("other", "static-a"), Leaving("", "unknown"))
    assert [row.error_code for row in reply.members] == [OK, FENCED, UNKNOWN]
    assert a.heartbeat() is REBALANCING
    assert b.heartbeat() is UNKNOWN


def test_dynamic_members_have_no_instance_id(world: World) -> None:
    (a,) = members(world, "a")
    world.form(a)
    assert a.join(instance_id="unknown").code is UNKNOWN
    assert world.leave(Leaving(a.member_id, "unknown")).members[0].error_code is UNKNOWN
    assert a.heartbeat(1) is OK


def test_a_static_member_comes_back_to_its_place_in_a_full_group(world: World) -> None:
    world.settings = ClassicGroupSettings(max_size=2, initial_rebalance_delay_ms=0)
    a, b = static(world, "a"), static(world, "b")
    world.form(a, b)
    assert static(world, "c").join().code is ErrorCode.group_max_size_reached
    new = back(b)
    assert new.join().code is OK
    assert new.sync().reply.assignment == b"b"


def test_an_id_that_was_given_to_a_dynamic_member_is_no_static_one_s(world: World) -> None:
    (a,) = members(world, "a")
    s = static(world, "s")
    world.form(s)
    a.join()
    assert a.join(instance_id="static-s").code is FENCED
    assert a.join(instance_id="static-new").code is UNKNOWN
    assert s.heartbeat() is OK
    assert a.join().reply is None


# --- administration ---


def test_description_in_each_state(world: World) -> None:
    a, b = members(world, "ab")
    a.offers = protocols("range", metadata=b"of a")
    missing = world.groups.describe(GROUP)
    assert (missing.group_state, missing.error_code) == ("Dead", ErrorCode.group_id_not_found)
    world.form(a)
    stable = world.groups.describe(GROUP)
    assert (stable.group_state, stable.protocol_type, stable.protocol_data) == ("Stable", "consumer", "range")
    assert [(row.client_id, row.member_metadata, row.member_assignment) for row in stable.members] == [
        ("a", b"of a", b"a")
    ]
    b.enter()
    preparing = world.groups.describe(GROUP)
    assert (preparing.group_state, preparing.protocol_data) == ("PreparingRebalance", "")
    assert [(row.client_id, row.member_metadata) for row in preparing.members] == [("a", b""), ("b", b"")]
    a.join()
    assert world.groups.describe(GROUP).group_state == "CompletingRebalance"
    world.leave(a, b)
    assert world.groups.describe(GROUP).group_state == "Empty"


def test_listing_and_deleting(world: World) -> None:
    (a,) = members(world, "a")
    world.form(a)
    assert [
        (row.group_id, row.protocol_type, row.group_state, row.group_type) for row in world.groups.listed()
    ] == [(GROUP, "consumer", "Stable", CLASSIC)]
    assert world.groups.delete(GROUP).reply is ErrorCode.non_empty_group
    world.leave(a)
    call = Call()
    world.carry_out(world.groups.delete(GROUP), call)
    assert call.reply is OK
    assert world.stored() is None
    assert world.groups.delete(GROUP).reply is ErrorCode.group_id_not_found
    assert world.group_ids.type_of(GROUP) is None
    assert a.heartbeat() is UNKNOWN


def test_statistics(world: World) -> None:
    a, b, c = members(world, "abc")
    world.form(a, b)
    c.join()
    found = world.groups.statistics()
    assert (found.groups, found.members, found.pending_members, found.rebalances) == ({"Stable": 1}, 2, 1, 1)
