"""Creating, growing, describing and deleting topics."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tests.differential.script import Entity, Json, Session, Topic, Value, script
from tests.differential.transcript import transcribe

ZERO, UNKNOWN = UUID(int=0), UUID(int=9)


def wanted(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    assignments: Sequence[Value] = (),
    **configs: str | None,
) -> dict[str, Value]:
    rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": assignments,
        "configs": rows,
    }


def without_defaults(answer: Json) -> Json:
    """The defaults that a broker lists among a new topic's configs are the subject of other
    scripts."""
    topics = [
        {
            **row,
            "configs": None
            if row["configs"] is None
            else [each for each in row["configs"] if each["config_source"] == 1],
        }
        for row in answer["topics"]
    ]
    return {**answer, "topics": topics}


def create(s: Session, *rows: dict[str, Value], validate_only: bool = False) -> Entity:
    return s.call(
        "create_topics",
        7,
        keep=without_defaults,
        topics=list(rows),
        timeout=30_000,
        validate_only=validate_only,
    )


def grow(s: Session, *rows: tuple[str, int], validate_only: bool = False) -> Entity:
    topics = [{"name": name, "count": count, "assignments": None} for name, count in rows]
    return s.call("create_partitions", 3, topics=topics, timeout=30_000, validate_only=validate_only)


def delete(s: Session, *rows: tuple[str | None, UUID]) -> Entity:
    return s.call(
        "delete_topics",
        6,
        topics=[{"name": name, "topic_id": topic_id} for name, topic_id in rows],
        timeout=30_000,
    )


def metadata(
    s: Session, *rows: tuple[UUID | None, str | None], version: int = 12, make: bool = False
) -> Entity:
    topics = [{"topic_id": topic_id, "name": name} for topic_id, name in rows]
    return s.call(
        "metadata", version, topics=topics, allow_auto_topic_creation=make,
        include_topic_authorized_operations=False,
        **({"include_cluster_authorized_operations": False} if version <= 10 else {}),
    )  # fmt: skip


@script("BASE-12", "BASE-16")
def numbers_that_make_no_topic(s: Session) -> None:
    name = f"{s.name}-t"
    for partitions in (0, -2, -1):
        create(s, wanted(f"{name}{partitions}", partitions))
    for replicas in (0, -2, 2, -1):
        create(s, wanted(f"{name}r{replicas}", replicas=replicas))


@script("BASE-12")
def names_that_are_none(s: Session) -> None:
    for name in ("", ".", "..", "a b", "ä", "x" * 250, f"{s.name}/"):
        create(s, wanted(name))
    create(s, wanted(f"{s.name}.c_d"))
    create(s, wanted(f"{s.name}_c.d"))
    create(s, wanted(f"{s.name}.c_d"))


@script("BASE-12")
def settings_that_are_none(s: Session) -> None:
    name = f"{s.name}-t"
    for index, configs in enumerate((
        {"nonsense": "1"}, {"retention_ms": "x"}, {"retention_ms": None}, {"retention_ms": "-2"},
        {"cleanup_policy": "x"},
        {"max_message_bytes": "-1"}, {"compression_type": "x"}, {"message_timestamp_type": "x"},
        {"min_insync_replicas": "0"},
    )):  # fmt: skip
        create(s, wanted(f"{name}{index}", **configs))
    create(s, wanted(name, retention_ms="1000", max_message_bytes="2000"))


@script("BASE-12", "BASE-14")
def assignments(s: Session) -> None:
    name = f"{s.name}-t"
    one = [{"partition_index": 0, "broker_ids": [1]}]
    create(s, wanted(f"{name}1", -1, -1, one))
    create(s, wanted(f"{name}2", 1, -1, one))
    create(s, wanted(f"{name}3", -1, 1, one))
    create(s, wanted(f"{name}4", -1, -1, [{"partition_index": 0, "broker_ids": [77]}]))
    create(s, wanted(f"{name}5", -1, -1, [{"partition_index": 1, "broker_ids": [1]}]))
    create(s, wanted(f"{name}6", -1, -1, [{"partition_index": 0, "broker_ids": [1, 1]}]))
    create(s, wanted(f"{name}7", -1, -1, [{"partition_index": 0, "broker_ids": []}]))


@script("BASE-13")
def a_topic_twice(s: Session) -> None:
    create(s, wanted(f"{s.name}-a"), wanted(f"{s.name}-b"), wanted(f"{s.name}-a", 2))
    metadata(s, (None, f"{s.name}-a"))
    create(s)


@script("BASE-15", "BASE-16", "BASE-12")
def validate_only(s: Session) -> None:
    name = f"{s.name}-t"
    create(s, wanted(name, retention_ms="1000"), validate_only=True)
    create(s, wanted(name, 0), wanted(f"{name}b"), validate_only=True)
    metadata(s, (None, name))
    topic = s.topic()
    create(s, wanted(topic.name), validate_only=True)


@script("BASE-1")
def creation_by_version(s: Session) -> None:
    for version in range(2, 8):
        name = f"{s.name}-v{version}"
        s.call(
            "create_topics", version, keep=without_defaults if version >= 5 else None,
            topics=[wanted(name), wanted("a b")],
            timeout=30_000, validate_only=False,
        )  # fmt: skip


@script("BASE-17")
def growing(s: Session) -> None:
    topic = s.topic(2)
    for count in (2, 1, 0, -1):
        grow(s, (topic.name, count))
    grow(s, (topic.name, 3), (topic.name, 4))
    grow(s, (f"{s.name}-missing", 3))
    grow(s, (topic.name, 4), validate_only=True)
    grow(s, (topic.name, 3))
    s.learn(topic.name, 3)
    metadata(s, (None, topic.name))
    grow(s)


@script("BASE-17")
def growing_with_assignments(s: Session) -> None:
    topic = s.topic()
    for brokers in ([[77]], [[1], [1]], [[]], [[1, 1]], [], [[1]]):
        rows = [{"name": topic.name, "count": 2, "assignments": [{"broker_ids": each} for each in brokers]}]
        s.call("create_partitions", 3, topics=rows, timeout=30_000, validate_only=False)


@script("BASE-18")
def deleting(s: Session) -> None:
    topic, other = s.topic(), s.topic()
    delete(s, (f"{s.name}-missing", ZERO))
    delete(s, (None, UNKNOWN))
    delete(s, (None, ZERO))
    delete(s, (topic.name, topic.topic_id))
    delete(s, (topic.name, ZERO), (topic.name, ZERO))
    delete(s, (topic.name, ZERO), (None, topic.topic_id))
    delete(s, (None, other.topic_id), (None, other.topic_id))
    delete(s, (None, other.topic_id))
    delete(s, (None, other.topic_id))
    delete(s, (topic.name, ZERO))
    delete(s)


@script("BASE-18")
def deleting_by_version(s: Session) -> None:
    for version in range(1, 6):
        topic = s.topic()
        s.call(
            "delete_topics", version, topic_names=[topic.name, f"{s.name}-missing", "a b", ""], timeout=30_000
        )


@script("BASE-8", "BASE-9", "BASE-10")
def metadata_of_one(s: Session) -> None:
    topic = s.topic(2)
    metadata(s, (None, topic.name))
    metadata(s, (topic.topic_id, None))
    metadata(s, (topic.topic_id, topic.name))
    metadata(s, (UNKNOWN, None))
    metadata(s, (None, f"{s.name}-missing"))
    for name in ("a b", "", ".", "x" * 250):
        metadata(s, (None, name))
        metadata(s, (None, name), make=True)
    metadata(s, (None, topic.name), (None, topic.name))
    metadata(s, (None, topic.name), (topic.topic_id, None))


@script("BASE-10")
def metadata_of_nothing(s: Session) -> None:
    topic = s.topic()
    for version in (10, 11, 12):
        metadata(s, (ZERO, None), version=version)
    metadata(s, (ZERO, None), (None, topic.name))
    metadata(s, (topic.topic_id, topic.name), version=10)


@script("BASE-11")
def metadata_of_all(s: Session) -> None:
    """Other scripts' topics are not compared, only whether there are any."""
    topic = s.topic()
    for version, topics in ((0, ()), (1, ()), (1, None), (12, ()), (12, None)):
        more = (
            {}
            if version < 4
            else {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        )
        answer = s.prepare("metadata", version, topics=topics, **more)
        mine = [row for row in answer.topics if row.name == topic.name]
        s.note(
            f"version {version}, {topics}",
            [bool(answer.topics), transcribe(mine, s.names), len(answer.brokers)],
        )


@script("BASE-1")
def metadata_by_version(s: Session) -> None:
    topic = s.topic()
    for version in (0, 1, 2, 4, 5, 7, 8, 9, 11):
        more = {"allow_auto_topic_creation": False} if version >= 4 else {}
        more |= {"include_topic_authorized_operations": False} if version >= 8 else {}
        more |= {"include_cluster_authorized_operations": False} if 8 <= version <= 10 else {}
        rows = [
            {"name": name, **({"topic_id": ZERO} if version >= 10 else {})}
            for name in (topic.name, f"{s.name}-missing")
        ]
        s.call("metadata", version, topics=rows, **more)


@script("BASE-19")
def partitions_described(s: Session) -> None:
    topic, other = s.topic(3), s.topic()
    names = sorted([topic.name, other.name])

    def described(limit: int, cursor: tuple[str, int] | None, *topics: str) -> None:
        at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
        s.call(
            "describe_topic_partitions", 0, on="described", topics=[{"name": name} for name in topics],
            response_partition_limit=limit,
            cursor=at,
        )  # fmt: skip

    described(2000, None, *names)
    for limit in (0, 1, 2, -1):
        described(limit, None, *names)
    described(2000, (topic.name, 1), *names)
    described(2000, (topic.name, 9), *names)
    described(2000, (topic.name, -1), *names)
    described(2000, (f"{s.name}-other", 0), *names)
    described(2000, (other.name, 0), topic.name, other.name, f"{s.name}-missing")
    described(2000, None, topic.name, topic.name)
    described(2000, None, "a b", "", f"{s.name}-missing")


@script("BASE-9")
def the_same_name_again(s: Session) -> None:
    topic = s.topic()
    delete(s, (topic.name, ZERO))
    again: Topic = s.topic(name=topic.name)
    s.note("another id", again.topic_id != topic.topic_id)
    s.until(lambda: _is_unknown(s, topic.topic_id), "the old id is gone")
    metadata(s, (topic.topic_id, None))
    metadata(s, (again.topic_id, None))


def _is_unknown(s: Session, topic_id: UUID) -> bool:
    rows = [{"topic_id": topic_id, "name": None}]
    answer = s.prepare(
        "metadata",
        12,
        topics=rows,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    return bool(answer.topics[0].error_code.value == 100)
