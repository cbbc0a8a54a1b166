"""`verify`: reads a whole data directory and reports errors in it. Changed findings become a
commit.

While a broker runs, the order of reading matters: dead letters first, then state, then batches,
then the ends of the logs. A dead letter that was read is thus never newer than the state, and
neither state nor a batch is ahead of its log. This module must not know HTML nor the terminal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from kbroker_pipeline import checks, letters, sources
from kbroker_pipeline.exits import line_of
from kbroker_pipeline.frames import empty, rows_of, table_of
from kbroker_pipeline.sources import Directory, Part
from kbroker_pipeline.store import Store, write_arrow
from kbroker_pipeline.verify_page import FindingRow, LogRow, Verified
from kbroker_spark.data import TopicInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE: Final = "findings"
MOST_FINDINGS: Final = 10_000
_LETTERS_SCHEMA: Final = (
    "group string, source_topic string, source_topic_id string, source_partition int, "
    "source_offset bigint, timestamp timestamp"
)


def verify(
    spark: SparkSession, store: Store, directory: Directory, now_ms: int, tell: Callable[[str], None]
) -> Verified:
    """Reads everything, commits the findings if they differ from the last run, and returns the data
    of the page."""
    tell("reading dead letters")
    parts = sources.parts(directory.path)
    found_letters, letter_count, unread = _read(_letters(spark, directory, parts).cache(), tell)
    tell("reading share-group state")
    state = sources.state(spark, directory.path, "batches").cache()
    waiting = sources.state(spark, directory.path, "waiting")
    shares = state.select(*checks.SHARE).distinct().count()
    # Several checks use it, and reading all logs is slow.
    batches = sources.batches(spark, directory.path).cache()
    tell("reading all batches and checking their CRCs")
    sizes = rows_of(_sizes(batches))
    tell("checking")
    parts = sources.parts(directory.path)
    logs = _logs(spark, parts)
    every = (
        checks.of_batches(batches, logs)
        .unionByName(checks.of_state(state, logs))
        .unionByName(checks.of_letters(found_letters, state, waiting))
    )
    told = rows_of(checks.in_order(every).limit(MOST_FINDINGS))
    findings = [FindingRow(**{name: row[name] for name in FindingRow._fields}) for row in told]
    findings += [_missing(*each) for each in sources.missing(directory.path)]
    ids = {(str(part.topic.topic_id), part.partition): part for part in parts}
    changed = _commit_if_new(store, findings, now_ms)
    return Verified(
        data_dir=str(directory.path),
        engines=directory.engines,
        now_ms=now_ms,
        changed=changed,
        checks=[(each.name, each.about, each.meaning) for each in checks.CHECKS],
        findings=findings,
        logs=[_log_row(row, ids.get((row["topic_id"], row["partition"]))) for row in sizes],
        share_partitions=shares,
        letters=letter_count,
        unread=unread,
    )


def _read(found: DataFrame, tell: Callable[[str], None]) -> tuple[DataFrame, int, str | None]:
    """The dead letters, their number, and, if their topics cannot be read, the reason. Other checks
    report that damage."""
    try:
        return found, found.count(), None
    except Exception as error:
        line = line_of(error)
        if line is None:
            raise
        tell(f"dead letters cannot be read: {line}")
        return found.sparkSession.createDataFrame([], found.schema), 0, line


def _letters(spark: SparkSession, directory: Directory, parts: Sequence[Part]) -> DataFrame:
    records = sources.records(
        spark, directory.path, sources.pieces(letters.dead_letter_parts(parts), {}), headers=True
    )
    nothing = empty(spark, _LETTERS_SCHEMA)
    return (
        nothing
        if records is None
        else letters.identified(letters.parse(records), parts).select(*nothing.columns)
    )


def _logs(spark: SparkSession, parts: Sequence[Part]) -> DataFrame:
    rows = [
        (str(part.topic.topic_id), part.partition, part.topic.name, part.start, part.end) for part in parts
    ]
    return spark.createDataFrame(
        rows, "topic_id string, partition int, topic string, log_start bigint, log_end bigint"
    )


def _sizes(batches: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return (
        batches.groupBy("topic", "topic_id", "partition")
        .agg(
            F.count("*").alias("batches"),
            F.coalesce(F.sum("record_count"), F.lit(0)).cast("bigint").alias("records"),
            F.coalesce(F.sum("size_bytes"), F.lit(0)).cast("bigint").alias("size_bytes"),
            F.min("base_offset").alias("first"),
            F.max("last_offset").alias("last"),
        )
        .orderBy("topic", "partition")
    )


def _log_row(row: dict[str, Any], part: Part | None) -> LogRow:
    name = row["topic"] or row["topic_id"]
    start, end = (part.start, part.end) if part is not None else (row["first"] or 0, (row["last"] or 0) + 1)
    return LogRow(name, row["partition"], start, end, row["batches"], row["records"], row["size_bytes"])


def _missing(topic: TopicInfo, partition: int, first: int, end: int) -> FindingRow:
    check = checks.CHECKS[-1].name
    return FindingRow(
        check,
        checks.ERROR,
        topic.name,
        str(topic.topic_id),
        partition,
        None,
        first,
        end - 1,
        "were written, but are missing",
    )


def _commit_if_new(store: Store, findings: Sequence[FindingRow], now_ms: int) -> bool:
    told = hashlib.sha256(json.dumps(findings).encode()).hexdigest()
    last = store.last()
    if last is not None and last.facts["fingerprint"] == told:
        return False
    name = store.next_name()
    folder = store.stage(name)
    seen = datetime.fromtimestamp(now_ms / 1000, UTC)
    if findings:
        day = {"date": seen.strftime("%Y-%m-%d"), "seen": seen}
        write_arrow(
            table_of(
                [{**day, **row._asdict(), "topic": row.topic or row.topic_id or ""} for row in findings]
            ),
            folder / TABLE,
        )
    store.decide(name, {"fingerprint": told, "taken_ms": now_ms, "findings": len(findings)})
    return True
