"""Offsets of consumer groups: OffsetCommit and OffsetFetch with member epochs, OffsetDelete."""

from __future__ import annotations

from tests.differential.consumers import Consumer, group_of
from tests.differential.script import Entity, Session, Topic, Value, script
from tests.differential.scripts.group_descriptions import delete, listed
from tests.differential.scripts.offset_commits import commit, fetch
from tests.differential.scripts.offset_deletions import delete_offsets
from tests.differential.scripts.offset_fetches import of_groups, row


def commit_as(
    s: Session,
    member: Consumer,
    offsets: dict[Topic, dict[int, int]],
    epoch: int,
    version: int = 9,
    **more: Value,
) -> Entity:
    return commit(s, member.group_id, offsets, version, epoch, **{"member_id": member.member_id, **more})


def grouped(s: Session, partitions: int = 2) -> tuple[str, Topic, Consumer]:
    """The member m, at epoch 2, has all partitions of a topic."""
    topic = s.topic(partitions)
    group = group_of(s, "g", topic)
    member = Consumer(s, group, "m")
    member.join(topic)
    return group, topic, member


@script("BASE-60")
def commits_by_epoch(s: Session) -> None:
    group, topic, member = grouped(s)
    for epoch in (2, 1, 0, 3, -1, -2):
        commit_as(s, member, {topic: {0: 10 + epoch}}, epoch)
    fetch(s, group, [topic])


@script()
def commits_by_version(s: Session) -> None:
    group, topic, member = grouped(s)
    for version in (2, 5, 8, 9, 10):
        commit_as(s, member, {topic: {0: 10 + version}}, 2, version)
        commit_as(s, member, {topic: {0: 10 + version}}, 1, version)
        commit_as(s, member, {topic: {0: 10 + version}}, -1, version, member_id="")
    fetch(s, group, [topic], version=10)


@script()
def commits_of_nobody_of_the_group(s: Session) -> None:
    group, topic, member = grouped(s)
    commit_as(s, member, {topic: {0: 1}}, 2, member_id="stranger")
    commit_as(s, member, {topic: {0: 1}}, -1, member_id="stranger")
    commit_as(s, member, {topic: {0: 1}}, 2, member_id="")
    commit_as(s, member, {topic: {0: 1}}, -1, member_id="")
    member.leave()
    commit_as(s, member, {topic: {0: 1}}, 2)
    commit_as(s, member, {topic: {0: 1}}, 2, member_id="")
    commit_as(s, member, {topic: {0: 1}}, 3, member_id="")
    commit_as(s, member, {topic: {0: 5}}, -1, member_id="")
    commit_as(s, member, {topic: {0: 6}}, -1)
    fetch(s, group, [topic])


@script()
def commits_for_a_group_that_does_not_exist(s: Session) -> None:
    topic = s.topic()
    group = group_of(s, "g", topic)
    member = Consumer(s, group, "m")
    for version in (8, 9, 10):
        commit_as(s, member, {topic: {0: 1}}, 2, version)
        commit_as(s, member, {topic: {0: 1}}, 0, version)
    commit_as(s, member, {topic: {0: 1}}, -1)
    listed(s)


@script()
def commits_with_an_earlier_epoch(s: Session) -> None:
    group, topic, member = grouped(s, 4)
    other = Consumer(s, group, "n")
    other.join(topic)
    member.beat()
    commit_as(s, member, {topic: {0: 1, 2: 1}}, 2)
    commit_as(s, member, {topic: {0: 1}}, 3)
    commit_as(s, other, {topic: {2: 1}}, 3)
    member.beat(owns={topic: [0, 1]})
    commit_as(s, member, {topic: {0: 2}}, 2)
    commit_as(s, member, {topic: {2: 2}}, 2)
    commit_as(s, member, {topic: {0: 2, 2: 2}}, 2)
    commit_as(s, member, {topic: {0: 3, 2: 3}}, 3)
    commit_as(s, member, {topic: {0: 3}}, 1)
    other.beat()
    commit_as(s, other, {topic: {2: 4}}, 3)
    commit_as(s, other, {topic: {2: 5}}, 2)
    commit_as(s, other, {topic: {2: 5}}, 2, version=10)
    fetch(s, group, [topic], partitions=4)


@script()
def commits_with_an_epoch_before_the_partition_came(s: Session) -> None:
    group, topic, member = grouped(s, 4)
    other = Consumer(s, group, "n")
    other.join(topic)
    member.beat(owns={topic: [0, 1]})
    other.beat()
    other.leave()
    member.beat()
    for index in (0, 2):
        for epoch in (4, 3, 2, 1):
            commit_as(s, member, {topic: {index: 10 * index + epoch}}, epoch)
    commit_as(s, member, {topic: {0: 90, 7: 90}}, 3)
    fetch(s, group, [topic], partitions=4)


