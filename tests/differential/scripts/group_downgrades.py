"""Classic members that join consumer groups, and consumer groups that become classic ones as their
last member of the new protocol leaves."""

from __future__ import annotations

from tests.differential.classic import ClassicMember, protocols, until_state
from tests.differential.classic import describe as describe_classic
from tests.differential.consumers import Consumer, describe, group_of
from tests.differential.mixed_groups import assigned, offered, subscribed
from tests.differential.script import Entity, Session, Topic, script
from tests.differential.scripts.group_configs import SET, change, settled
from tests.differential.scripts.group_descriptions import delete, listed
from tests.differential.scripts.group_upgrades import mixed, settle
from tests.differential.scripts.offset_commits import commit, fetch


def consumers(s: Session) -> tuple[str, Topic, Consumer]:
    """A consumer group whose only member n has both partitions of a topic."""
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    n = Consumer(s, group, "n", on="n")
    n.join(topic)
    return group, topic, n


def entered(a: ClassicMember, topic: Topic, *names: str) -> Entity:
    """Gets a member id and joins with it: steps."""
    a.join(protocols=offered(subscribed(topic), *names))
    return a.join(protocols=offered(subscribed(topic), *names))


@script()
def the_last_consumer_member_leaves(s: Session) -> None:
    a, n, topic = mixed(s)
    settle(a, n, topic)
    a.commit(topic, 5)
    n.leave()
    describe(s, a.group_id)
    describe_classic(s, a.group_id)
    listed(s)
    a.heartbeat()
    a.commit(topic, 6)
    a.join(protocols=offered(subscribed(topic)))
    a.sync(assignments=[{"member_id": a.member_id, "assignment": assigned({topic: [0, 1]})}])
    a.heartbeat()
    describe_classic(s, a.group_id)
    fetch(s, a.group_id, [topic])
    n.beat(2)
    n.join(topic)


@script()
def leaving_before_anything_has_settled(s: Session) -> None:
    a, n, topic = mixed(s)
    n.leave()
    describe_classic(s, a.group_id)
    a.heartbeat(generation=1)
    a.join(protocols=offered(subscribed(topic)))


@script(seconds=3.0)
def the_session_of_the_last_consumer_member_expires(s: Session) -> None:
    a, n, topic = mixed(s)
    settle(a, n, topic)
    change(
        s,
        a.group_id,
        ("consumer.heartbeat.interval.ms", SET, "200"),
        ("consumer.session.timeout.ms", SET, "1000"),
    )
    settled(s, a.group_id, "consumer.session.timeout.ms", "1000")
    n.beat()
    until_state(s, a.group_id, "PreparingRebalance", 1)
    describe_classic(s, a.group_id)
    a.heartbeat()
    a.join(protocols=offered(subscribed(topic)))


