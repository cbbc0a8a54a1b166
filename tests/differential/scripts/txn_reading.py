"""Fetch, ListOffsets and OffsetForLeaderEpoch over open, committed and aborted transactions."""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.script import Entity, Session, Topic, Value, script
from tests.differential.scripts.base_fetch import FULL, wanted
from tests.differential.scripts.base_produce import STAMP, batch_of
from tests.differential.transactions import LOG, Producer, transactional

LEVELS = (0, 1)
FETCHES = tuple(range(4, 19))
NAMES_UNTIL = 12


def fetch_values(
    version: int, topics: Sequence[tuple[Topic, list[dict[str, Value]]]], level: int,
    session: tuple[int, int] = FULL, wait_ms: int = 0, max_bytes: int = 1 << 20, min_bytes: int = 1,
) -> dict[str, Value]:  # fmt: skip
    """Rows without the fields that a version does not have."""
    rows = [
        {
            **({"topic_id": topic.topic_id} if version > NAMES_UNTIL else {"topic": topic.name}),
            "partitions": [_row(row, version) for row in rows],
        }
        for topic, rows in topics
    ]
    values: dict[str, Value] = {
        "max_wait": wait_ms, "min_bytes": min_bytes, "max_bytes": max_bytes, "isolation_level": level,
        "topics": rows,
    }  # fmt: skip
    if version < 15:
        values["replica_id"] = -1
    if version >= 7:
        values |= {"session_id": session[0], "session_epoch": session[1], "forgotten_topics_data": ()}
    if version >= 11:
        values["rack_id"] = ""
    return values


def _row(row: dict[str, Value], version: int) -> dict[str, Value]:
    return {key: value for key, value in row.items() if version >= 9 or key != "current_leader_epoch"}


def fetch(
    s: Session, topic: Topic, offset: int = 0, level: int = 1, version: int = 12, **how: Value
) -> Entity:
    rows = wanted((0, offset), limit=how.pop("limit", 1 << 20))
    return s.call("fetch", version, **fetch_values(version, [(topic, rows)], level, **how))


def list_offsets(
    s: Session, topic: Topic, *stamps: int, level: int = 1, version: int = 7, partition: int = 0
) -> None:
    for stamp in stamps:
        rows = [{"name": topic.name, "partitions": [{"partition_index": partition, "timestamp": stamp}]}]
        s.call("list_offsets", version, replica_id=-1, isolation_level=level, topics=rows)


def look(s: Session, topic: Topic, *offsets: int) -> None:
    """What both levels read, and where they say that the log ends."""
    for level in LEVELS:
        for offset in offsets or (0,):
            fetch(s, topic, offset, level)
        list_offsets(s, topic, -1, level=level)


def with_ends(s: Session, generation: int) -> tuple[Topic, Producer]:
    """Offsets 0-2 committed, marker 3, plain 4, 5-6 aborted, marker 7, plain 8, 9 open."""
    topic = s.topic(**LOG)
    t = transactional(s, f"t{generation}", generation)
    t.send(topic, "c1", "c2")
    t.send(topic, "c3")
    t.ended(True)
    s.produce_batch(topic, batch_of("p1"))
    t.send(topic, "a1", "a2")
    t.ended(False)
    s.produce_batch(topic, batch_of("p2"))
    t.send(topic, "o1")
    return topic, t


@script()
def each_version_of_fetch(s: Session) -> None:
    topic, _ = with_ends(s, 2)
    for version in FETCHES:
        for level in LEVELS:
            fetch(s, topic, 0, level, version)


@script()
def every_offset(s: Session) -> None:
    for generation in (1, 2):
        topic, _ = with_ends(s, generation)
        for level in LEVELS:
            for offset in range(12):
                fetch(s, topic, offset, level)


@script()
def an_open_transaction(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s)
    look(s, topic)
    t.send(topic, "one")
    look(s, topic, 0, 1, 2)
    s.produce_batch(topic, batch_of("plain"))
    look(s, topic, 0, 1, 2, 3)
    t.ended(True)
    look(s, topic, 0, 1, 2, 3)


