"""Static members: instance ids, fencing, and returning under a new member id."""

from __future__ import annotations

from tests.differential.classic import (
    ClassicMember,
    classic_group,
    describe,
    form,
    identity,
    protocols,
    until_state,
)
from tests.differential.script import Session, script
from tests.differential.scripts.classic_rejoin import NEW


def static_pair(s: Session) -> tuple[str, ClassicMember, ClassicMember]:
    """A stable group of two static members, in generation 2; the first one leads."""
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a", "first"), ClassicMember(s, group, "b", "second")
    form(a, b)
    return group, a, b


def successor(s: Session, of: ClassicMember, name: str) -> ClassicMember:
    """A client with the instance id of another one, and no member id yet."""
    return ClassicMember(s, of.group_id, name, of.instance_id, generation=of.generation, protocol=of.protocol)


@script()
def first_join(s: Session) -> None:
    for version in (5, 6, 7, 8, 9):
        a = ClassicMember(s, classic_group(s, f"g{version}"), "a", f"instance {version}")
        a.join(version)
        a.sync(a, version=3)
        describe(s, a.group_id, version=4)


@script()
def first_join_with_an_unknown_member_id(s: Session) -> None:
    group = classic_group(s)
    a = ClassicMember(s, group, "a", "first")
    a.join(member_id="nobody")
    form(a)
    b = ClassicMember(s, group, "b", "second")
    b.join(member_id="nobody")
    b.join(member_id=a.member_id)


@script()
def instance_id_that_is_blank_or_long(s: Session) -> None:
    group = classic_group(s)
    a = ClassicMember(s, group, "a")
    for instance in ("", " ", "i" * 249, "i" * 250, "é", "."):
        answer = a.join(group_instance_id=instance)
        if answer is not None and answer.error_code.value == 0:
            a.leave(members=[identity("", instance)])
        a.member_id = ""


@script()
def follower_comes_back(s: Session) -> None:
    group, a, b = static_pair(s)
    again = successor(s, b, "again")
    again.join()
    describe(s, group)
    again.sync()
    a.heartbeat()
    again.heartbeat()


@script("BASE-61")
def leader_comes_back(s: Session) -> None:
    group, a, b = static_pair(s)
    again = successor(s, a, "again")
    again.join()
    describe(s, group)
    again.sync()
    b.heartbeat()
    again.heartbeat()
    again.sync(again, b)
    describe(s, group)


@script()
def leader_comes_back_in_old_versions(s: Session) -> None:
    for version in (5, 6, 8):
        group = classic_group(s, f"g{version}")
        a, b = (ClassicMember(s, group, f"{name}{version}", f"{name}-{version}") for name in "ab")
        form(a, b)
        again = successor(s, a, f"again{version}")
        again.join(version)
        b.heartbeat()


@script()
def comes_back_with_other_metadata(s: Session) -> None:
    group, a, b = static_pair(s)
    again = successor(s, b, "again")
    again.join(protocols=NEW, session_timeout=20_000)
    describe(s, group)
    a.heartbeat()
    b.heartbeat()
    again.sync()
    again.join(protocols=NEW)
    waiting = again.begin_join()
    until_state(s, group, "PreparingRebalance")
    a.join()
    waiting()


@script()
def leader_comes_back_with_other_metadata(s: Session) -> None:
    group, a, b = static_pair(s)
    again = successor(s, a, "again")
    again.join(protocols=NEW)
    describe(s, group)
    b.heartbeat()
    again.heartbeat()


def choosing(s: Session) -> tuple[str, ClassicMember, ClassicMember]:
    """Two static members that both know two protocols and use the first one, "range"."""
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a", "first"), ClassicMember(s, group, "b", "second")
    form(a, b, protocols=protocols("range", "sticky"))
    return group, a, b


@script()
def comes_back_with_a_protocol_that_nobody_shares(s: Session) -> None:
    group, _a, b = choosing(s)
    successor(s, b, "again").join(protocols=protocols("other"))
    describe(s, group)
    b.heartbeat()


