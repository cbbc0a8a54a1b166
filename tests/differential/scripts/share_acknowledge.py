"""ShareAcknowledge: valid and invalid batches, of the member's records and of others', renewals and
expired locks."""

from __future__ import annotations

from tests.differential.script import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Acks,
    Member,
    Session,
    Topic,
    ack_rows,
    script,
)


def holding(
    s: Session, *, records: int = 6, per_batch: int | None = None, **configs: str
) -> tuple[Topic, Member]:
    """A member that holds offsets 0 to `records` - 1; its next epoch is 1."""
    topic, member = s.share(**configs)
    s.produce(topic, *(f"v{index}" for index in range(records)), per_batch=per_batch)
    member.fetch({topic: {0: ()}}, wait_ms=10_000)
    return topic, member


def each(member: Member, topic: Topic, *lists: Acks, version: int = 2, renew: bool = False) -> None:
    for acks in lists:
        how = {"is_renew_ack": renew} if version >= 2 else {}
        member.acknowledge({topic: {0: acks}}, version=version, **how)


@script("RPC-26", "RPC-29", "RPC-30", "RPC-31")
def malformed_batches(s: Session) -> None:
    topic, member = holding(s)
    for version in (1, 2):
        each(
            member, topic,
            [(3, 2, [ACCEPT])],
            [(0, 1, [])],
            [(0, 2, [ACCEPT, ACCEPT])],
            [(0, 0, [ACCEPT, ACCEPT])],
            [(0, 0, [-1])],
            [(0, 0, [5])],
            [(0, 1, [ACCEPT, 6])],
            version=version,
        )  # fmt: skip
    each(member, topic, [(0, 5, [ACCEPT])])


@script("RPC-25", "RPC-27", "ACK-16")
def batches_out_of_order(s: Session) -> None:
    topic, member = holding(s)
    each(
        member, topic,
        [(3, 4, [ACCEPT]), (0, 1, [ACCEPT])],
        [(0, 3, [ACCEPT]), (2, 4, [ACCEPT])],
        [(0, 2, [ACCEPT]), (2, 4, [ACCEPT])],
        [(1, 1, [ACCEPT]), (1, 1, [ACCEPT])],
        [(0, 0, [ACCEPT]), (5, 4, [ACCEPT])],
        [(0, 5, [ACCEPT])],
    )  # fmt: skip


@script("RPC-28", "ACK-6")
def negative_offsets(s: Session) -> None:
    topic, member = holding(s)
    each(
        member,
        topic,
        [(-2, 1, [ACCEPT])],
        [(-1, -1, [ACCEPT])],
        [(-1, 1, [ACCEPT, REJECT, RELEASE])],
        [(2, 5, [ACCEPT])],
    )
    member.fetch()


@script("RPC-25", "ACK-15")
def one_partition_bad_the_other_good(s: Session) -> None:
    topic, member = s.share(2)
    for partition in (0, 1):
        s.produce(topic, "a", "b", partition=partition)
    member.fetch({topic: {0: ()}}, wait_ms=10_000)
    member.fetch({topic: {1: ()}}, wait_ms=10_000)
    member.acknowledge({topic: {0: [(0, 1, [9])], 1: [(0, 1, [ACCEPT])]}})
    member.acknowledge({topic: {0: [(0, 1, [ACCEPT])], 1: [(0, 1, [ACCEPT])]}})


@script("ACK-1", "ACK-3", "SPSO-2")
def mixed_types(s: Session) -> None:
    topic, member = holding(s)
    each(member, topic, [(0, 5, [ACCEPT, GAP, RELEASE, REJECT, RELEASE, ACCEPT])])
    member.fetch()
    each(member, topic, [(2, 2, [ACCEPT]), (4, 4, [REJECT])])
    s.produce(topic, "next")
    member.fetch()


@script("ACK-3", "ACK-13", "REC-11")
def part_of_a_batch(s: Session) -> None:
    topic, member = holding(s)
    each(member, topic, [(2, 3, [ACCEPT])], [(1, 4, [ACCEPT])], [(0, 1, [RELEASE]), (4, 5, [ACCEPT])])
    member.fetch()
    each(member, topic, [(0, 1, [ACCEPT])])


