"""Which part of a log a pass takes, and when a log is due."""

from __future__ import annotations

from kbroker.clock import wall_clock_ms
from tests.differential.compaction import ALWAYS, NEVER, CompactedLog, compacted
from tests.differential.script import Session, script
from tests.differential.scripts.compaction_layout import producer
from tests.differential.transactions import transactional

HOUR_MS = 3_600_000


@script()
def the_active_segment_is_left(s: Session) -> None:
    log = compacted(s)
    log.put("a", "b")
    gone = log.put("a")
    log.put("a")
    log.cut()
    log.put("b", "c", ("b", None))
    log.put("a", "c")
    log.run_until_gone(gone)
    log.show()


@script()
def the_times_of_records_end_segments(s: Session) -> None:
    """A batch begins a segment if it is more than segment.ms younger than the first one of the
    segment before."""
    log = compacted(s, segment_ms="1000")
    log.put("a", "b", times=(0, 0))
    log.put("a", times=(1000,))
    gone = log.put("a", times=(1001,))
    log.put("b", times=(500,))
    log.put("a", times=(2001,))
    log.put("b", times=(2002,))
    log.run_until_gone(gone)
    log.show()


@script()
def max_compaction_lag_ends_segments(s: Session) -> None:
    log = compacted(s, max_compaction_lag_ms="1000")
    gone = log.put("a", times=(0,))
    log.put("a", "b", times=(500, 1000))
    log.put("b", times=(1001,))
    log.run_until_gone(gone)
    log.show()


@script()
def records_of_the_active_segment_overwrite_nothing(s: Session) -> None:
    log = compacted(s)
    log.put("a", "b", "c")
    log.put("a")
    log.close()
    log.put("a", "b", "c")
    log.run_until_gone(0)
    log.show()


@script()
def the_dirty_ratio(s: Session) -> None:
    """A pass follows when more than half of the closed segments is new."""
    log = compacted(s)
    fill_segments(log, 3)
    log.clean()
    log.alter(min_cleanable_dirty_ratio="0.5")
    first = log.put("x")
    second = log.put("x")
    log.close()
    s.wait(0.5)
    s.note("a quarter is new", [log.has(first), log.has(second)])
    log.alter(min_cleanable_dirty_ratio=NEVER)
    fill_segments(log, 3)
    gone = log.put("x")
    log.put("x")
    log.close()
    log.alter(min_cleanable_dirty_ratio="0.5")
    s.until(lambda: not log.has(gone), "the log was due")
    s.note("offsets of records", log.offsets())


def fill_segments(log: CompactedLog, number: int) -> None:
    for _ in range(number):
        log.put((f"key {log.written}", "x" * 5000))
        log.cut()


