"""Partitions that move from one member to another: revoked, given up, assigned; which member gets
which answer at which epoch, and for how long."""

from __future__ import annotations

from uuid import UUID

from tests.differential.consumers import Consumer, describe, group_of
from tests.differential.script import Session, Topic, script
from tests.differential.scripts.group_configs import SET, change, settled


def two(s: Session, partitions: int = 4, **first: object) -> tuple[str, Topic, Consumer, Consumer]:
    """The member m has all partitions of a topic, and n has just joined."""
    topic = s.topic(partitions)
    group = group_of(s, "g", topic)
    m, n = Consumer(s, group, "m", on="m"), Consumer(s, group, "n", on="n")
    m.join(topic, **first)
    n.join(topic)
    return group, topic, m, n


@script()
def step_by_step(s: Session) -> None:
    group, topic, m, n = two(s)
    describe(s, group)
    n.beat()
    m.beat()
    describe(s, group)
    n.beat()
    m.beat()
    m.beat(owns={topic: [0, 1, 2, 3]})
    m.beat(owns={topic: [0, 1, 2]})
    m.beat(owns={topic: [0, 1]})
    describe(s, group)
    n.beat()
    n.beat(owns={topic: [2, 3]})
    m.beat()
    describe(s, group)


@script()
def what_is_given_up_must_be_reported(s: Session) -> None:
    _, topic, m, n = two(s)
    m.beat(owns={topic: [0, 1, 2, 3]})
    m.beat(subscribed_topic_names=[topic.name], rebalance_timeout=60_000)
    m.beat(owns={topic: [0, 1]})
    n.beat()


@script()
def giving_up_at_once(s: Session) -> None:
    group, topic, m, n = two(s)
    m.beat(owns={topic: [0, 1]})
    m.beat(owns={topic: [0, 1]})
    n.beat()
    describe(s, group)


@script()
def giving_up_everything(s: Session) -> None:
    _, _, m, n = two(s)
    m.beat()
    m.beat(owns={})
    n.beat()
    m.beat(owns={})
    m.beat()


@script()
def the_epoch_while_partitions_are_given_up(s: Session) -> None:
    group, topic, m, n = two(s)
    m.beat()
    for epoch in (1, 3, 2):
        m.beat(epoch)
    m.beat(1, owns={topic: [0, 1, 2, 3]})
    m.beat(1, owns={topic: [0, 1]})
    m.beat(2, owns={topic: [0, 1]})
    m.beat(2, owns={topic: [0, 1]})
    m.beat(2, owns={topic: [0, 1, 2]})
    m.beat(2)
    n.beat(3)
    n.beat(2)
    n.beat(2, owns={})
    n.beat(2, owns={topic: [2, 3]})
    describe(s, group)


@script()
def a_third_member_and_one_that_leaves(s: Session) -> None:
    group, topic, m, n = two(s, 6)
    m.beat()
    m.beat(owns={topic: [0, 1, 2]})
    n.beat()
    o = Consumer(s, group, "o", on="o")
    o.join(topic)
    m.beat()
    n.beat()
    describe(s, group)
    m.beat(owns={topic: [0, 1]})
    o.beat()
    n.leave()
    o.beat()
    m.beat()
    o.beat()
    m.beat()
    describe(s, group)


@script()
def somebody_leaves_before_a_revocation_ends(s: Session) -> None:
    group, topic, m, n = two(s)
    m.beat()
    n.leave()
    m.beat()
    m.beat(owns={topic: [0, 1, 2, 3]})
    m.beat(owns={topic: [0, 1]})
    m.beat()
    describe(s, group)


@script()
def the_owner_leaves_before_it_has_given_up(s: Session) -> None:
    group, _, m, n = two(s)
    m.beat()
    n.beat()
    m.leave()
    n.beat()
    n.beat()
    describe(s, group)


@script()
def a_second_change_before_the_first_has_ended(s: Session) -> None:
    group, topic, m, n = two(s, 6)
    m.beat()
    o = Consumer(s, group, "o", on="o")
    o.join(topic)
    m.beat()
    m.beat(owns={topic: [0, 1, 2]})
    m.beat(owns={topic: [0, 1]})
    n.beat()
    o.beat()
    describe(s, group)


@script()
def joining_again_while_partitions_are_given_up(s: Session) -> None:
    group, topic, m, n = two(s)
    m.beat()
    m.join(topic)
    n.beat()
    m.join(topic)
    m.beat()
    describe(s, group)


@script()
def topics_in_the_middle_of_a_revocation(s: Session) -> None:
    group, topic, m, n = two(s)
    other = s.topic()
    group_of(s, "g", other)
    m.beat()
    m.beat(subscribed_topic_names=[topic.name, other.name])
    m.beat(owns={topic: [0, 1]})
    n.beat()
    m.beat(owns={topic: [0, 1], other: [0]})
    describe(s, group)


@script()
def owned_partitions_that_make_no_sense(s: Session) -> None:
    group, topic, m, n = two(s)
    m.beat()
    for rows in (
        [{"topic_id": UUID(int=0), "partitions": [0]}],
        [{"topic_id": UUID(int=9), "partitions": [0]}, {"topic_id": topic.topic_id, "partitions": [2]}],
        [{"topic_id": topic.topic_id, "partitions": [-1, 99, 3, 3]}],
        [{"topic_id": topic.topic_id, "partitions": [2]}, {"topic_id": topic.topic_id, "partitions": [0]}],
        [{"topic_id": topic.topic_id, "partitions": []}],
    ):
        m.beat(topic_partitions=rows)
    n.beat()
    m.beat(2, owns={topic: [0, 0]})
    describe(s, group)


@script(seconds=3.0)
def not_given_up_in_time(s: Session) -> None:
    group, topic, m, n = two(s, rebalance_timeout=2000)
    m.beat()
    s.wait(0.5)
    m.beat(owns={topic: [0, 1, 2, 3]})
    s.wait(2.5)
    m.beat(owns={topic: [0, 1, 2, 3]})
    n.beat()
    n.beat()
    describe(s, group)
    m.join(topic)


@script(seconds=3.0)
def given_up_in_time(s: Session) -> None:
    group, topic, m, n = two(s, rebalance_timeout=2000)
    m.beat()
    m.beat(owns={topic: [0, 1]})
    s.wait(3.0)
    m.beat()
    n.beat()
    describe(s, group)


@script(seconds=4.0)
def the_session_of_an_owner_expires(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    m, n = Consumer(s, group, "m"), Consumer(s, group, "n")
    m.join(topic)
    change(
        s, group, ("consumer.heartbeat.interval.ms", SET, "200"), ("consumer.session.timeout.ms", SET, "2000")
    )
    settled(s, group, "consumer.session.timeout.ms", "2000")
    n.join(topic)
    m.beat()
    describe(s, group)
    for _ in range(6):
        s.wait(0.6)
        n.silently()
    m.beat()
    n.silently()
    describe(s, group)
    s.until(lambda: _is_empty(s, group), "the other session has expired as well")
    n.beat()


def _is_empty(s: Session, group: str) -> bool:
    answer = s.prepare("consumer_group_describe", 1, group_ids=[group], include_authorized_operations=False)
    return bool(answer.groups[0].group_state == "Empty")