@script("ACK-12", "ACK-7", "ACK-8")
def behind_everything_cached(s: Session) -> None:
    topic, member = holding(s)
    each(
        member,
        topic,
        [(4, 6, [ACCEPT])],
        [(6, 6, [ACCEPT])],
        [(100, 200, [ACCEPT])],
        [(0, 5, [ACCEPT])],
        [(6, 6, [ACCEPT])],
    )


@script("ACK-4", "ACK-5")
def below_the_start_offset(s: Session) -> None:
    topic, member = holding(s, per_batch=2)
    each(
        member,
        topic,
        [(0, 3, [ACCEPT])],
        [(0, 3, [ACCEPT])],
        [(0, 1, [RELEASE])],
        [(3, 4, [ACCEPT])],
        [(0, 5, [REJECT])],
    )
    s.produce(topic, "next")
    member.fetch()


@script("ACK-9", "ACK-16")
def twice(s: Session) -> None:
    topic, member = holding(s)
    each(member, topic, [(2, 5, [ACCEPT])], [(2, 2, [ACCEPT])], [(4, 4, [RELEASE])], [(5, 5, [RENEW])])
    each(member, topic, [(0, 1, [RELEASE])], [(0, 0, [ACCEPT])])
    member.fetch()


@script("ACK-9", "ACK-13")
def of_another_member(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, *"abcdef", per_batch=2)
    other = member.other()
    member.fetch({topic: {0: ()}}, max_records=1, wait_ms=10_000)
    other.fetch({topic: {0: ()}}, max_records=1)
    member.fetch(max_records=1)
    each(
        member,
        topic,
        [(0, 5, [ACCEPT])],
        [(0, 1, [ACCEPT]), (2, 2, [ACCEPT])],
        [(0, 1, [ACCEPT]), (4, 5, [ACCEPT])],
    )
    each(other, topic, [(2, 3, [ACCEPT])])
    s.produce(topic, "next")
    member.fetch()


@script("ACK-29")
def members_in_one_cached_batch(s: Session) -> None:
    topic, member = holding(s, records=4)
    each(member, topic, [(0, 3, [ACCEPT, RELEASE, RELEASE, RENEW])], [(1, 2, [RELEASE])])
    other = member.other()
    other.fetch({topic: {0: ()}})
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}}, epoch=-1)
    s.wait(0.3)  # the answer does not wait for the release, and Kafka's next fetch is not woken by it
    other.fetch(wait_ms=9_000)
    each(other, topic, [(1, 3, [ACCEPT])])


@script("ACK-9", "ACK-31", seconds=2)
def after_the_lock_ran_out(s: Session) -> None:
    topic, member = holding(s, share_record_lock_duration_ms="1000")
    s.wait(1.6)
    each(member, topic, [(0, 5, [ACCEPT])])
    member.fetch()
    each(member, topic, [(0, 5, [ACCEPT])])


@script("RPC-32", "ACK-23", "ACK-25", "ACK-26")
def renewing(s: Session) -> None:
    topic, member = holding(s)
    each(member, topic, [(0, 5, [RENEW])])
    each(
        member, topic, [(0, 5, [RENEW])], [(0, 5, [RENEW])], [(1, 2, [RENEW])], [(4, 6, [RENEW])], renew=True
    )
    each(
        member,
        topic,
        [(0, 5, [ACCEPT, RENEW, RELEASE, RENEW, REJECT, RENEW])],
        [(0, 0, [RENEW])],
        [(2, 2, [RENEW])],
        renew=True,
    )
    other = member.other()
    other.fetch({topic: {0: ()}})
    each(other, topic, [(1, 1, [RENEW])], renew=True)
    each(member, topic, [(3, 3, [RENEW])], renew=True)
    each(member, topic, [(1, 1, [ACCEPT]), (3, 3, [ACCEPT]), (5, 5, [ACCEPT])])


