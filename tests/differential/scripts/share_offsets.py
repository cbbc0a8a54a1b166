"""Administration of a share group's offsets: DescribeShareGroupOffsets, AlterShareGroupOffsets,
DeleteShareGroupOffsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.differential.script import ACCEPT, RELEASE, Entity, Member, Session, Topic, script
from tests.differential.scripts.group_descriptions import describe as describe_group
from tests.differential.scripts.group_heartbeats import heartbeat

ADMIN = "admin"
"""The connection of these requests: a broker without them closes it."""


def describe(
    s: Session, group: str, topics: Mapping[str, Sequence[int]] | None = None, version: int = 1
) -> Entity:
    """`topics` None: all of the group's."""
    rows = (
        None
        if topics is None
        else [{"topic_name": name, "partitions": list(partitions)} for name, partitions in topics.items()]
    )
    return s.call(
        "describe_share_group_offsets", version, on=ADMIN, groups=[{"group_id": group, "topics": rows}]
    )


def alter(s: Session, group: str, topics: Mapping[str, Mapping[int, int]]) -> Entity:
    rows = [
        {
            "topic_name": name,
            "partitions": [
                {"partition_index": index, "start_offset": start} for index, start in starts.items()
            ],
        }
        for name, starts in topics.items()
    ]
    return s.call("alter_share_group_offsets", 0, on=ADMIN, group_id=group, topics=rows)


def delete(s: Session, group: str, *topics: str) -> Entity:
    return s.call(
        "delete_share_group_offsets",
        0,
        on=ADMIN,
        group_id=group,
        topics=[{"topic_name": name} for name in topics],
    )


def used(s: Session, *, accepted: int = 2, partitions: int = 1, leave: bool = True) -> tuple[Topic, str]:
    """A topic of four records in partition 0, of which the group has accepted the first
    `accepted`."""
    topic, group = s.topic(partitions), s.group()
    s.produce(topic, "one", "two", "three", "four")
    s.join(group, "m", topic, partitions=partitions)
    s.until(lambda: _fetched(s, group, topic, accepted), "records were accepted")
    if leave:
        left(s, group)
    return topic, group


def _fetched(s: Session, group: str, topic: Topic, accepted: int) -> bool:
    common = {"group_id": group, "member_id": "m", "on": "user"}
    rows = [
        {"topic_id": topic.topic_id, "partitions": [{"partition_index": 0, "acknowledgement_batches": ()}]}
    ]
    answer = s.prepare(
        "share_fetch", 1, share_session_epoch=0, topics=rows, forgotten_topics_data=(), max_records=10,
        batch_size=10, max_wait=5000,
        min_bytes=1, max_bytes=1 << 20, **common,
    )  # fmt: skip
    if not any(row.acquired_records for each in answer.responses for row in each.partitions):
        return False
    types = [ACCEPT] * accepted + [RELEASE] * (4 - accepted)
    batch = {"first_offset": 0, "last_offset": 3, "acknowledge_types": types}
    rows[0]["partitions"] = [{"partition_index": 0, "acknowledgement_batches": [batch]}]
    done = s.prepare("share_acknowledge", 1, share_session_epoch=1, topics=rows, **common)
    assert not done.error_code.value
    s.prepare("share_acknowledge", 1, share_session_epoch=-1, topics=(), **common)
    return True


def left(s: Session, group: str, member: str = "m") -> None:
    s.prepare(
        "share_group_heartbeat",
        1,
        group_id=group,
        member_id=member,
        member_epoch=-1,
        rack_id=None,
        subscribed_topic_names=None,
    )
    s.disconnect("user")  # the group's last session: the leader drops its state of the group


@script("OFF-1", "OFF-9", "OFF-11", "RPC-4")
def lag(s: Session) -> None:
    topic, group = used(s)
    describe(s, group)
    describe(s, group, version=0)
    describe(s, group, {topic.name: [0]})


@script("OFF-1", "OFF-2", "OFF-3", "OFF-4")
def unknown_things(s: Session) -> None:
    topic, group = used(s, partitions=2)
    describe(s, f"{group}-unknown")
    describe(s, f"{group}-unknown", {topic.name: [0]})
    describe(s, group, {topic.name: [0, 1]})
    describe(s, group, {"missing": [0]})
    describe(s, group, {})


@script("OFF-6", "RPC-63")
def malformed_descriptions(s: Session) -> None:
    topic, group = used(s)
    describe(s, group, {topic.name: [-1]})
    describe(s, group, {topic.name: []})
    describe(s, "")
    describe(s, "", {topic.name: [0]})


