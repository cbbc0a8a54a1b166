"""Heartbeats of share groups: which members are admitted, at which epoch, and the errors for the
others."""

from __future__ import annotations

from tests.differential.script import Entity, Session, Value, script


def heartbeat(
    s: Session,
    group_id: str,
    member_id: str,
    epoch: int,
    *topics: str,
    unchanged: bool = False,
    rack_id: str | None = None,
    **more: Value,
) -> Entity:
    """One heartbeat as a step; `unchanged`: without a list of topics."""
    return s.call(
        "share_group_heartbeat", 1, group_id=group_id, member_id=member_id, member_epoch=epoch,
        rack_id=rack_id,
        subscribed_topic_names=None if unchanged else list(topics), **more,
    )  # fmt: skip


def ready(s: Session) -> None:
    """A fresh Kafka creates its coordinator's topic on the first request."""
    topic = s.topic()
    s.join(s.group("ready"), "m", topic)


@script("GRP-26", "GRP-15", "GRP-39")
def first_join(s: Session) -> None:
    ready(s)
    group = s.group()
    heartbeat(s, group, "m", 0, "missing")
    heartbeat(s, group, "m", 2, unchanged=True)


@script("GRP-4")
def no_member_id_and_long_ones(s: Session) -> None:
    ready(s)
    group = s.group()
    for member in ("", "m" * 37, "m" * 36, "é" * 36):
        heartbeat(s, group, member, 0, "missing")


@script("GRP-6")
def blank_ids(s: Session) -> None:
    ready(s)
    group = s.group()
    heartbeat(s, "", "m", 0, "missing")
    heartbeat(s, "  ", "m", 0, "missing")
    heartbeat(s, group, " ", 0, "missing")
    heartbeat(s, group, "m", 0, "missing", rack_id="")
    heartbeat(s, group, "m", 0, "missing", rack_id=" ")
    heartbeat(s, group, "m", 0, "missing", rack_id="r1")


@script("GRP-7", "GRP-8")
def epochs_that_need_something(s: Session) -> None:
    ready(s)
    group = s.group()
    heartbeat(s, group, "m", 0, unchanged=True)
    heartbeat(s, group, "m", 0)
    heartbeat(s, group, "m", -2, "missing")
    heartbeat(s, group, "m", -3, unchanged=True)


@script("GRP-1", "GRP-4", "GRP-6", "GRP-7", "GRP-9")
def checks_in_order(s: Session) -> None:
    ready(s)
    heartbeat(s, "", "", 0)
    heartbeat(s, "", "m" * 37, 0)
    heartbeat(s, " ", " ", -5, rack_id="")
    heartbeat(s, s.group("a"), "m", -5, rack_id="")
    heartbeat(s, s.group("b"), "m", 4, rack_id="")
    heartbeat(s, s.group("c"), "m", 4)


@script("GRP-9", "GRP-22")
def a_group_that_does_not_exist(s: Session) -> None:
    ready(s)
    group = s.group()
    for epoch in (1, 7, -1):
        heartbeat(s, group, "m", epoch, unchanged=True)


@script("GRP-11", "GRP-22")
def nobody_of_the_group(s: Session) -> None:
    ready(s)
    group = s.group()
    heartbeat(s, group, "m", 0, "missing")
    for epoch in (1, 2, 3, -1):
        heartbeat(s, group, "other", epoch, unchanged=True)


@script("GRP-12", "GRP-20")
def fenced_epochs(s: Session) -> None:
    ready(s)
    group = s.group()
    heartbeat(s, group, "m", 0, "missing")
    heartbeat(s, group, "n", 0, "missing")
    heartbeat(s, group, "m", 2, unchanged=True)
    for epoch in (1, 4, 5, 2, 3):
        heartbeat(s, group, "m", epoch, unchanged=True)


@script("GRP-13", "GRP-34")
def epoch_zero_of_a_member(s: Session) -> None:
    ready(s)
    group = s.group()
    heartbeat(s, group, "m", 0, "missing")
    heartbeat(s, group, "m", 0, "missing")
    heartbeat(s, group, "m", 0, "missing", "other")
    heartbeat(s, group, "m", 0)
    heartbeat(s, group, "m", 3, unchanged=True)


@script("GRP-21", "GRP-14", "GRP-23")
def leaving_and_coming_back(s: Session) -> None:
    ready(s)
    group = s.group()
    heartbeat(s, group, "m", 0, "missing")
    heartbeat(s, group, "m", -1, "ignored", rack_id="r")
    heartbeat(s, group, "m", -1, unchanged=True)
    heartbeat(s, group, "m", 2, unchanged=True)
    heartbeat(s, group, "m", 0, "missing")


