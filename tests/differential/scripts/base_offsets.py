"""Looking up offsets: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

from tests.differential.script import Entity, Session, Topic, script
from tests.differential.scripts.base_produce import PAST, batch_of, has_offsets_topic

EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, TIERED = -2, -1, -3, -4, -5


def look(
    s: Session,
    topic: Topic | str,
    *times: int,
    version: int = 7,
    partition: int = 0,
    epoch: int = -1,
    isolation: int = 0,
) -> Entity:
    """One row for each of `times`."""
    rows = [
        {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": time} for time in times
    ]
    name = topic if isinstance(topic, str) else topic.name
    more = {"timeout": 30_000} if version >= 10 else {}
    return s.call(
        "list_offsets",
        version,
        replica_id=-1,
        isolation_level=isolation,
        topics=[{"name": name, "partitions": rows}],
        **more,
    )


def delete_records(s: Session, topic: Topic | str, *rows: tuple[int, int]) -> Entity:
    """Partition and offset."""
    partitions = [{"partition_index": index, "offset": offset} for index, offset in rows]
    name = topic if isinstance(topic, str) else topic.name
    return s.call("delete_records", 2, topics=[{"name": name, "partitions": partitions}], timeout=30_000)


def epoch_ends(s: Session, topic: Topic | str, *rows: tuple[int, int, int]) -> Entity:
    """Partition, current leader epoch, requested leader epoch."""
    partitions = [
        {"partition": index, "current_leader_epoch": current, "leader_epoch": asked}
        for index, current, asked in rows
    ]
    name = topic if isinstance(topic, str) else topic.name
    return s.call(
        "offset_for_leader_epoch", 4, replica_id=-1, topics=[{"topic": name, "partitions": partitions}]
    )


def filled(s: Session, **configs: str) -> Topic:
    """Five batches of one record; the times are not in order."""
    topic = s.topic(2, **PAST, **configs)
    for stamp in (1000, 3000, 2000, 5000, 4000):
        s.produce_batch(topic, batch_of("x", stamp=stamp))
    return topic


@script("BASE-50")
def ends(s: Session) -> None:
    topic = filled(s)
    for time in (EARLIEST, LATEST, MAX_TIMESTAMP):
        look(s, topic, time)
        look(s, topic, time, partition=1)
    look(s, topic, EARLIEST_LOCAL, version=8)
    look(s, topic, TIERED, version=9)
    for time in (-6, -7, -100):
        look(s, topic, time, version=11)


@script("BASE-50")
def special_times_by_version(s: Session) -> None:
    topic = filled(s)
    for version in (1, 2, 5, 6, 7, 8, 9, 10, 11):
        for time in (MAX_TIMESTAMP, EARLIEST_LOCAL, TIERED):
            look(s, topic, time, version=version)


@script("BASE-51")
def by_timestamp(s: Session) -> None:
    topic = filled(s)
    for time in (0, 1000, 1001, 2000, 3000, 3001, 4000, 5000, 5001):
        look(s, topic, time)
    look(s, topic, 0, partition=1)


@script("BASE-51")
def by_timestamp_inside_batches(s: Session) -> None:
    topic = s.topic(**PAST)
    for start in (1000, 2000):
        s.produce(topic, "one", "two", "three", timestamp_ms=start)
    for time in (0, 1000, 1500, 2000, 2001):
        look(s, topic, time)
    look(s, topic, MAX_TIMESTAMP)


@script("BASE-50", "BASE-54")
def after_deleted_records(s: Session) -> None:
    topic = filled(s)
    delete_records(s, topic, (0, 2))
    for time in (EARLIEST, EARLIEST_LOCAL, LATEST, MAX_TIMESTAMP, 0, 1000, 3000):
        look(s, topic, time, version=8)


@script("BASE-52")
def a_partition_twice(s: Session) -> None:
    topic = filled(s)
    look(s, topic, EARLIEST, LATEST)
    look(s, topic, EARLIEST, EARLIEST)


@script()
def unknown_partitions(s: Session) -> None:
    topic = filled(s)
    look(s, topic, LATEST, partition=9)
    look(s, topic, LATEST, partition=-1)
    look(s, f"{s.name}-missing", LATEST)
    look(s, "a b", LATEST)
    look(s, "", LATEST)


@script()
def wrong_epochs(s: Session) -> None:
    topic = filled(s)
    for epoch in (99, 0, -1, -2):
        look(s, topic, LATEST, epoch=epoch)


@script()
def isolation_levels(s: Session) -> None:
    topic = filled(s)
    for level in (0, 1, 7):
        look(s, topic, LATEST, isolation=level)


@script("BASE-53")
def ends_of_epochs(s: Session) -> None:
    topic = filled(s)
    epoch_ends(s, topic, (0, -1, 0))
    epoch_ends(s, topic, (0, -1, 99))
    epoch_ends(s, topic, (0, 0, 0), (1, 0, 0))
    epoch_ends(s, topic, (0, 99, 0))
    epoch_ends(s, topic, (0, -1, -1))
    epoch_ends(s, topic, (0, -1, -5))
    epoch_ends(s, topic, (9, -1, 0), (-1, -1, 0))
    epoch_ends(s, f"{s.name}-missing", (0, -1, 0))


@script("BASE-54", "BASE-55", "BASE-56")
def deleting_records(s: Session) -> None:
    topic = filled(s)
    for offset in (2, 1, 2, 6, -2, 0, 4, -1, 5):
        delete_records(s, topic, (0, offset))
    look(s, topic, EARLIEST)
    look(s, topic, LATEST)


@script("BASE-56", "BASE-57")
def where_nothing_can_be_deleted(s: Session) -> None:
    topic = filled(s)
    delete_records(s, topic, (9, 0), (-1, 0), (1, 0))
    delete_records(s, f"{s.name}-missing", (0, 0))
    has_offsets_topic(s)
    delete_records(s, "__consumer_offsets", (0, 0))
    delete_records(s, topic, (0, 1), (0, 2))
    s.call("delete_records", 2, topics=(), timeout=30_000)


@script("BASE-55")
def deleting_by_policy(s: Session) -> None:
    topic = filled(s, cleanup_policy="delete")
    delete_records(s, topic, (0, 3))
    look(s, topic, EARLIEST)
