"""`archive`: copies topic logs to Parquet through Structured Streaming, each record exactly once.

Spark's checkpoint has the offsets of each micro-batch. A micro-batch becomes a commit of the store
under the batch's number. After a crash, Spark may repeat a batch whose completion it had not
stored; if its commit was decided, the batch is skipped. Readers thus see each record once without
Spark's `_spark_metadata`, which the output of Spark's own file sink requires.

This module must not know HTML nor the terminal.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kbroker_pipeline import sources
from kbroker_pipeline.exits import CommandFailed, Exit
from kbroker_pipeline.sources import Part
from kbroker_pipeline.store import Commit, Store, number_name, partition_of, sync
from kbroker_spark.options import ISOLATION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TABLE: Final = "archive"
USERS_TOPICS: Final = "[^_].*|_[^_].*|_"
"""A regular expression, for both Java and Python, that matches all topics except those whose names
begin with two underscores."""
KEPT_COMMITS: Final = 1000
_POLL_S: Final = 1
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Settings:
    """- `max_offsets`: records per micro-batch
    - `every_s`: None to archive the current records and end
    - `committed`: leave out records of aborted transactions, and wait for open ones"""

    data_dir: Path
    pattern: str = USERS_TOPICS
    max_offsets: int | None = 1_000_000
    every_s: float | None = None
    fail_on_data_loss: bool = True
    committed: bool = False


@dataclass(slots=True)
class Span:
    """The archived part of one partition: the number of records, and the first and last offset
    (inclusive)."""

    rows: int = 0
    first: int | None = None
    last: int | None = None

    def add(self, rows: int, first: int, last: int) -> None:
        self.rows += rows
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)


@dataclass(slots=True)
class Totals:
    """The totals of the whole archive after a commit. Each commit stores them, so no data file has
    to be read.

    - `spans`: by topic and partition.
    - `days`: the number of records by topic and date.
    - `size_bytes`, `files`: of the Parquet files.
    """

    spans: dict[str, dict[str, Span]] = field(default_factory=dict)
    days: dict[str, dict[str, int]] = field(default_factory=dict)
    size_bytes: int = 0
    files: int = 0

    @property
    def rows(self) -> int:
        return sum(span.rows for partitions in self.spans.values() for span in partitions.values())

    @classmethod
    def of(cls, commit: Commit | None) -> Totals:
        if commit is None:
            return cls()
        found = commit.facts["totals"]
        spans = {
            topic: {partition: Span(**span) for partition, span in each.items()}
            for topic, each in found["spans"].items()
        }
        return cls(spans, found["days"], found["size_bytes"], found["files"])


@dataclass(frozen=True, slots=True)
class Batch:
    """One commit, for the page: its time, and the records it added."""

    at_ms: int
    seconds: float
    rows: int
    size_bytes: int


def archive(
    spark: SparkSession,
    store: Store,
    settings: Settings,
    written: Callable[[int], None],
    now_ms: Callable[[], int],
) -> int:
    """Runs until all records that existed at the start are archived, or, with `every_s`, until it
    is interrupted. Calls `written` with the number of records of each commit. Returns the number of
    added records. Raises the source's errors, wrapped by Spark."""
    check_checkpoint(store)
    check_topics(store, {part.topic.name for part in sources.parts(settings.data_dir)}, settings.pattern)
    before = Totals.of(store.last()).rows
    writer = Writer(store, written, now_ms)
    options: dict[str, Any] = {
        "subscribePattern": settings.pattern,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "failOnDataLoss": str(settings.fail_on_data_loss).lower(),
        ISOLATION: "read_committed" if settings.committed else "read_uncommitted",
    }
    if settings.max_offsets is not None:
        options["maxOffsetsPerTrigger"] = str(settings.max_offsets)
    stream = spark.readStream.format("kbroker").options(**options).load(str(settings.data_dir)).writeStream
    stream = (
        stream.foreachBatch(writer)
        .option("checkpointLocation", str(store.checkpoint))
        .queryName("kbroker archive")
    )
    if settings.every_s is None:
        query = stream.trigger(availableNow=True).start()
    else:
        query = stream.trigger(processingTime=f"{round(settings.every_s * 1000)} milliseconds").start()
    _wait(spark, query)
    return Totals.of(store.last()).rows - before


def _wait(spark: SparkSession, query: StreamingQuery) -> None:
    """Waits for the query to end. Raises KeyboardInterrupt only between two calls to the JVM, since
    the gateway logs tracebacks when a call is interrupted."""
    interrupted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
    try:
        while not query.awaitTermination(_POLL_S):
            if interrupted:
                raise KeyboardInterrupt
    finally:
        if query.isActive:
            if interrupted:
                spark.sparkContext.setLogLevel("OFF")  # It would log the cancelled tasks as failures.
            query.stop()
        signal.signal(signal.SIGINT, before)


