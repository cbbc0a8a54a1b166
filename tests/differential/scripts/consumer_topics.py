"""Topics of consumer groups that appear, grow and disappear, and the resulting assignments."""

from __future__ import annotations

from uuid import UUID

from tests.differential.consumers import Consumer, describe, group_of, wait_for_partitions
from tests.differential.script import Session, Topic, script
from tests.differential.scripts.base_topics import wanted


def created(s: Session, name: str, partitions: int) -> Topic:
    rows = [wanted(name, partitions)]
    s.prepare("create_topics", 7, topics=rows, timeout=30_000, validate_only=False)
    return s.learn(name, partitions)


def grown(s: Session, group: str, topic: Topic, count: int) -> None:
    rows = [{"name": topic.name, "count": count, "assignments": None}]
    s.prepare("create_partitions", 3, topics=rows, timeout=30_000, validate_only=False)
    s.learn(topic.name, count)
    wait_for_partitions(s, group, topic, count)


def deleted(s: Session, group: str, topic: Topic) -> None:
    s.prepare("delete_topics", 6, topics=[{"name": topic.name, "topic_id": UUID(int=0)}], timeout=30_000)
    s.until(lambda: s.gone(topic), f"{topic.name} is gone")
    wait_for_partitions(s, group, topic, 0)


@script()
def a_topic_grows(s: Session) -> None:
    topic = s.topic(1)
    group = group_of(s, "g", topic)
    m, n = Consumer(s, group, "m"), Consumer(s, group, "n")
    m.join(topic)
    n.join(topic)
    n.beat()
    grown(s, group, topic, 3)
    describe(s, group)
    n.beat()
    describe(s, group)
    m.beat()
    n.beat()
    describe(s, group)


@script()
def a_topic_that_is_created_later(s: Session) -> None:
    group = group_of(s)
    member = Consumer(s, group, "m")
    name = f"{s.name}-later"
    member.join(name)
    topic = created(s, name, 2)
    wait_for_partitions(s, group, topic)
    describe(s, group)
    member.beat()
    describe(s, group)


@script()
def a_topic_is_deleted(s: Session) -> None:
    topic, other = s.topic(2), s.topic()
    group = group_of(s, "g", topic, other)
    member = Consumer(s, group, "m")
    member.join(topic, other)
    deleted(s, group, topic)
    describe(s, group)
    member.beat()
    member.beat(owns={topic: [0, 1], other: [0]})
    describe(s, group)
    member.beat(owns={other: [0]})
    describe(s, group)


@script()
def the_only_topic_is_deleted(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    m, n = Consumer(s, group, "m"), Consumer(s, group, "n")
    m.join(topic)
    deleted(s, group, topic)
    n.join(topic)
    m.beat(owns={})
    m.beat()
    describe(s, group)


@script()
def the_same_name_again(s: Session) -> None:
    topic = s.topic(2, name=f"{s.name}-t")
    group = group_of(s, "g", topic)
    member = Consumer(s, group, "m")
    member.join(topic)
    deleted(s, group, topic)
    again = created(s, topic.name, 1)
    wait_for_partitions(s, group, again, 1)
    s.names.topics[again.topic_id] = "the new one"
    member.beat()
    member.beat(owns={topic: [0, 1]})
    member.beat(owns={again: [0]})
    member.beat(owns={})
    describe(s, group)


@script()
def a_topic_grows_that_nobody_reads(s: Session) -> None:
    topic, other = s.topic(), s.topic()
    group = group_of(s, "g", topic, other)
    member = Consumer(s, group, "m")
    member.join(topic)
    grown(s, group, other, 3)
    member.beat()
    describe(s, group)


@script()
def a_topic_grows_while_the_group_is_empty(s: Session) -> None:
    topic = s.topic()
    group = group_of(s, "g", topic)
    member = Consumer(s, group, "m")
    member.join(topic)
    member.leave()
    grown(s, group, topic, 2)
    describe(s, group)
    member.join(topic)
