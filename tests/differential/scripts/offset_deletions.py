"""How committed offsets are removed: OffsetDelete, DeleteGroups, and the deletion of their
topic."""

from __future__ import annotations

from tests.differential.classic import (
    ClassicMember,
    classic_group,
    delete,
    describe,
    form,
    protocols,
    share_out,
    subscription,
    until_state,
)
from tests.differential.script import Entity, Session, Topic, script
from tests.differential.scripts.classic_rejoin import NEW
from tests.differential.scripts.offset_commits import ADMIN, commit, fetch


def delete_offsets(s: Session, group: str, topics: dict[str, list[int]]) -> Entity:
    rows = [
        {"name": name, "partitions": [{"partition_index": index} for index in which]}
        for name, which in topics.items()
    ]
    return s.call("offset_delete", 0, on=ADMIN, group_id=group, topics=rows)


def remove(s: Session, topic: Topic) -> None:
    s.prepare("delete_topics", 5, topic_names=[topic.name], timeout=30_000)
    s.until(lambda: s.gone(topic), f"{topic.name} is gone")


def subscribed(s: Session, *topics: Topic) -> ClassicMember:
    """The only member of a stable group, subscribed to these topics by its metadata."""
    a = ClassicMember(s, classic_group(s), "a")
    form(a, protocols=protocols("range", metadata=subscription(*topics)))
    return a


@script()
def of_a_group_without_members(s: Session) -> None:
    group, topic, other = classic_group(s), s.topic(2), s.topic()
    commit(s, group, {topic: {0: 1, 1: 2}, other: {0: 3}})
    delete_offsets(s, group, {topic.name: [0]})
    fetch(s, group, None)
    delete_offsets(s, group, {topic.name: [0, 1], other.name: [0]})
    fetch(s, group, None)
    describe(s, group)


@script()
def group_after_its_last_offset(s: Session) -> None:
    group, topic = classic_group(s), s.topic()
    commit(s, group, {topic: {0: 1}})
    delete_offsets(s, group, {topic.name: [0]})
    describe(s, group)
    delete_offsets(s, group, {topic.name: [0]})
    delete(s, group)


@script()
def unknown_groups(s: Session) -> None:
    group, topic = classic_group(s), s.topic()
    for unknown in (group, "", " "):
        delete_offsets(s, unknown, {topic.name: [0]})
        delete_offsets(s, unknown, {})


@script()
def unknown_topics_and_partitions(s: Session) -> None:
    group, topic, other = classic_group(s), s.topic(), s.topic()
    commit(s, group, {topic: {0: 1}})
    delete_offsets(s, group, {topic.name: [0, 1, -1], f"{s.name}-missing": [0], other.name: [0], "": [0]})
    delete_offsets(s, group, {f"{s.name}-missing": [0]})
    delete_offsets(s, group, {topic.name: []})
    delete_offsets(s, group, {})
    fetch(s, group, None)


@script()
def the_same_partition_twice(s: Session) -> None:
    group, topic = classic_group(s), s.topic()
    commit(s, group, {topic: {0: 1}})
    delete_offsets(s, group, {topic.name: [0, 0]})
    fetch(s, group, None)


@script()
def topics_that_members_subscribe_to(s: Session) -> None:
    topic, other = s.topic(), s.topic()
    a = subscribed(s, topic)
    a.commit(topic, 1)
    a.commit(other, 1)
    delete_offsets(s, a.group_id, {topic.name: [0, 1], other.name: [0], f"{s.name}-missing": [0]})
    fetch(s, a.group_id, None)
    a.leave()
    delete_offsets(s, a.group_id, {topic.name: [0]})
    fetch(s, a.group_id, None)


@script()
def topics_that_one_of_two_members_subscribes_to(s: Session) -> None:
    topic, other, third = (s.topic() for _ in range(3))
    group = classic_group(s)
    a, b = (ClassicMember(s, group, name) for name in "ab")
    form(a, b)
    for each in (topic, other, third):
        a.commit(each, 1)
    waiting = [b.begin_join(protocols=protocols("range", metadata=subscription(other)))]
    until_state(s, group, "PreparingRebalance")
    waiting.append(a.begin_join(protocols=protocols("range", metadata=subscription(topic))))
    for answer in waiting:
        answer()
    everything = {topic.name: [0], other.name: [0], third.name: [0]}
    delete_offsets(s, group, everything)
    share_out(a, b)
    delete_offsets(s, group, everything)
    b.leave()
    delete_offsets(s, group, everything)
    fetch(s, group, None)


