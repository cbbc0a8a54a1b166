"""OffsetFetch: by topic and of everything, of one and several groups, for members and for other
clients."""

from __future__ import annotations

from uuid import UUID

from tests.differential.classic import ClassicMember, classic_group, form, topic_key, until_state
from tests.differential.script import Entity, Session, Topic, Value, script
from tests.differential.scripts.classic_rejoin import NEW, pair
from tests.differential.scripts.offset_commits import ADMIN, commit, fetch

MISSING_ID = UUID(int=77)


def of_groups(s: Session, *groups: dict[str, Value], version: int = 9, stable: bool = False) -> Entity:
    return s.call("offset_fetch", version, on=ADMIN, groups=list(groups), require_stable=stable)


def row(version: int, group: str, topics: dict[Topic, list[int]] | None, **more: Value) -> dict[str, Value]:
    """A group in OffsetFetch v8+; None: all topics."""
    rows = (
        None
        if topics is None
        else [{**topic_key(version, topic), "partition_indexes": which} for topic, which in topics.items()]
    )
    return {"group_id": group, "topics": rows, **more}


@script()
def in_each_version(s: Session) -> None:
    group, topic, other = classic_group(s), s.topic(2), s.topic()
    commit(s, group, {topic: {0: 5}, other: {0: 6}})
    for version in range(1, 11):
        fetch(s, group, [topic, other], version, partitions=3)
    for version in range(2, 11):
        fetch(s, group, None, version)


@script()
def no_topics(s: Session) -> None:
    group, topic = classic_group(s), s.topic()
    commit(s, group, {topic: {0: 5}})
    for version in (1, 2, 7, 8, 10):
        fetch(s, group, [], version)
    for version in (1, 7, 9):
        fetch(s, group, [topic], version, partitions=0)


@script()
def unknown_groups(s: Session) -> None:
    group, topic = classic_group(s), s.topic()
    for version in (1, 2, 5, 7, 8, 9, 10):
        fetch(s, group, [topic], version)
    for version in (2, 7, 8, 9, 10):
        fetch(s, group, None, version)
    for version in (7, 9):
        fetch(s, group, [topic], version, stable=True)


@script()
def unknown_topics(s: Session) -> None:
    group, topic, missing = classic_group(s), s.topic(), Topic(f"{s.name}-missing", MISSING_ID)
    commit(s, group, {topic: {0: 5}})
    for version in (1, 2, 7, 9, 10):
        fetch(s, group, [missing, topic], version, partitions=2)
    of_groups(s, row(10, group, {Topic("", UUID(int=0)): [0]}), version=10)
    of_groups(s, row(9, group, {Topic("", UUID(int=0)): [0]}))
    of_groups(s, row(9, group, {topic: [-1, 1 << 30]}))


@script()
def several_groups(s: Session) -> None:
    first, second, third = (classic_group(s, f"g{index}") for index in range(3))
    topic, other = s.topic(2), s.topic()
    commit(s, first, {topic: {0: 5, 1: 6}})
    commit(s, second, {topic: {1: 7}, other: {0: 8}})
    for version in (8, 9, 10):
        of_groups(
            s, row(version, first, {topic: [0, 1]}), row(version, second, None),
            row(version, third, {topic: [0]}),
            row(version, f"{s.name}-missing", None), version=version,
        )  # fmt: skip
    of_groups(s)
    of_groups(s, row(8, first, None), row(8, first, {topic: [0]}), version=8)


@script()
def the_same_partition_twice(s: Session) -> None:
    group, topic = classic_group(s), s.topic()
    commit(s, group, {topic: {0: 5}})
    of_groups(s, row(9, group, {topic: [0, 0]}))
    twice = [{"name": topic.name, "partition_indexes": [0]}, {"name": topic.name, "partition_indexes": [1]}]
    of_groups(s, {"group_id": group, "topics": twice})


@script()
def members_of_classic_groups(s: Session) -> None:
    group, a, _b = pair(s)
    topic = s.topic()
    a.commit(topic, 5)
    every = {topic: [0]}
    of_groups(s, row(9, group, every, member_id=a.member_id, member_epoch=2))
    of_groups(s, row(9, group, every, member_id=a.member_id, member_epoch=1))
    of_groups(s, row(9, group, every, member_id="nobody", member_epoch=2))
    of_groups(s, row(9, group, every, member_id=a.member_id, member_epoch=-1))
    of_groups(
        s,
        row(9, group, None, member_id="nobody", member_epoch=7),
        row(9, group, every, member_id=None, member_epoch=7),
    )
    of_groups(s, row(9, f"{group}-missing", every, member_id="nobody", member_epoch=2))


@script()
def during_a_rebalance(s: Session) -> None:
    group, a, b = pair(s)
    topic = s.topic()
    a.commit(topic, 5)
    b.begin_join(protocols=NEW)
    until_state(s, group, "PreparingRebalance")
    fetch(s, group, [topic])
    fetch(s, group, [topic], stable=True)
    fetch(s, group, None, 7, stable=True)


@script()
def after_the_group_is_empty(s: Session) -> None:
    group, topic = classic_group(s), s.topic()
    a = ClassicMember(s, group, "a")
    form(a)
    a.commit(topic, 5)
    a.leave()
    fetch(s, group, [topic])
    form(ClassicMember(s, group, "b"))
    fetch(s, group, None)


@script()
def offsets_are_the_groups_own(s: Session) -> None:
    first, second = (classic_group(s, f"g{index}") for index in range(2))
    topic = s.topic()
    commit(s, first, {topic: {0: 5}})
    fetch(s, second, [topic])
    commit(s, second, {topic: {0: 0}})
    fetch(s, first, [topic])
    fetch(s, second, [topic])


@script()
def group_that_gets_members_later(s: Session) -> None:
    group, topic = classic_group(s), s.topic()
    a = ClassicMember(s, group, "a")
    commit(s, group, {topic: {0: 5}})
    a.join()
    a.join()
    a.sync(a)
    fetch(s, group, [topic])
    commit(s, group, {topic: {0: 6}})
    a.commit(topic, 7)
    fetch(s, group, [topic])
