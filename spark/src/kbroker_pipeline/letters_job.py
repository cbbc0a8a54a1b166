"""`dead-letter-report`: collects dead letters in a table, with their original records where those
still exist.

Each run adds the dead letters written since the last one. One commit holds them and the offsets at
which to resume. The sums cover the whole table. This module must not know HTML nor the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kbroker_pipeline import letters, sources
from kbroker_pipeline.archive import dated
from kbroker_pipeline.exits import CommandFailed, Exit
from kbroker_pipeline.figures import buckets
from kbroker_pipeline.frames import read_table, rows_of
from kbroker_pipeline.letters_page import KeyRow, LetterRow, Letters, SourceRow
from kbroker_pipeline.lookup import Found, Place, look_up
from kbroker_pipeline.report import excerpt
from kbroker_pipeline.sources import Directory, Part
from kbroker_pipeline.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TABLE: Final = "dead_letters"
MOST_KEYS: Final = 25
MOST_LETTERS: Final = 200
_MOMENTS: Final = ("timestamp", "original_timestamp")
"""Spark's timestamps have a wider range than Python's, so they are not converted."""
_ORIGINAL: Final = (
    "original boolean, original_timestamp timestamp, original_key binary, original_value binary"
)


def dead_letter_report(
    spark: SparkSession,
    store: Store,
    directory: Directory,
    topics: Sequence[str],
    now_ms: int,
    tell: Callable[[str], None],
) -> Letters:
    """Adds new dead letters to the table and returns the data of the page. `topics`: the dead
    letter topics; if empty, all of them. Raises CommandFailed if a topic does not exist."""
    parts = sources.parts(directory.path)
    watched = _watched(parts, topics)
    added = _take(spark, store, directory, parts, watched, tell)
    tell("adding up")
    table = read_table(spark, store.table(TABLE))
    names = sorted({part.topic.name for part in watched})
    if table is None:
        return Letters(
            str(directory.path),
            directory.engines,
            now_ms,
            names,
            added,
            0,
            0,
            0,
            None,
            None,
            1000,
            (),
            (),
            (),
            (),
            (),
        )
    table.cache()
    try:
        return _summed(table, directory, names, added, now_ms)
    finally:
        table.unpersist()  # Spark would otherwise reuse it for a later run in this session.


def _watched(parts: Sequence[Part], topics: Sequence[str]) -> list[Part]:
    if not topics:
        return letters.dead_letter_parts(parts)
    known = {part.topic.name for part in parts}
    for topic in topics:
        if topic not in known:
            raise CommandFailed(f"there is no topic {topic}", Exit.REFUSED)
    return [part for part in parts if part.topic.name in topics]


def _take(
    spark: SparkSession,
    store: Store,
    directory: Directory,
    parts: Sequence[Part],
    watched: Sequence[Part],
    tell: Callable[[str], None],
) -> int:
    """Commits all new dead letters and returns their number."""
    last = store.last()
    cursor = dict(last.facts["cursor"]) if last is not None else {}
    records = sources.records(spark, directory.path, sources.pieces(watched, cursor), headers=True)
    if records is None:
        return 0
    tell("reading dead letters and their original records")
    name = store.next_name()
    folder = store.stage(name)
    found = with_originals(letters.parse(records), directory, parts)
    dated(found).write.mode("overwrite").partitionBy("date", "topic").parquet(str(folder / TABLE))
    added = _rows_in(path for _, path in store.staged(name))
    store.decide(name, {"cursor": {**cursor, **sources.advanced(watched)}, "rows": added})
    return added


def _rows_in(paths: Iterable[Any]) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in paths)


def with_originals(found: DataFrame, directory: Directory, parts: Sequence[Part]) -> DataFrame:
    """Adds `source_topic_id` (of the topic that has the name now) and the columns of the original
    record."""
    joined = letters.identified(found, parts, "left")
    neighbours = joined.repartition("source_topic_id", "source_partition").sortWithinPartitions(
        "source_partition", "source_offset"
    )
    schema = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in joined.schema.fields)
    return neighbours.mapInArrow(partial(add_originals, str(directory.path)), f"{schema}, {_ORIGINAL}")


def add_originals(data_dir: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in Spark's workers, each of which looks up the records in the logs itself."""
    import pyarrow as pa

    for batch in batches:
        topic_ids, partitions, offsets = (
            batch.column(name).to_pylist()
            for name in ("source_topic_id", "source_partition", "source_offset")
        )
        places = [
            None if key[0] is None else Place(*key)
            for key in zip(topic_ids, partitions, offsets, strict=True)
        ]
        known = look_up(data_dir, [place for place in places if place is not None])
        found = [None if place is None else known.get(place) for place in places]
        micros = [
            None if each is None or each.timestamp_ms is None else each.timestamp_ms * 1000 for each in found
        ]
        columns = [
            pa.array([each is not None for each in found], pa.bool_()),
            pa.array(micros, pa.timestamp("us", tz="UTC")),
            pa.array([(each or _NOTHING).key for each in found], pa.binary()),
            pa.array([(each or _NOTHING).value for each in found], pa.binary()),
        ]
        names = [*batch.schema.names, *(column.split()[0] for column in _ORIGINAL.split(", "))]
        yield pa.RecordBatch.from_arrays([*batch.columns, *columns], names=names)


