"""Classic groups that become consumer groups as members of the new protocol join them, and the
answers to their classic members."""

from __future__ import annotations

from tests.differential.classic import ClassicMember, classic_group, protocols
from tests.differential.classic import describe as describe_classic
from tests.differential.consumers import Consumer, describe, group_of
from tests.differential.mixed_groups import assigned, classic_with, offered, subscribed
from tests.differential.script import Session, Topic, script
from tests.differential.scripts.group_descriptions import delete, listed
from tests.differential.scripts.offset_commits import commit, fetch


def mixed(s: Session, *names: str, native: str = "n") -> tuple[ClassicMember, Consumer, Topic]:
    """A classic member a with both partitions of a topic, and n, of the new protocol, which has
    just joined. The member id "o" comes last in Kafka's hash tables, too, for scripts in which both
    compete for free partitions."""
    topic = s.topic(2)
    a = classic_with(s, topic, *names)
    n = Consumer(s, a.group_id, native, on="n")
    n.join(topic)
    return a, n, topic


def settle(a: ClassicMember, n: Consumer, topic: Topic) -> None:
    """a gives up a partition, n gets it: steps."""
    a.join(protocols=offered(subscribed(topic)))
    a.sync()
    n.beat()


@script()
def a_member_joins_a_classic_group(s: Session) -> None:
    a, n, topic = mixed(s)
    describe(s, a.group_id)
    a.heartbeat()
    n.beat()
    a.join(protocols=offered(subscribed(topic)))
    describe(s, a.group_id)
    a.heartbeat()
    a.sync()
    a.heartbeat()
    n.beat()
    a.heartbeat()
    describe(s, a.group_id)


@script()
def a_cooperative_classic_member(s: Session) -> None:
    a, n, topic = mixed(s, "cooperative-sticky")
    a.heartbeat()
    both = subscribed(topic, owned={topic: [0, 1]}, generation=a.generation)
    a.join(protocols=offered(both, "cooperative-sticky"))
    a.sync()
    n.beat()
    a.heartbeat()
    one = subscribed(topic, owned={topic: [0]}, generation=a.generation)
    a.join(protocols=offered(one, "cooperative-sticky"))
    a.sync()
    a.heartbeat()
    n.beat()
    describe(s, a.group_id)


@script()
def an_empty_classic_group(s: Session) -> None:
    topic = s.topic(2)
    a = classic_with(s, topic)
    a.commit(topic, 7)
    a.leave()
    describe_classic(s, a.group_id)
    n = Consumer(s, a.group_id, "n")
    n.join(topic)
    describe(s, a.group_id)
    fetch(s, a.group_id, [topic])
    listed(s)


