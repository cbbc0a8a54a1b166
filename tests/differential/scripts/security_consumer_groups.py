"""Consumer groups of the new protocol (KIP-848) as a principal without, with partial and with full
rights."""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.consumers import Consumer, group_of
from tests.differential.script import Entity, Topic, Value
from tests.differential.scripts.security_topics import missing, pair
from tests.differential.secured import (
    BOB,
    CLUSTER,
    DESCRIBE,
    GROUP,
    KAFKA_CLUSTER,
    PREFIXED,
    READ,
    TOPIC,
    Secured,
    secured_script,
)


def beat(
    s: Secured, group: str, member: str, epoch: int = 0, topics: Sequence[str] | None = None,
    regex: str | None = None,
) -> Entity:  # fmt: skip
    return s.call(
        "consumer_group_heartbeat", 1, on=BOB, **request(group, member, epoch, topics, regex)
    )  # fmt: skip


def request(
    group: str, member: str, epoch: int, topics: Sequence[str] | None, regex: str | None = None
) -> dict[str, Value]:
    first = epoch == 0
    return {
        "group_id": group, "member_id": member, "member_epoch": epoch, "instance_id": None, "rack_id": None,
        "rebalance_timeout": 60_000 if first else -1, "subscribed_topic_names": topics,
        "subscribed_topic_regex": regex, "server_assignor": None, "topic_partitions": () if first else None,
    }  # fmt: skip


def describe(s: Secured, *groups: str, operations: bool = True) -> Entity:
    return s.call("consumer_group_describe", 1, on=BOB, group_ids=list(groups),
                  include_authorized_operations=operations)  # fmt: skip


@secured_script()
def heartbeats(s: Secured) -> None:
    topic, other = pair(s)
    group = group_of(s, "g", topic, other)
    s.rising(
        lambda: beat(s, group, "m", 0, [topic.name]),
        (DESCRIBE, GROUP, group), (DESCRIBE, TOPIC, topic.name), (READ, GROUP, group),
    )  # fmt: skip


@secured_script()
def subscriptions_to_topics_without_rights(s: Secured) -> None:
    """One topic without DESCRIBE refuses the whole heartbeat."""
    topic, other = pair(s)
    group = group_of(s, "g", topic, other)
    s.allow(BOB, READ, GROUP, group)
    s.rising(
        lambda: beat(s, group, "m", 0, sorted([topic.name, other.name])),
        (DESCRIBE, TOPIC, topic.name), (READ, TOPIC, other.name),
    )  # fmt: skip
    beat(s, group, "n", 0, [topic.name, missing(s)])
    beat(s, group, "n", 0, [])
    beat(s, group, "n", -1)


@secured_script()
def rights_withdrawn_from_a_member(s: Secured) -> None:
    topic = s.topic()
    group = group_of(s, "g", topic)
    s.allow(BOB, READ, GROUP, group)
    s.allow(BOB, READ, TOPIC, topic.name)
    epoch = beat(s, group, "m", 0, [topic.name]).member_epoch
    s.revoke(BOB, READ, TOPIC, topic.name)
    beat(s, group, "m", epoch)
    beat(s, group, "m", epoch, [topic.name])
    s.revoke(BOB, READ, GROUP, group)
    beat(s, group, "m", epoch)
    beat(s, group, "m", -1)
    s.allow(BOB, READ, GROUP, group)
    beat(s, group, "m", epoch)
    beat(s, group, "m", -1)


@secured_script(seconds=2)
def regular_expressions(s: Secured) -> None:
    """Topics without DESCRIBE are left out silently."""
    topic, hidden = pair(s)
    group = group_of(s, "g", topic, hidden)
    s.allow(BOB, READ, GROUP, group)
    s.allow(BOB, DESCRIBE, TOPIC, topic.name)
    epoch = 0

    def assigned() -> list[str] | None:
        nonlocal epoch
        regex = f"{s.name}.*" if epoch == 0 else None
        answer = s.prepare("consumer_group_heartbeat", 1, BOB, **request(group, "m", epoch, None, regex))
        assert not answer.error_code.value, answer
        epoch = answer.member_epoch
        if not answer.assignment or not answer.assignment.topic_partitions:
            return None
        return sorted(s.names.topics[row.topic_id] for row in answer.assignment.topic_partitions)

    s.note("assigned", s.until(assigned, "topics are assigned"))


def members(s: Secured, group: str, *topics: Topic) -> None:
    member = Consumer(s, group, "m", on="member")
    member.silently(0, subscribed_topic_names=[each.name for each in topics], rebalance_timeout=60_000)


@secured_script()
def descriptions(s: Secured) -> None:
    topic, other = pair(s)
    group = group_of(s, "g", topic, other)
    members(s, group, topic, other)
    s.rising(
        lambda: describe(s, group, f"{s.name}-missing"),
        (DESCRIBE, CLUSTER, KAFKA_CLUSTER), (DESCRIBE, GROUP, group), (DESCRIBE, TOPIC, topic.name),
        (READ, TOPIC, other.name),
    )  # fmt: skip


@secured_script()
def descriptions_of_several_groups(s: Secured) -> None:
    topic, other = pair(s)
    group, second = group_of(s, "g", topic), group_of(s, "second", other)
    members(s, group, topic)
    members(s, second, other)
    s.allow(BOB, DESCRIBE, GROUP, s.name, PREFIXED)
    s.allow(BOB, DESCRIBE, TOPIC, topic.name)
    describe(s, second, group, f"x{s.name}", operations=False)


@secured_script()
def offsets_of_members(s: Secured) -> None:
    topic = s.topic()
    group = group_of(s, "g", topic)
    members(s, group, topic)
    s.allow(BOB, DESCRIBE, GROUP, group)

    def ask() -> None:
        row: dict[str, Value] = {"group_id": group, "member_id": "m", "member_epoch": 1}
        topics = [{"name": topic.name, "partition_indexes": [0]}]
        s.call("offset_fetch", 9, on=BOB, groups=[{**row, "topics": topics}], require_stable=False)

    s.rising(ask, (DESCRIBE, TOPIC, topic.name))
