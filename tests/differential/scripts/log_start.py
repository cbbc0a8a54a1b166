"""The log's start moves under a share-partition (DeleteRecords), and the share-partition's start
with it."""

from __future__ import annotations

from tests.differential.script import ACCEPT, RELEASE, Member, Session, Topic, script


def filled(s: Session, records: int = 12, per_batch: int = 2, **configs: str) -> tuple[Topic, Member]:
    topic, member = s.share(**configs)
    s.produce(topic, *(f"{index}" for index in range(records)), per_batch=per_batch)
    return topic, member


def delete_before(s: Session, topic: Topic, offset: int) -> None:
    rows = [{"name": topic.name, "partitions": [{"partition_index": 0, "offset": offset}]}]
    s.call("delete_records", 2, topics=rows, timeout=30_000)


def noticed(s: Session, member: Member, *, max_records: int = 500) -> None:
    """What two fetches together return after the log's start has moved: which of the two notices is
    the subject of `window_empty` alone."""
    common = {
        "group_id": member.group_id,
        "member_id": member.member_id,
        "topics": (),
        "forgotten_topics_data": (),
        "min_bytes": 1,
    }
    brought = []
    for _ in range(2):
        answer = s.prepare(
            "share_fetch", 1, on=member.on, share_session_epoch=member.epoch,
            max_records=0 if brought else max_records,
            batch_size=max_records, max_wait=400, max_bytes=1 << 20, **common,
        )  # fmt: skip
        brought += [
            [rows.error_code, rows.acquired_records]
            for topic in answer.responses
            for rows in topic.partitions
            if rows.records
        ]
        member.epoch += 1
    s.note("brought", brought)


@script("LSO-1", "LSO-3", "LSO-10", "FET-30")
def window_empty(s: Session) -> None:
    topic, member = filled(s)
    delete_before(s, topic, 4)
    member.fetch({topic: {0: ()}}, wait_ms=500)
    member.fetch(wait_ms=500)
    member.acknowledge({topic: {0: [(0, 11, [ACCEPT])]}})


@script("LSO-3")
def window_empty_again(s: Session) -> None:
    topic, member = filled(s)
    member.fetch({topic: {0: ()}}, max_records=4)
    member.acknowledge({topic: {0: [(0, 3, [ACCEPT])]}})
    delete_before(s, topic, 7)
    noticed(s, member)


@script("LSO-2")
def start_below_the_share_partitions(s: Session) -> None:
    topic, member = filled(s)
    member.fetch({topic: {0: ()}}, max_records=4)
    member.acknowledge({topic: {0: [(0, 3, [ACCEPT])]}})
    delete_before(s, topic, 2)
    member.fetch(max_records=4)
    member.acknowledge({topic: {0: [(4, 7, [ACCEPT])]}})


@script("LSO-4", "LSO-6")
def released_records_are_deleted(s: Session) -> None:
    topic, member = filled(s)
    member.fetch({topic: {0: ()}}, max_records=8, batch_size=2)
    member.acknowledge({topic: {0: [(0, 5, [RELEASE])]}})
    delete_before(s, topic, 4)
    noticed(s, member, max_records=2)
    member.acknowledge({topic: {0: [(0, 7, [ACCEPT])]}})
    member.fetch(max_records=2, wait_ms=500)


@script("LSO-5", "LSO-9")
def held_records_are_deleted(s: Session) -> None:
    topic, member = filled(s)
    member.fetch({topic: {0: ()}}, max_records=4)
    delete_before(s, topic, 6)
    noticed(s, member, max_records=2)
    member.acknowledge({topic: {0: [(0, 3, [ACCEPT])]}})
    member.acknowledge({topic: {0: [(6, 7, [ACCEPT])]}})
    member.fetch(max_records=2, wait_ms=500)


@script("LSO-5", "LSO-6", "ACK-31", seconds=2)
def held_records_are_deleted_and_time_out(s: Session) -> None:
    topic, member = filled(s, share_record_lock_duration_ms="1000")
    member.fetch({topic: {0: ()}}, max_records=4)
    delete_before(s, topic, 2)
    s.wait(1.6)
    noticed(s, member, max_records=2)
    member.acknowledge({topic: {0: [(0, 3, [ACCEPT])]}})


@script("LSO-4", "LSO-5", "LSO-6")
def start_inside_a_batch(s: Session) -> None:
    topic, member = filled(s, per_batch=4)
    member.fetch({topic: {0: ()}}, max_records=8)
    member.acknowledge({topic: {0: [(0, 3, [RELEASE])]}})
    delete_before(s, topic, 2)
    noticed(s, member)
    member.acknowledge({topic: {0: [(0, 3, [ACCEPT])]}})


@script("LSO-1", "LSO-6")
def everything_is_deleted(s: Session) -> None:
    topic, member = filled(s)
    member.fetch({topic: {0: ()}}, max_records=4)
    member.acknowledge({topic: {0: [(0, 1, [RELEASE])]}})
    delete_before(s, topic, -1)
    member.fetch(wait_ms=300)
    member.fetch(wait_ms=300)
    member.acknowledge({topic: {0: [(2, 3, [ACCEPT])]}})
    s.produce(topic, "next")
    member.fetch(wait_ms=3_000)


@script("LSO-5", "SPSO-9")
def accepted_records_are_deleted(s: Session) -> None:
    topic, member = filled(s)
    member.fetch({topic: {0: ()}}, batch_size=2)
    member.acknowledge({topic: {0: [(4, 9, [ACCEPT])]}})
    delete_before(s, topic, 6)
    member.acknowledge({topic: {0: [(0, 1, [RELEASE])]}})
    member.fetch(wait_ms=300)
    member.fetch(wait_ms=300)
    member.acknowledge({topic: {0: [(2, 3, [RELEASE]), (10, 11, [ACCEPT])]}})
    s.produce(topic, "next")
    member.fetch(wait_ms=3_000)


@script("SPSO-1", "SPSO-2", "SPSO-5")
def start_offset_stops_at_what_is_held(s: Session) -> None:
    topic, member = filled(s, share_partition_max_record_locks="100", records=130, per_batch=10)
    member.fetch({topic: {0: ()}}, max_records=100)
    member.acknowledge({topic: {0: [(1, 99, [ACCEPT])]}})
    member.fetch(wait_ms=200)
    member.acknowledge({topic: {0: [(0, 0, [RELEASE])]}})
    member.fetch(max_records=1)
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}})
    member.fetch()


@script("FET-30", "LSO-2", "ACK-4")
def deleted_below_and_acknowledged(s: Session) -> None:
    topic, member = filled(s)
    member.fetch({topic: {0: ()}}, max_records=6, batch_size=2)
    member.acknowledge({topic: {0: [(0, 1, [ACCEPT]), (4, 5, [ACCEPT])]}})
    delete_before(s, topic, 3)
    member.acknowledge({topic: {0: [(2, 2, [ACCEPT])]}})
    member.acknowledge({topic: {0: [(3, 3, [RELEASE])]}})
    member.fetch(wait_ms=300)
    member.fetch(wait_ms=300)
