"""Fetch: offsets, limits, waiting and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tests.differential.script import Entity, Session, Topic, Value, script
from tests.differential.scripts.base_produce import PAST, STAMP, altered, batch_of

FULL = (0, -1)
"""Session id and epoch of a fetch without a session."""


def wanted(*rows: tuple[int, int], limit: int = 1 << 20, epoch: int = -1) -> list[dict[str, Value]]:
    """Partition and offset."""
    return [
        {
            "partition": index,
            "current_leader_epoch": epoch,
            "fetch_offset": offset,
            "partition_max_bytes": limit,
        }
        for index, offset in rows
    ]


def fetch(
    s: Session, *topics: tuple[Topic, list[dict[str, Value]]], session: tuple[int, int] = FULL,
    forget: Sequence[tuple[Topic, int]] = (),
    wait_ms: int = 0, max_bytes: int = 1 << 20, isolation: int = 0, on: str = "a",
) -> Entity:  # fmt: skip
    return s.call(
        "fetch", 12, on=on, max_wait=wait_ms, min_bytes=1, max_bytes=max_bytes, isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=[{"topic": topic.name, "partitions": rows} for topic, rows in topics],
        forgotten_topics_data=[{"topic": topic.name, "partitions": [index]} for topic, index in forget],
        rack_id="",
    )  # fmt: skip


def fetch_by_id(
    s: Session, topic_id: UUID, rows: list[dict[str, Value]], session: tuple[int, int] = FULL
) -> Entity:
    return s.call(
        "fetch", 16, max_wait=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=session[0],
        session_epoch=session[1],
        topics=[{"topic_id": topic_id, "partitions": rows}], forgotten_topics_data=(), rack_id="",
    )  # fmt: skip


def filled(s: Session, partitions: int = 1) -> Topic:
    """Three batches in partition 0, of two records, one and one."""
    topic = s.topic(partitions, **PAST)
    for values in (("one", "two"), ("three",), ("four",)):
        s.produce_batch(topic, batch_of(*values))
    return topic


@script("BASE-43", "BASE-44")
def offsets(s: Session) -> None:
    topic = filled(s)
    for offset in (0, 1, 2, 3, 4, 5, 1000, -1, -2):
        fetch(s, (topic, wanted((0, offset))))


@script("BASE-44")
def before_the_start(s: Session) -> None:
    topic = filled(s)
    rows = [{"name": topic.name, "partitions": [{"partition_index": 0, "offset": 3}]}]
    s.call("delete_records", 2, topics=rows, timeout=30_000)
    for offset in (0, 2, 3):
        fetch(s, (topic, wanted((0, offset))))


@script("BASE-45", seconds=1.0)
def an_error_beside_an_empty_row(s: Session) -> None:
    topic = filled(s, 2)
    fetch(s, (topic, wanted((0, 99), (1, 0))), wait_ms=500)
    fetch(s, (topic, wanted((7, 0), (1, 0))), wait_ms=500)


@script("BASE-48", "BASE-49")
def limits(s: Session) -> None:
    topic = filled(s, 2)
    s.produce_batch(topic, batch_of("other"), partition=1)
    for limit in (0, 1, 100, -1):
        fetch(s, (topic, wanted((0, 0), (1, 0), limit=limit)))
    for limit in (0, 1, -1):
        fetch(s, (topic, wanted((0, 0), (1, 0))), max_bytes=limit)


@script("BASE-46")
def isolation_levels(s: Session) -> None:
    topic = filled(s)
    for level in (0, 1, 7, -1):
        fetch(s, (topic, wanted((0, 3))), isolation=level)


@script()
def unknown_topics(s: Session) -> None:
    topic = filled(s)
    fetch(s, (Topic("missing", topic.topic_id), wanted((0, 0))))
    fetch(s, (topic, wanted((9, 0), (-1, 0))))
    fetch_by_id(s, UUID(int=9), wanted((0, 0)))
    fetch_by_id(s, UUID(int=0), wanted((0, 0)))
    fetch_by_id(s, topic.topic_id, wanted((0, 3)))


@script()
def leader_epochs(s: Session) -> None:
    topic = filled(s)
    for epoch in (99, 0, -1, -2):
        fetch(s, (topic, wanted((0, 3), epoch=epoch)))


@script("BASE-47")
def a_session(s: Session) -> None:
    topic = filled(s, 2)
    opened = fetch(s, (topic, wanted((0, 3), (1, 0))), session=(0, 0))
    number = opened.session_id
    fetch(s, session=(number, 1))
    fetch(s, (topic, wanted((0, 4))), session=(number, 2))
    fetch(s, session=(number, 3))
    s.produce_batch(topic, batch_of("five"))
    fetch(s, session=(number, 4))
    fetch(s, session=(number, 5), forget=[(topic, 0)])
    fetch(s, session=(number, 6))
    fetch(s, session=(number, -1))
    fetch(s, session=(number, 7))


@script("BASE-47")
def wrong_sessions(s: Session) -> None:
    topic = filled(s)
    fetch(s, session=(12345, 1))
    fetch(s, (topic, wanted((0, 3))), session=(0, 1))
    fetch(s, (topic, wanted((0, 3))), session=(12345, 0))
    number = fetch(s, (topic, wanted((0, 3))), session=(0, 0)).session_id
    for epoch in (2, 5, 1, 1, 2):
        fetch(s, session=(number, epoch))
    fetch(s, (topic, wanted((0, 3))), session=(number, 0))
    fetch(s, session=(number, 3))
    fetch(s, session=(number, -5))


@script("BASE-47")
def names_in_a_session_of_ids(s: Session) -> None:
    topic = filled(s)
    number = fetch_by_id(s, topic.topic_id, wanted((0, 3)), session=(0, 0)).session_id
    fetch(s, (topic, wanted((0, 3))), session=(number, 1))
    other = fetch(s, (topic, wanted((0, 3))), session=(0, 0)).session_id
    fetch_by_id(s, topic.topic_id, wanted((0, 3)), session=(other, 1))


@script()
def an_unknown_topic_in_a_session(s: Session) -> None:
    topic = filled(s)
    number = fetch(
        s, (topic, wanted((0, 3))), (Topic("missing", topic.topic_id), wanted((0, 0))), session=(0, 0)
    ).session_id
    fetch(s, session=(number, 1))


@script()
def a_partition_twice(s: Session) -> None:
    topic = filled(s)
    fetch(s, (topic, wanted((0, 3), (0, 2))))
    fetch(s, (topic, wanted((0, 3))), (topic, wanted((0, 2))))
    fetch(s)


@script("BASE-1")
def versions(s: Session) -> None:
    topic = filled(s)
    for version in (4, 7, 11):
        rows = [{"partition": 0, "fetch_offset": 3, "partition_max_bytes": 1000}]
        topics = [{"topic": topic.name, "partitions": rows}]
        more = {"forgotten_topics_data": ()} if version >= 7 else {}
        s.call(
            "fetch",
            version,
            max_wait=0,
            min_bytes=1,
            max_bytes=1000,
            isolation_level=0,
            topics=topics,
            **more,
        )


@script()
def offsets_are_the_broker_s(s: Session) -> None:
    topic = s.topic(**PAST)
    s.produce_batch(topic, altered(batch_of("one", stamp=STAMP + 1), leader_epoch=99))
    fetch(s, (topic, wanted((0, 0))))
