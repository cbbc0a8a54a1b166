"""LeaveGroup: one and several members, by id and by instance id, and the group afterwards."""

from __future__ import annotations

from tests.differential.classic import ClassicMember, classic_group, describe, form, identity, until_state
from tests.differential.script import Session, script
from tests.differential.scripts.classic_rejoin import NEW, completing, pair


@script()
def leave_in_each_version(s: Session) -> None:
    for version in range(6):
        a = ClassicMember(s, classic_group(s, f"g{version}"), f"a{version}")
        form(a)
        a.leave(version)
        a.leave(version)
        describe(s, a.group_id)


@script()
def last_member(s: Session) -> None:
    group, a, b = pair(s)
    b.leave()
    describe(s, group)
    a.leave()
    describe(s, group)
    a.leave()
    a.heartbeat()


@script()
def several_at_once(s: Session) -> None:
    group, a, b = pair(s)
    c = ClassicMember(s, group, "c")
    c.join()
    rows = [
        identity(a.member_id),
        identity("nobody"),
        identity(c.member_id),
        identity(b.member_id),
        identity(a.member_id),
    ]
    a.leave(3, members=rows)
    describe(s, group)


@script()
def nobody_at_all(s: Session) -> None:
    group, a, _b = pair(s)
    a.leave(members=())
    a.leave(members=[identity("")])
    a.leave(members=[identity("nobody"), identity("nobody")])
    describe(s, group)


@script()
def others_are_told_by_heartbeats(s: Session) -> None:
    _group, a, b = pair(s)
    b.leave(members=[identity(b.member_id) | {"reason": "closed"}])
    a.heartbeat()
    a.join()
    a.heartbeat()
    a.sync(a)


@script()
def while_completing(s: Session) -> None:
    group, a, b = completing(s)
    b.begin_sync()
    s.wait(0.2)
    ClassicMember(s, group, "c").leave(members=[identity(b.member_id)])
    a.heartbeat()
    a.join()
    describe(s, group)


@script()
def while_preparing_with_a_join_that_waits(s: Session) -> None:
    group, a, b = pair(s)
    waiting = b.begin_join(protocols=NEW)
    until_state(s, group, "PreparingRebalance")
    ClassicMember(s, group, "c").leave(members=[identity(b.member_id)])
    waiting()
    describe(s, group)
    a.join()


@script()
def by_instance_id(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a", "first"), ClassicMember(s, group, "b", "second")
    form(a, b)
    a.leave(members=[identity("", "unknown"), identity("nobody", "second"), identity("", "second")])
    describe(s, group)
    a.leave(4, members=[identity(a.member_id, "first")])
    describe(s, group)


@script()
def static_members_by_member_id_alone(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a", "first"), ClassicMember(s, group, "b", "second")
    form(a, b)
    b.leave(members=[identity(b.member_id)])
    describe(s, group)
    a.leave(2)
    describe(s, group)


@script()
def dynamic_member_with_an_instance_id(s: Session) -> None:
    group, a, b = pair(s)
    a.leave(members=[identity(a.member_id, "unknown")])
    a.leave(members=[identity(b.member_id, "unknown"), identity(b.member_id)])
    describe(s, group)


@script()
def joining_again_after_leaving(s: Session) -> None:
    group, a, b = pair(s)
    b.leave()
    b.join()
    b.join(member_id="")
    waiting = b.begin_join()
    until_state(s, group, "PreparingRebalance", 2)
    a.join()
    waiting()


@script()
def id_that_was_not_used_yet(s: Session) -> None:
    """The members of a stable group need not notice."""
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    form(a)
    b.join()
    b.leave()
    describe(s, group)
    a.heartbeat()
    b.join()
