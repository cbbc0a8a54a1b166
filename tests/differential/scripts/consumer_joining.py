"""ConsumerGroupHeartbeat: which members are admitted, the required fields of a first heartbeat, and
the answer to each epoch."""

from __future__ import annotations

from tests.differential.consumers import Consumer, describe, group_of
from tests.differential.script import Session, script


@script()
def the_broker_makes_the_member_id(s: Session) -> None:
    group = group_of(s)
    member = Consumer(s, group, "", version=0)
    member.join("missing")
    member.beat()
    member.beat(owns={})
    Consumer(s, group, "", version=0).join("missing")
    member.beat()
    member.leave()
    member.beat(1)


@script()
def version_0_with_a_member_id(s: Session) -> None:
    group = group_of(s)
    member = Consumer(s, group, "m", version=0)
    member.join("missing")
    member.beat()
    Consumer(s, group, "", version=0).beat(2)
    Consumer(s, group, "", version=0).leave()


@script("BASE-59")
def the_client_makes_the_member_id(s: Session) -> None:
    group = group_of(s)
    member = Consumer(s, group, "m")
    member.join("missing")
    member.beat()
    describe(s, group)


@script()
def no_member_id_and_long_ones(s: Session) -> None:
    group = group_of(s)
    for member_id in ("", " ", "m" * 36, "m" * 37, "é" * 36):
        Consumer(s, group, member_id).join("missing")
        Consumer(s, group, member_id).leave()


@script()
def empty_names(s: Session) -> None:
    group = group_of(s)
    for group_id in ("", " "):
        Consumer(s, group_id, "m").join("missing")
        Consumer(s, group_id, "", version=0).join("missing")
    Consumer(s, group, "m", instance_id="").join("missing")
    Consumer(s, group, "m", instance_id=" ").join("missing")
    Consumer(s, group, "n").join("missing", rack_id="")
    Consumer(s, group, "n").join("missing", rack_id=" ")
    Consumer(s, group, "o").join("missing", server_assignor="")
    Consumer(s, group, "o").join("missing", server_assignor=" ")
    describe(s, group)


@script()
def what_a_first_heartbeat_must_say(s: Session) -> None:
    topic = s.topic()
    group = group_of(s, "g", topic)
    member = Consumer(s, group, "m")
    member.join(topic, topic_partitions=None)
    member.join(topic, topic_partitions=[{"topic_id": topic.topic_id, "partitions": [0]}])
    member.join(topic, topic_partitions=[{"topic_id": topic.topic_id, "partitions": []}])
    member.join(topic, rebalance_timeout=-1)
    member.join(topic, rebalance_timeout=0)
    member.join(topic, subscribed_topic_names=None)
    member.join()
    describe(s, group)


@script()
def a_first_heartbeat_of_version_0(s: Session) -> None:
    group = group_of(s)
    Consumer(s, group, "", version=0).join(subscribed_topic_names=None)
    Consumer(s, group, "", version=0).join()
    Consumer(s, group, "", version=0).join("missing", topic_partitions=None)
    Consumer(s, group, "", version=0).join("missing", rebalance_timeout=-2)
    describe(s, group, version=0)


@script()
def epochs_below_zero(s: Session) -> None:
    group = group_of(s)
    member = Consumer(s, group, "m")
    for epoch in (-2, -3, -100):
        member.join("missing", member_epoch=epoch)
        member.beat(epoch, instance_id="i")
    member.join("missing")
    for epoch in (-3, -2):
        member.beat(epoch)
    member.beat(-2, instance_id="i")
    member.beat(2)


@script()
def unknown_assignors(s: Session) -> None:
    group = group_of(s)
    member = Consumer(s, group, "m")
    member.join("missing", server_assignor="nonsense")
    member.join("missing", server_assignor="Uniform")
    member.join("missing", server_assignor="range")
    member.beat(server_assignor="nonsense")
    member.beat(server_assignor="uniform")
    member.beat()
    describe(s, group)


@script()
def checks_in_order(s: Session) -> None:
    group = group_of(s)
    Consumer(s, "", "").beat(0, rebalance_timeout=-1)
    Consumer(s, group, "").beat(-3, instance_id="", rack_id="")
    Consumer(s, group, "m").beat(-3, instance_id="", rack_id="")
    Consumer(s, group, "m").beat(0, instance_id="", rack_id="", server_assignor="x")
    Consumer(s, group, "m").beat(0, server_assignor="x")
    Consumer(s, group, "m").join("missing", server_assignor="x", topic_partitions=None)
    Consumer(s, group, "m").join("missing", server_assignor="x", subscribed_topic_regex="(")
    Consumer(s, group, "m").beat(7, server_assignor="x", subscribed_topic_regex="(")
    Consumer(s, group, "m").beat(7, subscribed_topic_regex="(")
    Consumer(s, group, "m").beat(-1, server_assignor="x", subscribed_topic_regex="(", topic_partitions=())
    describe(s, group)


