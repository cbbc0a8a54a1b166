"""Consumers whose topics appear and disappear: Metadata by id, Fetch by unknown or deleted ids,
coordinators."""

from __future__ import annotations

from uuid import UUID

from tests.differential.script import Session, Topic, Value, script
from tests.differential.scripts.base_fetch import FULL, wanted
from tests.differential.scripts.base_topics import metadata

NOBODY = UUID(int=123)


def fetch_ids(
    s: Session,
    version: int,
    *rows: tuple[UUID, int],
    session: tuple[int, int] = FULL,
    forget: tuple[UUID, ...] = (),
) -> Value:
    """Partition 0 of each topic, from an offset."""
    return s.call(
        "fetch", version, max_wait=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0,
        session_id=session[0], session_epoch=session[1],
        topics=[{"topic_id": topic_id, "partitions": wanted((0, offset))} for topic_id, offset in rows],
        forgotten_topics_data=[{"topic_id": topic_id, "partitions": [0]} for topic_id in forget], rack_id="",
        **({"replica_id": -1} if version < 15 else {}),
    )  # fmt: skip


def removed(s: Session, topic: Topic) -> None:
    s.prepare("delete_topics", 6, topics=[{"name": topic.name, "topic_id": UUID(int=0)}], timeout=30_000)
    s.until(lambda: s.gone(topic), f"{topic.name} is gone")


@script("BASE-9")
def ids_in_metadata(s: Session) -> None:
    one, two = s.topic(), s.topic()
    for version in (12, 13):
        metadata(s, (one.topic_id, None), (NOBODY, None), version=version)
        metadata(s, (one.topic_id, None), (two.topic_id, None), (one.topic_id, None), version=version)


@script("BASE-9")
def ids_and_names_together(s: Session) -> None:
    one, two = s.topic(), s.topic()
    for version in (12, 13):
        metadata(s, (one.topic_id, None), (UUID(int=0), two.name), version=version)
        metadata(s, (one.topic_id, one.name), version=version)
        metadata(s, (one.topic_id, two.name), version=version)


@script("BASE-9")
def an_id_that_was_deleted(s: Session) -> None:
    topic = s.topic()
    removed(s, topic)
    for version in (12, 13):
        metadata(s, (topic.topic_id, None), version=version)
        metadata(s, (UUID(int=0), topic.name), version=version)


@script("BASE-8")
def asking_for_a_topic_to_be_made(s: Session) -> None:
    """The broker never creates topics by itself, whichever API asks for them."""
    metadata(s, (UUID(int=0), f"{s.name}-missing"), version=13, make=True)
    metadata(s, (UUID(int=0), "a b"), (UUID(int=0), ""), version=13, make=True)
    metadata(s, (NOBODY, None), version=13, make=True)


@script()
def ids_that_nobody_knows(s: Session) -> None:
    topic = s.topic()
    s.produce(topic, "one")
    for version in (13, 15, 17, 18):
        fetch_ids(s, version, (topic.topic_id, 0), (NOBODY, 0))
        fetch_ids(s, version, (UUID(int=0), 0))


@script()
def a_deleted_topic_s_id(s: Session) -> None:
    topic = s.topic()
    s.produce(topic, "one")
    fetch_ids(s, 17, (topic.topic_id, 0))
    removed(s, topic)
    s.until(lambda: _is_unknown(s, topic), "fetches know of it")
    fetch_ids(s, 17, (topic.topic_id, 0))


@script("BASE-47")
def deleted_within_a_session(s: Session) -> None:
    stays, goes = s.topic(), s.topic()
    s.produce(stays, "one")
    s.produce(goes, "two")
    session = fetch_ids(s, 17, (stays.topic_id, 0), (goes.topic_id, 0), session=(0, 0)).session_id
    fetch_ids(s, 17, (stays.topic_id, 1), (goes.topic_id, 1), session=(session, 1))
    removed(s, goes)
    s.until(lambda: _is_unknown(s, goes), "fetches know of it")
    fetch_ids(s, 17, session=(session, 2))
    fetch_ids(s, 17, session=(session, 3))
    fetch_ids(s, 17, session=(session, 4), forget=(goes.topic_id,))
    fetch_ids(s, 17, session=(session, 5))


@script("BASE-47")
def unknown_within_a_session(s: Session) -> None:
    topic = s.topic()
    s.produce(topic, "one")
    session = fetch_ids(s, 17, (topic.topic_id, 1), (NOBODY, 0), session=(0, 0)).session_id
    fetch_ids(s, 17, session=(session, 1))
    fetch_ids(s, 17, session=(session, 2), forget=(NOBODY,))
    fetch_ids(s, 17, session=(session, 3))


@script("BASE-47")
def made_again_within_a_session(s: Session) -> None:
    topic = s.topic(name=f"{s.name}-t")
    s.produce(topic, "one")
    session = fetch_ids(s, 17, (topic.topic_id, 1), session=(0, 0)).session_id
    removed(s, topic)
    again = s.topic(name=topic.name)
    s.names.topics[again.topic_id] = "the new one"
    s.produce(again, "two")
    s.until(lambda: _is_unknown(s, topic), "fetches know of it")
    fetch_ids(s, 17, session=(session, 1))
    fetch_ids(s, 17, (again.topic_id, 0), session=(session, 2), forget=(topic.topic_id,))
    fetch_ids(s, 17, session=(session, 3))


@script()
def offsets_of_topics_that_are_not_there(s: Session) -> None:
    topic = s.topic()
    removed(s, topic)
    for name in (topic.name, f"{s.name}-missing", ""):
        rows = [
            {
                "name": name,
                "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}],
            }
        ]
        s.call("list_offsets", 10, replica_id=-1, isolation_level=0, topics=rows, timeout=1000)


def _is_unknown(s: Session, topic: Topic) -> bool:
    """Whether fetches in a session of their own are refused: the log is removed a moment after the
    name."""
    answer = s.prepare(
        "fetch", 17, on="probe", max_wait=0, min_bytes=1, max_bytes=1, isolation_level=0, session_id=0,
        session_epoch=-1,
        topics=[{"topic_id": topic.topic_id, "partitions": wanted((0, 0))}], forgotten_topics_data=(),
        rack_id="",
    )  # fmt: skip
    return bool(answer.responses[0].partitions[0].error_code.value)