@script()
def comes_back_and_changes_the_protocol(s: Session) -> None:
    group, a, b = choosing(s)
    again = successor(s, b, "again")
    waiting = again.begin_join(protocols=protocols("sticky"))
    until_state(s, group, "PreparingRebalance")
    b.heartbeat()
    a.heartbeat()
    a.join(protocols=protocols("range", "sticky"))
    waiting()
    a.sync(a, again)
    again.sync()
    describe(s, group)


@script()
def fenced_in_each_api(s: Session) -> None:
    _group, _a, b = static_pair(s)
    topic = s.topic()
    successor(s, b, "again").join(quiet=True)
    b.heartbeat()
    b.heartbeat(generation=9)
    b.heartbeat(2)
    b.sync()
    b.sync(generation_id=9, protocol_name="other")
    b.join()
    b.commit(topic, 1)
    b.commit(topic, 1, generation_id_or_member_epoch=9)
    b.commit(topic, 1, version=6)
    b.leave()
    b.leave(2)


@script()
def unknown_instance_id_in_each_api(s: Session) -> None:
    group, _a, b = static_pair(s)
    topic = s.topic()
    stranger = ClassicMember(s, group, "stranger", "third", b.member_id, generation=2, protocol="range")
    for member_id in (b.member_id, "nobody", ""):
        stranger.member_id = member_id
        stranger.heartbeat()
        stranger.sync()
        stranger.commit(topic, 1)
        stranger.leave()
    describe(s, group)


@script()
def instance_id_left_out(s: Session) -> None:
    group, _a, b = static_pair(s)
    b.instance_id = None
    b.heartbeat()
    b.sync()
    b.join()
    describe(s, group)


@script()
def dynamic_member_names_an_instance_id(s: Session) -> None:
    group = classic_group(s)
    a = ClassicMember(s, group, "a")
    form(a)
    a.instance_id = "first"
    a.heartbeat()
    a.sync()
    a.join()
    describe(s, group)


@script()
def follower_with_its_member_id(s: Session) -> None:
    group, a, b = static_pair(s)
    b.join()
    waiting = a.begin_join()
    until_state(s, group, "PreparingRebalance")
    b.join()
    waiting()


@script()
def two_come_for_one_while_joining(s: Session) -> None:
    group, a, b = choosing(s)
    first, second = successor(s, b, "one"), successor(s, b, "two")
    fenced = first.begin_join(protocols=protocols("sticky"))
    until_state(s, group, "PreparingRebalance")
    waiting = second.begin_join(protocols=protocols("sticky"))
    fenced()
    a.join(protocols=protocols("range", "sticky"))
    waiting()
    first.heartbeat()


@script()
def comes_back_while_completing(s: Session) -> None:
    group, a, b = static_pair(s)
    waiting = a.begin_join(quiet=True)
    until_state(s, group, "PreparingRebalance")
    b.join(quiet=True)
    waiting()
    fenced = b.begin_sync()
    s.wait(0.2)
    again = successor(s, b, "again")
    again_waiting = again.begin_join()
    fenced()
    describe(s, group)
    a.heartbeat()
    a.join()
    again_waiting()


@script()
def comes_back_to_an_empty_group(s: Session) -> None:
    _group, a, _b = static_pair(s)
    a.leave(members=[identity("", "first"), identity("", "second")], quiet=True)
    a.heartbeat()
    a.join()
    successor(s, a, "again").join()


@script()
def a_static_and_a_dynamic_member(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a", "first"), ClassicMember(s, group, "b")
    form(a, b)
    describe(s, group)
    b.leave()
    a.heartbeat()
    a.disconnect()
    successor(s, a, "again").join()


@script()
def comes_back_to_a_full_group(s: Session) -> None:
    group = classic_group(s)
    a, b, c, d = (ClassicMember(s, group, name, f"static-{name}") for name in "abcd")
    form(a, b, c, d)
    ClassicMember(s, group, "again", "static-d").join()
    a.heartbeat()
    d.heartbeat()