@script("GRP-16", "GRP-17")
def names_order_and_repetition(s: Session) -> None:
    ready(s)
    group = s.group()
    heartbeat(s, group, "m", 0, "", "a b", ".*")
    heartbeat(s, group, "m", 2, ".*", "", "a b")
    heartbeat(s, group, "m", 2, ".*", "", "a b", "", ".*")
    heartbeat(s, group, "m", 2, ".*", "")


@script("GRP-18", "GRP-28")
def unsubscribing(s: Session) -> None:
    ready(s)
    group = s.group()
    heartbeat(s, group, "m", 0, "missing")
    heartbeat(s, group, "m", 2)
    heartbeat(s, group, "m", 3)
    heartbeat(s, group, "m", 3, unchanged=True)
    heartbeat(s, group, "m", 3, "missing")


@script("GRP-28", "GRP-33")
def two_members(s: Session) -> None:
    ready(s)
    group = s.group()
    heartbeat(s, group, "m", 0, "missing")
    heartbeat(s, group, "n", 0, "missing")
    heartbeat(s, group, "m", 2, unchanged=True)
    heartbeat(s, group, "n", -1, unchanged=True)
    heartbeat(s, group, "m", 3, unchanged=True)
    heartbeat(s, group, "m", 4, unchanged=True)


@script("GRP-37", "GRP-34", "GRP-32")
def a_second_member_finds_partitions_initialised(s: Session) -> None:
    """Epochs depend on how long the first topic's state takes, so these are not compared."""
    topic, group = s.topic(2), s.group()
    s.join(group, "m", topic, partitions=2)
    epochs = []
    for member in ("m", "n"):
        answer = s.prepare(
            "share_group_heartbeat",
            1,
            group_id=group,
            member_id=member,
            member_epoch=0,
            rack_id=None,
            subscribed_topic_names=[topic.name],
        )
        s.note(
            f"partitions of {member}", sum(len(row.partitions) for row in answer.assignment.topic_partitions)
        )
        epochs.append(answer.member_epoch)
    s.note("one epoch later", epochs[1] - epochs[0])


@script("GRP-34", "GRP-18", "RPC-8")
def an_assignment_is_told_once(s: Session) -> None:
    topic, group = s.topic(), s.group()
    epoch = s.join(group, "m", topic)
    for topics in (None, [topic.name], None, []):
        answer = s.prepare(
            "share_group_heartbeat",
            1,
            group_id=group,
            member_id="m",
            member_epoch=epoch,
            rack_id=None,
            subscribed_topic_names=topics,
        )
        rows = (
            None
            if answer.assignment is None
            else [list(row.partitions) for row in answer.assignment.topic_partitions]
        )
        s.note("assignment, and the epoch's rise", [rows, answer.member_epoch - epoch])


@script("GRP-24", "GRP-44", seconds=5.0)
def a_session_expires(s: Session) -> None:
    ready(s)
    group = s.group(share_session_timeout_ms="45000", share_heartbeat_interval_ms="5000")
    heartbeat(s, group, "m", 0, "missing")
    heartbeat(s, group, "n", 0, "missing")
    short = {"resource_type": 32, "resource_name": group, "configs": [
        {"name": "share.heartbeat.interval.ms", "config_operation": 0, "value": "1000"},
        {"name": "share.session.timeout.ms", "config_operation": 0, "value": "1500"},
    ]}  # fmt: skip
    s.call("incremental_alter_configs", 1, resources=[short], validate_only=False)
    s.until(lambda: _interval(s, group, 3) == 1000, "the interval is short")
    s.wait(4.0)
    heartbeat(s, group, "m", 3, unchanged=True)
    heartbeat(s, group, "m", 0, "missing")


def _interval(s: Session, group: str, epoch: int) -> int:
    answer = s.prepare(
        "share_group_heartbeat",
        1,
        group_id=group,
        member_id="n",
        member_epoch=epoch,
        rack_id=None,
        subscribed_topic_names=None,
    )
    return (
        round(answer.heartbeat_interval.total_seconds() * 1000)
        if hasattr(answer.heartbeat_interval, "total_seconds")
        else 0
    )


@script("GRP-25")
def leaving_releases_no_records(s: Session) -> None:
    topic, group = s.topic(), s.group()
    s.produce(topic, "one", "two", per_batch=1)
    s.join(group, "m", topic)
    s.member(group, "m").fetch({topic: {0: ()}}, max_records=1, wait_ms=10_000)
    s.prepare(
        "share_group_heartbeat",
        1,
        group_id=group,
        member_id="m",
        member_epoch=-1,
        rack_id=None,
        subscribed_topic_names=None,
    )
    s.join(group, "n", topic)
    s.member(group, "n", on="b").fetch({topic: {0: ()}}, wait_ms=10_000)
