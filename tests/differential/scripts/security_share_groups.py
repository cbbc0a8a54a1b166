"""Share groups as a principal without, with partial and with full rights: heartbeats, descriptions,
ShareFetch, ShareAcknowledge, offsets, and the share coordinator's own requests."""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.script import ACCEPT, RELEASE, Entity, Member, Topic, Value
from tests.differential.scripts.security_topics import missing, pair
from tests.differential.scripts.share_state import ready
from tests.differential.secured import (
    BOB,
    CAROL,
    CLUSTER,
    CLUSTER_ACTION,
    DELETE,
    DESCRIBE,
    GROUP,
    KAFKA_CLUSTER,
    READ,
    TOPIC,
    WRITE,
    Secured,
    secured_script,
)
from tests.differential.transcript import Json


def beat(
    s: Secured, group: str, member: str = "m", epoch: int = 0, topics: Sequence[str] | None = None
) -> Entity:
    return s.call("share_group_heartbeat", 1, on=BOB, group_id=group, member_id=member, member_epoch=epoch,
                  rack_id=None, subscribed_topic_names=topics)  # fmt: skip


def describe(s: Secured, *groups: str) -> Entity:
    return s.call("share_group_describe", 1, on=BOB, group_ids=list(groups),
                  include_authorized_operations=True)  # fmt: skip


def loaded(s: Secured, *topics: Topic) -> str:
    """A group with the member "m", for which the share-partitions of empty topics are loaded."""
    group = s.group()
    s.join(group, "m", *topics, partitions=len(topics))
    s.load(group, *topics)
    return group


def bob(s: Secured, group: str, member: str = "m") -> Member:
    return Member(s, group, member, BOB)


@secured_script()
def heartbeats(s: Secured) -> None:
    topic = s.topic()
    group = s.group()
    s.join(group, "known", topic)  # the coordinator is ready
    s.rising(
        lambda: beat(s, group, "m", 0, [topic.name]),
        (DESCRIBE, GROUP, group), (DESCRIBE, TOPIC, topic.name),
    )  # fmt: skip
    s.allow(BOB, READ, GROUP, group)
    answer = s.prepare(
        "share_group_heartbeat", 1, BOB, group_id=group, member_id="m", member_epoch=0, rack_id=None,
        subscribed_topic_names=[topic.name],
    )  # fmt: skip
    s.note("joined", answer.error_code.name)


@secured_script()
def subscriptions_to_topics_without_rights(s: Secured) -> None:
    topic, other = pair(s)
    group = s.group()
    s.join(group, "known", topic)
    s.allow(BOB, READ, GROUP, group)
    s.allow(BOB, READ, TOPIC, topic.name)
    beat(s, group, "m", 0, [topic.name, other.name])
    beat(s, group, "m", 0, [topic.name, missing(s)])
    beat(s, group, "m", 3, [other.name])
    beat(s, group, "", 0, [other.name])
    beat(s, group, "m", -1)


def beat_quietly(
    s: Secured, what: str, group: str, epoch: int, topics: Sequence[str] | None = None
) -> None:  # fmt: skip
    """The code of a heartbeat, as a note: epochs depend on how many heartbeats a member needed."""
    answer = s.prepare("share_group_heartbeat", 1, BOB, group_id=group, member_id="m", member_epoch=epoch,
                       rack_id=None, subscribed_topic_names=topics)  # fmt: skip
    s.note(what, [answer.error_code.name, answer.error_message is not None, answer.assignment])


@secured_script()
def rights_withdrawn_from_a_member(s: Secured) -> None:
    topic = s.topic()
    group = s.group()
    s.allow(BOB, READ, GROUP, group)
    s.allow(BOB, READ, TOPIC, topic.name)
    epoch = s.join(group, "m", topic, on=BOB)
    s.revoke(BOB, READ, GROUP, group)
    beat_quietly(s, "a partial heartbeat", group, epoch)
    beat_quietly(s, "leaving", group, -1)
    s.allow(BOB, READ, GROUP, group)
    s.revoke(BOB, READ, TOPIC, topic.name)
    beat_quietly(s, "a full heartbeat", group, epoch, [topic.name])
    beat_quietly(s, "a partial heartbeat", group, epoch)