@script()
def a_group_of_committed_offsets(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    commit(s, group, {topic: {0: 7}})
    n = Consumer(s, group, "n")
    n.beat(3)
    n.beat(-1)
    n.join(topic)
    describe(s, group)
    fetch(s, group, [topic])


@script()
def a_group_that_is_not_of_consumers(s: Session) -> None:
    topic = s.topic(2)
    group = classic_group(s)
    group_of(s, "g", topic)
    a = ClassicMember(s, group, "a")
    a.enter(protocol_type="connect", protocols=protocols("default"))()
    n = Consumer(s, group, "n")
    n.join(topic)
    a.sync(a, quiet=True, protocol_type="connect", protocol_name="default")
    n.join(topic)
    n.beat(1)
    describe_classic(s, group)
    a.leave()
    n.join(topic)
    describe(s, group)


@script()
def subscriptions_that_cannot_be_read(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    a = ClassicMember(s, group, "a")
    a.enter(protocols=protocols("range", metadata=b"\0"))()
    a.sync(a, quiet=True)
    Consumer(s, group, "n").join(topic)
    describe_classic(s, group)
    describe(s, group)


@script()
def assignments_that_cannot_be_read(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    a = ClassicMember(s, group, "a")
    a.enter(protocols=offered(subscribed(topic)))()
    a.sync(a, quiet=True)
    Consumer(s, group, "n").join(topic)
    describe(s, group)


@script()
def user_data_in_an_assignment(s: Session) -> None:
    """A custom classic assignor, which the broker's assignors cannot replace."""
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    a = ClassicMember(s, group, "a")
    a.enter(protocols=offered(subscribed(topic)))()
    own = assigned({topic: [0, 1]})[:-4] + b"\0\0\0\x01u"
    a.sync(quiet=True, assignments=[{"member_id": a.member_id, "assignment": own}])
    Consumer(s, group, "n").join(topic)
    describe(s, group)


@script()
def requests_of_a_classic_member(s: Session) -> None:
    a, n, topic = mixed(s)
    for generation in (1, 2, 0, -1):
        a.heartbeat(generation=generation)
        a.sync(generation_id=generation)
    settle(a, n, topic)
    for generation in (a.generation, a.generation - 1, a.generation + 1, -1):
        a.heartbeat(generation=generation)
        a.sync(generation_id=generation)
    a.heartbeat(member_id="stranger")
    a.sync(member_id="stranger")
    a.sync(protocol_type="connect")
    a.sync(protocol_name="roundrobin")
    a.sync(protocol_name=None, protocol_type=None)
    n.beat()


@script()
def offsets_of_a_classic_member(s: Session) -> None:
    a, n, topic = mixed(s)
    a.commit(topic, 1)
    a.commit(topic, 1, version=8)
    settle(a, n, topic)
    for generation in (a.generation, a.generation - 1, a.generation + 1, -1):
        a.commit(topic, 10 + generation, generation_id_or_member_epoch=generation)
        a.commit(topic, 20 + generation, version=5, generation_id_or_member_epoch=generation)
    a.commit(topic, 1, member_id="stranger")
    commit(s, a.group_id, {topic: {0: 3}})
    commit(s, a.group_id, {topic: {0: 3}}, generation=n.epoch, member_id="n")
    fetch(s, a.group_id, [topic])


@script()
def heartbeats_in_the_name_of_the_other(s: Session) -> None:
    a, n, topic = mixed(s)
    Consumer(s, a.group_id, a.member_id).beat(1)
    Consumer(s, a.group_id, a.member_id).beat(2)
    native = ClassicMember(s, a.group_id, "n", member_id="n", generation=n.epoch)
    native.heartbeat()
    native.sync()
    native.join(protocols=offered(subscribed(topic)))
    native.leave()
    describe(s, a.group_id)


@script()
def a_classic_member_changes_over(s: Session) -> None:
    """The same process, restarted with the new protocol, under its old member id."""
    topic = s.topic(2)
    a = classic_with(s, topic)
    n = Consumer(s, a.group_id, a.member_id)
    n.join(topic)
    describe(s, a.group_id)
    a.heartbeat()
    n.beat()


@script()
def a_static_member_changes_over(s: Session) -> None:
    topic = s.topic(2)
    a = classic_with(s, topic, instance_id="i")
    n = Consumer(s, a.group_id, "n", instance_id="i")
    n.join(topic)
    describe(s, a.group_id)
    a.heartbeat()
    a.join(protocols=offered(subscribed(topic)))
    n.beat()


@script()
def a_classic_member_leaves(s: Session) -> None:
    a, n, topic = mixed(s)
    settle(a, n, topic)
    a.leave()
    n.beat()
    describe(s, a.group_id)
    a.heartbeat()
    delete(s, a.group_id)


@script()
def mixed_groups_looked_at(s: Session) -> None:
    a, n, topic = mixed(s)
    describe_classic(s, a.group_id)
    listed(s)
    settle(a, n, topic)
    listed(s, types=("consumer",))
    describe(s, a.group_id, version=0)
    delete(s, a.group_id)