@script("OFF-10")
def a_share_partition_that_was_never_written(s: Session) -> None:
    topic, group = s.topic(), s.group()
    s.join(group, "m", topic)
    describe(s, group)
    s.produce(topic, "one")
    describe(s, group)


@script("OFF-12")
def lag_is_not_clamped(s: Session) -> None:
    topic, group = used(s)
    rows = [{"name": topic.name, "partitions": [{"partition_index": 0, "offset": 4}]}]
    s.prepare("delete_records", 2, topics=rows, timeout=30_000)
    describe(s, group)
    alter(s, group, {topic.name: {0: 9}})
    describe(s, group)


@script("OFF-13", "OFF-17", "OFF-18")
def altered(s: Session) -> None:
    topic, group = used(s)
    for start in (0, 3, -1, -5):
        alter(s, group, {topic.name: {0: start}})
        describe(s, group)
    describe_state(s, group)


def describe_state(s: Session, group: str) -> None:
    answer = s.prepare("share_group_describe", 1, group_ids=[group], include_authorized_operations=False)
    s.note("state", [answer.groups[0].error_code.value, answer.groups[0].group_state])


@script("OFF-14", "RPC-63", "OFF-21")
def groups_with_members(s: Session) -> None:
    topic, group = used(s, leave=False)
    alter(s, group, {topic.name: {0: 1}})
    delete(s, group, topic.name)
    alter(s, "", {topic.name: {0: 1}})
    delete(s, "", topic.name)
    delete(s, f"{group}-unknown", topic.name)


@script("OFF-14")
def groups_of_another_type(s: Session) -> None:
    topic, _ = used(s)
    other = f"{s.name}-other"
    s.attempt(
        "offset_commit",
        8,
        on="consumer",
        group_id=other,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[
            {
                "name": topic.name,
                "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}],
            }
        ],
    )
    alter(s, other, {topic.name: {0: 1}})
    delete(s, other, topic.name)
    describe(s, other)


@script("OFF-15", "GRP-41")
def altering_makes_a_group(s: Session) -> None:
    topic, _ = used(s)
    group = f"{s.name}-new"
    alter(s, group, {})
    describe_group(s, group)
    alter(s, group, {"missing": {0: 1}})
    describe_group(s, group)
    alter(s, group, {topic.name: {0: 1}})
    describe_group(s, group)
    describe(s, group)
    heartbeat(s, group, "m", 0, "missing")


@script("OFF-16", "OFF-19")
def rows_that_cannot_be_altered(s: Session) -> None:
    topic, group = used(s)
    alter(s, group, {topic.name: {0: 1, 7: 1}, "missing": {0: 0}})
    alter(s, group, {topic.name: {-1: 1}})
    describe(s, group)


@script("OFF-20", "OFF-22")
def deleted(s: Session) -> None:
    topic, group = used(s)
    delete(s, group, topic.name)
    describe(s, group)
    describe(s, group, {topic.name: [0]})
    delete(s, group, topic.name, "missing")
    delete(s, group)


@script("OFF-20", "OFF-28")
def a_deleted_topic_begins_anew(s: Session) -> None:
    topic, group = used(s)
    delete(s, group, topic.name)
    s.join(group, "m", topic)
    s.member(group).fetch({topic: {0: ()}}, wait_ms=10_000)


@script("OFF-13", "OFF-18")
def consuming_from_an_altered_offset(s: Session) -> None:
    topic, group = used(s)
    alter(s, group, {topic.name: {0: 3}})
    s.join(group, "m", topic)
    s.member(group).fetch({topic: {0: ()}}, wait_ms=10_000)


@script("OFF-18", "LSO-6")
def consuming_from_below_zero(s: Session) -> None:
    topic, group = used(s)
    alter(s, group, {topic.name: {0: -5}})
    s.join(group, "m", topic)
    member = s.member(group, on="user")
    s.until(lambda: _acquires(s, group, topic), "the log's start is found")
    member.epoch = 1
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}})
    describe(s, group)


def _acquires(s: Session, group: str, topic: Topic) -> bool:
    """Kafka notices the log's new start only with a fetch."""
    rows = [
        {"topic_id": topic.topic_id, "partitions": [{"partition_index": 0, "acknowledgement_batches": ()}]}
    ]
    answer = s.prepare(
        "share_fetch", 1, on="user", group_id=group, member_id="m", share_session_epoch=0, topics=rows,
        forgotten_topics_data=(),
        max_records=10, batch_size=10, max_wait=500, min_bytes=1, max_bytes=1 << 20,
    )  # fmt: skip
    return any(row.acquired_records for each in answer.responses for row in each.partitions)


