"""Groups with members of both protocols while topics, subscriptions and members change."""

from __future__ import annotations

from tests.differential.classic import ClassicMember, until_state
from tests.differential.classic import describe as describe_classic
from tests.differential.consumers import Consumer, describe, group_of
from tests.differential.mixed_groups import offered, subscribed
from tests.differential.script import Session, script
from tests.differential.scripts.consumer_topics import grown
from tests.differential.scripts.group_upgrades import mixed, settle
from tests.differential.scripts.offset_deletions import delete_offsets
from tests.differential.scripts.offset_fetches import of_groups, row


@script()
def a_topic_grows(s: Session) -> None:
    a, n, topic = mixed(s, native="o")
    settle(a, n, topic)
    grown(s, a.group_id, topic, 4)
    a.heartbeat()
    n.beat()
    a.heartbeat()
    a.join(protocols=offered(subscribed(topic)))
    a.sync()
    a.heartbeat()
    describe(s, a.group_id)


@script()
def a_classic_member_subscribes_to_more(s: Session) -> None:
    a, n, topic = mixed(s)
    settle(a, n, topic)
    other = s.topic()
    group_of(s, "g", other)
    a.join(protocols=offered(subscribed(topic, other)))
    a.sync(quiet=True)  # the order of topics in its bytes is that of random ids
    n.beat()
    describe(s, a.group_id)
    a.join(protocols=offered(subscribed(other)))
    a.sync()
    n.beat()
    describe(s, a.group_id)


@script()
def a_cooperative_member_subscribes_to_less(s: Session) -> None:
    """The partitions that it still has to give up are revoked first, then it joins again."""
    a, n, topic = mixed(s, "cooperative-sticky")
    other = s.topic()
    group_of(s, "g", other)
    both = subscribed(topic, other, owned={topic: [0, 1]}, generation=a.generation)
    a.join(protocols=offered(both, "cooperative-sticky"))
    a.sync()
    a.heartbeat()
    one = subscribed(other, owned={topic: [0]}, generation=a.generation)
    a.join(protocols=offered(one, "cooperative-sticky"))
    a.sync()
    a.heartbeat()
    none = subscribed(other, generation=a.generation)
    a.join(protocols=offered(none, "cooperative-sticky"))
    a.sync()
    a.heartbeat()
    n.beat()
    describe(s, a.group_id)


@script()
def subscriptions_of_older_versions(s: Session) -> None:
    """The assignment has the version of the subscription."""
    a, n, topic = mixed(s)
    for version in (0, 1, 2):
        a.join(protocols=offered(subscribed(topic, version=version)))
        a.sync()
    n.beat()


@script()
def another_native_member(s: Session) -> None:
    a, n, topic = mixed(s)
    settle(a, n, topic)
    other = Consumer(s, a.group_id, "o", on="o")
    other.join(topic)
    a.heartbeat()
    a.join(protocols=offered(subscribed(topic)))
    a.sync()
    n.beat()
    n.leave()
    other.beat()
    a.heartbeat()
    describe(s, a.group_id)


@script()
def fetches_of_a_classic_member(s: Session) -> None:
    a, n, topic = mixed(s)
    settle(a, n, topic)
    a.commit(topic, 5, quiet=True)
    for epoch in (a.generation, a.generation - 1, a.generation + 1, -1):
        of_groups(s, row(9, a.group_id, {topic: [0]}, member_id=a.member_id, member_epoch=epoch))
    of_groups(s, row(9, a.group_id, {topic: [0]}))
    of_groups(s, row(8, a.group_id, {topic: [0]}), version=8)


@script()
def offsets_deleted(s: Session) -> None:
    a, n, topic = mixed(s)
    settle(a, n, topic)
    other = s.topic()
    a.commit(topic, 5, quiet=True)
    a.commit(other, 5, quiet=True)
    delete_offsets(s, a.group_id, {topic.name: [0], other.name: [0]})


@script()
def more_members_than_a_consumer_group_may_have(s: Session) -> None:
    topic = s.topic()
    group = group_of(s, "g", topic)
    for index in range(6):
        Consumer(s, group, f"m{index}").silently(
            0, subscribed_topic_names=[topic.name], rebalance_timeout=60_000
        )
    a = ClassicMember(s, group, "a")
    a.join(protocols=offered(subscribed(topic)))
    a.join(protocols=offered(subscribed(topic)))


@script()
def more_members_than_a_classic_group_may_have(s: Session) -> None:
    """When the last native member leaves, five classic ones remain, too many for a classic
    group."""
    topic = s.topic()
    group = group_of(s, "g", topic)
    n = Consumer(s, group, "n")
    n.join(topic)
    members = [ClassicMember(s, group, name) for name in "abcde"]
    for member in members:
        member.enter(protocols=offered(subscribed(topic)))()
        member.sync(quiet=True)
    n.leave()
    answer = s.prepare("consumer_group_describe", 1, group_ids=[group], include_authorized_operations=False)
    s.note("the state and members", [answer.groups[0].group_state, len(answer.groups[0].members)])
    describe_classic(s, group)
    members[0].heartbeat()
    members[0].leave()
    members[1].heartbeat()
    answer = s.prepare("consumer_group_describe", 1, group_ids=[group], include_authorized_operations=False)
    s.note("and after one has left", [answer.groups[0].group_state, len(answer.groups[0].members)])


@script()
def upgraded_and_downgraded_again(s: Session) -> None:
    a, n, topic = mixed(s, native="o")
    n.leave()
    until_state(s, a.group_id, "PreparingRebalance", 1)
    a.join(protocols=offered(subscribed(topic)), quiet=True)
    n.join(topic)
    a.heartbeat()
    n.leave()
    until_state(s, a.group_id, "PreparingRebalance", 1)
    a.heartbeat()
    a.leave()
    describe_classic(s, a.group_id)
    n.join(topic)


@script()
def a_native_member_after_the_downgrade(s: Session) -> None:
    """For instance it was frozen meanwhile and missed the downgrade."""
    a, n, _ = mixed(s)
    epoch = n.epoch
    n.leave()
    until_state(s, a.group_id, "PreparingRebalance", 1)
    n.beat(epoch)