_NOTHING: Final = Found(None, None, None)


def _summed(table: DataFrame, directory: Directory, names: Sequence[str], added: int, now_ms: int) -> Letters:
    from pyspark.sql import functions as F

    copied = F.col("key").isNotNull() | F.col("value").isNotNull()
    (totals,) = rows_of(
        table.agg(
            F.count("*").alias("letters"),
            F.sum(F.col("original").cast("bigint")).alias("originals"),
            F.sum(copied.cast("bigint")).alias("copies"),
            F.unix_millis(F.min("timestamp")).alias("first_ms"),
            F.unix_millis(F.max("timestamp")).alias("last_ms"),
        )
    )
    width_ms = buckets(totals["first_ms"] or 0, totals["last_ms"] or 0)
    newest = table.orderBy(F.desc("timestamp"), "topic", F.desc("partition"), F.desc("offset")).limit(
        MOST_LETTERS
    )
    return Letters(
        data_dir=str(directory.path),
        engines=directory.engines,
        now_ms=now_ms,
        topics=names,
        added=added,
        letters=totals["letters"],
        originals=totals["originals"] or 0,
        copies=totals["copies"] or 0,
        first_ms=totals["first_ms"],
        last_ms=totals["last_ms"],
        width_ms=width_ms,
        times=[
            (row["at_ms"], row["cause"], row["letters"])
            for row in rows_of(letters.by_time(table, width_ms).orderBy("at_ms", "cause"))
        ],
        deliveries=[
            (row["cause"], row["delivery_count"], row["letters"])
            for row in rows_of(
                table.groupBy("cause", "delivery_count")
                .agg(F.count("*").alias("letters"))
                .orderBy("cause", "delivery_count")
            )
        ],
        sources=[
            SourceRow(*(row[name] for name in SourceRow._fields))
            for row in rows_of(letters.by_source(table).orderBy(F.desc("letters")))
        ],
        keys=[
            KeyRow(excerpt(row["any_key"]) or "", *(row[name] for name in KeyRow._fields[1:]))
            for row in rows_of(letters.by_key(table, MOST_KEYS))
        ],
        newest=[
            _letter_row(row)
            for row in rows_of(newest.withColumn("at_ms", F.unix_millis("timestamp")).drop(*_MOMENTS))
        ],
    )


def _letter_row(row: dict[str, Any]) -> LetterRow:
    copied = row["key"] is not None or row["value"] is not None
    if not row["original"]:
        original = "gone"
    elif not copied:
        original = "there, not copied"
    else:
        original = (
            "same"
            if (row["key"], row["value"]) == (row["original_key"], row["original_value"])
            else "differs"
        )
    key, value = (row["key"], row["value"]) if copied else (row["original_key"], row["original_value"])
    return LetterRow(
        row["at_ms"], row["cause"], row["group"], row["source_topic"], row["source_partition"],
        row["source_offset"], row["delivery_count"],
        f"{row['topic']} {row['partition']}:{row['offset']}", original, excerpt(key, 60), excerpt(value),
    )  # fmt: skip
