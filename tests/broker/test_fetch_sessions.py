"""Fetch sessions: what they keep of partitions. How they are served is shown over requests (tests/api/test_produce_and_fetch.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kbroker.broker.fetch_sessions import FetchPartition, FetchSessions


def test_nothing_is_kept_of_a_partition_that_has_gone() -> None:
    """A client that has died leaves its session behind, for days where few come."""
    sessions = FetchSessions(10)
    session = sessions.fetch(0, 0, False, [FetchPartition(("orders", index), 0, 100, -1, -1) for index in range(2)], [])
    assert session is not None
    partitions: list[Any] = [SimpleNamespace(deleted=False), SimpleNamespace(deleted=False)]
    for asked, partition in zip(session.partitions.values(), partitions, strict=True):
        asked.found = partition
    partitions[0].deleted = True
    sessions.topic_deleted()
    assert [asked.found for asked in session.partitions.values()] == [None, partitions[1]]