@script()
def a_committed_transaction(s: Session) -> None:
    topic = s.topic(**LOG)
    for generation in (1, 2):
        t = transactional(s, f"t{generation}", generation)
        t.send(topic, "one")
        t.ended(True)
        look(s, topic)


@script()
def an_aborted_transaction(s: Session) -> None:
    topic = s.topic(**LOG)
    for generation in (1, 2):
        t = transactional(s, f"t{generation}", generation)
        t.send(topic, "one")
        t.ended(False)
        look(s, topic)


@script()
def a_fenced_producer_s_transaction(s: Session) -> None:
    topic = s.topic(**LOG)
    for generation in (1, 2):
        t = transactional(s, f"t{generation}", generation)
        t.send(topic, "one")
        t.prepared()
        look(s, topic)
        t.send(topic, "two")
        t.ended(True)
        look(s, topic)


@script()
def aborted_transactions_of_one_producer(s: Session) -> None:
    topic = s.topic(**LOG)
    for generation in (1, 2):
        t = transactional(s, f"t{generation}", generation)
        for value in ("one", "two", "three"):
            t.send(topic, value)
            t.ended(value == "two")
    look(s, topic, *range(12))


@script()
def interleaved_producers(s: Session) -> None:
    topic = s.topic(**LOG)
    t, u, v = (transactional(s, name) for name in "tuv")
    for index in range(2):
        for each in (t, u, v):
            each.send(topic, f"{each.on}{index}")
    for each, committed in ((u, False), (t, True), (v, False)):
        each.ended(committed)
        look(s, topic, 0, 3)
    look(s, topic, *range(10))


@script()
def the_oldest_open_one_counts(s: Session) -> None:
    topic = s.topic(**LOG)
    t, u = transactional(s, "t", 1), transactional(s, "u", 2)
    t.send(topic, "t1")
    u.send(topic, "u1")
    look(s, topic)
    t.ended(False)
    look(s, topic)
    t.send(topic, "t2")
    u.ended(True)
    look(s, topic)
    t.ended(True)
    look(s, topic)


@script()
def limits_around_transactions(s: Session) -> None:
    topic, _ = with_ends(s, 2)
    for limit in (1, 100, 200, 300):
        fetch(s, topic, 0, limit=limit, max_bytes=limit)
        fetch(s, topic, 5, limit=limit, max_bytes=limit)
    fetch(s, topic, 7, limit=1)


@script()
def several_partitions(s: Session) -> None:
    topic, other = s.topic(3, **LOG), s.topic(**LOG)
    t = transactional(s)
    t.send(topic, "one")
    t.send(topic, "two", partition=2)
    t.send(other, "three")
    s.produce_batch(topic, batch_of("plain"), 1)
    asked = [(topic, wanted((0, 0), (1, 0), (2, 0))), (other, wanted((0, 0)))]
    for committed in (None, False):
        if committed is not None:
            t.ended(committed)
        for level in LEVELS:
            s.call("fetch", 12, **fetch_values(12, asked, level))


@script()
def a_session(s: Session) -> None:
    topic = s.topic(2, **LOG)
    t = transactional(s)
    t.send(topic, "one")
    asked = [(topic, wanted((0, 0), (1, 0)))]
    answer = s.call("fetch", 12, **fetch_values(12, asked, 1, (0, 0)))
    session = answer.session_id
    s.call("fetch", 12, **fetch_values(12, [], 1, (session, 1)))
    t.send(topic, "two")
    s.call("fetch", 12, **fetch_values(12, [], 1, (session, 2)))
    t.ended(False)
    s.call("fetch", 12, **fetch_values(12, [], 1, (session, 3)))
    moved = [(topic, wanted((0, 3)))]
    s.call("fetch", 12, **fetch_values(12, moved, 1, (session, 4)))
    s.call("fetch", 12, **fetch_values(12, [], 1, (session, 5)))


