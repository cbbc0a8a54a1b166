"""Fetch: which error takes precedence, which error does not wait, and the rows of one topic."""

from __future__ import annotations

import time
from uuid import UUID

from tests.differential.script import Session, Topic, Value, script
from tests.differential.scripts.base_fetch import FULL, fetch, fetch_by_id, filled, wanted
from tests.differential.scripts.base_offsets import delete_records
from tests.differential.scripts.base_produce import batch_of

READ_COMMITTED = 1
LONG_MS = 3000


def fetch_in(
    s: Session,
    version: int,
    *topics: tuple[Topic, list[dict[str, Value]]],
    replica: int = -1,
    isolation: int = 0,
) -> None:
    """A fetch without a session in an older version."""
    sessions = {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": ()} if version >= 7 else {}
    rack = {"rack_id": ""} if version >= 11 else {}
    known = (
        "partition",
        "fetch_offset",
        "partition_max_bytes",
        *(("current_leader_epoch",) if version >= 9 else ()),
    )
    rows = [
        {"topic": topic.name, "partitions": [{name: row[name] for name in known} for row in asked]}
        for topic, asked in topics
    ]
    s.call(
        "fetch", version, replica_id=replica, max_wait=0, min_bytes=1, max_bytes=1 << 20,
        isolation_level=isolation, topics=rows,
        **sessions, **rack,
    )  # fmt: skip


@script("BASE-46")
def unknown_isolation_levels(s: Session) -> None:
    topic = filled(s)
    missing = Topic("missing", topic.topic_id)
    fetch(s, (missing, wanted((0, 0))), isolation=7)
    fetch(s, (topic, wanted((9, 0))), isolation=7)
    fetch(s, (topic, wanted((0, 3), (9, 0))), (missing, wanted((0, 0))), isolation=7)
    fetch(s, isolation=7)
    for version in (4, 7, 11):
        fetch_in(s, version, (topic, wanted((0, 3), (9, 0))), isolation=7)
    s.call(
        "fetch", 16, max_wait=0, min_bytes=1, max_bytes=1 << 20, isolation_level=7, session_id=0,
        session_epoch=-1,
        topics=[{"topic_id": topic.topic_id, "partitions": wanted((0, 3))}], forgotten_topics_data=(),
        rack_id="",
    )  # fmt: skip


@script("BASE-46", "BASE-47")
def unknown_isolation_levels_in_sessions(s: Session) -> None:
    topic = filled(s)
    fetch(s, session=(12345, 1), isolation=7)
    fetch(s, (topic, wanted((0, 3))), session=(0, 0), isolation=7)
    number = fetch(s, (topic, wanted((0, 4))), session=(0, 0)).session_id
    fetch(s, session=(number, 1), isolation=7)
    fetch(s, session=(number, 1))
    fetch(s, (topic, wanted((0, 3))), session=(number, 2), isolation=7)
    fetch(s, session=(number, 3))


@script("BASE-46", "BASE-48")
def read_committed(s: Session) -> None:
    """Without transactions nothing is aborted: the list is empty where records are read, and null
    in rows with errors."""
    topic = filled(s, 2)
    s.produce_batch(topic, batch_of("other"), partition=1)
    fetch(s, (topic, wanted((0, 0), (1, 0))), isolation=READ_COMMITTED)
    fetch(s, (topic, wanted((0, 4), (1, 99), (9, 0))), isolation=READ_COMMITTED)
    fetch(s, (topic, wanted((0, 0, ), (1, 0), limit=1)), isolation=READ_COMMITTED)  # fmt: skip
    fetch(s, (topic, wanted((0, 0), (1, 0), limit=-1)), isolation=READ_COMMITTED)
    fetch(s, (topic, wanted((0, 0), (1, 0), epoch=99)), isolation=READ_COMMITTED)
    for limit in (0, 1):
        fetch(s, (topic, wanted((0, 0), (1, 0))), max_bytes=limit, isolation=READ_COMMITTED)
    for version in (4, 7, 11):
        fetch_in(s, version, (topic, wanted((0, 3), (9, 0))), isolation=READ_COMMITTED)


@script("BASE-48")
def limits_around_a_batch(s: Session) -> None:
    topic = filled(s, 2)
    s.produce_batch(topic, batch_of("other"), partition=1)
    first = len(batch_of("one", "two"))
    for limit in (first - 1, first, first + 1, first + len(batch_of("three"))):
        fetch(s, (topic, wanted((0, 0), (1, 0), limit=limit)))
        fetch(s, (topic, wanted((0, 0))), max_bytes=limit)
    fetch(s, (topic, wanted((1, 0)) + wanted((0, 0), limit=first - 1)))
    fetch(s, (topic, wanted((1, 0)) + wanted((0, 0), limit=first)))
    fetch(s, (topic, wanted((0, 4)) + wanted((1, 0), limit=1)))


@script("BASE-48")
def limits_below_zero(s: Session) -> None:
    """Noticed only if there is something to read."""
    topic = filled(s, 2)
    fetch(s, (topic, wanted((0, 4), limit=-1)))
    fetch(s, (topic, wanted((0, 99), limit=-1)))
    fetch(s, (topic, wanted((0, 0), limit=-2147483648)))
    fetch(s, (topic, wanted((0, 4))), max_bytes=-5)
    fetch(s, (topic, wanted((1, 0), (0, 0))), max_bytes=-5)
    fetch(s, (topic, wanted((0, 0), limit=-1) + wanted((0, 0))))


@script("BASE-45", seconds=15.0)
def what_does_not_wait(s: Session) -> None:
    """An error of the log itself ends the wait; a missing topic or partition does not."""
    topic = filled(s, 2)
    beside = wanted((1, 0))
    asked = {
        "offset": wanted((0, 99)) + beside,
        "limit": wanted((0, 0), limit=-1) + beside,
        "newer epoch": wanted((0, 4), epoch=99) + beside,
        "older epoch": wanted((0, 4), epoch=0) + beside,
        "partition": wanted((9, 0)) + beside,
    }
    for what, rows in asked.items():
        began = time.monotonic()
        fetch(s, (topic, rows), wait_ms=LONG_MS)
        s.note(f"{what}: answered at once", time.monotonic() - began < LONG_MS / 2000)
    began = time.monotonic()
    fetch(s, (topic, beside), (Topic("missing", topic.topic_id), beside), wait_ms=LONG_MS)
    s.note("topic: answered at once", time.monotonic() - began < LONG_MS / 2000)


@script()
def topics_taken_apart(s: Session) -> None:
    """Consecutive rows of one topic are answered together."""
    one, two = filled(s, 2), filled(s)
    fetch(s, (one, wanted((0, 3))), (two, wanted((0, 3))), (one, wanted((1, 0))))
    fetch(s, (one, wanted((0, 3))), (one, wanted((1, 0))))
    fetch(s, (one, wanted((9, 0))), (two, wanted((0, 3))), (one, wanted((1, 0))))
    fetch(s, (one, wanted((0, 3), (9, 0))), (two, wanted((9, 3), (0, 3))))
    fetch(s, (one, wanted((0, 3))), (two, wanted((0, 3))), (one, wanted((0, 2))))
    fetch(s, (one, []), (two, wanted((0, 3))))


@script("BASE-47")
def a_partition_twice_in_a_session(s: Session) -> None:
    topic = filled(s, 2)
    number = fetch(s, (topic, wanted((0, 3), (0, 4))), session=(0, 0)).session_id
    fetch(s, session=(number, 1))
    fetch(s, (topic, wanted((0, 4), (0, 3))), session=(number, 2))
    fetch(s, (topic, wanted((1, 0))), session=(number, 3), forget=[(topic, 1)])
    fetch(s, session=(number, 4))
    fetch(s, session=(number, 5), forget=[(topic, 9), (Topic("missing", topic.topic_id), 0)])


@script("BASE-47")
def errors_in_a_session(s: Session) -> None:
    topic = filled(s)
    number = fetch(s, (topic, wanted((0, 99), (9, 0))), session=(0, 0)).session_id
    fetch(s, session=(number, 1))
    fetch(s, (topic, wanted((0, 4))), session=(number, 2), forget=[(topic, 9)])
    fetch(s, session=(number, 3))
    fetch(s, (topic, wanted((0, 0), limit=-1)), session=(number, 4))
    fetch(s, (topic, wanted((0, 4), limit=1 << 20)), session=(number, 5))
    fetch(s, session=(0, 0))
    fetch(s, session=FULL)


@script("BASE-47")
def a_log_start_that_moves_in_a_session(s: Session) -> None:
    topic = filled(s)
    number = fetch(s, (topic, wanted((0, 4))), session=(0, 0)).session_id
    fetch(s, session=(number, 1))
    delete_records(s, topic, (0, 3))
    fetch(s, session=(number, 2))
    fetch(s, session=(number, 3))


@script()
def replicas(s: Session) -> None:
    """Requests that claim to come from a replica or a debugger."""
    topic = filled(s)
    fetch_in(s, 11, (topic, wanted((0, 3))), replica=-2)


@script("BASE-47")
def ids_in_a_session(s: Session) -> None:
    topic = filled(s)
    number = fetch_by_id(s, UUID(int=9), wanted((0, 0)), session=(0, 0)).session_id
    fetch_by_id(s, topic.topic_id, wanted((0, 4), (7, 0)), session=(number, 1))
    fetch_by_id(s, topic.topic_id, wanted((0, 3), (0, 4)), session=(number, 2))


@script()
def last_fetched_epochs(s: Session) -> None:
    """Replicas compare their log by it; consumers leave it out."""
    topic = filled(s)
    for epoch in (-2, -1, 0, 99):
        for offset in (0, 4, 5):
            fetch(s, (topic, [{**row, "last_fetched_epoch": epoch} for row in wanted((0, offset))]))
