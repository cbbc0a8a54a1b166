"""Produce to compacted topics: every record needs a key."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.formats.compression import Codec
from tests.differential.compaction import CompactedLog, Row, compacted
from tests.differential.script import Session, Topic, script
from tests.differential.scripts.base_produce import altered, end_of, latest, produce
from tests.differential.scripts.compaction_layout import producer
from tests.differential.transactions import produce as produce_in
from tests.differential.transactions import produce_values

UNKEYED = (None, "without a key")


def sent(log: CompactedLog, *batches: bytes, acks: int = -1) -> None:
    for batch in batches:
        produce(log.s, log.topic, batch, acks=acks)


@script("BASE-34")
def in_every_version(s: Session) -> None:
    log = compacted(s)
    for version in range(3, 14):
        batch = log.batch("a", UNKEYED)
        produce_in(s, None, {log.topic: {0: batch}}, version)
        produce_in(s, None, {log.topic: {0: log.batch("a")}}, version)
    end_of(s, log.topic)


@script("BASE-34")
def some_records_of_a_batch(s: Session) -> None:
    log = compacted(s)
    sent(
        log,
        log.batch(UNKEYED),
        log.batch("a", UNKEYED, "b"),
        log.batch(UNKEYED, "a", UNKEYED, UNKEYED),
        log.batch(*[UNKEYED] * 12),
        log.batch(*"abc"),
    )
    end_of(s, log.topic)


@script("BASE-34")
def keys_and_values_that_are_empty(s: Session) -> None:
    log = compacted(s)
    sent(
        log,
        log.batch(("", "empty key")),
        log.batch(("", "")),
        log.batch(("a", None)),
        log.batch(("", None)),
        log.batch((None, None)),
        log.batch(("a", "")),
    )
    end_of(s, log.topic)


@script("BASE-34")
def in_every_codec(s: Session) -> None:
    log = compacted(s)
    for codec in Codec:
        sent(log, log.batch("a", UNKEYED, codec=codec), log.batch("a", "b", codec=codec))
    end_of(s, log.topic)


@script("BASE-34")
def with_every_policy(s: Session) -> None:
    for policy in ("compact", "delete", "compact,delete", "delete,compact", ""):
        log = compacted(s, cleanup_policy=policy)
        sent(log, log.batch(UNKEYED), log.batch("a"))
        end_of(s, log.topic)


@script("BASE-34")
def from_an_idempotent_producer(s: Session) -> None:
    """A refused batch uses no sequence."""
    log = compacted(s)
    sent(
        log,
        log.batch("a", UNKEYED, producer=producer(s, 0)),
        log.batch("a", producer=producer(s, 0)),
        log.batch(UNKEYED, producer=producer(s, 1)),
        log.batch(UNKEYED, producer=producer(s, 7)),
        log.batch("b", producer=producer(s, 1)),
        log.batch(UNKEYED, producer=producer(s, 1)),
        log.batch(UNKEYED, producer=producer(s, 2, epoch=1)),
    )
    end_of(s, log.topic)


@script("BASE-34")
def with_other_acks(s: Session) -> None:
    log = compacted(s)
    sent(log, log.batch(UNKEYED), log.batch("a"), acks=1)
    s.until(lambda: latest(s, log.topic) == 1, "the record is visible")
    end_of(s, log.topic)


@script("BASE-34")
def beside_other_rows(s: Session) -> None:
    """Each partition and topic has its own answer."""
    compact, other = compacted(s), compacted(s, cleanup_policy="delete")
    batches: dict[Topic, dict[int, bytes]] = {
        compact.topic: {0: compact.batch("a", UNKEYED)},
        other.topic: {0: other.batch(UNKEYED)},
    }
    for version in (7, 8, 12):
        s.call("produce", version, **produce_values(None, batches, version))
    end_of(s, compact.topic)
    end_of(s, other.topic)


@script("BASE-34", "BASE-33")
def with_a_wrong_time_too(s: Session) -> None:
    """Of a record with two errors one is named."""
    log = compacted(s, message_timestamp_after_max_ms="3600000")
    cases: Sequence[Sequence[Row]] = (("a", "b"), (UNKEYED, "b"), ("a", UNKEYED), (UNKEYED, UNKEYED))
    for rows in cases:
        sent(log, log.batch(*rows))
    end_of(s, log.topic)


@script("BASE-34", "BASE-33")
def with_times_of_the_broker(s: Session) -> None:
    log = compacted(s, message_timestamp_type="LogAppendTime")
    sent(log, log.batch("a", UNKEYED), log.batch("a", "b"))
    end_of(s, log.topic)


@script("BASE-34", "BASE-22")
def headers_that_contradict_the_records(s: Session) -> None:
    log = compacted(s)
    good, bad = log.batch("a", "b"), log.batch(UNKEYED, "b")
    for batch in (good, bad):
        sent(
            log,
            altered(batch, record_count=1),
            altered(batch, record_count=3),
            altered(batch, last_offset_delta=0),
            altered(batch, record_count=1, last_offset_delta=0),
            altered(batch, record_count=3, last_offset_delta=2),
            altered(batch, attributes=int(Codec.GZIP)),
            altered(batch, attributes=0x20),
            altered(batch, attributes=0x40),
            altered(batch, crc=1),
        )
    end_of(s, log.topic)


@script("BASE-34")
def the_policy_is_altered(s: Session) -> None:
    log = compacted(s, cleanup_policy="delete")
    sent(log, log.batch(UNKEYED))
    log.alter(cleanup_policy="compact")
    s.until(lambda: _refuses(log), "the policy is in force")
    sent(log, log.batch(UNKEYED))
    log.alter(cleanup_policy="delete")
    s.until(lambda: not _refuses(log), "the policy is in force")
    log.alter(cleanup_policy="delete,compact")
    s.until(lambda: _refuses(log), "the policy is in force")
    sent(log, log.batch(UNKEYED))


def _refuses(log: CompactedLog) -> bool:
    rows = [{"name": log.topic.name, "partition_data": [{"index": 0, "records": log.batch(UNKEYED)}]}]
    answer = log.s.prepare("produce", 9, transactional_id=None, acks=-1, timeout=30_000, topic_data=rows)
    return bool(answer.responses[0].partition_responses[0].error_code.value)