@script()
def commits_of_topics_that_are_not_subscribed(s: Session) -> None:
    group, _, member = grouped(s)
    other = s.topic()
    commit_as(s, member, {other: {0: 1}}, 2)
    commit_as(s, member, {other: {0: 2}}, 1)
    commit_as(s, member, {other: {7: 2}}, 2)
    commit_as(s, member, {Topic(f"{s.name}-missing", other.topic_id): {0: 2}}, 2)
    fetch(s, group, [other])


@script()
def commits_of_static_members(s: Session) -> None:
    topic = s.topic()
    group = group_of(s, "g", topic)
    member = Consumer(s, group, "m", instance_id="i")
    member.join(topic)
    commit_as(s, member, {topic: {0: 1}}, 2, group_instance_id="i")
    commit_as(s, member, {topic: {0: 2}}, 2)
    commit_as(s, member, {topic: {0: 3}}, 2, group_instance_id="other")
    commit_as(s, member, {topic: {0: 4}}, 2, group_instance_id="i", member_id="n")
    member.leave(-2)
    commit_as(s, member, {topic: {0: 5}}, 2, group_instance_id="i")
    commit_as(s, member, {topic: {0: 6}}, -2, group_instance_id="i")
    fetch(s, group, [topic])


@script()
def fetches_by_epoch(s: Session) -> None:
    group, topic, member = grouped(s)
    commit_as(s, member, {topic: {0: 5}}, 2)
    for version in (9, 10):
        for epoch in (2, 1, 3, 0, -1):
            of_groups(
                s, row(version, group, {topic: [0, 1]}, member_id="m", member_epoch=epoch), version=version
            )


@script()
def fetches_of_nobody_of_the_group(s: Session) -> None:
    group, topic, member = grouped(s)
    commit_as(s, member, {topic: {0: 5}}, 2)
    for version in (9, 10):
        for member_id, epoch in (("stranger", 2), ("stranger", -1), ("", 2), ("", -1), (None, 2), (None, -1)):
            of_groups(
                s, row(version, group, {topic: [0]}, member_id=member_id, member_epoch=epoch), version=version
            )
    of_groups(s, row(8, group, {topic: [0]}), version=8)


@script()
def fetches_of_groups_without_members(s: Session) -> None:
    group, topic, member = grouped(s)
    commit_as(s, member, {topic: {0: 5}}, 2)
    member.leave()
    unknown = f"{group}-other"
    for group_id in (group, unknown):
        for member_id, epoch in (("m", 2), ("m", 0), ("m", -1), ("", 0), (None, 0), (None, -1)):
            of_groups(s, row(9, group_id, {topic: [0]}, member_id=member_id, member_epoch=epoch))
    of_groups(
        s,
        row(9, group, None, member_id="m", member_epoch=2),
        row(9, unknown, {topic: [0]}),
        row(9, group, None),
    )


@script()
def fetches_of_everything(s: Session) -> None:
    group, topic, member = grouped(s)
    other = s.topic()
    commit_as(s, member, {topic: {0: 5, 1: 6}, other: {0: 7}}, 2)
    for version in (9, 10):
        of_groups(s, row(version, group, None, member_id="m", member_epoch=2), version=version)
        of_groups(s, row(version, group, None, member_id="m", member_epoch=1), version=version, stable=True)


@script()
def deleting_offsets(s: Session) -> None:
    group, topic, member = grouped(s)
    other = s.topic()
    commit_as(s, member, {topic: {0: 5}, other: {0: 7}}, 2)
    delete_offsets(s, group, {topic.name: [0], other.name: [0, 7], f"{s.name}-missing": [0]})
    fetch(s, group, [topic, other])
    member.beat(subscribed_topic_names=[other.name])
    delete_offsets(s, group, {topic.name: [0]})
    member.leave()
    delete_offsets(s, group, {topic.name: [0, 1]})
    fetch(s, group, None)
    listed(s)


@script()
def deleting_offsets_of_a_subscribed_topic_that_is_not_there(s: Session) -> None:
    group = group_of(s)
    Consumer(s, group, "m").join("missing")
    delete_offsets(s, group, {"missing": [0]})
    delete_offsets(s, group, {})


@script()
def offsets_go_with_the_group(s: Session) -> None:
    group, topic, member = grouped(s)
    commit_as(s, member, {topic: {0: 5}}, 2)
    member.leave()
    fetch(s, group, [topic])
    member.join(topic)
    fetch(s, group, [topic])
    member.leave()
    delete(s, group)
    fetch(s, group, [topic])
    member.join(topic)
    fetch(s, group, [topic])