@script()
def during_a_rebalance(s: Session) -> None:
    topic, other = s.topic(), s.topic()
    a = subscribed(s, topic)
    b = ClassicMember(s, a.group_id, "b")
    a.commit(topic, 1)
    a.commit(other, 1)
    b.join(quiet=True)
    b.begin_join(protocols=NEW)
    until_state(s, a.group_id, "PreparingRebalance", 2)
    delete_offsets(s, a.group_id, {topic.name: [0], other.name: [0]})


@script()
def subscriptions_that_cannot_be_read(s: Session) -> None:
    topic = s.topic()
    a = ClassicMember(s, classic_group(s), "a")
    form(a, protocols=protocols("range", metadata=b"\xff"))
    a.commit(topic, 1)
    delete_offsets(s, a.group_id, {topic.name: [0]})


@script()
def members_of_another_protocol_type(s: Session) -> None:
    topic = s.topic()
    a = ClassicMember(s, classic_group(s), "a")
    a.join(protocol_type="connect")
    a.join(protocol_type="connect")
    a.commit(topic, 1)
    a.sync(a, protocol_type="connect")
    a.commit(topic, 1)
    delete_offsets(s, a.group_id, {topic.name: [0]})
    a.leave()
    delete_offsets(s, a.group_id, {topic.name: [0]})


@script()
def before_the_leader_has_synced(s: Session) -> None:
    topic = s.topic()
    a = ClassicMember(s, classic_group(s), "a")
    commit(s, a.group_id, {topic: {0: 1}})
    for _ in ("an id", "joined"):
        a.join(protocols=protocols("range", metadata=subscription(topic)))
    delete_offsets(s, a.group_id, {topic.name: [0]})


@script()
def deleted_group_has_no_offsets(s: Session) -> None:
    group, topic = classic_group(s), s.topic()
    a = ClassicMember(s, group, "a")
    form(a)
    a.commit(topic, 5)
    a.leave()
    delete(s, group)
    fetch(s, group, [topic])
    fetch(s, group, None)
    form(ClassicMember(s, group, "b"))
    fetch(s, group, None)


@script()
def topic_is_deleted(s: Session) -> None:
    group, topic, other = classic_group(s), s.topic(), s.topic()
    commit(s, group, {topic: {0: 5}, other: {0: 6}})
    remove(s, topic)
    s.until(lambda: len(_offsets(s, group)) == 1, "the topic's offsets are gone")
    fetch(s, group, [topic, other])
    fetch(s, group, None)
    commit(s, group, {topic: {0: 7}})
    fetch(s, group, [topic, other], 10)


@script()
def topic_is_made_again(s: Session) -> None:
    group, topic = classic_group(s), s.topic(name=f"{s.name}-again")
    commit(s, group, {topic: {0: 5}})
    remove(s, topic)
    s.until(lambda: not _offsets(s, group), "the topic's offsets are gone")
    again = s.topic(name=f"{s.name}-again")
    fetch(s, group, [again])
    commit(s, group, {again: {0: 1}}, 10)
    fetch(s, group, [again])


@script()
def topic_of_a_stable_group_is_deleted(s: Session) -> None:
    topic, other = s.topic(), s.topic()
    a = subscribed(s, topic)
    a.commit(topic, 5)
    a.commit(other, 6)
    remove(s, topic)
    s.until(lambda: len(_offsets(s, a.group_id)) == 1, "the topic's offsets are gone")
    a.heartbeat()
    a.commit(topic, 7)
    fetch(s, a.group_id, None)
    describe(s, a.group_id)


@script()
def only_topic_of_a_simple_group_is_deleted(s: Session) -> None:
    group, topic = classic_group(s), s.topic()
    commit(s, group, {topic: {0: 5}})
    remove(s, topic)
    s.until(lambda: not _offsets(s, group), "the topic's offsets are gone")
    describe(s, group)
    fetch(s, group, None)


def _offsets(s: Session, group: str) -> list[int]:
    answer = s.prepare(
        "offset_fetch", 8, on=ADMIN, groups=[{"group_id": group, "topics": None}], require_stable=False
    )
    return [row.committed_offset for topic in answer.groups[0].topics for row in topic.partitions]
