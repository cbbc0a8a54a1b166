"""Classic groups with members that join, leave, fall silent and return, with failed saves and
restarts: the properties that hold after each step.

Members believe their last answers. Outcomes wait to be saved in order. At the end all members fall
silent and time passes: then no request waits, and no group has members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.errors import ErrorCode
from kbroker.groups.classic.messages import ClassicGroupSettings, JoinReply, Leaving, SyncReply
from kbroker.groups.classic.rebalance import ClassicTimer, ClassicTimerKind
from kbroker.groups.classic.state import ClassicGroup, GroupState
from tests.groups.classic.world import GROUP, OK, Call, Flying, Member, World, protocols

DYNAMIC = ("a", "b", "c", "d")
STATIC = ("s", "t")
names = st.sampled_from((*DYNAMIC, *STATIC))
offers = st.sampled_from(
    (protocols("range"), protocols("range", "sticky"), protocols("sticky", "range"), protocols("sticky"))
)
timeouts = st.sampled_from((0, 10_000, 60_000))


class ClassicGroupMachine(RuleBasedStateMachine):
    @initialize(delay_ms=st.sampled_from((0, 3_000)), max_size=st.sampled_from((3, 100)))
    def start(self, delay_ms: int, max_size: int) -> None:
        self.world = World(
            ClassicGroupSettings(initial_rebalance_delay_ms=delay_ms, max_size=max_size), patient=True
        )
        self.calls: list[Call] = []
        self.shares = count(1)
        self.syncs: list[tuple[int, Call]] = []
        self.clients = {name: self.new_client(name) for name in (*DYNAMIC, *STATIC)}

    def new_client(self, name: str) -> Member:
        return Member(self.world, name, instance_id=f"static-{name}" if name in STATIC else None)

    # --- members ---

    @rule(name=names, offered=offers, timeout_ms=timeouts)
    def join(self, name: str, offered: tuple[tuple[str, bytes], ...], timeout_ms: int) -> None:
        client = self.clients[name]
        self.calls.append(client.join(protocols=offered, rebalance_timeout_ms=timeout_ms))

    @rule(name=names)
    def join_with_the_id_that_was_given(self, name: str) -> None:
        """As clients do: a new one joins again with the id that it gets."""
        client = self.clients[name]
        for _ in range(2):
            self.calls.append(client.join())
            if (
                client.joining.reply is None
                or client.joining.reply.error_code is not ErrorCode.member_id_required
            ):
                break

    @rule(who=st.sets(names, min_size=1))
    def several_join(self, who: set[str]) -> None:
        for name in sorted(who):
            self.join_with_the_id_that_was_given(name)

    @rule()
    def everybody_joins_again(self) -> None:
        """All members with a generation join again: a rebalance."""
        for client in self.clients.values():
            if self.believes(client) >= 0:
                self.calls.append(client.join())

    @rule()
    def everybody_syncs(self) -> None:
        for name, client in self.clients.items():
            if self.believes(client) >= 0:
                self.sync(name)

    @rule(who=st.sets(names, min_size=1))
    def settles(self, who: set[str]) -> None:
        """An undisturbed rebalance, if all members are there."""
        self.several_join(who)
        self.world.pass_time(self.world.settings.initial_rebalance_delay_ms)
        group = self.world.groups.get(GROUP)
        if group is not None and group.state is GroupState.PREPARING:
            self.everybody_joins_again()
        self.everybody_syncs()
        while self.world.flying:
            self.world.save()

    @rule(rounds=st.integers(1, 4))
    def everybody_lives_on(self, rounds: int) -> None:
        for _ in range(rounds):
            for name in self.clients:
                self.heartbeat(name)
            self.world.pass_time(9_000)

    @rule(name=names)
    def sync(self, name: str) -> None:
        client = self.clients[name]
        reply = client.joining.reply
        if not isinstance(reply, JoinReply) or reply.error_code is not OK:
            return
        share = str(next(self.shares)).encode()
        assignments = (
            tuple((row.member_id, share) for row in reply.members) if not reply.skip_assignment else ()
        )
        self.syncs.append((client.generation, client.sync(assignments=assignments)))
        self.calls.append(client.syncing)

    @rule(name=names)
    def heartbeat(self, name: str) -> None:
        client = self.clients[name]
        code = client.heartbeat()
        if code in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id):
            client.member_id, client.joining = "", Call()

    @rule(name=names)
    def leave(self, name: str) -> None:
        client = self.clients[name]
        reply = self.world.leave(client)
        assert reply is None or reply.members[0].error_code in (
            OK,
            ErrorCode.unknown_member_id,
            ErrorCode.fenced_instance_id,
        )
        self.clients[name] = self.new_client(name)

    @rule(name=st.sampled_from(STATIC))
    def removed_by_an_administrator(self, name: str) -> None:
        self.world.leave(Leaving("", f"static-{name}"))

    @rule(name=names)
    def dies(self, name: str) -> None:
        self.clients[name] = self.new_client(name)

    # --- time, saving, restarts ---

    @rule(milliseconds=st.sampled_from((1, 3_000, 9_000, 10_000, 60_000, 300_000)))
    def time_passes(self, milliseconds: int) -> None:
        self.world.pass_time(milliseconds)

    @precondition(lambda self: self.world.flying)
    @rule()
    def is_saved(self) -> None:
        self.world.save()

    @precondition(lambda self: self.world.flying)
    @rule()
    def cannot_be_saved(self) -> None:
        self.world.fail()

    @rule()
    def restart(self) -> None:
        """A member with an assignment of the stored generation continues in it. Members that waited
        lose their connections."""
        go_on = [client for client in self.clients.values() if self.is_settled(client)]
        self.world.start()
        self.calls = []
        for client in self.clients.values():
            client.joining = client.joining if client.joining.reply is not None else Call()
        for client in go_on:
            assert client.heartbeat() is OK

    def is_settled(self, client: Member) -> bool:
        """No save that is under way may change the member's generation."""
        group = self.world.groups.get(GROUP)
        is_told = isinstance(client.syncing.reply, SyncReply) and client.syncing.code is OK
        return (
            group is not None
            and group.state is GroupState.STABLE
            and is_told
            and client.member_id in group.members
            and self.believes(client) == group.generation
            and not self.world.flying
            and self.stored_generation() == group.generation
        )

    def stored_generation(self) -> int:
        stored = self.world.stored()
        return -1 if stored is None else stored.generation

    @staticmethod
    def believes(client: Member) -> int:
        client.note_id()
        return client.generation

    # --- invariants ---

    @invariant()
    def a_generation_is_shared_out_once(self) -> None:
        """Across restarts: assignments that members got were saved before."""
        shares: dict[int, bytes] = {}
        for generation, call in self.syncs:
            if isinstance(call.reply, SyncReply) and call.code is OK and call.reply.assignment:
                assert shares.setdefault(generation, call.reply.assignment) == call.reply.assignment

    @invariant()
    def members_of_one_generation_are_told_the_same(self) -> None:
        """Within one run of the broker: a generation that was not saved is formed again after a
        restart."""
        told: dict[int, str | None] = {}
        for call in self.calls:
            if isinstance(call.reply, JoinReply) and call.code is OK:
                assert (
                    told.setdefault(call.reply.generation_id, call.reply.protocol_name)
                    == call.reply.protocol_name
                )

    @invariant()
    def the_group_is_in_order(self) -> None:
        group = self.world.groups.get(GROUP)
        if group is None:
            return
        check_members(group)
        check_timers(self.world, group)
        assert group.saving is None or self.world.flying

    @invariant()
    def whoever_waits_is_known_to_wait(self) -> None:
        group = self.world.groups.get(GROUP)
        waiting = set() if group is None else {*group.joining.values(), *group.syncing.values()}
        waiting |= {
            flying.call for flying in self.world.flying if flying.call is not None
        } | answered_when_saved(self.world.flying)
        assert {call for call in self.calls if call.reply is None} <= waiting

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.patient = False
        while self.world.flying:
            self.world.save()
        for _ in range(20):
            self.world.pass_time(300_000)
        assert self.world.groups.next_deadline_ms() is None
        assert [call for call in self.calls if call.reply is None] == []
        group = self.world.groups.get(GROUP)
        assert group is None or (group.state is GroupState.EMPTY and not group.members and not group.pending)


