"""ShareFetch, the acquired records: both modes, batch sizes, the limit of records in flight, and
redelivered records between new ones."""

from __future__ import annotations

from tests.differential.script import ACCEPT, RELEASE, Member, Session, Topic, script

RECORD_LIMIT = {"share_acquire_mode": 1}
LIMIT = "100"


def filled(s: Session, records: int, per_batch: int, **configs: str) -> tuple[Topic, Member]:
    topic, member = s.share(**configs)
    s.produce(topic, *(f"{index}" for index in range(records)), per_batch=per_batch)
    return topic, member


@script("NEXT-1", "NEXT-8", "ACQ-10")
def whole_batches(s: Session) -> None:
    topic, member = filled(s, 20, 5)
    member.fetch({topic: {0: ()}}, max_records=1)
    member.fetch(max_records=6)
    member.fetch(max_records=5)
    member.fetch(max_records=5)


@script("NEXT-10")
def batch_size_cuts_at_record_batches(s: Session) -> None:
    topic, member = filled(s, 20, 4)
    member.fetch({topic: {0: ()}}, batch_size=6)
    member.acknowledge({topic: {0: [(0, 19, [RELEASE])]}})
    member.fetch(batch_size=1)


@script("NEXT-10")
def batch_size_of_one(s: Session) -> None:
    topic, member = filled(s, 9, 3)
    member.fetch({topic: {0: ()}}, batch_size=1)
    member.acknowledge({topic: {0: [(3, 5, [RELEASE])]}})
    member.fetch(max_records=1)


@script("RPC-48")
def batch_size_below_zero(s: Session) -> None:
    topic, member = filled(s, 4, 2)
    member.fetch({topic: {0: ()}}, batch_size=-1, wait_ms=200)


@script("NEXT-11", "NEXT-2", "ACQ-12")
def record_limit_mode(s: Session) -> None:
    topic, member = filled(s, 20, 10)
    member.fetch({topic: {0: ()}}, max_records=3, **RECORD_LIMIT)
    member.fetch(max_records=10, **RECORD_LIMIT)
    member.fetch(max_records=10, **RECORD_LIMIT)
    member.acknowledge({topic: {0: [(0, 19, [ACCEPT])]}})


@script("NEXT-13", "ACQ-12")
def modes_mixed(s: Session) -> None:
    topic, member = filled(s, 20, 10)
    other = member.other()
    member.fetch({topic: {0: ()}}, max_records=3, **RECORD_LIMIT)
    other.fetch({topic: {0: ()}}, max_records=2)
    other.fetch(max_records=2)
    member.acknowledge({topic: {0: [(0, 2, [RELEASE])]}})
    other.fetch(max_records=2, **RECORD_LIMIT)
    member.fetch(max_records=2)


@script("ACQ-12", "ACQ-11")
def released_batch_in_record_limit_mode(s: Session) -> None:
    topic, member = filled(s, 12, 6)
    member.fetch({topic: {0: ()}}, max_records=6)
    member.acknowledge({topic: {0: [(0, 5, [RELEASE])]}})
    member.fetch(max_records=4, **RECORD_LIMIT)
    member.fetch(max_records=4, **RECORD_LIMIT)


@script("ACQ-11", "ACQ-13", "ACQ-15")
def islands_of_released_records(s: Session) -> None:
    topic, member = filled(s, 12, 6)
    member.fetch({topic: {0: ()}}, max_records=6)
    member.acknowledge({topic: {0: [(1, 1, [RELEASE]), (2, 2, [ACCEPT]), (3, 4, [RELEASE])]}})
    member.fetch(max_records=20)
    member.acknowledge({topic: {0: [(3, 4, [RELEASE])]}})
    member.fetch()


@script("ACQ-11", "REC-9")
def ranges_of_equal_counts(s: Session) -> None:
    topic, member = filled(s, 6, 6, share_delivery_count_limit="10")
    member.fetch({topic: {0: ()}})
    member.acknowledge({topic: {0: [(2, 3, [RELEASE])]}})
    member.fetch()
    member.acknowledge({topic: {0: [(0, 5, [RELEASE])]}})
    member.fetch()


@script("ACQ-1", "ACQ-2", "ACQ-3", "FET-20")
def in_flight_limit(s: Session) -> None:
    topic, member = filled(s, 130, 10, share_partition_max_record_locks=LIMIT)
    member.fetch({topic: {0: ()}})
    member.fetch(wait_ms=200)
    member.acknowledge({topic: {0: [(50, 59, [RELEASE])]}})
    member.fetch(max_records=40)
    member.acknowledge({topic: {0: [(10, 99, [ACCEPT])]}})
    member.fetch(wait_ms=200)
    member.acknowledge({topic: {0: [(0, 9, [ACCEPT])]}})
    member.fetch()


