"""Metadata, DescribeTopicPartitions, DescribeCluster and DescribeLogDirs: odd rows, authorized
operations, cursors."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tests.differential.script import Entity, Json, Session, script
from tests.differential.scripts.base_produce import batch_of
from tests.differential.scripts.base_topics import UNKNOWN, ZERO, metadata

Rows = Sequence[tuple[UUID | None, str | None]]


def with_operations(s: Session, version: int, *rows: tuple[UUID | None, str | None]) -> None:
    topics = [{"name": name, **({"topic_id": topic_id} if version >= 10 else {})} for topic_id, name in rows]
    more = {"include_cluster_authorized_operations": True} if version <= 10 else {}
    s.call(
        "metadata",
        version,
        topics=topics,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
        **more,
    )


@script("BASE-9", "BASE-10")
def ids_and_names(s: Session) -> None:
    """A name beside an id is ignored."""
    topic, other = s.topic(), s.topic()
    asked: Sequence[Rows] = (
        [(None, topic.name), (other.topic_id, None)],
        [(None, f"{s.name}-missing"), (other.topic_id, None)],
        [(None, topic.name), (UNKNOWN, None)],
        [(UNKNOWN, topic.name)],
        [(topic.topic_id, other.name)],
        [(topic.topic_id, "a b"), (None, "a b")],
        [(topic.topic_id, None), (topic.topic_id, None)],
        [(UNKNOWN, None), (UNKNOWN, other.name)],
        [(topic.topic_id, None), (ZERO, None)],
        [(None, "a b"), (None, "a b"), (None, f"{s.name}-missing"), (None, f"{s.name}-missing")],
    )
    for rows in asked:
        metadata(s, *rows)
        metadata(s, *rows, make=True)
    metadata(s, (None, topic.name), (None, topic.name), (None, other.name), version=9)


@script("BASE-10")
def ids_in_versions_without(s: Session) -> None:
    """Versions 10 and 11 have the field but must not use it."""
    topic, other = s.topic(), s.topic()
    for version in (10, 11):
        metadata(s, (topic.topic_id, None), version=version)
        metadata(s, (None, other.name), (topic.topic_id, None), version=version)
        metadata(s, (None, other.name), (topic.topic_id, topic.name), (None, None), version=version)


@script()
def authorized_operations(s: Session) -> None:
    topic = s.topic()
    for version in (8, 9, 10):
        with_operations(s, version, (None, topic.name), (None, f"{s.name}-missing"), (None, "a b"))
    for version in (11, 12):
        with_operations(s, version, (None, topic.name), (None, f"{s.name}-missing"))
    with_operations(s, 12, (topic.topic_id, None), (UNKNOWN, None))
    with_operations(s, 11, (topic.topic_id, topic.name))
    with_operations(s, 10, (topic.topic_id, topic.name))
    with_operations(s, 12)
    for version in (0, 1):
        s.call("describe_cluster", version, include_cluster_authorized_operations=True)
    s.call("describe_cluster", 1, include_cluster_authorized_operations=True, endpoint_type=2)


def described(s: Session, limit: int, cursor: tuple[str, int] | None, *topics: str) -> Entity:
    at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    rows = [{"name": name} for name in topics]
    return s.call(
        "describe_topic_partitions", 0, on="described", topics=rows, response_partition_limit=limit, cursor=at
    )


@script("BASE-19")
def odd_names_described(s: Session) -> None:
    topic = s.topic()
    for name in ("a b", "", ".", "..", "ä", "x" * 249, "x" * 250, f"{s.name}-missing"):
        described(s, 2000, None, name)
        described(s, 2000, None, topic.name, name)


@script("BASE-19")
def cursors(s: Session) -> None:
    one, two = s.topic(3), s.topic(2)
    missing = f"{s.name}-missing"
    for cursor in (
        (one.name, 0),
        (one.name, 2),
        (one.name, 3),
        (two.name, 0),
        (two.name, 1),
        (two.name, 2),
        (two.name, 99),
    ):
        described(s, 2, cursor, one.name, two.name)
    described(s, 1, (one.name, 3), one.name)
    for cursor in (
        ("", 0),
        (f"{one.name}a", 0),
        ("zzz", 0),
        (missing, 0),
        (missing, 7),
        ("a b", 0),
        (one.name, -1),
        (missing, -1),
    ):
        described(s, 2000, cursor, one.name, two.name, missing)
    described(s, 2000, (missing, 0), missing)
    described(s, 2000, (one.name, 0), "a b", one.name)
    described(s, 2000, (missing, 1), missing, two.name)
    described(s, 2000, (missing, -1), missing)


@script("BASE-19")
def limits_of_partitions(s: Session) -> None:
    one, two, three = s.topic(2), s.topic(2), s.topic(2)
    for limit in (1, 2, 3, 4, 5, 6, 7, -2147483648, 2147483647):
        described(s, limit, None, one.name, f"{s.name}-t1a", two.name, three.name)


def sizes_unknown(answer: Json) -> Json:
    """The size of a disk depends on the machine."""

    def known(result: Json) -> Json:
        return {
            **result,
            **{name: result[name] > 0 for name in ("total_bytes", "usable_bytes") if name in result},
        }

    return {**answer, "results": [known(result) for result in answer["results"]]}


@script()
def log_directories(s: Session) -> None:
    topic, other = s.topic(2), s.topic()
    s.produce_batch(topic, batch_of("one", "two"))
    s.produce_batch(topic, batch_of("three"))

    def directories(version: int, *rows: tuple[str, Sequence[int]]) -> None:
        asked = [{"topic": name, "partitions": partitions} for name, partitions in rows]
        s.call("describe_log_dirs", version, keep=sizes_unknown, topics=asked)

    for version in range(1, 6):
        directories(version, (topic.name, (0, 1)), (other.name, (0,)))
    directories(4, (topic.name, (0, 9, -1)), (f"{s.name}-missing", (0,)))
    directories(4, (topic.name, (0, 0)), (topic.name, (1,)))
    directories(4, (topic.name, ()))
    directories(4, (f"{s.name}-missing", (0,)))
    directories(4)
