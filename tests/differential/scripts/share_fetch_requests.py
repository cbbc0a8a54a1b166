"""ShareFetch: allowed requests, and the rows of the answers."""

from __future__ import annotations

import time
from uuid import UUID

from tests.differential.script import ACCEPT, RELEASE, RENEW, Session, Topic, ack_rows, script, topic_rows

UNKNOWN = Topic("nobody-knows", UUID(int=0x1234_5678_9ABC))
NOTHING = {"max_bytes": 0, "min_bytes": 0, "max_records": 0, "wait_ms": 0}


@script("RPC-17", "RPC-18")
def group_and_member_must_be_named(s: Session) -> None:
    topic, member = s.share()
    for version in (1, 2):
        for group_id, member_id in (
            (None, "m"),
            (member.group_id, None),
            (member.group_id, ""),
            (member.group_id, "m" * 37),
        ):
            other = s.member(group_id, member_id)
            other.fetch({topic: {0: ()}}, version=version)
            other.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}}, version=version, epoch=1)
    s.member(member.group_id, "m" * 36).fetch({topic: {0: ()}})


@script("RPC-20")
def member_of_blanks(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, "one")
    blank = s.member(member.group_id, "  ", on="blank")
    blank.fetch({topic: {0: ()}}, wait_ms=10_000)
    blank.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}})


@script("RPC-19")
def stranger_to_the_group(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, "one", "two")
    stranger = member.other("stranger")
    stranger.fetch({topic: {0: ()}}, wait_ms=10_000)
    stranger.acknowledge({topic: {0: [(0, 1, [ACCEPT])]}})


@script("RPC-2", "RPC-7", "RPC-71")
def versions_one_and_two(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, *"abcd", per_batch=2)
    member.fetch({topic: {0: ()}}, version=1, max_records=1, wait_ms=10_000)
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}}, version=1)
    member.acknowledge({topic: {0: [(1, 1, [ACCEPT])]}}, version=2)
    member.fetch(version=2, max_records=1)
    member.acknowledge({topic: {0: [(2, 2, [RENEW])]}}, version=1)
    member.fetch({topic: {0: [(2, 3, [ACCEPT])]}}, version=1)


@script("RPC-21", "RPC-22", "RPC-24")
def renewing_with_limits(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, *"abcd", per_batch=2)
    member.fetch({topic: {0: ()}}, max_records=1, wait_ms=10_000)
    renewal = {topic: {0: [(0, 1, [RENEW])]}}
    for name, value in (("max_bytes", 1), ("min_bytes", 1), ("max_records", 1), ("wait_ms", 1)):
        member.fetch(renewal, is_renew_ack=True, **{**NOTHING, name: value})
    member.fetch(renewal, is_renew_ack=True, **NOTHING, batch_size=7)
    member.fetch(max_records=1)


@script("RPC-23", "RPC-33")
def renewing_nothing(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, *"ab", per_batch=1)
    member.fetch({topic: {0: ()}}, max_records=1, wait_ms=10_000)
    member.fetch({topic: {0: ()}}, is_renew_ack=True, **NOTHING)
    member.fetch({topic: {0: [(0, 0, [ACCEPT])]}}, is_renew_ack=True, **NOTHING)
    member.fetch()


@script("RPC-45", "RPC-47", "FET-2", "FET-15")
def limits_of_zero_and_less(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, "one")
    member.fetch({topic: {0: ()}}, max_records=0, wait_ms=10_000)
    member.fetch(max_records=-1, wait_ms=10_000)
    member.fetch(max_bytes=0, wait_ms=10_000)
    member.fetch(wait_ms=-1)


@script("RPC-46")
def max_bytes_below_zero(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, "one")
    member.fetch({topic: {0: ()}}, max_bytes=-1, wait_ms=300)
    member.fetch(wait_ms=300)


@script("RPC-46", seconds=1)
def max_bytes_below_zero_at_the_log_s_end(s: Session) -> None:
    topic, member = s.share()
    began = time.monotonic()
    member.fetch({topic: {0: ()}}, max_bytes=-1, wait_ms=9_000)
    s.note("at once", time.monotonic() - began < 5)
    member.fetch(max_bytes=-1, max_records=0)


@script("RPC-48")
def batch_size_zero(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, *"abcd", per_batch=2)
    member.fetch({topic: {0: ()}}, batch_size=0, wait_ms=10_000)
    member.acknowledge({topic: {0: [(0, 3, [ACCEPT])]}})


@script("RPC-49", "RPC-72")
def unknown_acquire_mode(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, "one")
    member.fetch({topic: {0: ()}}, share_acquire_mode=2)
    member.fetch({topic: {0: ()}}, epoch=1)
    member.fetch({topic: {0: ()}}, epoch=0)
    member.fetch(epoch=1, share_acquire_mode=-1)
    member.fetch(epoch=1)
    member.fetch(epoch=2)


@script("RPC-49", "RPC-72")
def unknown_acquire_mode_beside_other_things(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, "one", "two")
    member.fetch({topic: {0: ()}})
    member.fetch({topic: {0: [(1, 1, [ACCEPT])]}}, share_acquire_mode=7)
    member.acknowledge({topic: {0: [(1, 1, [ACCEPT])]}}, epoch=2)
    member.fetch(epoch=3, share_acquire_mode=7, max_records=0)
    member.fetch(epoch=4, share_acquire_mode=7, is_renew_ack=True, **NOTHING)
    member.fetch(epoch=-1, share_acquire_mode=7)
    member.other("without partitions").fetch(share_acquire_mode=7)