@script("LSO-11", "OFF-12", "OFF-18")
def consuming_from_beyond_the_end(s: Session) -> None:
    topic, group = used(s)
    alter(s, group, {topic.name: {0: 6}})
    s.join(group, "m", topic)
    member = s.member(group, on="user")
    member.fetch({topic: {0: ()}}, wait_ms=500)
    s.produce(topic, "five", "six")
    member.fetch(wait_ms=500)
    s.produce(topic, "seven", "eight", "nine")
    member.fetch(wait_ms=10_000)
    member.acknowledge({topic: {0: [(6, 6, [ACCEPT])]}})
    describe(s, group)


@script("OFF-13")
def altered_to_the_same_offset_again(s: Session) -> None:
    """Records accepted since the first time are no longer accepted, although neither epoch nor
    offset changes."""
    topic, group = used(s)
    alter(s, group, {topic.name: {0: 0}})
    s.until(lambda: _fetched(s, group, topic, 2), "records were accepted")
    s.disconnect("user")
    describe(s, group)
    alter(s, group, {topic.name: {0: 0}})
    describe(s, group)


@script("OFF-2", "OFF-16", "OFF-22")
def the_same_things_twice(s: Session) -> None:
    topic, group = used(s)
    describe(s, group, {topic.name: [0, 0]})
    rows = [
        {"topic_name": topic.name, "partitions": [{"partition_index": 0, "start_offset": start}]}
        for start in (1, 2)
    ]
    s.call("alter_share_group_offsets", 0, on=ADMIN, group_id=group, topics=rows)
    rows = [
        {
            "topic_name": topic.name,
            "partitions": [{"partition_index": 0, "start_offset": start} for start in (3, 4)],
        }
    ]
    s.call("alter_share_group_offsets", 0, on=ADMIN, group_id=group, topics=rows)
    delete(s, group, topic.name, topic.name)


@script("OFF-3", "OFF-6", "OFF-14")
def odd_names(s: Session) -> None:
    topic, group = used(s)
    describe(s, group, {"missing": [-1]})
    describe(s, group, {"missing": []})
    describe(s, group, {"missing": [0], topic.name: [0]})
    describe(s, "", {"missing": [0]})
    alter(s, group, {topic.name: {}})
    alter(s, group, {"missing": {-1: 0}})
    alter(s, " ", {topic.name: {0: 1}})
    delete(s, " ", topic.name)
    s.call("delete_groups", 2, on=ADMIN, groups_names=[" "])


@script("OFF-22", "INIT-9")
def after_its_topic_was_deleted(s: Session) -> None:
    topic, group = used(s)
    answer = s.prepare("delete_topics", 5, topic_names=[topic.name], timeout=30_000)
    assert not answer.responses[0].error_code.value
    s.until(lambda: s.gone(topic), "the topic is gone")
    s.until(lambda: not _listed_topics(s, group), "the group has forgotten it")
    describe(s, group)
    describe(s, group, {topic.name: [0]})
    delete(s, group, topic.name)
    alter(s, group, {topic.name: {0: 1}})


def _listed_topics(s: Session, group: str) -> int:
    answer = s.prepare(
        "describe_share_group_offsets", 1, on=ADMIN, groups=[{"group_id": group, "topics": None}]
    )
    return len(answer.groups[0].topics)


@script("OFF-5", seconds=36.0)
def a_partition_that_does_not_exist(s: Session) -> None:
    """Kafka answers after 30 to 35 s."""
    topic, group = used(s)
    describe(s, group, {topic.name: [7]})


def in_use(s: Session) -> tuple[Topic, str, Member]:
    """The group has no members, but a session is open, and its member holds three records."""
    topic, group = s.topic(), s.group()
    s.produce(topic, "one", "two", "three")
    s.join(group, "m", topic)
    member = s.member(group, on="user")
    member.fetch({topic: {0: ()}}, wait_ms=10_000)
    s.prepare(
        "share_group_heartbeat",
        1,
        group_id=group,
        member_id="m",
        member_epoch=-1,
        rack_id=None,
        subscribed_topic_names=None,
    )
    return topic, group, member


@script("OFF-29", "RPC-57")
def altered_while_a_session_is_open(s: Session) -> None:
    topic, group, member = in_use(s)
    alter(s, group, {topic.name: {0: 1}})
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}})
    describe(s, group)


@script("OFF-30", "RPC-57")
def deleted_while_a_session_is_open(s: Session) -> None:
    topic, group, member = in_use(s)
    delete(s, group, topic.name)
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}})
    describe(s, group)
