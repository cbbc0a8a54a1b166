"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: which error takes precedence, duplicate
rows, and empty logs."""

from __future__ import annotations

from tests.differential.script import Session, Topic, Value, script
from tests.differential.scripts.base_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    MAX_TIMESTAMP,
    TIERED,
    delete_records,
    epoch_ends,
    filled,
    look,
)
from tests.differential.scripts.base_produce import batch_of

PENDING_UPLOAD = -6
LOWEST = -(1 << 63)


def times(*rows: tuple[int, int], epoch: int = -1) -> list[dict[str, Value]]:
    """Partition and timestamp."""
    return [
        {"partition_index": index, "current_leader_epoch": epoch, "timestamp": time} for index, time in rows
    ]


def look_at(
    s: Session,
    *topics: tuple[str, list[dict[str, Value]]],
    version: int = 7,
    isolation: int = 0,
    replica: int = -1,
) -> None:
    rows = [{"name": name, "partitions": partitions} for name, partitions in topics]
    if version < 4:
        rows = [
            {
                "name": name,
                "partitions": [
                    {key: row[key] for key in ("partition_index", "timestamp")} for row in partitions
                ],
            }
            for name, partitions in topics
        ]
    more = {"isolation_level": isolation} if version >= 2 else {}
    more |= {"timeout": 30_000} if version >= 10 else {}
    s.call("list_offsets", version, replica_id=replica, topics=rows, **more)


@script("BASE-50")
def unknown_times_come_first(s: Session) -> None:
    topic = filled(s)
    missing = f"{s.name}-missing"
    for time in (PENDING_UPLOAD, -7, -100, LOWEST):
        look_at(s, (topic.name, times((0, time), (9, time))), (missing, times((0, time))), version=11)
    for time in (MAX_TIMESTAMP, EARLIEST_LOCAL, TIERED, PENDING_UPLOAD):
        look_at(s, (topic.name, times((0, time), (9, time))), (missing, times((0, time))), version=6)
        look(s, topic, time, version=10)
    look_at(s, (topic.name, times((0, -100), (9, LATEST), epoch=99)), version=11)


@script("BASE-52")
def rows_listed_twice(s: Session) -> None:
    topic = filled(s)
    missing = f"{s.name}-missing"
    look_at(s, (topic.name, times((0, LATEST))), (topic.name, times((0, EARLIEST))))
    look_at(
        s, (topic.name, times((0, LATEST))), (missing, times((0, LATEST))), (topic.name, times((1, EARLIEST)))
    )
    look_at(s, (topic.name, times((0, -100), (0, LATEST), (1, LATEST))), version=11)
    look_at(s, (missing, times((0, LATEST), (0, LATEST))), (topic.name, times((9, LATEST), (9, LATEST))))
    look_at(s, (topic.name, []), (missing, []))
    look_at(s)


@script()
def unknown_isolation_levels(s: Session) -> None:
    topic = filled(s)
    missing = f"{s.name}-missing"
    for version in (2, 6, 7, 11):
        for level in (-1, 2):
            look_at(
                s,
                (topic.name, times((0, LATEST), (1, EARLIEST))),
                (missing, times((0, LATEST))),
                version=version,
                isolation=level,
            )
    look_at(s, (topic.name, times((0, LATEST), (0, LATEST))), isolation=7)
    look_at(s, (topic.name, times((0, -100))), isolation=7)
    look_at(s, isolation=7)


@script()
def replicas(s: Session) -> None:
    topic = filled(s)
    for replica in (-2, 0, 1, 77):
        look_at(s, (topic.name, times((0, LATEST), (0 + 1, EARLIEST))), replica=replica)
    look_at(s, (topic.name, times((0, LATEST))), replica=-2, isolation=7)


@script()
def epochs_beside_other_errors(s: Session) -> None:
    topic = filled(s)
    missing = f"{s.name}-missing"
    for epoch in (99, 0, -2):
        look_at(
            s,
            (topic.name, times((0, EARLIEST), (1, MAX_TIMESTAMP), (9, LATEST), epoch=epoch)),
            (missing, times((0, LATEST), epoch=epoch)),
        )


@script("BASE-50", "BASE-54")
def a_log_without_records(s: Session) -> None:
    topic = filled(s)
    delete_records(s, topic, (0, -1))
    for time in (EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, TIERED, 0, 3000):
        look(s, topic, time, version=9)
        look(s, topic, time, version=9, partition=1)
    s.produce_batch(topic, batch_of("x", stamp=2000))
    for time in (EARLIEST, LATEST, MAX_TIMESTAMP, 0, 3000):
        look(s, topic, time)


@script("BASE-53")
def ends_of_epochs_after_deleted_records(s: Session) -> None:
    topic = filled(s)
    delete_records(s, topic, (0, 2))
    for asked in (-1, -2, 0, 99, -(1 << 31)):
        epoch_ends(s, topic, (0, -1, asked))
        epoch_ends(s, topic, (1, -1, asked))
    delete_records(s, topic, (0, -1))
    for asked in (-2, 0):
        epoch_ends(s, topic, (0, -1, asked))


@script("BASE-53")
def rows_of_epochs(s: Session) -> None:
    topic = filled(s)
    for current in (99, 0, -1, -2):
        epoch_ends(s, topic, (0, current, -2), (9, current, 0))
    epoch_ends(s, topic, (0, -1, 0), (0, -1, 99))
    rows = [
        {"topic": topic.name, "partitions": [{"partition": index, "leader_epoch": -2}]} for index in (0, 1, 0)
    ]
    for version in (2, 3, 4):
        s.call(
            "offset_for_leader_epoch", version, topics=rows, **({"replica_id": -1} if version >= 3 else {})
        )
    s.call("offset_for_leader_epoch", 4, replica_id=-2, topics=rows)
    s.call("offset_for_leader_epoch", 4, replica_id=-1, topics=[{"topic": topic.name, "partitions": []}])
    s.call("offset_for_leader_epoch", 4, replica_id=-1, topics=())


def delete_in(s: Session, version: int, *topics: tuple[Topic | str, list[tuple[int, int]]]) -> None:
    rows = [
        {
            "name": topic if isinstance(topic, str) else topic.name,
            "partitions": [{"partition_index": index, "offset": offset} for index, offset in asked],
        }
        for topic, asked in topics
    ]
    s.call("delete_records", version, topics=rows, timeout=30_000)


@script("BASE-54", "BASE-55", "BASE-56")
def records_deleted_twice(s: Session) -> None:
    """The last row of a partition takes effect."""
    topic = filled(s)
    missing = f"{s.name}-missing"
    delete_records(s, topic, (0, 99), (0, 1))
    delete_records(s, topic, (0, 3), (0, -5))
    delete_records(s, topic, (0, 3), (0, 2))
    delete_in(s, 2, (topic, [(0, 4)]), (missing, [(0, 0)]), (topic, [(0, 3), (1, 0)]))
    delete_in(s, 2, (missing, [(0, -5), (0, 0)]), (topic, [(9, -5)]))
    delete_in(s, 2, (topic, []))
    for version in (0, 1):
        delete_in(s, version, (topic, [(0, -1), (1, -1)]))
    look(s, topic, EARLIEST)