def without_epochs(s: Secured, *groups: str) -> None:
    """The description without epochs: they depend on how many heartbeats a member needed."""
    answer = s.prepare("share_group_describe", 1, BOB, group_ids=list(groups),
                       include_authorized_operations=True)  # fmt: skip
    rows = [
        [row.group_id, row.error_code.name, row.error_message is not None, row.group_state, row.assignor_name,
         row.authorized_operations,
         [[each.member_id, sorted(each.subscribed_topic_names),
           sorted(part.topic_name for part in each.assignment.topic_partitions)] for each in row.members]]
        for row in answer.groups
    ]  # fmt: skip
    s.note("groups", sorted(rows))


@secured_script()
def descriptions(s: Secured) -> None:
    topic, other = pair(s)
    group = s.group()
    s.join(group, "m", topic, other, partitions=2)
    s.rising(
        lambda: without_epochs(s, group, f"{s.name}-missing"),
        (DESCRIBE, CLUSTER, KAFKA_CLUSTER), (DESCRIBE, GROUP, group), (DESCRIBE, TOPIC, topic.name),
        (READ, TOPIC, other.name),
    )  # fmt: skip


@secured_script()
def fetches_without_rights_on_the_group(s: Secured) -> None:
    topic = s.topic()
    group = loaded(s, topic)
    s.produce(topic, "one")
    s.allow(BOB, READ, TOPIC, topic.name)
    member = bob(s, group)
    rows: dict[Topic, dict[int, tuple[()]]] = {topic: {0: ()}}
    member.fetch(rows)
    bob(s, None).fetch(rows)
    bob(s, group, "").fetch(rows)
    bob(s, "").fetch(rows)
    member.fetch(rows, epoch=5)
    s.allow(BOB, DESCRIBE, GROUP, group)
    member.fetch(rows)
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}}, epoch=1)
    s.allow(BOB, READ, GROUP, group)
    member.fetch(rows)


@secured_script()
def fetches_of_topics_without_rights(s: Secured) -> None:
    """The rows of topics without READ are refused; nothing of them is acquired."""
    topic, other = pair(s)
    group = loaded(s, topic, other)
    for each in (topic, other):
        s.produce(each, "one")
    s.allow(BOB, READ, GROUP, group)
    s.allow(BOB, READ, TOPIC, topic.name)
    s.allow(BOB, DESCRIBE, TOPIC, other.name)
    member = bob(s, group)
    member.fetch({topic: {0: ()}, other: {0: ()}})
    member.fetch()
    member.acknowledge({topic: {0: [(0, 0, [RELEASE])]}, other: {0: [(0, 0, [ACCEPT])]}})
    s.allow(BOB, READ, TOPIC, other.name)
    member.fetch()
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}, other: {0: [(0, 0, [ACCEPT])]}})


@secured_script()
def acknowledgements_within_a_fetch(s: Secured) -> None:
    """Rights that are withdrawn while a member holds records."""
    topic = s.topic()
    group = loaded(s, topic)
    s.produce(topic, "one", "two")
    s.allow(BOB, READ, GROUP, group)
    s.allow(BOB, READ, TOPIC, topic.name)
    member = bob(s, group)
    member.fetch({topic: {0: ()}})
    s.revoke(BOB, READ, TOPIC, topic.name)
    member.fetch({topic: {0: [(0, 0, [ACCEPT])]}})
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}})
    s.revoke(BOB, READ, GROUP, group)
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}})
    member.fetch({topic: {0: [(0, 0, [ACCEPT])]}})
    s.allow(BOB, READ, GROUP, group)
    s.allow(BOB, READ, TOPIC, topic.name)
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT]), (1, 1, [RELEASE])]}})


@secured_script()
def acknowledgements_without_rights(s: Secured) -> None:
    topic = s.topic()
    group = loaded(s, topic)
    member = bob(s, group)
    rows = {topic: {0: [(0, 0, [ACCEPT])]}}
    member.acknowledge(rows, epoch=1)
    member.acknowledge(rows, epoch=0)
    bob(s, None).acknowledge(rows, epoch=1)
    bob(s, group, "").acknowledge(rows, epoch=1)
    s.allow(BOB, READ, GROUP, group)
    member.acknowledge(rows, epoch=1)


@secured_script()
def sessions_end_without_rights(s: Secured) -> None:
    topic = s.topic()
    group = loaded(s, topic)
    s.produce(topic, "one")
    s.allow(BOB, READ, GROUP, group)
    s.allow(BOB, READ, TOPIC, topic.name)
    member = bob(s, group)
    member.fetch({topic: {0: ()}})
    s.revoke(BOB, READ, TOPIC, topic.name)
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}}, epoch=-1)
    s.allow(BOB, READ, TOPIC, topic.name)
    Member(s, group, "n", f"{BOB}/2").fetch({topic: {0: ()}})


