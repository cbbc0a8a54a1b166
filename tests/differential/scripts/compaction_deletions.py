"""DeleteRecords, and topics that are deleted: with cleanup.policy compact, and with both."""

from __future__ import annotations

from tests.differential.compaction import CompactedLog, compacted
from tests.differential.script import Session, script
from tests.differential.scripts.base_offsets import EARLIEST, LATEST, MAX_TIMESTAMP, delete_records, look
from tests.differential.scripts.base_topics import ZERO, delete
from tests.differential.scripts.txn_reading import fetch


def holes(s: Session, policy: str) -> CompactedLog:
    """The records 0, 5, 6, 7 and those of the pass; batch 2-4 is gone, 5-7 has all."""
    log = compacted(s, cleanup_policy=policy)
    log.put("a", "b")
    log.put("c", "c", "d")
    log.put("b", "c", "d")
    log.clean()
    return log


@script("BASE-57")
def only_compacted(s: Session) -> None:
    log = holes(s, "compact")
    for offset in (0, 1, 5, -1, 99, -2):
        delete_records(s, log.topic, (0, offset))
    delete_records(s, log.topic, (0, 0), (0, 5), (9, 0))
    look(s, log.topic, EARLIEST)


@script("BASE-57")
def both_policies(s: Session) -> None:
    log = holes(s, "compact,delete")
    for offset in (1, 3, 99, -2):
        delete_records(s, log.topic, (0, offset))
        look(s, log.topic, EARLIEST)
    for offset in (0, 2, 3, 4):
        fetch(s, log.topic, offset, 0, limit=1, max_bytes=1)
    look(s, log.topic, 0)
    delete_records(s, log.topic, (0, -1))
    look(s, log.topic, EARLIEST)
    look(s, log.topic, LATEST)


@script("BASE-57")
def without_any_policy(s: Session) -> None:
    log = compacted(s, cleanup_policy="")
    log.put("a", "b")
    delete_records(s, log.topic, (0, 1))
    look(s, log.topic, EARLIEST)


@script("BASE-57")
def the_policy_is_altered(s: Session) -> None:
    log = compacted(s)
    log.put("a", "b", "c")
    for policy in ("compact", "delete", "compact,delete", "compact"):
        log.alter(cleanup_policy=policy)
        delete_records(s, log.topic, (0, 1))
    look(s, log.topic, EARLIEST)


@script("BASE-57")
def compacted_beside_others(s: Session) -> None:
    """Rows of one request."""
    logs = [compacted(s, cleanup_policy=policy) for policy in ("compact", "delete", "delete,compact")]
    for log in logs:
        log.put("a", "b")
    rows = [
        {"name": log.topic.name, "partitions": [{"partition_index": 0, "offset": 1}]} for log in logs
    ]  # fmt: skip
    for version in (0, 1, 2):
        s.call("delete_records", version, topics=rows, timeout=30_000)


@script()
def records_are_deleted_before_a_pass(s: Session) -> None:
    log = compacted(s, cleanup_policy="compact,delete")
    log.put("a", "b", "c")
    log.put("a", "d")
    log.cut()
    log.put("b", "d")
    delete_records(s, log.topic, (0, 1))
    log.start = 1
    log.clean()
    s.note("offsets of records", log.offsets())
    look(s, log.topic, MAX_TIMESTAMP)


@script()
def records_are_deleted_between_passes(s: Session) -> None:
    log = holes(s, "compact,delete")
    log.put("d")
    log.cut()
    delete_records(s, log.topic, (0, 6))
    log.start = 6
    log.put("e", "a")
    log.clean()
    s.note("offsets of records", [each for each in log.offsets() if each >= 6])


@script()
def a_compacted_topic_is_deleted(s: Session) -> None:
    log = holes(s, "compact")
    delete(s, (log.topic.name, ZERO))
    s.until(lambda: s.gone(log.topic), "the broker knows of the deletion")
    delete(s, (log.topic.name, ZERO))
