"""Deliveries near the limit: records that are delivered in smaller batches, alone, or no more."""

from __future__ import annotations

from tests.differential.script import ACCEPT, REJECT, RELEASE, Member, Session, Topic, script


def delivered(
    s: Session, times: int, *, limit: int = 5, records: int = 8, per_batch: int | None = None
) -> tuple[Topic, Member]:
    """A member that received all records `times` times and released them each time."""
    topic, member = s.share(share_delivery_count_limit=str(limit))
    s.produce(topic, *(f"{index}" for index in range(records)), per_batch=per_batch)
    for turn in range(times):
        member.fetch({topic: {0: ()}} if turn == 0 else None)
        member.acknowledge({topic: {0: [(0, records - 1, [RELEASE])]}})
    return topic, member


@script("THR-1", "THR-4", "THR-5", "THR-6")
def limit_five(s: Session) -> None:
    topic, member = delivered(s, 3)
    for first, last in ((0, 3), (4, 7)):
        member.fetch()
        member.acknowledge({topic: {0: [(first, last, [RELEASE])]}})
    for offset in range(3):
        member.fetch()
        member.acknowledge({topic: {0: [(offset, offset, [RELEASE])]}})
    member.fetch()
    s.produce(topic, "next")
    member.fetch()


@script("THR-2", "REC-6")
def limit_two(s: Session) -> None:
    topic, member = delivered(s, 2, limit=2, records=4)
    s.produce(topic, "next")
    member.fetch()


@script("THR-1", "THR-6", "REC-6")
def limit_three(s: Session) -> None:
    topic, member = delivered(s, 2, limit=3, records=4)
    for offset in range(4):
        member.fetch()
        member.acknowledge({topic: {0: [(offset, offset, [RELEASE])]}})
    s.produce(topic, "next")
    member.fetch()


@script("THR-1", "THR-4")
def limit_four(s: Session) -> None:
    topic, member = delivered(s, 2, limit=4)
    for _ in range(4):
        member.fetch()
    member.acknowledge({topic: {0: [(0, 6, [RELEASE])]}})
    member.fetch()
    member.fetch()


@script("THR-4")
def limit_ten(s: Session) -> None:
    topic, member = delivered(s, 5, limit=10, records=33)
    member.fetch()
    member.acknowledge({topic: {0: [(0, 15, [RELEASE])]}})
    for _ in range(4):
        member.fetch()


@script("THR-8")
def record_limit_mode(s: Session) -> None:
    topic, member = delivered(s, 3)
    member.fetch(max_records=2, share_acquire_mode=1)
    member.fetch(max_records=8, share_acquire_mode=1)
    member.acknowledge({topic: {0: [(0, 1, [RELEASE])]}})
    member.fetch(max_records=8, share_acquire_mode=1)


@script("THR-3")
def suspect_batch_behind_others(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, *"abcdefgh", per_batch=4)
    member.fetch({topic: {0: ()}}, max_records=4)
    member.fetch(max_records=4)
    for turn in range(3):
        member.acknowledge({topic: {0: [(4, 7, [RELEASE])]}})
        if turn < 2:
            member.fetch()
    member.acknowledge({topic: {0: [(0, 3, [RELEASE])]}})
    s.produce(topic, "i", "j")
    for _ in range(4):
        member.fetch()


@script("THR-6", "THR-7")
def last_attempt_inside_a_batch(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, *"abcdef")
    member.fetch({topic: {0: ()}})
    for _ in range(3):
        member.acknowledge({topic: {0: [(2, 3, [RELEASE])]}})
        member.fetch()
    member.acknowledge({topic: {0: [(0, 2, [RELEASE])]}})
    for _ in range(5):
        member.fetch()


@script("REC-6", "SPSO-2")
def given_up_one_by_one(s: Session) -> None:
    topic, member = delivered(s, 1, limit=2, records=3)
    member.fetch()
    member.acknowledge({topic: {0: [(0, 2, [ACCEPT, RELEASE, REJECT])]}})
    member.acknowledge({topic: {0: [(1, 1, [ACCEPT])]}})
    s.produce(topic, "next")
    member.fetch()


@script("REC-6", "ACK-31", "REC-10", seconds=4)
def locks_that_run_out_at_the_limit(s: Session) -> None:
    topic, member = s.share(share_delivery_count_limit="2", share_record_lock_duration_ms="1000")
    s.produce(topic, "one", "two")
    member.fetch({topic: {0: ()}})
    member.fetch(wait_ms=5_000)
    s.wait(1.6)
    s.produce(topic, "next")
    member.fetch()
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}})


@script("REC-6", "ACK-28", "REC-10")
def sessions_that_end_at_the_limit(s: Session) -> None:
    topic, member = s.share(share_delivery_count_limit="2")
    s.produce(topic, "one", "two")
    for _ in range(2):
        member.fetch({topic: {0: ()}}, epoch=0, wait_ms=500)
        member.fetch(epoch=-1)
        s.wait(0.3)  # the answer does not wait for the release, and Kafka's next fetch is not woken by it
    s.produce(topic, "next")
    member.fetch({topic: {0: ()}}, epoch=0, wait_ms=3_000)


@script("REC-6", "CFG-42")
def limit_that_is_lowered(s: Session) -> None:
    topic, member = delivered(s, 2, limit=10, records=2)
    s.group(share_delivery_count_limit="2")
    member.fetch()
    s.produce(topic, "next")
    member.acknowledge({topic: {0: [(0, 1, [RELEASE])]}})
    member.fetch()
    member.fetch()


@script("REC-9", "SPSO-3")
def counts_of_single_offsets(s: Session) -> None:
    topic, member = s.share(share_delivery_count_limit="10")
    s.produce(topic, *"abcd")
    member.fetch({topic: {0: ()}})
    for acks in ([(1, 1, [RELEASE])], [(1, 2, [RELEASE])], [(1, 3, [RELEASE])]):
        member.acknowledge({topic: {0: acks}})
        member.fetch()
    member.acknowledge({topic: {0: [(0, 3, [ACCEPT])]}})
    s.produce(topic, "next")
    member.fetch()