def used(s: Secured, *topics: Topic) -> str:
    """A group with offsets of these topics, without members."""
    group = s.group()
    s.join(group, "m", *topics, partitions=len(topics))
    s.load(group, *topics)
    s.disconnect("loader")
    s.prepare("share_group_heartbeat", 1, group_id=group, member_id="m", member_epoch=-1, rack_id=None,
              subscribed_topic_names=None)  # fmt: skip
    return group


def without_offsets(answer: Json) -> Json:
    """Whether the start is decided already is the subject of other scripts."""
    for group in answer["groups"]:
        for topic in group["topics"]:
            for row in topic["partitions"]:
                del row["start_offset"], row["leader_epoch"]
    return answer


@secured_script()
def described_offsets(s: Secured) -> None:
    topic, other = pair(s)
    group = used(s, topic, other)

    def ask() -> None:
        named = [{"topic_name": name, "partitions": [0]} for name in (topic.name, other.name, missing(s))]
        for topics in (named, None):
            rows = [{"group_id": name, "topics": topics} for name in (group, f"{s.name}-missing")]
            s.call("describe_share_group_offsets", 0, on=BOB, keep=without_offsets, groups=rows)

    s.rising(ask, (DESCRIBE, TOPIC, topic.name), (DESCRIBE, GROUP, group), (READ, TOPIC, other.name))


def alter(s: Secured, group: str, *topics: str) -> Entity:
    parts = [{"partition_index": 0, "start_offset": 0}]
    rows = [{"topic_name": name, "partitions": parts} for name in topics]
    return s.call("alter_share_group_offsets", 0, on=BOB, group_id=group, topics=rows)


@secured_script()
def altered_offsets(s: Secured) -> None:
    topic, other = pair(s)
    group = used(s, topic, other)
    s.rising(
        lambda: alter(s, group, topic.name, other.name, missing(s)),
        (READ, TOPIC, topic.name), (DESCRIBE, GROUP, group), (READ, GROUP, group),
        (DESCRIBE, TOPIC, other.name), (READ, TOPIC, missing(s)),
    )  # fmt: skip
    alter(s, f"{s.name}-missing", topic.name)


def delete(s: Secured, group: str, *topics: str) -> Entity:
    rows = [{"topic_name": name} for name in topics]
    return s.call("delete_share_group_offsets", 0, on=BOB, group_id=group, topics=rows)


@secured_script()
def deleted_offsets(s: Secured) -> None:
    topic, other = pair(s)
    group = used(s, topic, other)
    s.rising(
        lambda: delete(s, group, topic.name, other.name, missing(s)),
        (READ, TOPIC, topic.name), (READ, GROUP, group), (DELETE, GROUP, group),
        (DESCRIBE, TOPIC, other.name), (READ, TOPIC, missing(s)),
    )  # fmt: skip


@secured_script()
def the_coordinators_own_requests(s: Secured) -> None:
    topic, group = ready(s)

    def ask() -> None:
        for api, version, row in (
            ("initialize_share_group_state", 0, {"state_epoch": 5, "start_offset": 0}),
            ("read_share_group_state", 0, {"leader_epoch": 30}),
            ("write_share_group_state", 1, {
                "state_epoch": 5, "leader_epoch": 30, "start_offset": 0, "delivery_complete_count": 0,
                "state_batches": (),
            }),
            ("read_share_group_state_summary", 1, {"leader_epoch": -1}),
            ("delete_share_group_state", 0, {}),
        ):  # fmt: skip
            parts: list[dict[str, Value]] = [{"partition": index, **row} for index in (0, 7)]
            rows = [{"topic_id": topic.topic_id, "partitions": parts}]
            s.call(api, version, on=BOB, group_id=group, topics=rows)

    s.rising(ask, (READ, GROUP, group), (WRITE, TOPIC, topic.name), (CLUSTER_ACTION, CLUSTER, KAFKA_CLUSTER))


@secured_script()
def another_members_session(s: Secured) -> None:
    """Sessions belong to members, whatever principal sends the request."""
    topic = s.topic()
    group = loaded(s, topic)
    s.produce(topic, "one")
    for role in (BOB, CAROL):
        s.allow(role, READ, GROUP, group)
    s.allow(BOB, READ, TOPIC, topic.name)
    member = bob(s, group)
    member.fetch({topic: {0: ()}})
    other = Member(s, group, "m", CAROL, member.epoch)
    other.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}})
    member.epoch = other.epoch
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}})
