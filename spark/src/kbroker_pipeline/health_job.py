"""`queue-health`: takes one snapshot of all share groups per run, and compares the snapshots.

If nothing has changed since the last snapshot, a run writes nothing. Otherwise one commit holds the
snapshot (`queue_health`), its delivery counts (`delivery_counts`) and worst records
(`worst_records`), the records given up since the last snapshot (`given_up`), and the offsets at
which to resume in the dead letter topics. This module must not know HTML nor the terminal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from kbroker_pipeline import health, letters, sources
from kbroker_pipeline.frames import empty, read_table, rows_of, table_of
from kbroker_pipeline.health_rows import (
    CountRow,
    Health,
    Point,
    ShareRow,
    Stuck,
    WorstRow,
    key_of,
    with_counts,
)
from kbroker_pipeline.lookup import Found, Place, first_from, look_up
from kbroker_pipeline.parked import really_given_up, resolved
from kbroker_pipeline.report import excerpt
from kbroker_pipeline.sources import Directory, Part
from kbroker_pipeline.store import Store, write_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHARES, COUNTS, WORST, GIVEN_UP = "queue_health", "delivery_counts", "worst_records", "given_up"
GIVEN_UP_SCHEMA: Final = (
    "group string, topic_id string, partition int, offset bigint, topic string, "
    "delivery_count int, dead_letter boolean, seen timestamp"
)
_LETTERS_SCHEMA: Final = (
    "group string, source_topic string, source_topic_id string, source_partition int, "
    "source_offset bigint, delivery_count int"
)
_MOST_POINTS: Final = 500
_MOST_WORST: Final = 30


@dataclass(frozen=True, slots=True)
class Settings:
    """`stuck_after_s`: how long a start offset must not have moved. `history`: also search the
    state's history, for the offsets of records that were given up and lost their state between two
    runs."""

    stuck_after_s: float = 60.0
    history: bool = True


@dataclass(frozen=True, slots=True)
class Picture:
    """The result of a run: rows of the tables, without the time."""

    shares: list[dict[str, Any]]
    counts: list[dict[str, Any]]
    worst: list[dict[str, Any]]
    given_up: list[dict[str, Any]]
    cursor: Mapping[str, int]
    problems: list[str]

    def fingerprint(self) -> str:
        """A hash of the rows that show whether anything changed. The other rows are only those new
        since the last run, so a repeated run would have none."""
        told = json.dumps([self.shares, dict(self.cursor)], sort_keys=True, default=str)
        return hashlib.sha256(told.encode()).hexdigest()


def queue_health(
    spark: SparkSession,
    store: Store,
    directory: Directory,
    settings: Settings,
    now_ms: int,
    tell: Callable[[str], None],
) -> Health:
    """Takes a snapshot, commits it if anything has changed, and returns the data of the page."""
    last = store.last()
    picture = take(spark, store, directory, settings, tell)
    changed = last is None or last.facts["fingerprint"] != picture.fingerprint()
    last_ms = None if last is None else int(last.facts["taken_ms"])
    moment_ms = now_ms if last_ms is None or changed else last_ms
    if changed and moment_ms == last_ms:
        moment_ms += 1  # The time identifies a snapshot.
    if changed:
        tell("writing the snapshot")
        _commit(store, picture, moment_ms)
    tell("comparing with earlier snapshots")
    stuck, points = _over_runs(spark, store, picture, settings, moment_ms, now_ms)
    return Health(
        data_dir=str(directory.path),
        engine=directory.engines,
        now_ms=now_ms,
        changed=changed,
        runs=len(store.names()),
        shares=[_share_row(row, moment_ms) for row in picture.shares],
        points=points,
        stuck=stuck,
        counts=_counts_of(picture.counts if changed else store.rows_of_last(COUNTS)),
        worst=[_worst_row(row) for row in (picture.worst if changed else store.rows_of_last(WORST))],
        problems=picture.problems,
    )


def _over_runs(
    spark: SparkSession, store: Store, picture: Picture, settings: Settings, moment_ms: int, now_ms: int
) -> tuple[list[Stuck], list[Point]]:
    """Compares all snapshots, including the last one. Snapshots with later times are left out: the
    clock was set back since."""
    from pyspark.sql import functions as F

    table = read_table(spark, store.table(SHARES))
    if table is None:
        return [], []
    history = table.withColumn("taken_ms", F.unix_millis("taken")).where(F.col("taken_ms") <= moment_ms)
    shares = {key_of(row): row for row in picture.shares}
    since = rows_of(health.standing(history, history.where(F.col("taken_ms") == moment_ms)))
    stuck = [
        Stuck(_share_row(shares[key_of(row)], moment_ms), row["since_ms"], bool(row["ahead_moves"]))
        for row in since
        if row["since_ms"] < now_ms and row["since_ms"] <= now_ms - settings.stuck_after_s * 1000
    ]
    return sorted(stuck, key=lambda each: each.since_ms), [
        Point(**row) for row in rows_of(health.points(history, _MOST_POINTS))
    ]


def take(
    spark: SparkSession, store: Store, directory: Directory, settings: Settings, tell: Callable[[str], None]
) -> Picture:
    """Reads all of the state first, then the logs. No log then ends before offsets in its state,
    and the dead letters of all archived records are among those read."""
    tell("reading share-group state")
    views = (
        *("batches", "share-partitions", "waiting"), *(("history",) if settings.history else ()),
    )  # fmt: skip
    state = {view: sources.state(spark, directory.path, view).cache() for view in views}
    for frame in state.values():
        frame.count()
    batches = state["batches"]
    problems = [f"state of group {row['group']} on {row['topic'] or row['topic_id']}-{row['partition']}: "
                f"{row['problem']}"
                for row in rows_of(batches.where(batches["problem"].isNotNull()))]  # fmt: skip
    last = store.last()
    parts = sources.parts(directory.path)
    of_letters = letters.dead_letter_parts(parts)
    tell("reading dead letters")
    cursor = last.facts["cursor"] if last else {}
    share_partitions = state["share-partitions"]
    known = read_table(spark, store.table(GIVEN_UP))
    if known is not None:
        known = really_given_up(known, share_partitions)
    new_frame = newly_given_up(
        spark, directory, batches, share_partitions, state.get("history"), parts, of_letters, cursor, known
    ).cache()
    new = rows_of(new_frame)
    columns = [name.split()[0] for name in GIVEN_UP_SCHEMA.split(", ")][:-1]
    every = (
        new_frame.select(*columns)
        if known is None
        else known.select(*columns).unionByName(new_frame.select(*columns))
    )
    tell("adding up")
    batches = resolved(batches, share_partitions, state["waiting"], every).cache()
    oldest = health.oldest_unfinished(batches, share_partitions)
    waits = batches.where("is_parked").select(*health.KEY, batches["first_offset"].alias("offset"))
    ended = every.join(waits, [*health.KEY, "offset"], "left_anti")
    shares = rows_of(health.shares(health.windows(batches), share_partitions, oldest, ended))
    shares = with_counts(shares, store.rows_of_last(SHARES))
    counts = rows_of(
        health.delivery_counts(batches, new_frame).orderBy("group", "topic", "partition", "delivery_count")
    )
    worst = rows_of(health.worst(batches, new_frame, _MOST_WORST))
    tell("looking up records")
    _look_up(directory, shares, worst)
    for frame in (new_frame, batches, *state.values()):
        frame.unpersist()
    return Picture(shares, counts, worst, new, sources.advanced(of_letters), problems)


def newly_given_up(
    spark: SparkSession, directory: Directory, batches: DataFrame, share_partitions: DataFrame,
    history: DataFrame | None, parts: Sequence[Part], of_letters: Sequence[Part], cursor: sources.Cursor,
    known: DataFrame | None,
) -> DataFrame:  # fmt: skip
    """The given-up records that no earlier run has seen (`known`): from the state, its history, and
    new dead letters."""
    from pyspark.sql import functions as F

    records = sources.records(spark, directory.path, sources.pieces(of_letters, cursor), headers=True)
    found = empty(spark, _LETTERS_SCHEMA)
    if records is not None:
        found = letters.identified(letters.parse(records), parts).select(*found.columns)
    stored = batches.select(*health.KEY, "topic", "first_offset", "last_offset", "state", "delivery_count")
    if history is not None:
        steps = history.where(F.col("batches").isNotNull())
        each = steps.select(*health.KEY, "topic", F.explode("batches").alias("batch")).select(
            *health.KEY, "topic", "batch.*"
        )
        stored = stored.unionByName(each)
    now = really_given_up(health.given_up_now(stored, found), share_partitions)
    new = now if known is None else health.newly_given_up(now, known)
    return new.select("group", "topic_id", "partition", "offset", "topic", "delivery_count", "dead_letter")


def _look_up(directory: Directory, shares: list[dict[str, Any]], worst: list[dict[str, Any]]) -> None:
    """Adds data from the records themselves: the timestamps of the oldest unfinished ones, and the
    contents of the worst ones."""
    nothing = Found(None, None, None)
    heads = first_from(
        directory.path, [_place(row, "oldest_offset") for row in shares if row["oldest_offset"] is not None]
    )
    for row in shares:
        row["oldest_offset"], oldest = heads.get(
            _place(row, "oldest_offset"), (row["oldest_offset"], nothing)
        )
        row["oldest_ms"] = oldest.timestamp_ms
    found = look_up(directory.path, [_place(row, "offset") for row in worst])
    for row in worst:
        record = found.get(_place(row, "offset"), nothing)
        row.update(timestamp_ms=record.timestamp_ms, key=excerpt(record.key), value=excerpt(record.value))


def _place(row: Mapping[str, Any], offset: str) -> Place:
    return Place(row["topic_id"], row["partition"], row[offset])


def _commit(store: Store, picture: Picture, moment_ms: int) -> None:
    name = store.next_name()
    folder = store.stage(name)
    taken = datetime.fromtimestamp(moment_ms / 1000, UTC)
    of_day = {"date": taken.strftime("%Y-%m-%d"), "taken": taken}
    for table, rows in ((SHARES, picture.shares), (COUNTS, picture.counts), (WORST, picture.worst)):
        if rows:
            write_arrow(table_of([{**of_day, **row} for row in rows]), folder / table)
    if picture.given_up:
        rows = [
            {"date": of_day["date"], **row, "topic": row["topic"] or row["topic_id"], "seen": taken}
            for row in picture.given_up
        ]
        write_arrow(table_of(rows), folder / GIVEN_UP)
    facts = {"taken_ms": moment_ms, "fingerprint": picture.fingerprint(), "cursor": dict(picture.cursor)}
    store.decide(name, facts)


def _share_row(row: Mapping[str, Any], taken_ms: int) -> ShareRow:
    return ShareRow(**{name: row[name] for name in ShareRow._fields if name != "taken_ms"}, taken_ms=taken_ms)


def _worst_row(row: Mapping[str, Any]) -> WorstRow:
    return WorstRow(**{name: row[name] for name in WorstRow._fields})


def _counts_of(rows: Sequence[Mapping[str, Any]]) -> list[CountRow]:
    sums: dict[tuple[str, int], int] = {}
    for row in rows:
        key = (row["group"], row["delivery_count"])
        sums[key] = sums.get(key, 0) + row["records"]
    return [CountRow(group, count, records) for (group, count), records in sorted(sums.items())]
