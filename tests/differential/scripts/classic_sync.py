"""SyncGroup and Heartbeat in every state of the group, with good and stale ids."""

from __future__ import annotations

from tests.differential.classic import ClassicMember, classic_group, describe, form, until_state
from tests.differential.script import Session, script
from tests.differential.scripts.classic_rejoin import NEW, completing, pair


@script()
def sync_in_each_version(s: Session) -> None:
    _group, a, b = completing(s)
    a.sync(a, b, version=0)
    for version in range(6):
        b.sync(version=version)


@script()
def follower_first(s: Session) -> None:
    group, a, b = completing(s)
    waiting = b.begin_sync()
    s.wait(0.2)
    describe(s, group)
    a.sync(a, b)
    waiting()
    describe(s, group)


@script()
def followers_assignments_are_ignored(s: Session) -> None:
    group, a, b = completing(s)
    waiting = b.begin_sync(a, b)
    s.wait(0.2)
    describe(s, group)
    a.sync()
    waiting()
    describe(s, group)


@script()
def sync_of_a_stable_group(s: Session) -> None:
    group, a, b = pair(s)
    a.sync()
    b.sync(b)
    a.sync(b)
    b.sync()
    describe(s, group)


@script()
def wrong_generations(s: Session) -> None:
    _group, a, b = completing(s)
    for generation in (2, 4, 0, -1):
        a.sync(a, b, generation_id=generation)
        a.heartbeat(generation=generation)
    a.sync(a, b)
    for generation in (2, 4, 0, -1):
        a.sync(generation_id=generation)
        a.heartbeat(generation=generation)


@script()
def unknown_members(s: Session) -> None:
    _group, a, b = completing(s)
    for member in ("nobody", ""):
        a.sync(a, b, member_id=member)
        a.heartbeat(member_id=member)
    a.sync(a, b)
    for member in ("nobody", ""):
        a.sync(member_id=member, generation_id=9)
        a.heartbeat(member_id=member, generation=9)


@script()
def unknown_group(s: Session) -> None:
    group = classic_group(s)
    a = ClassicMember(s, group, "a", member_id="nobody", generation=1)
    for version in (0, 3, 5):
        a.sync(version=version)
    for version in (0, 3, 4):
        a.heartbeat(version)
    for version in (0, 2, 3, 5):
        a.leave(version)
    describe(s, group)


@script()
def protocol_of_sync(s: Session) -> None:
    _group, a, b = completing(s)
    a.sync(a, b, protocol_type="connect")
    a.sync(a, b, protocol_name="sticky")
    a.sync(a, b, protocol_type=None)
    a.sync(a, b, protocol_name=None)
    a.sync(a, b, protocol_type=None, protocol_name=None)
    a.sync(a, b, protocol_name="sticky", generation_id=7)
    a.sync(a, b, protocol_name="sticky", member_id="nobody")
    a.sync(a, b, protocol_name=None, member_id="nobody", group_id="")
    a.sync(a, b)
    b.sync(protocol_name="sticky")
    b.sync(protocol_type=None)
    b.sync()


@script()
def assignments_for_others(s: Session) -> None:
    group, a, b = completing(s)
    rows = [{"member_id": a.member_id, "assignment": b"1"}, {"member_id": a.member_id, "assignment": b"2"}]
    a.sync(assignments=[*rows, {"member_id": "nobody", "assignment": b"3"}])
    b.sync()
    describe(s, group)


@script()
def while_preparing(s: Session) -> None:
    group, a, b = pair(s)
    answer = b.begin_join(protocols=NEW)
    until_state(s, group, "PreparingRebalance")
    a.sync(a, b)
    a.sync(a, b, generation_id=9)
    a.heartbeat()
    a.heartbeat(generation=9)
    a.heartbeat(0)
    a.join()
    answer()


@script()
def while_completing(s: Session) -> None:
    group, a, b = completing(s)
    a.heartbeat()
    b.heartbeat()
    b.heartbeat(generation=2)
    waiting = b.begin_sync()
    s.wait(0.2)
    b_again = ClassicMember(s, group, "again", member_id=b.member_id, generation=3)
    b_again.heartbeat()
    a.sync(a, b)
    waiting()


@script()
def heartbeat_in_each_version(s: Session) -> None:
    _group, a, b = pair(s)
    for version in range(5):
        a.heartbeat(version)
        b.heartbeat(version, generation=1)


@script()
def empty_group(s: Session) -> None:
    group = classic_group(s)
    a = ClassicMember(s, group, "a")
    form(a)
    a.leave()
    for generation in (0, 1, 2):
        a.heartbeat(generation=generation)
        a.sync(generation_id=generation)
    a.leave()


@script()
def the_same_sync_again_while_it_waits(s: Session) -> None:
    group, a, b = completing(s)
    b.begin_sync()
    s.wait(0.2)
    again = ClassicMember(s, group, "again", member_id=b.member_id, generation=3)
    waiting = again.begin_sync()
    s.wait(0.2)
    a.sync(a, b)
    waiting()


@script()
def leader_leaves_while_followers_wait(s: Session) -> None:
    group, a, b = completing(s)
    waiting = b.begin_sync()
    s.wait(0.2)
    a.leave()
    waiting()
    describe(s, group)
    b.join()
    b.sync(b)


@script()
def follower_leaves_before_the_leader_syncs(s: Session) -> None:
    group, a, b = completing(s)
    b.leave()
    a.sync(a, b)
    a.join()
    a.sync(a)
    describe(s, group)


@script()
def empty_assignments(s: Session) -> None:
    group = classic_group(s)
    a = ClassicMember(s, group, "a")
    a.join()
    a.join()
    a.sync()
    describe(s, group)
    a.join()
    a.sync(assignments=[{"member_id": a.member_id, "assignment": b""}])
