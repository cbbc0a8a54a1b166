"""Describing and deleting share groups: ShareGroupDescribe, ListGroups, DeleteGroups."""

from __future__ import annotations

from tests.differential.script import Entity, Session, only, script
from tests.differential.scripts.group_heartbeats import heartbeat, ready
from tests.differential.scripts.share_state import summary_of_used


def describe(s: Session, *groups: str, operations: bool = False) -> Entity:
    return s.call("share_group_describe", 1, group_ids=list(groups), include_authorized_operations=operations)


def delete(s: Session, *groups: str, version: int = 2) -> Entity:
    return s.call("delete_groups", version, groups_names=list(groups))


def listed(s: Session, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> Entity:
    return s.call(
        "list_groups",
        5,
        keep=only("groups", "group_id", f"{s.name}-g*"),
        states_filter=states,
        types_filter=types,
    )


@script("GRP-51", "GRP-44")
def a_group_with_members(s: Session) -> None:
    ready(s)
    group = s.group()
    heartbeat(s, group, "m", 0, "missing")
    heartbeat(s, group, "n", 0, "b", "a", rack_id="r1")
    describe(s, group)
    heartbeat(s, group, "m", 2, unchanged=True)
    describe(s, group)


@script("GRP-44", "GRP-23", "GRP-45")
def an_empty_group(s: Session) -> None:
    ready(s)
    group = s.group()
    heartbeat(s, group, "m", 0, "missing")
    heartbeat(s, group, "m", -1, unchanged=True)
    describe(s, group)
    listed(s)


@script("GRP-52", "RPC-62")
def unknown_and_empty_ids(s: Session) -> None:
    ready(s)
    describe(s, s.group(), "", " ")
    describe(s)


@script("RPC-12")
def authorized_operations(s: Session) -> None:
    ready(s)
    group = s.group()
    heartbeat(s, group, "m", 0, "missing")
    describe(s, group, operations=True)


@script("GRP-52")
def the_same_id_twice(s: Session) -> None:
    ready(s)
    group = s.group()
    heartbeat(s, group, "m", 0, "missing")
    describe(s, group, group)


@script("GRP-51")
def assigned_partitions(s: Session) -> None:
    """Epochs are not compared: they depend on how long the initialization took."""
    topic, other, group = s.topic(3), s.topic(1), s.group()
    s.join(group, "m", topic, other, partitions=4)
    answer = s.prepare("share_group_describe", 1, group_ids=[group], include_authorized_operations=False)
    (row,) = answer.groups
    (member,) = row.members
    s.note("state and assignor", [row.group_state, row.assignor_name, row.error_message])
    s.note("epochs agree", [row.group_epoch == row.assignment_epoch, row.group_epoch == member.member_epoch])
    s.note(
        "assignment", sorted([t.topic_name, sorted(t.partitions)] for t in member.assignment.topic_partitions)
    )
    s.note(
        "member", [member.member_id, member.rack_id, member.client_id, sorted(member.subscribed_topic_names)]
    )


@script("GRP-49", "RPC-5")
def lists_by_version(s: Session) -> None:
    ready(s)
    group = s.group()
    heartbeat(s, group, "m", 0, "missing")
    for version in range(6):
        s.call("list_groups", version, keep=only("groups", "group_id", group))


@script("GRP-49", "RPC-5")
def filters(s: Session) -> None:
    ready(s)
    empty, stable = s.group("g-empty"), s.group("g-stable")
    heartbeat(s, stable, "m", 0, "missing")
    heartbeat(s, empty, "m", 0, "missing")
    heartbeat(s, empty, "m", -1, unchanged=True)
    listed(s)
    for state in ("Stable", "EMPTY", "empty", "Dead", "nonsense", ""):
        listed(s, states=(state,))
    for kind in ("share", "SHARE", "Classic", "consumer", "streams", "nonsense", ""):
        listed(s, types=(kind,))


@script("GRP-49", "RPC-5")
def several_filters(s: Session) -> None:
    ready(s)
    empty, stable = s.group("g-empty"), s.group("g-stable")
    heartbeat(s, stable, "m", 0, "missing")
    heartbeat(s, empty, "m", 0, "missing")
    heartbeat(s, empty, "m", -1, unchanged=True)
    listed(s, states=("Stable", "Empty"))
    listed(s, states=("nonsense", "Empty"), types=("share", "nonsense"))
    listed(s, states=("Empty",), types=("classic",))
    s.call("list_groups", 4, keep=only("groups", "group_id", f"{s.name}-g*"), states_filter=("Empty",))


@script("OFF-24", "RPC-62")
def deleting_what_cannot_be_deleted(s: Session) -> None:
    ready(s)
    group = s.group()
    heartbeat(s, group, "m", 0, "missing")
    delete(s, group)
    delete(s, s.group("other"), "")
    delete(s)
    delete(s, group, s.group("other"), version=0)


@script("OFF-24", "OFF-28", "GRP-45")
def deleting_an_empty_group(s: Session) -> None:
    ready(s)
    group = s.group()
    heartbeat(s, group, "m", 0, "missing")
    heartbeat(s, group, "m", -1, unchanged=True)
    delete(s, group)
    describe(s, group)
    listed(s)
    delete(s, group)
    heartbeat(s, group, "m", 0, "missing")


@script("OFF-25")
def deleting_twice_in_one_request(s: Session) -> None:
    ready(s)
    group = s.group()
    heartbeat(s, group, "m", 0, "missing")
    heartbeat(s, group, "m", -1, unchanged=True)
    delete(s, group, group)


@script("OFF-26", "OFF-28")
def a_deleted_group_begins_from_nothing(s: Session) -> None:
    topic, group = s.topic(), s.group()
    s.produce(topic, "one", "two")
    s.join(group, "m", topic)
    member = s.member(group, on="user")
    member.fetch({topic: {0: ()}}, wait_ms=10_000)
    member.acknowledge({topic: {0: [(0, 1, [1, 1])]}})
    member.fetch(epoch=-1)
    s.disconnect("user")  # the group's last session: Kafka drops its state in memory
    s.prepare(
        "share_group_heartbeat",
        1,
        group_id=group,
        member_id="m",
        member_epoch=-1,
        rack_id=None,
        subscribed_topic_names=None,
    )
    delete(s, group)
    summary_of_used(s, group, topic)
    s.join(group, "m", topic)
    s.member(group).fetch({topic: {0: ()}}, wait_ms=10_000)
