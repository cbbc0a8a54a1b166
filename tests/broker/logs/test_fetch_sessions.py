"""Fetch sessions are bounded in bytes, and those of clients that have gone leave first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from kbroker.broker.logs.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    MAX_BYTES,
    MAX_SESSION_BYTES,
    FetchPartition,
    FetchSession,
    FetchSessions,
    TopicKey,
)
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.principals import ANONYMOUS

_MOST = MAX_SESSION_BYTES // 500
"""Partitions of one session, about."""


def asked(topic: TopicKey, *numbers: int) -> list[FetchPartition]:
    return [FetchPartition((topic, number), 0, 1000, -1, -1) for number in numbers]


class World:
    def __init__(self, slots: int = 1000) -> None:
        self.sessions = FetchSessions(slots)

    def open(self, topic: TopicKey, count: int, connection_id: int = 1) -> FetchSession | None:
        by_id = isinstance(topic, int)
        wanted = asked(topic, *range(count))
        return self.sessions.fetch(0, INITIAL_EPOCH, by_id, wanted, [], ANONYMOUS, connection_id)

    def next(self, session: FetchSession, connection_id: int = 1, **changes: Any) -> FetchSession:
        found = self.sessions.fetch(
            session.session_id, session.epoch, session.by_id, changes.get("wanted", []),
            changes.get("forgotten", []), ANONYMOUS, connection_id,
        )  # fmt: skip
        assert found is session
        return found

    def has(self, session: FetchSession | None) -> bool:
        assert session is not None
        try:
            self.next(session, session.connection_id)
        except KafkaError:
            return False
        return True


def opened(session: FetchSession | None) -> FetchSession:
    assert session is not None
    return session


def test_all_sessions_together_are_bounded_in_bytes() -> None:
    world = World()
    sessions = [world.open(number, _MOST * 9 // 10) for number in range(1, 9)]
    assert None not in sessions
    statistics = world.sessions.statistics()
    assert statistics.bytes <= MAX_BYTES
    assert statistics.evictions == 4
    assert [world.has(each) for each in sessions] == [False] * 4 + [True] * 4


def test_a_session_that_is_too_large_does_not_begin_and_does_not_grow() -> None:
    world = World()
    small = opened(world.open(7, 1))
    assert world.open(1, _MOST + 1) is None
    with pytest.raises(KafkaError) as refused:
        world.next(small, wanted=asked(7, *range(_MOST + 1)))
    assert refused.value.code is ErrorCode.fetch_session_id_not_found, "the client starts over"
    assert world.sessions.statistics() == World().sessions.statistics(), "nothing else was evicted"


@pytest.mark.parametrize("name", ["x" * 250, "x" * 32_000, "a/b", ""])
def test_nothing_is_kept_of_a_name_that_no_topic_can_have(name: str) -> None:
    world = World()
    assert world.open(name, 1) is None
    assert world.open("missing", 1) is not None, "it may be created"
    session = opened(world.open("t", 1))
    with pytest.raises(KafkaError):
        world.next(session, wanted=asked(name, 0))
    assert world.sessions.statistics().sessions == 1


def test_sessions_of_a_closed_connection_leave_first() -> None:
    world = World(slots=3)
    old, gone, moved = (opened(world.open(number, 1, connection_id=number)) for number in (1, 2, 3))
    world.sessions.connection_closed(2)
    world.sessions.connection_closed(3)
    world.next(moved, connection_id=4)
    new = world.open(4, 1, connection_id=4)
    assert [world.has(each) for each in (old, gone, moved, new)] == [True, False, True, True]


def test_an_empty_cache_has_kept_nothing() -> None:
    world = World()
    first = opened(world.open(1, 10))
    world.next(first, wanted=asked(2, 0, 1), forgotten=[(1, number) for number in range(9)])
    world.next(first, forgotten=[(2, 0), (2, 1), (2, 1), (3, 0)])
    second = opened(world.open("t", 3, connection_id=2))
    world.sessions.connection_closed(2)
    world.sessions.forget(second)
    world.sessions.fetch(first.session_id, FINAL_EPOCH, True, [], [], ANONYMOUS, 1)
    empty = World().sessions
    kept = {name: value for name, value in vars(world.sessions).items() if value != vars(empty)[name]}
    assert kept == {}


class Counted(dict[Any, Any]):
    """Partitions of a session, and how often one was looked up."""

    looks = 0

    def get(self, *key: Any) -> Any:
        self.looks += 1
        return super().get(*key)

    def values(self) -> Any:
        self.looks += len(self)
        return super().values()


def test_a_deletion_looks_only_at_sessions_of_the_topic() -> None:
    world = World()
    topic_id = UUID(int=99)
    others = [opened(world.open(number, 50)) for number in range(1, 50)]
    named = opened(world.open("t", 2)), opened(world.open(topic_id.int, 2))
    partition = SimpleNamespace(deleted=True)
    for session in (*others, *named):
        for each in session.partitions.values():
            each.found = partition  # type: ignore[assignment]
        session.partitions = Counted(session.partitions)  # type: ignore[assignment]
    world.sessions.topic_deleted("t", topic_id, 2)
    looks = sum(session.partitions.looks for session in (*others, *named))  # type: ignore[attr-defined]
    assert looks == 4
    assert [each.found for session in named for each in session.partitions.values()] == [None] * 4