@script()
def the_end_of_a_transaction_wakes_readers(s: Session) -> None:
    topic = s.topic(**LOG)
    for committed in (True, False):
        t = transactional(s, f"t-{committed}")
        t.send(topic, "one")
        start = 0 if committed else 2
        values = fetch_values(12, [(topic, wanted((0, start)))], 1, wait_ms=20_000)
        answer = s.begin("fetch", 12, "reader", None, **values)
        t.ended(committed)
        answer()


@script()
def min_bytes_count_up_to_the_stable_offset(s: Session) -> None:
    topic = s.topic(**LOG)
    s.produce_batch(topic, batch_of("plain"))
    t = transactional(s)
    t.send(topic, "x" * 2000)
    fetch(s, topic, min_bytes=1000, wait_ms=300)
    fetch(s, topic, min_bytes=1000, wait_ms=20_000, level=0)
    t.ended(True)
    fetch(s, topic, min_bytes=1000, wait_ms=20_000)


@script()
def only_markers(s: Session) -> None:
    topic = s.topic(**LOG)
    for generation in (1, 2):
        for committed in (True, False):
            t = transactional(s, f"t{generation}-{committed}", generation)
            t.added({topic: (0,)})
            t.ended(committed)
    look(s, topic, *range(5))


@script()
def rows_with_errors(s: Session) -> None:
    topic, _ = with_ends(s, 2)
    for level in LEVELS:
        fetch(s, topic, 99, level)
        fetch(s, topic, -1, level)
        rows = wanted((7, 0))
        s.call("fetch", 12, **fetch_values(12, [(topic, rows)], level))


@script()
def offsets_in_each_version(s: Session) -> None:
    topic, _ = with_ends(s, 2)
    for version in range(2, 10):
        for level in LEVELS:
            list_offsets(s, topic, -1, -2, version=version, level=level)


@script()
def offsets_by_time(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s)
    s.produce_batch(topic, batch_of("one", stamp=STAMP + 1))
    t.send(topic, "two")
    s.produce_batch(topic, batch_of("three", stamp=STAMP + 5))
    for ended in (False, True):
        if ended:
            t.ended(True)
        for level in LEVELS:
            list_offsets(s, topic, STAMP, STAMP + 1, STAMP + 2, STAMP + 5, STAMP + 6, -3, level=level)


@script()
def times_of_markers(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s)
    t.send(topic, "one")
    t.ended(False)
    for level in LEVELS:
        list_offsets(s, topic, STAMP, STAMP + 1, -3, -1, level=level)


@script()
def records_are_deleted_under_an_open_transaction(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s)
    t.send(topic, "one")
    t.send(topic, "two")
    s.produce_batch(topic, batch_of("plain"))
    for offset in (1, -1):
        rows = [{"name": topic.name, "partitions": [{"partition_index": 0, "offset": offset}]}]
        s.call("delete_records", 2, topics=rows, timeout=30_000)
        look(s, topic, 1, 3)
    t.send(topic, "three")
    look(s, topic, 3)
    t.ended(False)
    look(s, topic, 3, 4)


@script()
def records_are_deleted_under_an_aborted_one(s: Session) -> None:
    topic, _ = with_ends(s, 2)
    for offset in (6, 7, 8):
        rows = [{"name": topic.name, "partitions": [{"partition_index": 0, "offset": offset}]}]
        s.call("delete_records", 2, topics=rows, timeout=30_000)
        look(s, topic, offset)


@script()
def the_leader_epoch_s_end(s: Session) -> None:
    topic, t = with_ends(s, 2)
    for ended in (False, True):
        if ended:
            t.ended(True)
        rows = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
        s.call(
            "offset_for_leader_epoch", 4, replica_id=-1, topics=[{"topic": topic.name, "partitions": rows}]
        )


@script()
def plain_logs_in_both_levels(s: Session) -> None:
    topic = s.topic(**LOG)
    s.produce_batch(topic, batch_of("one", "two"))
    look(s, topic, 0, 1, 2)
