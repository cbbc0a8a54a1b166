"""Fetch, ListOffsets and OffsetForLeaderEpoch over the holes of a compacted log."""

from __future__ import annotations

from kbroker.formats.compression import Codec
from tests.differential.compaction import START_MS, CompactedLog, compacted
from tests.differential.script import Session, script
from tests.differential.scripts.base_fetch import wanted
from tests.differential.scripts.base_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    MAX_TIMESTAMP,
    epoch_ends,
    look,
)
from tests.differential.scripts.base_produce import has_offsets_topic
from tests.differential.scripts.compaction_layout import producer
from tests.differential.scripts.offset_commits import commit
from tests.differential.scripts.offset_commits import fetch as fetch_offsets
from tests.differential.scripts.txn_reading import FETCHES, LEVELS, fetch, fetch_values

ONE_BATCH = {"limit": 1, "max_bytes": 1}
"""Limits of a fetch. Kafka returns one segment at a time, and passes join segments."""
END = 15


def sparse(s: Session, codec: Codec = Codec.NONE) -> CompactedLog:
    """Batches 0-2, 3, 8, 9-11, 12-13 and 14 with the records 0, 2, 3, 8, 10, 12, 13 and 14; then
    those of the pass."""
    log = compacted(s)
    log.put("a", "b", "c", codec=codec)
    log.put("b", codec=codec)
    log.put("d", "e", "f", "d", codec=codec)
    log.put("d", codec=codec)
    log.put("e", "h", "f", codec=codec)
    log.put("e", "f", codec=codec)
    log.put("g", codec=codec)
    log.clean()
    return log


def empty_batches(s: Session) -> CompactedLog:
    """Batches without records at 1, 2 and 4-5."""
    log = compacted(s)
    log.put("a")
    log.put("a", producer=producer(s, 0, 1))
    log.put("a", producer=producer(s, 0, 2))
    log.put("b")
    log.put("a", "a", producer=producer(s, 0, 3))
    log.put("a")
    log.clean()
    return log


@script("BASE-43")
def every_offset(s: Session) -> None:
    log = sparse(s)
    for level in LEVELS:
        for offset in range(log.end() + 2):
            fetch(s, log.topic, offset, level, **ONE_BATCH)


@script("BASE-43")
def every_offset_of_compressed_batches(s: Session) -> None:
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        log = sparse(s, codec)
        for offset in (0, 1, 2, 4, 7, 9, 11):
            fetch(s, log.topic, offset, 0, **ONE_BATCH)


@script("BASE-43")
def every_version_in_a_hole(s: Session) -> None:
    log = sparse(s)
    for version in FETCHES:
        for level in LEVELS:
            fetch(s, log.topic, 5, level, version, **ONE_BATCH)


@script("BASE-43")
def at_batches_without_records(s: Session) -> None:
    log = empty_batches(s)
    log.show()
    for level in LEVELS:
        for offset in range(8):
            fetch(s, log.topic, offset, level, **ONE_BATCH)


@script("BASE-47")
def a_session_over_holes(s: Session) -> None:
    log = sparse(s)
    rows = wanted((0, 1), limit=1)
    answer = s.call("fetch", 12, **fetch_values(12, [(log.topic, rows)], 0, (0, 0)))
    session = answer.session_id
    for epoch, offset in enumerate((3, 4, 9, 12), start=1):
        rows = wanted((0, offset), limit=1)
        s.call("fetch", 12, **fetch_values(12, [(log.topic, rows)], 0, (session, epoch)))
    s.call("fetch", 12, **fetch_values(12, [], 0, (session, 5)))


@script()
def an_open_session_while_a_pass_runs(s: Session) -> None:
    log = compacted(s)
    log.put("a", "b")
    log.put("a")
    log.put("c")
    rows = wanted((0, 0), limit=1)
    answer = s.call("fetch", 12, **fetch_values(12, [(log.topic, rows)], 0, (0, 0)))
    log.put("b")
    log.clean()
    s.call("fetch", 12, **fetch_values(12, [], 0, (answer.session_id, 1)))


@script("BASE-50")
def offsets_by_time(s: Session) -> None:
    log = sparse(s)
    for after_ms in (-1, *range(END + 1)):
        look(s, log.topic, START_MS + after_ms)


@script("BASE-50")
def offsets_by_times_in_no_order(s: Session) -> None:
    log = compacted(s)
    log.put("a", "b", "c", times=(500, 100, 300))
    log.put("d", "e", "f", times=(100, 900, 300))
    log.cut()
    log.put("a", "e", times=(50, 60))
    log.clean()
    for after_ms in (0, 50, 100, 101, 299, 300, 301, 500, 900, 901):
        look(s, log.topic, START_MS + after_ms)
    look(s, log.topic, MAX_TIMESTAMP)


@script("BASE-50")
def ends_of_the_log(s: Session) -> None:
    log = compacted(s)
    log.put("a", "b")
    log.put("a", "b")
    for passed in (False, True):
        if passed:
            log.clean()
        for level in LEVELS:
            for version in (7, 8):
                look(s, log.topic, EARLIEST, version=version, isolation=level)
                look(s, log.topic, LATEST, version=version, isolation=level)
        look(s, log.topic, EARLIEST_LOCAL, version=8)
        fetch(s, log.topic, 0, **ONE_BATCH)


@script("BASE-50")
def the_newest_record_was_overwritten(s: Session) -> None:
    """The greatest time is that of a record that is still there."""
    log = compacted(s)
    log.put("a", "b", times=(900, 10))
    log.put("b", "c", times=(20, 800))
    gone = log.put("d", times=(5,))
    log.put("a", "d", times=(30, 40))
    look(s, log.topic, MAX_TIMESTAMP)
    log.close()
    log.run_until_gone(gone)
    look(s, log.topic, MAX_TIMESTAMP)
    for after_ms in (0, 31, 41, 801, 901):
        look(s, log.topic, START_MS + after_ms)


@script("BASE-50")
def times_with_a_horizon(s: Session) -> None:
    log = compacted(s)
    log.put("a", ("b", None), "c", times=(200, 100, 300))
    log.put("a", times=(250,))
    log.clean()
    for after_ms in (0, 101, 201, 251, 301):
        look(s, log.topic, START_MS + after_ms)
    look(s, log.topic, MAX_TIMESTAMP)


@script()
def leader_epochs(s: Session) -> None:
    log = sparse(s)
    epoch_ends(s, log.topic, (0, -1, 0), (0, 0, 0), (0, -1, 5))


@script()
def offsets_of_groups_in_holes(s: Session) -> None:
    log = sparse(s)
    group = f"{s.name}-g"
    asked = [{"group_id": group, "topics": None}]
    has_offsets_topic(s)
    s.until(
        lambda: (
            not s.prepare("offset_fetch", 8, groups=asked, require_stable=False).groups[0].error_code.value
        ),
        "the group has a coordinator",
    )
    for offset in (1, 5, END):
        commit(s, group, {log.topic: {0: offset}})
        fetch_offsets(s, group, [log.topic])


@script()
def producers_of_batches_without_records(s: Session) -> None:
    log = empty_batches(s)
    s.call("describe_producers", 0, topics=[{"name": log.topic.name, "partition_indexes": [0]}])
