"""Classic groups that become consumer groups during a rebalance."""

from __future__ import annotations

from tests.differential.classic import ClassicMember, form, until_state
from tests.differential.consumers import Consumer, describe, group_of
from tests.differential.mixed_groups import assigned, offered, subscribed
from tests.differential.script import Session, Topic, script


def joined_again(s: Session, a: ClassicMember, b: ClassicMember, topic: Topic) -> None:
    """Both members have joined the next generation, and the leader a has not synced. Not part of
    the transcript."""
    leading = a.begin_join(quiet=True, protocols=offered(subscribed(topic)))
    until_state(s, a.group_id, "PreparingRebalance", 2)
    b.join(quiet=True, protocols=offered(subscribed(topic)))
    leading()


@script()
def before_the_leader_has_synced(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    a = ClassicMember(s, group, "a")
    a.enter(protocols=offered(subscribed(topic)))()
    n = Consumer(s, group, "o", on="n")  # comes last, also in the order of Kafka's hash tables
    n.join(topic)
    describe(s, group)
    a.sync(assignments=[{"member_id": a.member_id, "assignment": assigned({topic: [0, 1]})}])
    a.heartbeat()
    a.join(protocols=offered(subscribed(topic)))
    a.sync()
    n.beat()


@script()
def while_a_join_waits(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    a.enter(protocols=offered(subscribed(topic)))()
    a.sync(quiet=True, assignments=[{"member_id": a.member_id, "assignment": assigned({topic: [0, 1]})}])
    waiting = b.enter(protocols=offered(subscribed(topic)))
    until_state(s, group, "PreparingRebalance", 2)
    n = Consumer(s, group, "n", on="n")
    n.join(topic)
    s.note("the join that waited", waiting().error_code.name)
    a.heartbeat()
    b.join(protocols=offered(subscribed(topic)))


@script()
def while_a_follower_waits_for_the_leader(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    form(a, b, protocols=offered(subscribed(topic)))
    joined_again(s, a, b, topic)
    rows = [
        {"member_id": a.member_id, "assignment": assigned({topic: [0]})},
        {"member_id": b.member_id, "assignment": assigned({topic: [1]})},
    ]
    a.sync(quiet=True, assignments=rows)
    b.sync(quiet=True)
    joined_again(s, a, b, topic)
    waiting = b.begin_sync()
    s.wait(0.3)  # requests over another connection may overtake it
    Consumer(s, group, "n", on="n").join(topic)
    waiting()
    a.heartbeat()
    b.heartbeat()
    a.join(protocols=offered(subscribed(topic)))
    b.join(protocols=offered(subscribed(topic)))


@script()
def a_follower_waits_and_assignments_cannot_be_read(s: Session) -> None:
    """The group stays classic, but the waiting member must join again."""
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    form(a, b, protocols=offered(subscribed(topic)))
    joined_again(s, a, b, topic)
    waiting = b.begin_sync()
    s.wait(0.3)  # requests over another connection may overtake it
    Consumer(s, group, "n", on="n").join(topic)
    waiting()
    a.heartbeat()
    b.heartbeat()
    a.sync(assignments=[{"member_id": b.member_id, "assignment": b"of b"}])
    b.sync()
