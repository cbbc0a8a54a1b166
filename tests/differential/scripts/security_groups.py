"""Classic groups and offsets as a principal without, with partial and with full rights."""

from __future__ import annotations

from uuid import UUID

from tests.differential.classic import ClassicMember, classic_group, commit_rows, form, protocols
from tests.differential.script import Entity, Topic, Value
from tests.differential.scripts.security_topics import missing, pair
from tests.differential.secured import (
    ALL,
    BOB,
    CLUSTER,
    DELETE,
    DESCRIBE,
    GROUP,
    KAFKA_CLUSTER,
    LITERAL,
    PREFIXED,
    READ,
    TOPIC,
    WRITE,
    Secured,
    secured_script,
)


def join(s: Secured, group: str, version: int = 9, member_id: str = "", on: str = BOB) -> Entity:
    values: dict[str, Value] = {
        "group_id": group, "session_timeout": 30_000, "member_id": member_id, "protocol_type": "consumer",
        "protocols": protocols("range"),
    }  # fmt: skip
    values |= {"rebalance_timeout": 30_000} if version >= 1 else {}
    values |= {"group_instance_id": None} if version >= 5 else {}
    return s.call("join_group", version, on=on, **values)


def sync(s: Secured, group: str, member_id: str = "m", version: int = 5, generation: int = 1) -> Entity:
    values: dict[str, Value] = {
        "group_id": group, "generation_id": generation, "member_id": member_id,
        "assignments": [{"member_id": member_id, "assignment": b"all"}],
    }  # fmt: skip
    values |= {"group_instance_id": None} if version >= 3 else {}
    values |= {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
    return s.call("sync_group", version, on=BOB, **values)


def heartbeat(s: Secured, group: str, member_id: str = "m", version: int = 4, generation: int = 1) -> Entity:
    values: dict[str, Value] = {"group_id": group, "generation_id": generation, "member_id": member_id}
    values |= {"group_instance_id": None} if version >= 3 else {}
    return s.call("heartbeat", version, on=BOB, **values)


def leave(s: Secured, group: str, member_id: str = "m", version: int = 5) -> Entity:
    if version < 3:
        return s.call("leave_group", version, on=BOB, group_id=group, member_id=member_id)
    member: dict[str, Value] = {"member_id": member_id, "group_instance_id": None}
    return s.call("leave_group", version, on=BOB, group_id=group, members=[member])


@secured_script()
def joining(s: Secured) -> None:
    group = classic_group(s)
    s.rising(lambda: join(s, group), (DESCRIBE, GROUP, group), (READ, GROUP, group))


@secured_script()
def a_member_that_may_read_the_group(s: Secured) -> None:
    """No right on topics is needed to be a member."""
    group = classic_group(s)
    s.allow(BOB, READ, GROUP, group)
    member_id = join(s, group).member_id
    join(s, group, member_id=member_id)
    sync(s, group, member_id)
    heartbeat(s, group, member_id)
    s.revoke(BOB, READ, GROUP, group)
    heartbeat(s, group, member_id)
    sync(s, group, member_id)
    leave(s, group, member_id)
    s.allow(BOB, READ, GROUP, group)
    heartbeat(s, group, member_id)
    leave(s, group, member_id)


@secured_script()
def members_in_each_version_without_rights(s: Secured) -> None:
    group = classic_group(s)
    for version in range(10):
        join(s, group, version)
    for version in range(6):
        sync(s, group, version=version)
        leave(s, group, version=version)
    for version in range(5):
        heartbeat(s, group, version=version)


@secured_script()
def members_of_other_groups(s: Secured) -> None:
    group, other = classic_group(s), classic_group(s, "other")
    s.allow(BOB, READ, GROUP, group)
    for name in (group, other, "", f"{s.name}-missing"):
        heartbeat(s, name)
        sync(s, name)
        leave(s, name)


def commit(s: Secured, group: str, *topics: Topic, version: int = 9) -> Entity:
    values: dict[str, Value] = {
        "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "",
        "topics": commit_rows(version, {each: {0: 1} for each in topics}),
    }  # fmt: skip
    values |= {"group_instance_id": None} if version >= 7 else {}
    return s.call("offset_commit", version, on=BOB, **values)


def absent(s: Secured) -> Topic:
    """A topic that does not exist."""
    return Topic(missing(s), UUID(int=77))


@secured_script()
def committed(s: Secured) -> None:
    topic, other = pair(s)
    group = classic_group(s)
    s.rising(
        lambda: commit(s, group, topic, other, absent(s)),
        (READ, TOPIC, topic.name), (DESCRIBE, GROUP, group), (READ, GROUP, group),
        (DESCRIBE, TOPIC, other.name), (READ, TOPIC, missing(s)),
    )  # fmt: skip


@secured_script()
def committed_by_id(s: Secured) -> None:
    topic, other = pair(s)
    group = classic_group(s)
    s.rising(
        lambda: commit(s, group, topic, other, absent(s), version=10),
        (READ, GROUP, group), (DESCRIBE, TOPIC, topic.name), (READ, TOPIC, topic.name),
    )  # fmt: skip


@secured_script()
def committed_in_each_version(s: Secured) -> None:
    topic, other = pair(s)
    group = classic_group(s)
    for version in range(2, 11):
        commit(s, group, topic, version=version)
    s.allow(BOB, READ, GROUP, group)
    s.allow(BOB, READ, TOPIC, topic.name)
    for version in range(2, 11):
        commit(s, group, topic, other, version=version)


def fetched(s: Secured, group: str, *topics: Topic, version: int = 9) -> Entity:
    """OffsetFetch; without topics: of all."""
    key = "topic_id" if version >= 10 else "name"
    rows = [
        {key: each.topic_id if version >= 10 else each.name, "partition_indexes": [0, 1]} for each in topics
    ]
    wanted = rows if topics else None
    flags: dict[str, Value] = {"require_stable": False} if version >= 7 else {}
    if version < 8:
        return s.call("offset_fetch", version, on=BOB, group_id=group, topics=wanted, **flags)
    return s.call("offset_fetch", version, on=BOB, groups=[{"group_id": group, "topics": wanted}], **flags)


def with_offsets(s: Secured, *topics: Topic) -> str:
    group = classic_group(s)
    s.prepare(
        "offset_commit", 9, "probe", group_id=group, generation_id_or_member_epoch=-1, member_id="",
        group_instance_id=None, topics=commit_rows(9, {each: {0: 1} for each in topics}),
    )  # fmt: skip
    return group


@secured_script()
def fetched_offsets(s: Secured) -> None:
    topic, other = pair(s)
    group = with_offsets(s, topic, other)

    def ask() -> None:
        fetched(s, group, topic, other, absent(s))
        fetched(s, group)

    s.rising(ask, (DESCRIBE, TOPIC, topic.name), (DESCRIBE, GROUP, group), (READ, TOPIC, other.name))


@secured_script()
def fetched_offsets_by_id(s: Secured) -> None:
    topic, other = pair(s)
    group = with_offsets(s, topic, other)

    def ask() -> None:
        fetched(s, group, topic, other, absent(s), version=10)
        fetched(s, group, version=10)

    s.rising(ask, (DESCRIBE, GROUP, group), (DESCRIBE, TOPIC, topic.name))


@secured_script()
def fetched_offsets_in_each_version(s: Secured) -> None:
    topic, other = pair(s)
    group = with_offsets(s, topic, other)
    for version in range(1, 11):
        fetched(s, group, topic, version=version)
    s.allow(BOB, READ, GROUP, group)
    s.allow(BOB, DESCRIBE, TOPIC, topic.name)
    for version in range(1, 11):
        fetched(s, group, topic, other, version=version)
        if version >= 2:
            fetched(s, group, version=version)


@secured_script()
def fetched_offsets_of_several_groups(s: Secured) -> None:
    topic = s.topic()
    group = with_offsets(s, topic)
    other = f"{s.name}-other"
    s.allow(BOB, DESCRIBE, GROUP, group)
    s.allow(BOB, DESCRIBE, TOPIC, topic.name)
    rows = [
        {"group_id": name, "topics": topics}
        for name in (group, other)
        for topics in (None, [{"name": topic.name, "partition_indexes": [0]}])
    ]
    s.call("offset_fetch", 9, on=BOB, groups=rows, require_stable=False)


@secured_script()
def deleted_offsets(s: Secured) -> None:
    topic, other = pair(s)
    group = with_offsets(s, topic, other)

    def ask() -> None:
        rows = [
            {"name": name, "partitions": [{"partition_index": 0}]}
            for name in (topic.name, other.name, missing(s))
        ]
        s.call("offset_delete", 0, on=BOB, group_id=group, topics=rows)

    s.rising(
        ask, (READ, TOPIC, topic.name), (READ, GROUP, group), (DELETE, GROUP, group),
        (DESCRIBE, TOPIC, other.name), (READ, TOPIC, missing(s)),
    )  # fmt: skip


@secured_script()
def described(s: Secured) -> None:
    group, other = classic_group(s), classic_group(s, "other")
    form(ClassicMember(s, group, "a"))

    def ask() -> None:
        s.call("describe_groups", 6, on=BOB, groups=[group, other, f"{s.name}-missing"],
               include_authorized_operations=True)  # fmt: skip

    s.rising(ask, (DESCRIBE, CLUSTER, KAFKA_CLUSTER), (DESCRIBE, GROUP, group),
             (DESCRIBE, GROUP, f"{s.name}-missing"))  # fmt: skip


@secured_script()
def described_in_each_version(s: Secured) -> None:
    group, other = classic_group(s), classic_group(s, "other")
    s.allow(BOB, READ, GROUP, group)
    for version in range(7):
        more: dict[str, Value] = {"include_authorized_operations": False} if version >= 3 else {}
        s.call("describe_groups", version, on=BOB, groups=[group, other], **more)


@secured_script()
def listed(s: Secured) -> None:
    topic = s.topic()
    group = with_offsets(s, topic)
    form(ClassicMember(s, classic_group(s, "other"), "a"))

    def ask() -> None:
        for version in (0, 4, 5):
            filters: dict[str, Value] = {"states_filter": ()} if version >= 4 else {}
            answer = s.prepare("list_groups", version, BOB, **filters)
            rows = sorted(row.group_id for row in answer.groups if s.name in row.group_id)
            s.note(f"version {version}", [answer.error_code.name, rows])

    s.rising(ask, (DESCRIBE, TOPIC, topic.name), (READ, GROUP, group), (DESCRIBE, CLUSTER, KAFKA_CLUSTER))


@secured_script()
def deleted(s: Secured) -> None:
    group, other = with_offsets(s, s.topic()), f"{s.name}-missing"

    def ask() -> None:
        s.call("delete_groups", 2, on=BOB, groups_names=[group, other])

    s.rising(ask, (READ, GROUP, group), (DELETE, GROUP, other), (DELETE, CLUSTER, KAFKA_CLUSTER),
             (DELETE, GROUP, group))  # fmt: skip


@secured_script()
def rights_by_prefix(s: Secured) -> None:
    group = classic_group(s)
    s.allow(BOB, ALL, GROUP, s.name, PREFIXED)
    s.deny(BOB, READ, GROUP, group, LITERAL)
    for name in (group, f"{group}2", f"x{group}"):
        heartbeat(s, name)
    s.call("describe_groups", 6, on=BOB, groups=[group, f"{group}2", f"x{group}"],
           include_authorized_operations=True)  # fmt: skip


@secured_script()
def rights_that_groups_do_not_have(s: Secured) -> None:
    group = classic_group(s)
    s.allow(BOB, WRITE, GROUP, group)
    heartbeat(s, group)
    s.call("describe_groups", 6, on=BOB, groups=[group], include_authorized_operations=True)
