"""Static members of consumer groups: absent for a while, back under another member id, and members
that take an instance id in use."""

from __future__ import annotations

from tests.differential.consumers import Consumer, describe, group_of
from tests.differential.script import Session, script
from tests.differential.scripts.group_configs import SET, change, settled


def static(s: Session, group: str, member_id: str, instance_id: str = "i") -> Consumer:
    return Consumer(s, group, member_id, instance_id=instance_id)


@script()
def gone_for_a_while_and_back(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    first = static(s, group, "m")
    first.join(topic)
    describe(s, group)
    first.leave(-2)
    describe(s, group)
    second = static(s, group, "n")
    second.join(topic)
    second.beat()
    describe(s, group)
    first.beat(2)
    first.leave()


@script()
def back_under_the_same_member_id(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    member = static(s, group, "m")
    member.join(topic)
    member.leave(-2)
    member.beat(2)
    member.beat(-2)
    member.join(topic)
    member.beat()


@script()
def back_with_another_subscription(s: Session) -> None:
    topic, other = s.topic(2), s.topic()
    group = group_of(s, "g", topic, other)
    static(s, group, "m").join(topic)
    static(s, group, "m").leave(-2)
    second = static(s, group, "n")
    second.join(topic, other)
    second.beat(owns={topic: [0, 1]})
    describe(s, group)


@script()
def an_instance_id_in_use(s: Session) -> None:
    topic = s.topic()
    group = group_of(s, "g", topic)
    first, second = static(s, group, "m"), static(s, group, "n")
    first.join(topic)
    second.join(topic)
    second.beat(2)
    second.leave()
    second.leave(-2)
    first.beat()
    first.leave()
    second.join(topic)
    first.beat(2)
    first.leave()
    first.leave(-2)


@script()
def the_old_member_is_fenced(s: Session) -> None:
    group = group_of(s)
    first, second = static(s, group, "m"), static(s, group, "n")
    first.join("missing")
    first.leave(-2)
    second.join("missing")
    first.beat(2)
    first.beat(-1)
    first.beat(-2)
    first.join("missing")
    Consumer(s, group, "m").beat(2)
    second.beat()


@script()
def leaving_for_good(s: Session) -> None:
    topic = s.topic()
    group = group_of(s, "g", topic)
    first = static(s, group, "m")
    first.join(topic)
    first.leave()
    describe(s, group)
    first.leave(-2)
    static(s, group, "n").join(topic)


@script()
def leaving_for_good_while_away(s: Session) -> None:
    topic = s.topic()
    group = group_of(s, "g", topic)
    first = static(s, group, "m")
    first.join(topic)
    first.leave(-2)
    first.leave(-2)
    first.leave(-1)
    describe(s, group)


@script()
def others_wait_while_one_is_away(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    first, second, other = static(s, group, "a"), static(s, group, "c"), Consumer(s, group, "b")
    first.join(topic)
    other.join(topic)
    first.beat()
    first.beat(owns={topic: [0]})
    first.beat(owns={topic: [1]})
    other.beat()
    first.leave(-2)
    other.beat()
    describe(s, group)
    second.join(topic)
    other.beat()
    second.beat()


@script()
def away_in_the_middle_of_a_revocation(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    first, second, other = static(s, group, "a"), static(s, group, "c"), Consumer(s, group, "b")
    first.join(topic)
    other.join(topic)
    first.beat()
    first.leave(-2)
    other.beat()
    describe(s, group)
    second.join(topic)
    other.beat()
    describe(s, group)


@script()
def names_that_come_and_go(s: Session) -> None:
    group = group_of(s)
    member, dynamic = static(s, group, "m"), Consumer(s, group, "n")
    member.join("missing")
    dynamic.join("missing")
    Consumer(s, group, "m").beat(3)
    static(s, group, "n", "j").beat(3)
    Consumer(s, group, "m").join("missing")
    static(s, group, "n", "j").join("missing")
    static(s, group, "m", "k").beat(3)
    describe(s, group)
    Consumer(s, group, "m").leave()
    describe(s, group)


@script()
def version_0(s: Session) -> None:
    group = group_of(s)
    first = Consumer(s, group, "", version=0, instance_id="i")
    first.join("missing")
    second = Consumer(s, group, "", version=0, instance_id="i")
    second.join("missing")
    first.leave(-2)
    second.join("missing")
    first.beat(2)
    second.beat()


@script(seconds=4.0)
def away_for_longer_than_the_session(s: Session) -> None:
    group = group_of(s)
    rows = (("consumer.heartbeat.interval.ms", SET, "500"), ("consumer.session.timeout.ms", SET, "1000"))
    change(s, group, *rows)
    settled(s, group, "consumer.session.timeout.ms", "1000")
    first = static(s, group, "m")
    first.join("missing")
    first.leave(-2)
    s.wait(3.0)
    describe(s, group)
    static(s, group, "n").join("missing")
