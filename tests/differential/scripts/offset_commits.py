"""OffsetCommit: from members in every state of the group, from consumers without a group, and for
missing topics and partitions."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tests.differential.classic import (
    ClassicMember,
    classic_group,
    commit_rows,
    delete,
    describe,
    form,
    protocols,
    topic_key,
    until_state,
)
from tests.differential.script import Entity, Session, Topic, Value, only, script
from tests.differential.scripts.classic_rejoin import NEW, completing, pair

ADMIN = "admin"


def commit(
    s: Session,
    group: str,
    offsets: dict[Topic, dict[int, int]],
    version: int = 9,
    generation: int = -1,
    **more: Value,
) -> Entity:
    """Without a member, as tools do, and consumers that assign partitions themselves."""
    values: dict[str, Value] = {
        "group_id": group, "generation_id_or_member_epoch": generation, "member_id": "",
        "group_instance_id": None,
        "topics": commit_rows(version, offsets),
    }  # fmt: skip
    return s.call("offset_commit", version, on=ADMIN, **values | more)


def fetch(
    s: Session,
    group: str,
    topics: Sequence[Topic] | None,
    version: int = 9,
    partitions: int = 1,
    stable: bool = False,
) -> Entity:
    """OffsetFetch of the first partitions of some topics, or (None) of all committed offsets."""
    rows = None
    if topics is not None:
        rows = [
            {**topic_key(version, topic), "partition_indexes": list(range(partitions))} for topic in topics
        ]
    if version < 8:
        return s.call("offset_fetch", version, on=ADMIN, group_id=group, topics=rows, require_stable=stable)
    return s.call(
        "offset_fetch", version, on=ADMIN, groups=[{"group_id": group, "topics": rows}], require_stable=stable
    )


@script()
def without_members_in_each_version(s: Session) -> None:
    group, topic = classic_group(s), s.topic()
    for version in range(2, 11):
        commit(s, group, {topic: {0: 100 + version}}, version)
        fetch(s, group, [topic])
    describe(s, group)


@script()
def as_a_member_in_each_version(s: Session) -> None:
    group, topic = classic_group(s), s.topic()
    a = ClassicMember(s, group, "a")
    form(a)
    for version in range(2, 11):
        a.commit(topic, 100 + version, version=version)
        fetch(s, group, [topic])


@script()
def generations(s: Session) -> None:
    _group, a, _b = pair(s)
    topic = s.topic()
    for generation in (2, 1, 3, 0, -1, -2):
        a.commit(topic, 1, generation_id_or_member_epoch=generation)
    for generation in (2, -1):
        a.commit(topic, 1, generation_id_or_member_epoch=generation, member_id="nobody")
        a.commit(topic, 1, generation_id_or_member_epoch=generation, member_id="")


@script()
def refusals_in_each_version(s: Session) -> None:
    _group, a, _b = pair(s)
    topic = s.topic()
    for version in range(2, 11):
        a.commit(topic, 1, version=version, generation_id_or_member_epoch=1)
        a.commit(topic, 1, version=version, member_id="nobody")


@script()
def while_preparing(s: Session) -> None:
    group, a, b = pair(s)
    topic = s.topic()
    waiting = b.begin_join(protocols=NEW)
    until_state(s, group, "PreparingRebalance")
    a.commit(topic, 7)
    a.commit(topic, 8, generation_id_or_member_epoch=9)
    a.commit(topic, 8, member_id="nobody")
    commit(s, group, {topic: {0: 8}})
    fetch(s, group, [topic])
    a.join()
    waiting()


@script()
def while_completing(s: Session) -> None:
    group, a, _b = completing(s)
    topic = s.topic()
    a.commit(topic, 7)
    a.commit(topic, 8, generation_id_or_member_epoch=2)
    a.commit(topic, 8, member_id="nobody")
    commit(s, group, {topic: {0: 8}})
    for version in (2, 6, 10):
        a.commit(topic, 7, version=version)
    fetch(s, group, [topic])
    a.heartbeat()


@script()
def without_members_to_a_group_with_members(s: Session) -> None:
    group, a, _b = pair(s)
    topic = s.topic()
    commit(s, group, {topic: {0: 1}})
    commit(s, group, {topic: {0: 2}}, generation=2)
    commit(s, group, {topic: {0: 3}}, member_id=a.member_id)
    commit(s, group, {topic: {0: 4}}, 2)
    fetch(s, group, [topic])


@script()
def to_a_group_that_does_not_exist(s: Session) -> None:
    group, topic = classic_group(s), s.topic()
    for version in (2, 5, 8, 9, 10):
        commit(s, group, {topic: {0: 1}}, version, generation=1)
        commit(s, group, {topic: {0: 1}}, version, generation=0, member_id="m")
    commit(s, group, {topic: {0: 1}}, generation=-1, member_id="m")
    commit(s, group, {topic: {0: 1}}, generation=-1, group_instance_id="i")
    commit(s, group, {topic: {0: 1}}, generation=-2)
    describe(s, group)
    commit(s, group, {topic: {0: 1}}, generation=1)


@script()
def to_a_group_without_members(s: Session) -> None:
    group, topic = classic_group(s), s.topic()
    a = ClassicMember(s, group, "a")
    form(a)
    a.leave(quiet=True)
    a.commit(topic, 1)
    commit(s, group, {topic: {0: 2}})
    commit(s, group, {topic: {0: 3}}, generation=2)
    fetch(s, group, [topic])
    describe(s, group)
    form(ClassicMember(s, group, "b"))
    fetch(s, group, [topic])


@script("BASE-58")
def blank_group_ids(s: Session) -> None:
    classic_group(s)
    topic = s.topic()
    # a group id that scripts share: no other script uses it, and nothing of it remains at the end
    describe(s, "")
    for version in (2, 9):
        commit(s, "", {topic: {0: 1}}, version)
        fetch(s, "", [topic], version - 1)
    commit(s, "", {topic: {0: 1}}, generation=1, member_id="m")
    fetch(s, "", None)
    s.call("list_groups", 5, on=ADMIN, keep=only("groups", "group_id", ""), states_filter=(), types_filter=())
    describe(s, "")
    for _ in ("there", "gone"):
        delete(s, "")
    fetch(s, "", None, 10)


@script()
def unknown_topics_and_partitions(s: Session) -> None:
    group, topic = classic_group(s), s.topic(2)
    missing = Topic(f"{s.name}-missing", UUID(int=77))
    for version in (2, 7, 9):
        commit(s, group, {topic: {0: 1, 2: 1, -1: 1}, missing: {0: 1}}, version)
    commit(s, group, {missing: {0: 1}})
    fetch(s, group, [topic, missing], partitions=3)
    describe(s, group)


@script()
def unknown_topics_before_other_faults(s: Session) -> None:
    topic, missing = s.topic(), Topic(f"{s.name}-missing", UUID(int=77))
    group = classic_group(s)
    commit(s, group, {topic: {0: 1}, missing: {0: 1}}, generation=5, member_id="nobody")
    commit(s, group, {missing: {0: 1}}, generation=5, member_id="nobody")
    commit(s, group, {missing: {0: 1}}, 10, generation=5, member_id="nobody")
    commit(s, group, {})
    commit(s, group, {}, generation=5, member_id="nobody")


@script()
def topic_ids(s: Session) -> None:
    group, topic = classic_group(s), s.topic(2)
    unknown, zero = Topic("", UUID(int=77)), Topic("", UUID(int=0))
    commit(s, group, {topic: {0: 5, 7: 5}, unknown: {0: 1}}, 10)
    commit(s, group, {unknown: {0: 1, 1: 1}}, 10)
    commit(s, group, {zero: {0: 1}}, 10)
    fetch(s, group, [topic, unknown], 10)
    fetch(s, group, [topic], 9)
    fetch(s, group, None, 10)


@script()
def metadata(s: Session) -> None:
    group, topic = classic_group(s), s.topic(3)
    rows = [
        {
            "partition_index": 0,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": "m" * 4096,
        },
        {
            "partition_index": 1,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": "m" * 4097,
        },
        {
            "partition_index": 2,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": None,
        },
    ]
    commit(s, group, {}, topics=[{"name": topic.name, "partitions": rows}])
    fetch(s, group, [topic], partitions=3)
    for text in ("é" * 4096, "é" * 4097, "😀" * 2048, "😀" * 2049, "", "\0"):
        commit(s, group, {}, topics=commit_rows(9, {topic: {1: 2}}, committed_metadata=text))
    fetch(s, group, [topic], partitions=3)


@script()
def odd_offsets(s: Session) -> None:
    group, topic = classic_group(s), s.topic(4)
    commit(s, group, {topic: {0: 0, 1: -1, 2: -5, 3: (1 << 63) - 1}})
    fetch(s, group, [topic], partitions=4)
    fetch(s, group, None)
    commit(s, group, {topic: {0: 5}})
    commit(s, group, {topic: {0: 3}})
    fetch(s, group, None)


@script()
def leader_epochs(s: Session) -> None:
    group, topic = classic_group(s), s.topic(3)
    for version in (6, 10):
        for index, epoch in enumerate((77, -1, -9)):
            commit(
                s,
                group,
                {},
                version,
                topics=commit_rows(version, {topic: {index: 1}}, committed_leader_epoch=epoch),
            )
        fetch(s, group, [topic], 9, partitions=3)
    commit(s, group, {topic: {0: 2}}, 5)
    for version in (4, 5, 7, 8):
        fetch(s, group, [topic], version, partitions=3)


@script()
def the_same_partition_twice(s: Session) -> None:
    group, topic = classic_group(s), s.topic()
    once = commit_rows(9, {topic: {0: 1}})
    rest = {"partition_index": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
    twice = [{**rest, "committed_offset": offset} for offset in (8, 4)]
    commit(s, group, {}, topics=once + commit_rows(9, {topic: {0: 2}}))
    fetch(s, group, None)
    commit(s, group, {}, topics=[{"name": topic.name, "partitions": twice}])
    fetch(s, group, None)


@script()
def pending_members(s: Session) -> None:
    group, topic = classic_group(s), s.topic()
    a = ClassicMember(s, group, "a")
    a.join()
    a.commit(topic, 1)
    a.commit(topic, 1, generation_id_or_member_epoch=0)
    commit(s, group, {topic: {0: 2}})
    a.join(protocols=protocols("range"))
    a.commit(topic, 1)


@script()
def retention_time_of_old_versions(s: Session) -> None:
    group, topic = classic_group(s), s.topic()
    for version, retention_ms in ((2, 100_000), (3, 0), (4, -5), (4, -1)):
        commit(s, group, {topic: {0: version}}, version, retention_time=retention_ms)
        fetch(s, group, None)