@script("ACK-27", "CFG-20")
def renewing_where_it_is_off(s: Session) -> None:
    topic, member = holding(s, share_renew_acknowledge_enable="false")
    each(
        member, topic, [(0, 5, [RENEW])], [(0, 0, [ACCEPT]), (1, 1, [RENEW])], [(0, 1, [ACCEPT])], renew=True
    )
    nothing = {"max_bytes": 0, "min_bytes": 0, "max_records": 0, "wait_ms": 0}
    member.fetch({topic: {0: [(2, 2, [RENEW])]}}, is_renew_ack=True, **nothing)
    each(member, topic, [(2, 5, [ACCEPT])])


@script("ACK-24", "REC-9", seconds=5)
def renewed_locks_last_longer(s: Session) -> None:
    topic, member = holding(s, records=2, share_record_lock_duration_ms="4000")
    s.wait(2.2)
    each(member, topic, [(0, 0, [RENEW])], renew=True)
    s.wait(2.6)
    each(member, topic, [(0, 0, [ACCEPT])], [(1, 1, [ACCEPT])])
    member.fetch()


@script("ACK-30", "CFG-42", seconds=2)
def lock_duration_that_changes(s: Session) -> None:
    topic, member = holding(s, share_record_lock_duration_ms="20000")
    s.group(share_record_lock_duration_ms="1000")
    s.wait(1.5)
    each(member, topic, [(0, 1, [ACCEPT])])
    each(member, topic, [(2, 5, [RENEW])], renew=True)
    s.wait(1.6)
    each(member, topic, [(2, 5, [ACCEPT])])


@script("RPC-38", "RPC-40", "ACK-13")
def errors_beside_records(s: Session) -> None:
    topic, member = holding(s)
    s.produce(topic, "next")
    member.fetch({topic: {0: [(0, 7, [ACCEPT])]}})
    member.fetch({topic: {0: [(0, 0, [8])]}}, wait_ms=200)
    member.fetch({topic: {0: [(0, 0, [ACCEPT]), (0, 0, [ACCEPT])]}}, wait_ms=200)
    member.fetch({topic: {0: [(0, 6, [ACCEPT])]}}, epoch=-1)


@script("FET-34")
def share_partition_nobody_loaded(s: Session) -> None:
    topic, member = s.share()
    fresh = s.topic()
    s.produce(fresh, "one")
    member.fetch({topic: {0: ()}})
    member.acknowledge({fresh: {0: [(0, 0, [ACCEPT])]}})


@script("RPC-58")
def rows_of_one_partition(s: Session) -> None:
    topic, member = holding(s, per_batch=2)
    rows = [
        {
            "topic_id": topic.topic_id,
            "partitions": [{"partition_index": 0, "acknowledgement_batches": ack_rows(acks)}],
        }
        for acks in ([(0, 1, [ACCEPT])], [(2, 3, [ACCEPT])])
    ]
    member.acknowledge({}, topics=rows)
    each(member, topic, [(0, 1, [ACCEPT])], [(2, 3, [ACCEPT])], [(4, 5, [ACCEPT])])


@script("ACK-14", seconds=5)
def renewed_in_a_list_that_failed(s: Session) -> None:
    topic, member = holding(s, records=2, share_record_lock_duration_ms="4000")
    s.wait(2.2)
    each(member, topic, [(0, 0, [RENEW]), (9, 9, [ACCEPT])], renew=True)
    s.wait(2.6)
    each(member, topic, [(0, 0, [ACCEPT])])


@script("ACK-3", "ACK-11", "REC-5")
def one_batch_over_several_cached_ones(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, *"abcdefgh", per_batch=2)
    member.fetch({topic: {0: ()}}, batch_size=1, wait_ms=10_000)
    each(member, topic, [(1, 6, [ACCEPT, RELEASE, GAP, REJECT, ACCEPT, RELEASE])])
    member.fetch(batch_size=1)
    each(member, topic, [(0, 2, [ACCEPT])], [(6, 7, [ACCEPT, GAP])])
    s.produce(topic, "next")
    member.fetch()
