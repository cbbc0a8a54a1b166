"""Topics that are deleted, recreated and grown while groups use them."""

from __future__ import annotations

from tests.differential.script import ACCEPT, Session, Topic, script
from tests.differential.scripts.group_heartbeats import heartbeat
from tests.differential.scripts.share_state import summary_of_used


def delete_topic(s: Session, topic: Topic) -> None:
    answer = s.prepare("delete_topics", 5, topic_names=[topic.name], timeout=30_000)
    assert not answer.responses[0].error_code.value

    def gone() -> bool:
        rows = s.prepare(
            "metadata", 12, topics=[{"topic_id": None, "name": topic.name}], allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        ).topics  # fmt: skip
        return bool(rows[0].error_code.value == 3)

    s.until(gone, "the topic is gone")


def grow(s: Session, topic: Topic, count: int) -> None:
    rows = [{"name": topic.name, "count": count, "assignments": None}]
    answer = s.prepare("create_partitions", 3, topics=rows, timeout=30_000, validate_only=False)
    assert not answer.results[0].error_code.value
    s.learn(topic.name, count)


def assigned(s: Session, group: str, member: str, partitions: int, topic: Topic) -> None:
    """Send heartbeats with topics until that many partitions are assigned to the member; the
    assignment is a step."""
    found: list[object] = []

    def settled() -> bool:
        answer = s.prepare(
            "share_group_heartbeat", 1, group_id=group, member_id=member, member_epoch=0, rack_id=None,
            subscribed_topic_names=[topic.name],
        )  # fmt: skip
        rows = (
            [[row.topic_id, sorted(row.partitions)] for row in answer.assignment.topic_partitions]
            if answer.assignment
            else []
        )
        found[:] = rows
        return sum(len(row[1]) for row in rows) == partitions

    s.until(settled, f"{partitions} partitions are assigned")
    s.note("assignment", list(found))


@script("GRP-30", "INIT-9", "SC-49")
def a_topic_is_deleted(s: Session) -> None:
    topic, group = s.topic(), s.group()
    s.join(group, "m", topic)
    summary_of_used(s, group, topic)
    delete_topic(s, topic)
    assigned(s, group, "m", 0, topic)


@script("GRP-30", "GRP-32", "INIT-3")
def a_topic_is_deleted_and_made_again(s: Session) -> None:
    topic, group = s.topic(), s.group()
    s.produce(topic, "old")
    s.join(group, "m", topic)
    delete_topic(s, topic)
    assigned(s, group, "m", 0, topic)
    again = s.topic(name=topic.name)
    assigned(s, group, "m", 1, again)
    s.produce(again, "new")
    s.member(group).fetch({again: {0: ()}}, wait_ms=10_000)


@script("GRP-15", "GRP-30")
def a_topic_is_made_after_it_was_subscribed_to(s: Session) -> None:
    other, group = s.topic(), s.group()
    name = f"{s.name}-later"
    s.join(group, "n", other)
    heartbeat(s, f"{group}2", "m", 0, name)
    topic = s.topic(name=name)
    assigned(s, f"{group}2", "m", 1, topic)


@script("INIT-4", "GRP-30")
def a_topic_grows(s: Session) -> None:
    """Records that arrive before the group knows of the new partition are consumed, whatever the
    reset policy, since 4.4."""
    topic, group = s.topic(), s.group()
    s.join(group, "m", topic)
    grow(s, topic, 3)
    assigned(s, group, "m", 3, topic)
    for partition in range(3):
        summary_of_used(s, group, topic, partition=partition)


@script("INIT-4", "CFG-18", seconds=2.0)
def new_partitions_under_the_policy_latest(s: Session) -> None:
    topic, group = s.topic(), s.group(share_auto_offset_reset="latest")
    s.join(group, "m", topic)
    grow(s, topic, 2)
    s.produce(topic, "one", partition=1)
    assigned(s, group, "m", 2, topic)
    s.member(group).fetch({topic: {1: ()}}, wait_ms=1000)


@script("GRP-33", "ASG-6")
def another_topic_instead(s: Session) -> None:
    topic, other, group = s.topic(), s.topic(2), s.group()
    s.join(group, "m", topic)
    assigned(s, group, "m", 2, other)
    assigned(s, group, "m", 1, topic)
    summary_of_used(s, group, other)


@script("SC-49", "RPC-34")
def acknowledging_in_a_deleted_topic(s: Session) -> None:
    topic, group = s.topic(), s.group()
    s.produce(topic, "one")
    s.join(group, "m", topic)
    member = s.member(group)
    member.fetch({topic: {0: ()}}, wait_ms=10_000)
    delete_topic(s, topic)
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}})


@script("RPC-35")
def fetching_from_a_deleted_topic(s: Session) -> None:
    topic, group = s.topic(), s.group()
    s.produce(topic, "one")
    s.join(group, "m", topic)
    member = s.member(group)
    member.fetch({topic: {0: ()}}, wait_ms=10_000)
    delete_topic(s, topic)
    member.fetch()
    member.fetch(epoch=2, forget={topic: [0]})
    member.fetch(epoch=3)


@script("OFF-26", "OFF-28")
def a_group_is_deleted_after_its_topic(s: Session) -> None:
    topic, group = s.topic(), s.group()
    s.join(group, "m", topic)
    delete_topic(s, topic)
    s.prepare(
        "share_group_heartbeat",
        1,
        group_id=group,
        member_id="m",
        member_epoch=-1,
        rack_id=None,
        subscribed_topic_names=None,
    )
    s.call("delete_groups", 2, groups_names=[group])
