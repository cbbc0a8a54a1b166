"""The targets of the assignors uniform and range. Targets follow from earlier targets, so no member
has to give anything up here.

If Kafka depends on the order of topic ids, which are random, only what is independent of it is
noted.
"""

from __future__ import annotations

from tests.differential.consumers import Consumer, describe, group_of
from tests.differential.script import Json, Session, Topic, script

Targets = dict[str, dict[str, list[int]]]


def targets(s: Session, group: str) -> Targets:
    """Partitions by member and topic."""
    answer = s.prepare("consumer_group_describe", 1, group_ids=[group], include_authorized_operations=False)
    return {
        row.member_id: {
            each.topic_name.removeprefix(s.name): sorted(each.partitions)
            for each in row.target_assignment.topic_partitions
        }
        for row in sorted(answer.groups[0].members, key=lambda row: str(row.member_id))
    }


def totals(found: Targets) -> Json:
    return {member: sum(len(each) for each in rows.values()) for member, rows in found.items()}


def kept(before: Targets, after: Targets) -> Json:
    """How many partitions each of the members in both has kept."""
    return {
        member: sum(len({*each} & {*after[member].get(topic, ())}) for topic, each in rows.items())
        for member, rows in before.items()
        if member in after
    }


def joined(
    s: Session,
    group: str,
    member: str,
    *topics: Topic,
    assignor: str = "uniform",
    instance: str | None = None,
) -> Consumer:
    consumer = Consumer(s, group, member, instance_id=instance)
    wanted = [topic.name for topic in topics]
    consumer.silently(0, subscribed_topic_names=wanted, rebalance_timeout=60_000, server_assignor=assignor)
    return consumer


@script()
def uniform_of_one_topic(s: Session) -> None:
    topic = s.topic(7)
    group = group_of(s, "g", topic)
    members = {}
    for name in "abcd":
        members[name] = joined(s, group, name, topic)
        s.note(f"{name} has joined", targets(s, group))
    for name in "bda":
        members[name].silently(-1)
        members["c"].silently()
        s.note(f"{name} has left", targets(s, group))


