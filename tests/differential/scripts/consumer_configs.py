"""Settings of consumer groups and their bounds, and when they take effect."""

from __future__ import annotations

from tests.differential.consumers import Consumer, group_of
from tests.differential.script import Json, Session, script
from tests.differential.scripts.group_configs import DELETE, GROUP, SET, change, each, settled, shown

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
INTERVAL, OFFLOAD = "consumer.assignment.interval.ms", "consumer.assignor.offload.enable"


@script()
def names(s: Session) -> None:
    """All settings of any kind of group, except those of streams groups, which kbroker does not
    have."""
    resource = {"resource_type": GROUP, "resource_name": f"{s.name}-g", "configuration_keys": None}
    answer = s.prepare(
        "describe_configs", 4, resources=[resource], include_synonyms=False, include_documentation=False
    )
    s.note(
        "beginning with consumer.",
        sorted(row.name for row in answer.results[0].configs if row.name.startswith("consumer.")),
    )


@script()
def defaults(s: Session) -> None:
    shown(s, f"{s.name}-g", SESSION, HEARTBEAT, INTERVAL)
    shown(s, f"{s.name}-g", SESSION, HEARTBEAT, synonyms=False)


@script("CFG-22")
def of_the_assignor_s_thread(s: Session) -> None:
    for name in (OFFLOAD, "share.assignor.offload.enable"):
        shown(s, f"{s.name}-g", name)
        each(s, f"{s.name}-g", name, "false", "maybe")
        shown(s, f"{s.name}-g", name)


@script()
def documentation(s: Session) -> None:
    def told(answer: Json) -> Json:
        return [
            {**row, "documentation": bool(row["documentation"])} for row in answer["results"][0]["configs"]
        ]

    resource = {
        "resource_type": GROUP,
        "resource_name": f"{s.name}-g",
        "configuration_keys": [SESSION, HEARTBEAT],
    }
    s.call(
        "describe_configs",
        4,
        keep=told,
        resources=[resource],
        include_synonyms=True,
        include_documentation=True,
    )


@script()
def a_group_s_own_values(s: Session) -> None:
    group = f"{s.name}-g"
    change(s, group, (SESSION, SET, "50000"), (HEARTBEAT, SET, "6000"))
    settled(s, group, SESSION, "50000")
    shown(s, group, SESSION, HEARTBEAT)
    change(s, group, (SESSION, DELETE, None))
    settled(s, group, SESSION, None)
    shown(s, group, SESSION, HEARTBEAT)


@script()
def bounds_of_the_session_timeout(s: Session) -> None:
    each(s, f"{s.name}-g", SESSION, "999", "60001", "-1", "0", "abc", "", "45000.0", "60000", "5001", None)


@script()
def bounds_of_the_heartbeat_interval(s: Session) -> None:
    each(s, f"{s.name}-g", HEARTBEAT, "99", "15001", "-1", "0", "abc", "15000", "100")


@script()
def bounds_of_the_assignment_interval(s: Session) -> None:
    each(s, f"{s.name}-g", INTERVAL, "-1", "15001", "abc", "0", "15000")


@script()
def one_against_the_other(s: Session) -> None:
    group = f"{s.name}-g"
    change(s, group, (SESSION, SET, "5000"))
    change(s, group, (SESSION, SET, "1000"), (HEARTBEAT, SET, "1000"))
    change(s, group, (SESSION, SET, "1001"), (HEARTBEAT, SET, "1000"))
    settled(s, group, SESSION, "1001")
    change(s, group, (HEARTBEAT, SET, "2000"))
    change(s, group, (HEARTBEAT, DELETE, None))
    change(s, group, (HEARTBEAT, SET, "2000"), (SESSION, SET, "3000"))


@script()
def told_with_heartbeats(s: Session) -> None:
    group = group_of(s)
    member = Consumer(s, group, "m")
    member.join("missing")
    change(s, group, (HEARTBEAT, SET, "7000"))
    settled(s, group, HEARTBEAT, "7000")
    member.beat()
    change(s, group, (HEARTBEAT, DELETE, None))
    settled(s, group, HEARTBEAT, None)
    member.beat()
    member.leave()


@script(seconds=2.0)
def an_assignment_interval(s: Session) -> None:
    topic = s.topic(2)
    group = group_of(s, "g", topic)
    change(s, group, (INTERVAL, SET, "1500"))
    settled(s, group, INTERVAL, "1500")
    m, n = Consumer(s, group, "m"), Consumer(s, group, "n")
    m.join(topic)
    n.join(topic)
    m.beat()
    s.wait(2.0)
    s.until(lambda: m.silently().assignment is not None, "m must give up a partition")
    m.beat(owns={topic: [0]})
    n.beat()


@script(seconds=7.0)
def a_short_session(s: Session) -> None:
    group = group_of(s)
    change(s, group, (HEARTBEAT, SET, "200"), (SESSION, SET, "2000"))
    settled(s, group, SESSION, "2000")
    member = Consumer(s, group, "m")
    member.join("missing")
    for _ in range(5):
        s.wait(0.6)
        member.silently()
    member.beat()
    s.wait(3.5)
    member.beat()
    member.join("missing")


@script(seconds=3.0)
def a_session_that_was_long(s: Session) -> None:
    """The new timeout applies from the next heartbeat on."""
    group = group_of(s)
    m, n = Consumer(s, group, "m"), Consumer(s, group, "n")
    m.join("missing")
    n.join("missing")
    change(s, group, (HEARTBEAT, SET, "200"), (SESSION, SET, "1000"))
    settled(s, group, SESSION, "1000")
    m.beat()
    s.wait(2.5)
    m.beat()
    n.beat()


@script()
def outliving_the_group(s: Session) -> None:
    group = group_of(s)
    member = Consumer(s, group, "m")
    member.join("missing")
    change(s, group, (HEARTBEAT, SET, "7000"))
    settled(s, group, HEARTBEAT, "7000")
    member.leave()
    s.call("delete_groups", 2, groups_names=[group])
    shown(s, group, HEARTBEAT)
    member.join("missing")