@script("ACQ-4")
def in_flight_limit_inside_a_batch(s: Session) -> None:
    topic, member = filled(s, 120, 40, share_partition_max_record_locks=LIMIT)
    member.fetch({topic: {0: ()}}, max_records=80)
    member.fetch(max_records=30)
    member.fetch(wait_ms=200)


@script("ACQ-4", "NEXT-11")
def in_flight_limit_in_record_limit_mode(s: Session) -> None:
    topic, member = filled(s, 120, 40, share_partition_max_record_locks=LIMIT)
    member.fetch({topic: {0: ()}}, max_records=90, **RECORD_LIMIT)
    member.fetch(max_records=90, **RECORD_LIMIT)
    member.fetch(max_records=90, wait_ms=200, **RECORD_LIMIT)


@script("FET-11", "FET-1")
def max_records_over_two_partitions(s: Session) -> None:
    topic, member = s.share(2)
    for partition in (0, 1):
        s.produce(topic, *"abcd", partition=partition, per_batch=2)
    member.fetch({topic: {0: (), 1: ()}}, max_records=500)
    member.acknowledge({topic: {0: [(0, 3, [RELEASE])], 1: [(0, 3, [RELEASE])]}})
    member.fetch(max_records=8)


@script("FET-3", "FET-4", "FET-9", "FET-10")
def partitions_take_turns(s: Session) -> None:
    topic, member = s.share(2)
    member.fetch({topic: {0: ()}})
    member.fetch({topic: {1: ()}})
    for partition in (0, 1):
        s.produce(topic, *"abcdef", partition=partition, per_batch=1)
    for _ in range(6):
        member.fetch(max_records=2)


@script("FET-8", "FET-5")
def rows_only_for_what_is_new(s: Session) -> None:
    topic, member = s.share(3)
    member.fetch({topic: {0: (), 1: (), 2: ()}})
    member.fetch()
    s.produce(topic, "one", partition=2)
    member.fetch(wait_ms=10_000)
    member.fetch()


@script("FET-35", "FET-36", "FET-38", "ACQ-13")
def batches_between_acquired_ones(s: Session) -> None:
    topic, member = filled(s, 8, 2)
    member.fetch({topic: {0: ()}}, batch_size=1)
    member.acknowledge({topic: {0: [(2, 3, [RELEASE]), (4, 5, [ACCEPT]), (6, 7, [RELEASE])]}})
    member.fetch()


@script("NEXT-2", "REC-4", "REC-5")
def final_records_do_not_come_back(s: Session) -> None:
    topic, member = filled(s, 4, 1)
    member.fetch({topic: {0: ()}}, batch_size=1)
    member.acknowledge({topic: {0: [(0, 1, [RELEASE]), (2, 2, [ACCEPT])]}})
    member.fetch(max_records=1, batch_size=1)
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT]), (3, 3, [ACCEPT])]}})
    member.fetch()
    member.fetch()


@script("FET-9", "FET-11")
def three_partitions_take_turns(s: Session) -> None:
    topic, member = s.share(3)
    for partition in range(3):
        member.fetch({topic: {partition: ()}})
        s.produce(topic, *"abcdefgh", partition=partition, per_batch=1)
        member.fetch(max_records=8)
        member.acknowledge({topic: {partition: [(0, 7, [RELEASE])]}})
    for _ in range(8):
        member.fetch(max_records=5, batch_size=1)


@script("ACQ-1", "ACQ-2")
def in_flight_limit_of_two_members(s: Session) -> None:
    topic, member = filled(s, 130, 10, share_partition_max_record_locks=LIMIT)
    other = member.other()
    member.fetch({topic: {0: ()}}, max_records=60)
    other.fetch({topic: {0: ()}}, max_records=60)
    other.fetch(wait_ms=200)
    other.acknowledge({topic: {0: [(60, 99, [ACCEPT])]}})
    other.fetch(wait_ms=200)
    member.acknowledge({topic: {0: [(0, 59, [ACCEPT])]}})
    other.fetch()


@script("ACQ-3", "THR-4")
def in_flight_limit_and_redelivery(s: Session) -> None:
    topic, member = filled(s, 120, 10, share_partition_max_record_locks=LIMIT, share_delivery_count_limit="4")
    for turn in range(3):
        member.fetch({topic: {0: ()}} if turn == 0 else None)
        if turn < 2:
            member.acknowledge({topic: {0: [(0, 99, [RELEASE])]}})
    member.fetch()
