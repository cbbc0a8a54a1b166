"""Describing and deleting classic groups: DescribeGroups, ListGroups, DeleteGroups,
FindCoordinator."""

from __future__ import annotations

from tests.differential.classic import (
    PROBE,
    ClassicMember,
    classic_group,
    commit_rows,
    delete,
    describe,
    form,
    protocols,
    until_state,
)
from tests.differential.script import Entity, Session, Topic, only, script
from tests.differential.scripts.classic_rejoin import NEW, completing, pair


def listed(s: Session, version: int = 5, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> Entity:
    filters = {"states_filter": states, "types_filter": types}
    return s.call(
        "list_groups", version, on=PROBE, keep=only("groups", "group_id", f"{s.name}-g*"), **filters
    )


def commit_alone(s: Session, group: str, topic: Topic, offset: int = 1) -> None:
    """An offset of a group without members. Not part of the transcript."""
    s.prepare(
        "offset_commit", 8, group_id=group, generation_id_or_member_epoch=-1, member_id="",
        group_instance_id=None,
        topics=commit_rows(8, {topic: {0: offset}}),
    )  # fmt: skip


@script()
def described_in_each_version(s: Session) -> None:
    group, _a, _b = pair(s)
    for version in range(7):
        describe(s, group, f"{s.name}-missing", version=version)


@script()
def described_in_each_state(s: Session) -> None:
    group, a, b = pair(s)
    describe(s, group)
    waiting = b.begin_join(protocols=NEW, quiet=True)
    until_state(s, group, "PreparingRebalance")
    describe(s, group)
    a.join(quiet=True)
    waiting()
    describe(s, group)
    a.sync(a, b, quiet=True)
    describe(s, group)
    b.leave(quiet=True)
    a.leave(quiet=True)
    describe(s, group)
    delete(s, group)
    describe(s, group)
    describe(s, group, version=5)


@script()
def described_twice_and_none(s: Session) -> None:
    group, _a, _b = pair(s)
    describe(s, group, group)
    describe(s)
    describe(s, " ", "  ")


@script()
def authorized_operations(s: Session) -> None:
    group, _a, _b = pair(s)
    for version in (2, 3, 6):
        describe(s, group, f"{s.name}-missing", version=version, operations=version > 2)


@script()
def metadata_that_is_no_subscription(s: Session) -> None:
    group = classic_group(s)
    a = ClassicMember(s, group, "a")
    form(a, protocols=protocols("range", "odd", metadata=b"\xff\xfe\x00"))
    describe(s, group)


@script()
def clients_of_members(s: Session) -> None:
    group = classic_group(s)
    a = ClassicMember(s, group, "a", "first")
    form(a)
    again = ClassicMember(s, group, "another client", "first")
    again.join(quiet=True)
    describe(s, group)
    again.sync()
    describe(s, group)


@script()
def listed_in_each_state(s: Session) -> None:
    classic_group(s)
    stable, leaving, waiting = (
        ClassicMember(s, f"{s.name}-g-{name}", name) for name in ("stable", "empty", "completing")
    )
    form(stable)
    form(leaving)
    leaving.leave(quiet=True)
    waiting.join(quiet=True)
    waiting.join(quiet=True)
    for version in range(6):
        listed(s, version)
    every = ("Stable", "Empty", "CompletingRebalance", "PreparingRebalance", "Dead")
    several = (("Empty", "Stable"), ("Bogus", "Stable"))
    for states in ((), *((state,) for state in (*every, "stable", "EMPTY", "Bogus", "")), *several):
        listed(s, states=states)
    listed(s, 4, states=("Stable",))


@script()
def listed_by_type(s: Session) -> None:
    classic_group(s)
    form(ClassicMember(s, f"{s.name}-g-1", "a"))
    for types in (("classic",), ("Classic",), ("consumer",), ("consumer", "classic"), ("bogus",), ("",)):
        listed(s, types=types)
    listed(s, types=("classic",), states=("Stable",))
    listed(s, types=("classic",), states=("Empty",))


@script()
def listed_before_anybody_joined(s: Session) -> None:
    classic_group(s)
    for name in ("a", "b", "c"):
        member = ClassicMember(s, f"{s.name}-g-{name}", name)
        member.join(3 if name == "a" else 9, quiet=True, protocols=() if name == "a" else protocols("range"))
    listed(s)
    describe(s, *(f"{s.name}-g-{name}" for name in ("a", "b", "c")))
    delete(s, *(f"{s.name}-g-{name}" for name in ("a", "b", "c")))
    listed(s)


@script()
def groups_that_only_have_offsets(s: Session) -> None:
    classic_group(s)
    group, topic = f"{s.name}-g-simple", s.topic()
    commit_alone(s, group, topic)
    listed(s)
    listed(s, states=("Empty",), types=("classic",))
    describe(s, group)
    delete(s, group)
    listed(s)
    describe(s, group)


@script()
def deleting_in_each_state(s: Session) -> None:
    group, a, b = completing(s)
    delete(s, group)
    a.sync(a, b)
    delete(s, group, version=0)
    b.sync(quiet=True)
    waiting = b.begin_join(protocols=NEW, quiet=True)
    until_state(s, group, "PreparingRebalance")
    delete(s, group, version=1)
    a.join(quiet=True)
    waiting()
    a.leave(quiet=True)
    b.leave(quiet=True)
    delete(s, group)
    delete(s, group)
    a.heartbeat()
    a.join()


@script("RPC-6")
def deleting_unknown_groups(s: Session) -> None:
    group = classic_group(s)
    for version in (0, 1, 2, 3):
        delete(s, group, f"{group}-missing", version=version)
    delete(s)


@script()
def deleting_several(s: Session) -> None:
    classic_group(s)
    empty, stable = ClassicMember(s, f"{s.name}-g-empty", "a"), ClassicMember(s, f"{s.name}-g-stable", "b")
    form(empty)
    empty.leave(quiet=True)
    form(stable)
    delete(s, empty.group_id, stable.group_id, f"{s.name}-g-missing", empty.group_id)
    listed(s)


@script()
def a_deleted_group_begins_anew(s: Session) -> None:
    group = classic_group(s)
    a = ClassicMember(s, group, "a")
    form(a)
    a.leave(quiet=True)
    delete(s, group)
    a.join(member_id="")
    a.join()
    a.sync(a)


@script()
def coordinators_of_groups(s: Session) -> None:
    group = classic_group(s)
    for version in range(4):
        s.call("find_coordinator", version, key=group)
    for version in (4, 5, 6):
        s.call("find_coordinator", version, key_type=0, coordinator_keys=[group, "", " "])
    s.call("find_coordinator", 3, key="", key_type=0)
