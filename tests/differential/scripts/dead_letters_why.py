"""Which records become dead letters: rejected ones, and those that have reached the delivery limit
when they are released, their lock or their session ends. With what the letters say."""

from __future__ import annotations

from tests.differential.dead_letters import Queue, queue
from tests.differential.script import ACCEPT, GAP, REJECT, RELEASE, RENEW, Session, script
from tests.differential.scripts.log_start import delete_before, noticed
from tests.differential.transactions import transactional

AT_MOST_TWICE = {"share_delivery_count_limit": "2"}


def delivered_twice(s: Session, *rows: str, **group: str) -> Queue:
    """The member holds the records for the second and last time."""
    q = queue(s, *rows, **AT_MOST_TWICE, **group)
    q.release(0, len(rows) - 1)
    q.take(len(rows))
    return q


@script("DLQ-10", "DLQ-13", "DLQ-24", "DLQ-25", "DLQ-23")
def rejected(s: Session) -> None:
    q = queue(s, "a", "b", "c")
    q.acknowledge((0, 2, [REJECT]))
    q.outcome()


@script("DLQ-10")
def rejected_at_the_second_delivery(s: Session) -> None:
    q = queue(s, "a", "b")
    q.release(0, 1)
    q.take(2)
    q.acknowledge((0, 1, [REJECT]))
    q.outcome()


@script("DLQ-10")
def rejected_at_the_limit(s: Session) -> None:
    q = delivered_twice(s, "a", "b")
    q.acknowledge((0, 1, [REJECT]))
    q.outcome()


@script("DLQ-10", "DLQ-18")
def every_type_in_one_batch(s: Session) -> None:
    q = queue(s, *"abcdef")
    q.acknowledge((0, 5, [ACCEPT, REJECT, RELEASE, GAP, REJECT, ACCEPT]))
    q.outcome()
    q.fetch()
    q.acknowledge((2, 2, [ACCEPT]))
    q.outcome()


@script("DLQ-10")
def rejected_by_a_fetch(s: Session) -> None:
    q = queue(s, "a", "b", "c")
    q.fetch((0, 1, [REJECT]), wait_ms=200)
    q.outcome()


@script("DLQ-10")
def rejected_as_the_session_ends(s: Session) -> None:
    q = queue(s, "a", "b", "c")
    q.acknowledge((0, 1, [REJECT]), epoch=-1)
    q.outcome()


@script("DLQ-10")
def rejected_after_a_renewal(s: Session) -> None:
    q = queue(s, "a", "b")
    q.acknowledge((0, 1, [RENEW]), is_renew_ack=True)
    q.acknowledge((0, 1, [REJECT]))
    q.outcome()


@script("DLQ-10")
def refused_rejections(s: Session) -> None:
    """Of another member's records, twice, and behind the end. Offset 0 stays acquired: once the
    start offset has passed a record, acknowledging it again is no error."""
    q = queue(s, "a", "b")
    q.member.other().acknowledge({q.topic: {0: [(0, 1, [REJECT])]}}, epoch=0)
    q.acknowledge((1, 1, [REJECT]))
    q.acknowledge((0, 1, [REJECT]))
    q.acknowledge((2, 3, [REJECT]))
    q.settle()
    q.outcome()


@script("DLQ-12")
def other_types(s: Session) -> None:
    q = queue(s, "a", "b", "c", "d")
    q.acknowledge((0, 3, [ACCEPT, GAP, RELEASE, ACCEPT]))
    q.outcome()


@script("DLQ-12")
def gaps_at_the_limit(s: Session) -> None:
    q = delivered_twice(s, "a", "b")
    q.acknowledge((0, 1, [GAP]))
    q.outcome()


@script("DLQ-11", "DLQ-14")
def released_at_the_limit(s: Session) -> None:
    q = delivered_twice(s, "a", "b", "c")
    q.acknowledge((0, 2, [RELEASE, ACCEPT, RELEASE]))
    q.outcome()


@script("DLQ-11")
def released_alone_at_the_limit(s: Session) -> None:
    """Records of one batch reach the limit one after the other."""
    q = queue(s, "a", "b", "c", **AT_MOST_TWICE)
    q.acknowledge((1, 1, [RELEASE]))
    q.take(1)
    q.release(0, 2)
    q.outcome(lag=2)
    q.take(2)
    q.release(0, 2)
    q.release(2, 2)
    q.outcome()


@script("DLQ-11", seconds=3)
def locks_that_run_out_at_the_limit(s: Session) -> None:
    q = delivered_twice(s, "a", "b", share_record_lock_duration_ms="1000")
    q.outcome(lag=0)