@script()
def uniform_with_more_members_than_partitions(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    members = {}
    for name in "abc":
        members[name] = joined(s, group, name, topic)
        s.note(f"{name} has joined", targets(s, group))
    members["a"].silently(-1)
    members["b"].silently()
    s.note("a has left", targets(s, group))


@script()
def uniform_of_several_topics(s: Session) -> None:
    topics = s.topic(4), s.topic(3), s.topic(1)
    group = group_of(s, "g", *topics)
    members, before = {}, targets(s, group)
    for name in "abc":
        members[name] = joined(s, group, name, *topics)
        after = targets(s, group)
        s.note(f"{name} has joined", {"partitions": totals(after), "of which kept": kept(before, after)})
        before = after
    members["b"].silently(-1)
    members["a"].silently()
    after = targets(s, group)
    s.note("b has left", {"partitions": totals(after), "of which kept": kept(before, after)})


@script()
def uniform_of_different_subscriptions(s: Session) -> None:
    one, two = s.topic(4), s.topic(4)
    group = group_of(s, "g", one, two)
    joined(s, group, "a", one)
    s.note("a reads one", targets(s, group))
    joined(s, group, "b", two)
    s.note("b reads two", targets(s, group))
    c = joined(s, group, "c", one, two)
    s.note("c reads both", sorted(totals(targets(s, group)).values()))
    c.silently(-1)
    joined(s, group, "a", one)
    joined(s, group, "a", one, two)
    s.note("a reads both, c has left", totals(targets(s, group)))


@script()
def uniform_of_one_topic_and_another(s: Session) -> None:
    """Only partitions of one topic move here, so that the order of topics does not matter."""
    one, two = s.topic(6), s.topic(1)
    group = group_of(s, "g", one, two)
    joined(s, group, "a", one)
    joined(s, group, "b", one)
    s.note("both read one", targets(s, group))
    joined(s, group, "b", one, two)
    s.note("b reads two as well", totals(targets(s, group)))
    joined(s, group, "c", two)
    s.note("c reads two", totals(targets(s, group)))


@script()
def range_of_two_topics(s: Session) -> None:
    topics = s.topic(4), s.topic(4)
    group = group_of(s, "g", *topics)
    members = {}
    for name in "abc":
        members[name] = joined(s, group, name, *topics, assignor="range")
        s.note(f"{name} has joined", targets(s, group))
    members["a"].silently(-1)
    members["c"].silently()
    s.note("a has left", targets(s, group))


@script()
def range_of_unequal_topics(s: Session) -> None:
    topics = s.topic(5), s.topic(2)
    group = group_of(s, "g", *topics)
    members = {}
    for name in "abc":
        members[name] = joined(s, group, name, *topics, assignor="range")
        s.note(f"{name} has joined", targets(s, group))
    members["b"].silently(-1)
    members["a"].silently()
    s.note("b has left", targets(s, group))


@script()
def range_with_more_members_than_partitions(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    for name in "cab":
        joined(s, group, name, topic, assignor="range")
        s.note(f"{name} has joined", targets(s, group))


@script()
def range_of_different_subscriptions(s: Session) -> None:
    one, two = s.topic(3), s.topic(3)
    group = group_of(s, "g", one, two)
    joined(s, group, "a", one, assignor="range")
    joined(s, group, "b", one, two, assignor="range")
    s.note("a reads one, b both", targets(s, group))
    joined(s, group, "c", two, assignor="range")
    s.note("c reads two", targets(s, group))
    joined(s, group, "b", two, assignor="range")
    s.note("b reads two alone", targets(s, group))


@script()
def range_goes_by_instance_ids(s: Session) -> None:
    topic = s.topic(5)
    group = group_of(s, "g", topic)
    joined(s, group, "a", topic, assignor="range", instance="z")
    joined(s, group, "b", topic, assignor="range", instance="y")
    s.note("two static members", targets(s, group))
    joined(s, group, "c", topic, assignor="range")
    s.note("and a dynamic one", targets(s, group))


@script()
def the_assignor_of_most(s: Session) -> None:
    topic = s.topic(6)
    group = group_of(s, "g", topic)

    def chosen(what: str) -> None:
        answer = s.prepare(
            "consumer_group_describe", 1, group_ids=[group], include_authorized_operations=False
        )
        s.note(what, answer.groups[0].assignor_name)

    joined(s, group, "a", topic, assignor="range")
    chosen("a wants range")
    joined(s, group, "b", topic, assignor="range")
    joined(s, group, "c", topic, assignor="uniform")
    chosen("two want range, one uniform")
    joined(s, group, "b", topic, assignor="uniform")
    chosen("the other way round, without another reason to assign")
    joined(s, group, "d", topic, assignor="uniform").silently(-1)
    chosen("after a new assignment")
    Consumer(s, group, "e").silently(0, subscribed_topic_names=[topic.name], rebalance_timeout=60_000)
    chosen("one who does not care")
    Consumer(s, group, "f").silently(
        0, subscribed_topic_names=[topic.name], rebalance_timeout=60_000, server_assignor="range"
    )
    s.note("targets", totals(targets(s, group)))


@script("BASE-69")
def assignors_that_members_change(s: Session) -> None:
    """Whether the group has a new epoch: with three members, and with one."""
    topic = s.topic(3)
    group = group_of(s, "three", topic)
    a, b, c = (Consumer(s, group, name) for name in "abc")
    for member in (a, b, c):
        member.join(topic)
    for member, assignor in (
        (a, "uniform"), (b, "uniform"), (c, "range"), (b, "range"), (b, "range"), (a, "range"),
        (c, "uniform"),
    ):  # fmt: skip
        member.beat(server_assignor=assignor)
        describe(s, group)
    group = group_of(s, "one", topic)
    alone = Consumer(s, group, "m")
    alone.join(topic)
    for assignor in ("uniform", "range", None, "range", "uniform"):
        alone.beat(server_assignor=assignor)
        describe(s, group)
    alone.join(topic, server_assignor="range")
    describe(s, group)
