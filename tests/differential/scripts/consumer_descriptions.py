"""Describing and deleting consumer groups: ConsumerGroupDescribe, ListGroups, DescribeGroups,
DeleteGroups."""

from __future__ import annotations

from tests.differential.consumers import Consumer, describe, group_of
from tests.differential.script import Session, script
from tests.differential.scripts.group_descriptions import delete, listed
from tests.differential.scripts.group_heartbeats import heartbeat
from tests.differential.scripts.group_types import PROTOCOLS, offset_commit, offset_fetch


def describe_classic(s: Session, *groups: str, version: int = 6) -> None:
    s.call("describe_groups", version, groups=list(groups), include_authorized_operations=False)


@script()
def a_group_s_states(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    m, n = Consumer(s, group, "m"), Consumer(s, group, "n")
    m.join(topic)
    describe(s, group)
    n.join(topic)
    describe(s, group)
    m.beat(owns={topic: [0]})
    n.beat()
    describe(s, group)
    m.leave()
    describe(s, group)
    n.leave()
    describe(s, group)


@script()
def states_in_lists(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    m, n = Consumer(s, group, "m"), Consumer(s, group, "n")
    m.join(topic)
    n.join(topic)
    for states in (
        (),
        ("Reconciling",),
        ("reconciling", "Stable"),
        ("Stable",),
        ("nonsense",),
        ("PreparingRebalance",),
    ):
        listed(s, states=states)
    for types in (
        ("consumer",),
        ("Consumer",),
        ("classic",),
        ("share",),
        ("nonsense",),
        ("classic", "consumer"),
        ("unknown",),
    ):
        listed(s, types=types)
    n.leave()
    listed(s)
    m.leave()
    listed(s, states=("Empty",), types=("consumer",))
    listed(s, states=("Stable",), types=("consumer",))


@script()
def lists_of_older_versions(s: Session) -> None:
    group = group_of(s)
    Consumer(s, group, "m").join("missing")
    for version in (0, 2, 3, 4):
        more = {"states_filter": ["Stable"]} if version >= 4 else {}
        answer = s.prepare("list_groups", version, **more)
        rows = [row for row in answer.groups if row.group_id == group]
        s.note(f"version {version}", [[row.protocol_type, getattr(row, "group_state", None)] for row in rows])


@script()
def unknown_and_empty_ids(s: Session) -> None:
    group = group_of(s)
    describe(s, group, "", " ")
    describe(s, group, version=0)
    describe(s)
    Consumer(s, group, "m").join("missing")
    describe(s, group, group, f"{group}-other")


@script()
def operations(s: Session) -> None:
    group = group_of(s)
    Consumer(s, group, "m").join("missing")
    describe(s, group, f"{group}-other", operations=True)


@script()
def who_a_member_is(s: Session) -> None:
    topic = s.topic()
    group = group_of(s, "g", topic)
    member = Consumer(s, group, "m", instance_id="i")
    member.join(topic, "missing", rack_id="r", server_assignor="range", subscribed_topic_regex="nothing")
    describe(s, group)
    s.connection("another", client_id="another")
    Consumer(s, group, "m", instance_id="i", on="another", epoch=member.epoch).beat(rack_id="s")
    describe(s, group)


@script()
def groups_of_other_types(s: Session) -> None:
    share, committed, classic = s.group("share"), group_of(s, "committed"), group_of(s, "classic")
    heartbeat(s, share, "m", 0, "missing")
    offset_commit(s, committed, s.topic(), 3)
    s.call(
        "join_group", 9, on="classic", group_id=classic, session_timeout=10_000, rebalance_timeout=10_000,
        member_id="",
        group_instance_id="i", protocol_type="consumer", protocols=PROTOCOLS, reason=None,
    )  # fmt: skip
    describe(s, share, committed, classic)


@script()
def described_as_a_classic_group(s: Session) -> None:
    topic = s.topic()
    group = group_of(s, "g", topic)
    member = Consumer(s, group, "m")
    member.join(topic)
    for version in (0, 3, 5, 6):
        s.call(
            "describe_groups",
            version,
            groups=[group],
            **({"include_authorized_operations": False} if version >= 3 else {}),
        )
    member.leave()
    describe_classic(s, group)


@script()
def deleting(s: Session) -> None:
    topic = s.topic()
    group = group_of(s, "g", topic)
    member = Consumer(s, group, "m")
    member.join(topic)
    delete(s, group)
    delete(s, group, f"{group}-other", "", version=0)
    member.leave()
    offset_commit(s, group, topic, 3)
    offset_fetch(s, group, topic)
    delete(s, group, group)
    delete(s, group)
    offset_fetch(s, group, topic)
    describe(s, group)
    describe_classic(s, group)
    listed(s)
    member.join(topic)
    describe(s, group)


@script()
def another_type_after_deletion(s: Session) -> None:
    group = group_of(s)
    member = Consumer(s, group, "m")
    member.join("missing")
    member.leave()
    heartbeat(s, group, "m", 0, "missing")
    delete(s, group)
    heartbeat(s, group, "m", 0, "missing")
    member.join("missing")
    describe(s, group)


@script()
def a_consumer_group_after_a_share_group(s: Session) -> None:
    group = s.group()
    group_of(s)
    heartbeat(s, group, "m", 0, "missing")
    member = Consumer(s, group, "m")
    member.join("missing")
    member.beat(2)
    member.leave()
    heartbeat(s, group, "m", -1, unchanged=True)
    member.join("missing")
    delete(s, group)
    member.join("missing")


@script()
def classic_requests(s: Session) -> None:
    group = group_of(s)
    Consumer(s, group, "m").join("missing")
    s.call(
        "sync_group", 5, group_id=group, generation_id=2, member_id="m", group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range", assignments=(),
    )  # fmt: skip
    s.call("heartbeat", 4, group_id=group, generation_id=2, member_id="m", group_instance_id=None)
    s.call("heartbeat", 4, group_id=group, generation_id=2, member_id="stranger", group_instance_id=None)
    for member_id in ("stranger", "m"):
        rows = [{"member_id": member_id, "group_instance_id": None, "reason": None}]
        s.call("leave_group", 5, group_id=group, members=rows)
    describe(s, group)