@script()
def a_group_that_does_not_exist(s: Session) -> None:
    group = group_of(s)
    for epoch in (1, 7, -1):
        Consumer(s, group, "m").beat(epoch)
    Consumer(s, group, "m", instance_id="i").beat(-2)
    Consumer(s, group, "m", instance_id="i").beat(5)
    Consumer(s, group, "", version=0).beat(5)


@script()
def nobody_of_the_group(s: Session) -> None:
    group = group_of(s)
    Consumer(s, group, "m").join("missing")
    for epoch in (1, 2, 3, -1):
        Consumer(s, group, "other").beat(epoch)
    Consumer(s, group, "other", instance_id="i").beat(2)
    Consumer(s, group, "other", instance_id="i").beat(-1)
    Consumer(s, group, "other", instance_id="i").beat(-2)


@script()
def epochs_of_a_member(s: Session) -> None:
    topic, other = s.topic(2), s.topic()
    group = group_of(s, "g", topic, other)
    member = Consumer(s, group, "m")
    member.join(topic)
    member.beat(subscribed_topic_names=[topic.name, other.name])
    told = member.epoch
    for epoch in (told + 1, told + 2, told, told - 2, 2**31 - 1):
        Consumer(s, group, "m").beat(epoch)
    previous = Consumer(s, group, "m")
    previous.beat(told - 1)
    previous.beat(told - 1, owns={})
    previous.beat(told - 1, owns={topic: [0, 1], other: [0]})
    previous.beat(told - 1, owns={topic: [0, 7]})
    previous.beat(told - 1, owns={topic: [1]})
    Consumer(s, group, "m").beat(told)


@script()
def epoch_zero_of_a_member(s: Session) -> None:
    topic, other = s.topic(), s.topic()
    group = group_of(s, "g", topic, other)
    member = Consumer(s, group, "m")
    member.join(topic)
    member.join(topic)
    member.join(topic, other)
    member.beat(0)
    member.beat(0, topic_partitions=())
    member.join("missing")
    describe(s, group)


@script()
def when_the_assignment_is_told(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    member = Consumer(s, group, "m")
    member.join(topic)
    member.beat()
    member.beat(owns={topic: [0, 1]})
    member.beat(owns={topic: [0]})
    member.beat(owns={})
    member.beat(rebalance_timeout=60_000)
    member.beat(subscribed_topic_names=[topic.name])
    member.beat(subscribed_topic_names=[topic.name], rebalance_timeout=60_000)
    member.beat(owns={topic: [0, 1]}, subscribed_topic_names=[topic.name], rebalance_timeout=60_000)
    member.beat()


@script()
def leaving_and_coming_back(s: Session) -> None:
    topic = s.topic()
    group = group_of(s, "g", topic)
    member = Consumer(s, group, "m")
    member.join(topic)
    member.leave()
    member.leave()
    member.beat(1)
    describe(s, group)
    member.join(topic)
    member.leave(rack_id="r", subscribed_topic_names=["ignored"], rebalance_timeout=7)
    describe(s, group)


@script()
def names_order_and_repetition(s: Session) -> None:
    group = group_of(s)
    member = Consumer(s, group, "m")
    member.join("", "a b", ".*")
    member.beat(subscribed_topic_names=[".*", "", "a b"])
    member.beat(subscribed_topic_names=[".*", "", "a b", "", ".*"])
    member.beat(subscribed_topic_names=[".*", ""])
    member.beat(subscribed_topic_names=[".*", ""], rack_id="r1")
    member.beat(rack_id="r2", rebalance_timeout=1000)
    describe(s, group)


@script()
def unsubscribing(s: Session) -> None:
    topic, other = s.topic(2), s.topic()
    group = group_of(s, "g", topic, other)
    member = Consumer(s, group, "m")
    member.join(topic)
    member.beat(subscribed_topic_names=[])
    member.beat(owns={})
    member.beat()
    member.beat(subscribed_topic_names=[other.name])
    member.beat(subscribed_topic_names=[other.name, topic.name])
    member.beat(subscribed_topic_names=[topic.name])
    member.beat(owns={topic: [0, 1]})
    member.beat()


@script()
def more_members_than_a_group_may_have(s: Session) -> None:
    group = group_of(s)
    for index in range(6):
        Consumer(s, group, f"m{index}").join("missing")
    late = Consumer(s, group, "late")
    late.join("missing")
    Consumer(s, group, "m0").join("missing")
    Consumer(s, group, "m0").leave()
    late.join("missing")