@script("RPC-35", "RPC-72")
def unknown_topic_id(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, "one")
    member.fetch({topic: {0: ()}}, wait_ms=10_000)
    member.fetch({UNKNOWN: {0: ()}}, wait_ms=300)
    s.produce(topic, "two")
    member.fetch(epoch=2, wait_ms=300)
    member.fetch(epoch=3, forget={UNKNOWN: [0]}, wait_ms=300)
    member.acknowledge({topic: {0: [(0, 1, [ACCEPT])]}}, epoch=4)


@script("RPC-34")
def unknown_partition(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, "one")
    member.fetch({topic: {0: (), 7: ()}}, wait_ms=300)
    member.fetch(wait_ms=300)
    member.acknowledge(
        {topic: {0: [(0, 0, [ACCEPT])], 7: [(0, 0, [ACCEPT])]}, UNKNOWN: {0: [(0, 0, [ACCEPT])]}}
    )


@script("RPC-58")
def rows_of_one_partition(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, *"abc", per_batch=1)
    member.fetch({topic: {0: ()}}, max_records=2, wait_ms=10_000)
    rows = [
        {
            "topic_id": topic.topic_id,
            "partitions": [{"partition_index": 0, "acknowledgement_batches": ack_rows(acks)}],
        }
        for acks in ([(0, 0, [ACCEPT])], [])
    ]
    member.fetch(topics=rows)


@script("RPC-37")
def acknowledging_nothing(s: Session) -> None:
    topic, member = s.share(2)
    s.produce(topic, "one")
    member.fetch({topic: {0: (), 1: ()}}, wait_ms=10_000)
    member.acknowledge({topic: {0: (), 1: ()}})
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])], 1: ()}})
    member.acknowledge({})


@script("RPC-38", "RPC-40")
def acknowledged_and_fetched_in_one(s: Session) -> None:
    topic, member = s.share(2)
    s.produce(topic, "one")
    member.fetch({topic: {0: (), 1: ()}}, wait_ms=10_000)
    s.produce(topic, "two")
    member.fetch({topic: {0: [(0, 0, [ACCEPT])]}})
    s.produce(topic, "other", partition=1)
    member.fetch({topic: {0: [(1, 1, [ACCEPT])]}})
    member.fetch({topic: {0: [(0, 0, [])], 1: [(0, 0, [ACCEPT])]}})


@script("RPC-41")
def lock_duration_of_the_group(s: Session) -> None:
    topic, member = s.share(share_record_lock_duration_ms="17000")
    s.produce(topic, "one")
    member.fetch({topic: {0: ()}}, version=1)
    member.acknowledge({topic: {0: [(0, 0, [RELEASE])]}})
    member.fetch(max_records=0)


@script("FET-14", "FET-36")
def few_bytes(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, *("x" * 50 + name for name in "abcdef"), per_batch=2)
    member.fetch({topic: {0: ()}}, max_bytes=1)
    member.fetch(max_bytes=200)
    member.acknowledge({topic: {0: [(0, 1, [RELEASE])]}})
    member.fetch()


@script("FET-12")
def bytes_are_divided_among_partitions(s: Session) -> None:
    topic, member = s.share(2)
    for partition in (0, 1):
        s.produce(topic, *("x" * 100 + name for name in "abcdef"), partition=partition, per_batch=1)
    member.fetch({topic: {0: (), 1: ()}}, max_bytes=800)
    member.fetch(max_bytes=100_000)


@script("RPC-42", "FET-21", "FET-23")
def too_few_bytes(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, "one")
    member.fetch({topic: {0: ()}}, min_bytes=100_000, wait_ms=400)
    s.produce(topic, "two")
    member.fetch(min_bytes=1 << 30, max_bytes=50, wait_ms=20_000)


def refused_for_good(s: Session, group_id: str, topic: Topic) -> None:
    """Wait until a partition without state is refused with its final error: a fresh Kafka first
    looks for the share coordinator."""

    def settled() -> bool:
        answer = s.prepare(
            "share_fetch", 1, on="first", group_id=group_id, member_id="first", share_session_epoch=0,
            topics=topic_rows({topic: {0: ()}}),
            forgotten_topics_data=(), max_records=1, batch_size=1, max_wait=200, min_bytes=1, max_bytes=1,
        )  # fmt: skip
        return [row.error_code.value for topic in answer.responses for row in topic.partitions] == [-1]

    s.until(settled, f"{group_id!r} has no state")


@script("RPC-20")
def group_without_a_name(s: Session) -> None:
    topic = s.topic()
    member = s.member("")
    refused_for_good(s, "", topic)
    member.fetch({topic: {0: ()}}, wait_ms=400)
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}})


@script("RPC-57", "FET-17", "FET-18")
def group_that_nobody_joined(s: Session) -> None:
    topic, group = s.topic(), s.group()
    member = s.member(group)
    refused_for_good(s, group, topic)
    member.fetch({topic: {0: ()}}, wait_ms=400)
    member.fetch(wait_ms=400)
    s.join(group, "m", topic)
    s.produce(topic, "one")
    member.fetch(wait_ms=9_000)


@script("ISO-7")
def read_committed_without_transactions(s: Session) -> None:
    topic, member = s.share(share_isolation_level="read_committed")
    s.produce(topic, *"abcd", per_batch=2)
    member.fetch({topic: {0: ()}}, max_records=1)
    member.fetch()


@script("RPC-34", "FET-5")
def topic_without_that_partition_only(s: Session) -> None:
    topic, member = s.share()
    member.fetch({topic: {7: ()}}, wait_ms=400)
    member.fetch({topic: {0: ()}}, forget={topic: [7]}, wait_ms=400)