@script()
def the_last_consumer_member_is_replaced(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    n = Consumer(s, group, "n", on="n", instance_id="i")
    n.join(topic)
    b = ClassicMember(s, group, "b")
    entered(b, topic)
    n.leave(-2)
    describe(s, group)
    a = ClassicMember(s, group, "a", instance_id="i")
    a.join(protocols=offered(subscribed(topic)))
    describe_classic(s, group)
    b.heartbeat()
    a.heartbeat()
    waiting = b.begin_join(protocols=offered(subscribed(topic)))
    s.wait(0.3)  # requests over another connection may overtake it
    a.join(protocols=offered(subscribed(topic)))
    waiting()
    describe_classic(s, group)


@script()
def everybody_leaves(s: Session) -> None:
    a, n, topic = mixed(s)
    settle(a, n, topic)
    a.leave()
    n.leave()
    describe(s, a.group_id)
    listed(s)
    describe_classic(s, a.group_id)
    delete(s, a.group_id)


@script()
def an_empty_consumer_group(s: Session) -> None:
    group, topic, n = consumers(s)
    commit(s, group, {topic: {0: 7}}, generation=n.epoch, member_id="n")
    n.leave()
    a = ClassicMember(s, group, "a")
    entered(a, topic)
    a.sync(assignments=[{"member_id": a.member_id, "assignment": assigned({topic: [0, 1]})}])
    describe(s, group)
    describe_classic(s, group)
    fetch(s, group, [topic])
    n.beat(2)


@script()
def an_empty_consumer_group_and_connect(s: Session) -> None:
    group, _, n = consumers(s)
    n.leave()
    a = ClassicMember(s, group, "a")
    a.join(protocol_type="connect", protocols=protocols("default"))
    a.join(protocol_type="connect", protocols=protocols("default"))
    describe_classic(s, group)


@script()
def a_classic_member_joins(s: Session) -> None:
    group, topic, n = consumers(s)
    a = ClassicMember(s, group, "a")
    entered(a, topic)
    describe(s, group)
    a.sync()
    a.heartbeat()
    n.beat()
    n.beat(owns={topic: [0]})
    a.heartbeat()
    n.beat(owns={topic: [1]})
    a.heartbeat()
    a.join(protocols=offered(subscribed(topic)))
    a.sync()
    a.heartbeat()
    n.beat()
    describe(s, group)


@script("BASE-70")
def joins_that_are_refused(s: Session) -> None:
    group, topic, _ = consumers(s)
    a = ClassicMember(s, group, "a")
    a.join(protocol_type="connect", protocols=protocols("default"))
    a.join(protocols=())
    a.join(protocols=protocols("range", metadata=b"\0"))
    a.join(protocols=protocols("range", metadata=b""))
    a.join(protocol_type="")
    a.join(protocols=offered(subscribed(topic)), session_timeout=50)
    a.join(protocols=offered(subscribed(topic)), session_timeout=3_600_000)
    a.join(protocols=offered(subscribed(topic)), member_id="stranger")
    a.join(protocols=offered(subscribed(topic)), member_id="n")
    describe(s, group)


@script()
def protocols_of_several_classic_members(s: Session) -> None:
    group, topic, _ = consumers(s)
    a, b, c = (ClassicMember(s, group, name) for name in "abc")
    entered(a, topic, "range", "roundrobin")
    entered(b, topic, "roundrobin", "range")
    entered(c, topic, "sticky")
    for member in (a, b):
        member.join(protocols=offered(subscribed(topic), "range"))
    c.join(protocols=offered(subscribed(topic), "range"))
    describe(s, group)


@script()
def oldest_versions_of_join_group(s: Session) -> None:
    group, topic, _ = consumers(s)
    for version in (0, 3, 4, 6):
        values = {
            "group_id": group, "session_timeout": 30_000, "member_id": "", "protocol_type": "consumer",
            "protocols": offered(subscribed(topic, version=0)),
            **({"rebalance_timeout": 30_000} if version >= 1 else {}),
            **({"group_instance_id": None} if version >= 5 else {}),
        }  # fmt: skip
        s.call("join_group", version, on=f"v{version}", **values)
    answer = s.prepare("consumer_group_describe", 1, group_ids=[group], include_authorized_operations=False)
    s.note("members", len(answer.groups[0].members))


@script()
def a_static_classic_member(s: Session) -> None:
    group, topic, n = consumers(s)
    a = ClassicMember(s, group, "a", instance_id="i")
    a.join(protocols=offered(subscribed(topic)))
    a.sync()
    n.beat(owns={topic: [0]})
    b = ClassicMember(s, group, "b", instance_id="i")
    b.join(protocols=offered(subscribed(topic)))
    a.heartbeat()
    a.join(protocols=offered(subscribed(topic)))
    b.sync()
    b.heartbeat()
    Consumer(s, group, "late", instance_id="i").join(topic)
    b.heartbeat()
    describe(s, group)


@script()
def static_members_who_leave(s: Session) -> None:
    group, topic, n = consumers(s)
    a = ClassicMember(s, group, "a", instance_id="i")
    a.join(protocols=offered(subscribed(topic)))
    native = Consumer(s, group, "m", on="m", instance_id="j")
    native.join(topic)
    rows = [("", "i"), ("", "j"), ("", "unknown"), ("stranger", "i"), ("stranger", None), (n.member_id, None)]
    members = [
        {"member_id": member_id, "group_instance_id": instance_id, "reason": None}
        for member_id, instance_id in rows
    ]
    s.call("leave_group", 5, group_id=group, members=members)
    describe(s, group)


@script(seconds=3.0)
def a_classic_member_who_does_not_rejoin_in_time(s: Session) -> None:
    group, topic, n = consumers(s)
    a = ClassicMember(s, group, "a", rebalance_ms=2000)
    entered(a, topic)
    a.sync()
    n.beat(owns={topic: [0]})
    a.join(protocols=offered(subscribed(topic, owned={topic: [1]})))
    a.sync()
    Consumer(s, group, "m", on="m").join(topic)
    a.heartbeat()
    s.wait(0.4)
    a.heartbeat()
    s.wait(2.6)
    a.heartbeat()
    describe(s, group)


@script(seconds=3.0)
def a_classic_member_who_does_not_sync_in_time(s: Session) -> None:
    group, topic, _ = consumers(s)
    a = ClassicMember(s, group, "a", rebalance_ms=2000)
    entered(a, topic)
    s.wait(3.0)
    a.sync()
    a.heartbeat()


@script(seconds=6.0)
def the_session_of_a_classic_member_expires(s: Session) -> None:
    group, topic, n = consumers(s)
    a = ClassicMember(s, group, "a", session_ms=2000)
    entered(a, topic)
    a.sync()
    for _ in range(4):
        s.wait(0.6)
        a.heartbeat(quiet=True)
    a.heartbeat()
    s.wait(3.5)
    a.heartbeat()
    n.beat()
    describe(s, group)