def answered_when_saved(flying: Sequence[Flying]) -> set[Call]:
    return {effect.ticket for each in flying for effect in each.outcome.effects if hasattr(effect, "ticket")}


def check_members(group: ClassicGroup) -> None:
    assert set(group.joining) | set(group.syncing) | group.unsynced <= set(group.members)
    assert not group.pending & set(group.members)
    assert group.leader in group.members if group.members else group.leader is None
    assert group.static_ids == {
        each.instance_id: each.member_id for each in group.members.values() if each.instance_id is not None
    }
    offered = Counter(name for member in group.members.values() for name in member.names())
    assert group._offered == offered
    assert bool(group.members) or group.state in (GroupState.EMPTY, GroupState.PREPARING)
    if group.members:
        assert group.state is not GroupState.EMPTY
        assert group.elected_protocol() in offered, "something is left that all members know"
    if group.state is GroupState.STABLE:
        assert (group.joining, group.syncing, group.saving) == ({}, {}, None)
        assert group.protocol_name in offered
    if group.joining:
        assert group.state is GroupState.PREPARING
    if group.syncing:
        assert group.state is GroupState.COMPLETING


def check_timers(world: World, group: ClassicGroup) -> None:
    """Every wait of the group ends."""
    timers = world.groups._rebalances.timers
    for member in group.members.values():
        waits = member.member_id in group.joining or member.member_id in group.syncing
        assert (
            waits
            or timers.deadline_ms(ClassicTimer(ClassicTimerKind.SESSION, GROUP, member.member_id)) is not None
        )
    for member_id in group.pending:
        assert timers.deadline_ms(ClassicTimer(ClassicTimerKind.SESSION, GROUP, member_id)) is not None
    assert (group.state is GroupState.PREPARING) == (
        timers.deadline_ms(ClassicTimer(ClassicTimerKind.JOIN, GROUP)) is not None
    )
    if group.unsynced:
        assert timers.deadline_ms(ClassicTimer(ClassicTimerKind.SYNC, GROUP)) is not None
    if group.state is GroupState.COMPLETING and group.leader in group.syncing:
        assert group.saving is not None


ClassicGroupMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestClassicGroup = ClassicGroupMachine.TestCase


@pytest.mark.full
class TestClassicGroupLong(ClassicGroupMachine.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=1_000, stateful_step_count=80, deadline=None)