@script("DLQ-11", seconds=4)
def locks_that_run_out_twice(s: Session) -> None:
    q = queue(s, "a", "b", share_record_lock_duration_ms="1000", **AT_MOST_TWICE)
    q.take(2, wait_ms=5_000)
    q.acknowledge((0, 0, [ACCEPT]))
    q.outcome(lag=0)


@script("DLQ-11")
def a_session_that_ends_at_the_limit(s: Session) -> None:
    q = delivered_twice(s, "a", "b")
    q.acknowledge((1, 1, [ACCEPT]), epoch=-1)
    q.outcome(lag=0)


@script("DLQ-11")
def a_connection_that_ends_at_the_limit(s: Session) -> None:
    q = queue(s, **AT_MOST_TWICE)
    q.put("a", "b")
    for turn in range(2):
        member = q.member.other(f"m{turn}")
        q.take(2, member)
        s.disconnect(member.on)
    q.outcome(lag=0)


@script("DLQ-11")
def a_limit_that_is_lowered(s: Session) -> None:
    """Below the count of records that are held, and to that of others."""
    q = queue(s, "a", "b", share_delivery_count_limit="10")
    for _ in range(3):
        q.release(0, 1)
        q.take(2)
    q.put("c")
    q.take(1)
    q.configure(**AT_MOST_TWICE)
    q.acknowledge((0, 0, [RELEASE]), (1, 1, [REJECT]), (2, 2, [RELEASE]))
    q.outcome(lag=1)


@script("DLQ-11")
def available_records_above_a_lowered_limit(s: Session) -> None:
    q = queue(s, "a", "b", share_delivery_count_limit="10")
    for _ in range(2):
        q.release(0, 1)
        q.take(2)
    q.release(0, 1)
    q.configure(**AT_MOST_TWICE)
    q.take(2)
    q.release(0, 1)
    q.outcome()


@script("DLQ-12")
def a_log_start_that_moves_past_available_records(s: Session) -> None:
    q = queue(s, "a", "b", "c", "d", **AT_MOST_TWICE)
    q.release(0, 1)
    delete_before(s, q.topic, 2)
    q.acknowledge((2, 3, [REJECT]))
    q.outcome()


@script("DLQ-27")
def records_that_the_log_no_longer_has(s: Session) -> None:
    q = queue(s, copies=True)
    q.put(*"abcdef", per_batch=2)
    q.take(6)
    delete_before(s, q.topic, 2)
    q.acknowledge((0, 1, [REJECT]))
    q.outcome()
    q.acknowledge((2, 5, [REJECT]))
    q.outcome()


@script("DLQ-41", "LSO-5", "DLQ-10")
def held_records_that_the_log_no_longer_has(s: Session) -> None:
    """They are rejected after a fetch has noticed that the log start moved."""
    q = queue(s)
    q.put(*"abcdef", per_batch=2)
    q.take(4, max_records=4, batch_size=2)
    delete_before(s, q.topic, 2)
    noticed(s, q.member)
    q.acknowledge((0, 1, [REJECT]))
    q.outcome()
    q.acknowledge((2, 3, [REJECT]))
    q.outcome()


@script("DLQ-41", "LSO-5", "DLQ-11")
def held_records_that_the_log_no_longer_has_at_the_limit(s: Session) -> None:
    q = queue(s, **AT_MOST_TWICE)
    q.put(*"abcdef", per_batch=2)
    q.take(6)
    q.release(0, 5)
    q.take(6)
    delete_before(s, q.topic, 2)
    noticed(s, q.member)
    q.release(0, 3)
    q.outcome()


@script("DLQ-41", "LSO-5", "DLQ-11", seconds=4)
def locks_of_records_that_the_log_no_longer_has(s: Session) -> None:
    q = queue(s, share_record_lock_duration_ms="1000", **AT_MOST_TWICE)
    q.put(*"abcd", per_batch=2)
    q.take(4)
    q.release(0, 3)
    q.take(4)
    delete_before(s, q.topic, 2)
    noticed(s, q.member)
    q.outcome(lag=0)


@script("DLQ-40", "DLQ-10")
def a_transaction_and_its_marker(s: Session) -> None:
    q = queue(s, copies=True)
    t = transactional(s)
    t.send(q.topic, "a", "b")
    t.ended(True)
    q.put("c")
    q.take(4, last=3)
    for offset in range(4):  # the marker is at 2
        q.acknowledge((offset, offset, [REJECT]))
    q.outcome()


@script("DLQ-12")
def an_aborted_transaction(s: Session) -> None:
    q = queue(s, copies=True, share_isolation_level="read_committed")
    t = transactional(s)
    t.send(q.topic, "a", "b")
    t.ended(False)
    q.put("c")
    q.take(1)
    q.acknowledge((3, 3, [REJECT]))
    q.outcome()