def check_checkpoint(store: Store) -> None:
    """Raises CommandFailed if tables and checkpoint do not belong together. Records would then be
    missing or duplicated."""
    last = store.last()
    if last is None:
        if _query_id(store) is not None and any((store.checkpoint / "commits").glob("[0-9]*")):
            raise CommandFailed(
                f"{store.checkpoint} exists, but the records it has archived do not: remove it to archive "
                "everything from scratch"
            )
        return
    if last.facts["query"] != _query_id(store):
        raise CommandFailed(
            f"{store.checkpoint} is not the checkpoint with which the archive beside it was written: "
            "restore that checkpoint, or choose another --out"
        )
    planned = [int(path.name) for path in (store.checkpoint / "offsets").glob("[0-9]*")]
    if max(planned, default=-1) < int(last.name):
        raise CommandFailed(
            f"{store.checkpoint} is older than the archive beside it, whose last commit is {last.name}: "
            "restore the newer one, or choose "
            "another --out"
        )


def check_topics(store: Store, names: Collection[str], pattern: str) -> None:
    """Raises CommandFailed if `pattern` leaves out an existing topic that is already archived in
    part. The checkpoint keeps offsets only of the topics being read, so the topic would be archived
    again from its beginning when it is next included. `names`: the existing topics."""
    wanted = re.compile(pattern)
    left_out = sorted(
        name for name in Totals.of(store.last()).spans if name in names and not wanted.fullmatch(name)
    )
    if left_out:
        raise CommandFailed(
            f"--topics leaves out topics that are archived here ({', '.join(left_out[:_MOST_NAMED])}): "
            "include them, or choose another --out",
            Exit.USAGE,
        )


def _query_id(store: Store) -> str | None:
    try:
        return str(json.loads((store.checkpoint / "metadata").read_text(encoding="utf-8"))["id"])
    except FileNotFoundError:
        return None


class Writer:
    """Called by Spark with each micro-batch, in the driver."""

    def __init__(self, store: Store, written: Callable[[int], None], now_ms: Callable[[], int]) -> None:
        self._store, self._written, self._now_ms = store, written, now_ms

    def __call__(self, frame: DataFrame, number: int) -> None:
        name = number_name(number)
        if self._store.commit(name) is not None:
            return
        began_s = time.monotonic()
        folder = self._store.stage(name)
        dated(frame).write.mode("overwrite").partitionBy("date", "topic").parquet(str(folder / TABLE))
        last = self._store.last()
        totals = Totals.of(last)
        rows, size_bytes = self._count(name, totals)
        if not rows and last is not None:
            self._store.stage(name)  # Only empty files, and nothing to store.
            return
        seconds = time.monotonic() - began_s
        facts = {
            "query": _query_id(self._store),
            "batch": asdict(Batch(self._now_ms(), seconds, rows, size_bytes)),
            "totals": asdict(totals),
        }
        # Spark does not sync it. After a power cut it would plan this batch with other offsets.
        sync(self._store.checkpoint / "offsets" / str(number))
        self._store.decide(name, facts)
        self._store.forget(KEPT_COMMITS)
        self._written(rows)

    def _count(self, name: str, totals: Totals) -> tuple[int, int]:
        """Adds the staged files to the totals; returns their records and bytes."""
        rows = size_bytes = 0
        for _, path in self._store.staged(name):
            date, topic = partition_of(path)
            size_bytes += path.stat().st_size
            totals.files += 1
            for partition, count, first, last in spans_of(path):
                rows += count
                totals.spans.setdefault(topic, {}).setdefault(str(partition), Span()).add(count, first, last)
                of_topic = totals.days.setdefault(topic, {})
                of_topic[date] = of_topic.get(date, 0) + count
        totals.size_bytes += size_bytes
        return rows, size_bytes


def dated(frame: DataFrame) -> DataFrame:
    """Adds the column `date`, the UTC day of the record's timestamp, as text."""
    from pyspark.sql import functions as F

    return frame.withColumn("date", F.date_format("timestamp", "yyyy-MM-dd"))


def spans_of(path: Path) -> list[tuple[int, int, int, int]]:
    """For each partition in a Parquet file: partition, number of records, first and last offset."""
    import pyarrow.parquet as pq

    table = pq.ParquetFile(path).read(columns=["partition", "offset"])
    grouped = (
        table.group_by("partition")
        .aggregate([("offset", "count"), ("offset", "min"), ("offset", "max")])
        .to_pydict()
    )
    return list(
        zip(
            grouped["partition"],
            grouped["offset_count"],
            grouped["offset_min"],
            grouped["offset_max"],
            strict=True,
        )
    )


def waiting(totals: Totals, parts: Iterable[Part], pattern: str) -> int:
    """The approximate number of records still to be archived: the offsets after the archived
    ones."""
    wanted = re.compile(pattern)
    count = 0
    for part in parts:
        if wanted.fullmatch(part.topic.name):
            span = totals.spans.get(part.topic.name, {}).get(str(part.partition))
            first = part.start if span is None or span.last is None else max(part.start, span.last + 1)
            count += max(0, part.end - first)
    return count


def batches(store: Store) -> list[Batch]:
    """The commits whose files are kept, oldest first."""
    found: list[Mapping[str, Any]] = [
        commit.facts["batch"] for name in store.names() if (commit := store.commit(name)) is not None
    ]
    return [Batch(**each) for each in found]