@script()
def young_segments(s: Session) -> None:
    """min.compaction.lag.ms goes by the greatest time of a segment, and protects those behind
    it."""
    log = compacted(s, min_compaction_lag_ms=str(HOUR_MS))
    now_ms = wall_clock_ms()

    def put_at(ms: int, *keys: str) -> int:
        log.stamp_ms = ms
        return log.put(*keys)

    put_at(now_ms - 100 * HOUR_MS, "a", "b")
    put_at(now_ms - 100 * HOUR_MS, "a", "b")
    log.cut()
    gone = put_at(now_ms - 80 * HOUR_MS, "a", "c")
    put_at(now_ms - 80 * HOUR_MS, "a", "c")
    log.cut()
    put_at(now_ms - 9 * HOUR_MS, "young", "a")
    put_at(now_ms - HOUR_MS // 2, "young", "a")
    put_at(now_ms - 40 * HOUR_MS, "in the same segment")
    log.cut()
    overwritten = put_at(now_ms - 15 * HOUR_MS, "behind", "c")
    put_at(now_ms - 15 * HOUR_MS, "behind", "c")
    log.close()
    log.run_until_gone(gone)
    s.note("offsets of records", log.offsets())
    log.alter(min_compaction_lag_ms="0")
    log.run_until_gone(overwritten)
    s.note("offsets of records", log.offsets())


@script()
def old_segments(s: Session) -> None:
    """max.compaction.lag.ms makes a log due, whatever the ratio."""
    log = compacted(s, max_compaction_lag_ms=str(HOUR_MS))
    now_ms = wall_clock_ms()
    log.stamp_ms = now_ms - 10 * HOUR_MS
    gone = log.put("a", "b")
    log.put("a", "c")
    log.close()
    s.until(lambda: not log.has(gone), "the pass has run")
    s.note("offsets of records", log.offsets())


@script()
def old_records_before_young_ones_in_a_segment(s: Session) -> None:
    """max.compaction.lag.ms goes by the first time of a segment."""
    log = compacted(s, max_compaction_lag_ms=str(HOUR_MS))
    now_ms = wall_clock_ms()
    log.stamp_ms = now_ms - HOUR_MS - 60_000
    gone = log.put("a", "b")
    log.stamp_ms = now_ms - HOUR_MS // 2
    log.put("a", "c")
    log.close()
    s.until(lambda: not log.has(gone), "the pass has run")
    s.note("offsets of records", log.offsets())


@script()
def an_open_transaction_begins_a_segment(s: Session) -> None:
    """Nothing from its first record on is cleaned."""
    log = compacted(s)
    t = transactional(s)
    log.put("a", "b")
    gone = log.put("a")
    log.put("a")
    log.cut()
    log.send(t, "a", "c")
    log.put("a", "c")
    log.cut()
    log.put("a", "c")
    log.close()
    log.run_until_gone(gone)
    log.show()
    t.ended(True)
    log.clean()
    log.show("after its end")


@script()
def an_open_transaction_within_a_segment(s: Session) -> None:
    log = compacted(s)
    t = transactional(s)
    log.put("a", "b")
    gone = log.put("a")
    log.put("a")
    log.cut()
    log.put("c")
    log.put("c")
    log.send(t, "a", "c")
    log.put("a", "c")
    log.close()
    log.alter(min_cleanable_dirty_ratio=ALWAYS)
    s.until(lambda: not log.has(gone), "the first segment is clean")
    s.wait(1.0)
    s.note("offsets of records", log.offsets())
    log.alter(min_cleanable_dirty_ratio=NEVER)
    t.ended(True)
    log.clean()
    s.note("after its end", log.offsets())


@script()
def the_policy_goes_and_comes_back(s: Session) -> None:
    log = compacted(s)
    log.put("a", "b")
    log.put("a")
    log.clean()
    log.alter(cleanup_policy="delete")
    log.put((None, "without a key"), "a", "b")
    log.put("a", (None, "again"))
    log.show("with the policy delete")
    log.alter(cleanup_policy="compact")
    log.clean()
    log.show()


@script()
def records_without_a_key_go(s: Session) -> None:
    log = compacted(s, cleanup_policy="delete")
    log.put((None, "1"), (None, None), producer=producer(s, 0))
    log.put("a", (None, "2"), "b")
    log.put("", (None, "3"))
    log.put((None, "4"))
    log.alter(cleanup_policy="compact,delete")
    log.clean()
    log.show()


@script()
def a_topic_with_both_policies(s: Session) -> None:
    log = compacted(s, cleanup_policy="compact,delete")
    log.put("a", "b", "c")
    log.put("a", ("b", None))
    log.clean()
    log.show()


@script()
def without_any_policy(s: Session) -> None:
    log = compacted(s, cleanup_policy="")
    log.put("a", (None, "1"))
    log.put("a")
    log.close()
    log.show()


@script()
def the_pass_ends_with_a_batch_that_goes(s: Session) -> None:
    """Its header stays, so that readers come to the end of what was cleaned."""
    log = compacted(s)
    t = transactional(s)
    log.put("a")
    log.put("a")
    log.put("b")
    gone = log.send(t, "x", "y")
    log.cut()
    log.put("~")
    t.ended(False)
    log.send(t, "z")
    t.ended(True)
    log.run_until_gone(gone)
    log.show()
    log.clean()
    log.show("after another pass")


@script()
def two_partitions(s: Session) -> None:
    """A pass takes one log, its neighbour has the same keys."""
    log = compacted(s)
    other = compacted(s)
    for each in (log, other):
        each.put("a", "b")
    log.put("a")
    log.clean()
    log.show()
    other.show("another log")
