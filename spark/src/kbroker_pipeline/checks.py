"""The checks of `verify`: functions from DataFrames to findings.

    batches    format kbroker-batches
    state      format kbroker-state, view batches
    letters    dead letters (letters.py)
    logs       (topic_id, partition, topic, log_start, log_end), of live topics

A finding has the columns of FINDING. Severity `error` means damage, or a state that kbroker never
writes. A `note` may be harmless, and says when. This module must not know where anything is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LOG: Final = ("topic_id", "partition")
SHARE: Final = ("group", *LOG)
ERROR, NOTE = "error", "note"
FINDING: Final = (
    "check",
    "severity",
    "topic",
    "topic_id",
    "partition",
    "group",
    "first_offset",
    "last_offset",
    "detail",
)


class Check(NamedTuple):
    """`about`: the input that is checked."""

    name: str
    about: str
    meaning: str


CHECKS: Final = (
    Check("damaged batch", "batches", "Every batch can be read, and its CRC matches."),
    Check(
        "impossible offsets",
        "batches",
        "A batch does not end before it begins, has no more records than offsets, and lies within its log.",
    ),
    Check("overlapping batches", "batches", "No offset is in two batches of a log."),
    Check("unreadable state", "state", "The state of every share-partition can be read."),
    Check("state of no topic", "state", "Every share-partition belongs to a topic that exists."),
    Check(
        "impossible state",
        "state",
        "State batches do not begin before the start offset, do not end before they begin, and have a known "
        "state.",
    ),
    Check("overlapping state", "state", "No offset is in two state batches of a share-partition."),
    Check("state beyond the log", "state", "No state refers to offsets that were never written."),
    Check(
        "live and dead-lettered",
        "letters",
        "No record with a dead letter can still be delivered, or was acknowledged.",
    ),
    Check("dead letter twice", "letters", "No record has two dead letters of the same group."),
    Check(
        "missing batches",
        "logs",
        "Offsets that are known to have been written exist, or are before the log's start.",
    ),
)


def _finding(
    found: DataFrame,
    check: str,
    severity: Column | str,
    first: Column | str,
    last: Column | str,
    detail: Column,
) -> DataFrame:
    from pyspark.sql import functions as F

    group = F.col("group") if "group" in found.columns else F.lit(None).cast("string")
    level = F.lit(severity) if isinstance(severity, str) else severity
    first, last = (F.col(each) if isinstance(each, str) else each for each in (first, last))
    return found.select(
        F.lit(check).alias("check"), level.alias("severity"), "topic", "topic_id", "partition",
        group.alias("group"),
        first.cast("bigint").alias("first_offset"), last.cast("bigint").alias("last_offset"),
        detail.alias("detail"),
    )  # fmt: skip


def in_order(findings: DataFrame) -> DataFrame:
    """Errors first. The order is deterministic."""
    return findings.orderBy(
        "severity",
        "check",
        "topic",
        "topic_id",
        "partition",
        "group",
        "first_offset",
        "last_offset",
        "detail",
    )


def of_batches(batches: DataFrame, logs: DataFrame) -> DataFrame:
    """Broken CRCs, impossible and overlapping offsets."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    base, last, count = F.col("base_offset"), F.col("last_offset"), F.col("record_count")
    broken = F.col("problem").isNotNull() | ~F.coalesce(F.col("crc_ok"), F.lit(True))
    damaged = _finding(
        batches.where(broken),
        CHECKS[0].name,
        ERROR,
        base,
        last,
        F.coalesce("problem", F.lit("its CRC is wrong")),
    )
    whole = batches.where(~broken)
    placed = whole.join(logs.select(*LOG, "log_end"), list(LOG), "left")
    impossible = (
        F.when(base < 0, F.lit("begins below offset 0"))
        .when(last < base, F.lit("ends before it begins"))
        .when(
            count > last - base + 1, F.format_string("has %d records in %d offsets", count, last - base + 1)
        )
        .when(count < 0, F.lit("has a negative number of records"))
        .when(
            last >= F.col("log_end"),
            F.format_string("extends beyond the end of the log at %d", F.col("log_end")),
        )
    )
    strange = placed.withColumn("why", impossible).where(F.col("why").isNotNull())
    before = (
        Window.partitionBy(*LOG)
        .orderBy("base_offset", "last_offset")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    reached = whole.withColumn("reached", F.max("last_offset").over(before)).where(F.col("reached") >= base)
    twice = F.format_string("an earlier batch extends to offset %d", F.col("reached"))
    return damaged.unionByName(
        _finding(strange, CHECKS[1].name, ERROR, base, last, F.col("why"))
    ).unionByName(_finding(reached, CHECKS[2].name, ERROR, base, last, twice))


def of_state(state: DataFrame, logs: DataFrame) -> DataFrame:
    """State that cannot be read, belongs to no topic, contradicts itself or is beyond the log."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    first, last, start = map(F.col, ("first_offset", "last_offset", "start_offset"))
    unreadable = _finding(
        state.where(F.col("problem").isNotNull()), CHECKS[3].name, ERROR, first, last, F.col("problem")
    )
    readable = state.where(F.col("problem").isNull())
    homeless = (
        readable.where(F.col("topic").isNull())
        .groupBy(*SHARE, "topic")
        .agg(F.min("first_offset").alias("first_offset"))
    )
    orphans = _finding(
        homeless,
        CHECKS[4].name,
        NOTE,
        first,
        first,
        F.lit("its topic does not exist: the next start removes the state"),
    )
    why = (
        F.when(last < first, F.lit("ends before it begins"))
        .when(first < start, F.format_string("begins before the start offset %d", start))
        .when(F.col("state").startswith("state "), F.concat(F.lit("is in the unknown "), F.col("state")))
        .when(F.col("delivery_count") < 0, F.lit("has a negative delivery count"))
    )
    strange = _finding(
        readable.withColumn("why", why).where(F.col("why").isNotNull()),
        CHECKS[5].name,
        ERROR,
        first,
        last,
        F.col("why"),
    )
    before = (
        Window.partitionBy(*SHARE)
        .orderBy("first_offset", "last_offset")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    reached = readable.withColumn("reached", F.max("last_offset").over(before)).where(
        F.col("reached") >= first
    )
    overlapping = _finding(
        reached,
        CHECKS[6].name,
        ERROR,
        first,
        last,
        F.format_string("an earlier state batch extends to offset %d", F.col("reached")),
    )
    return (
        unreadable.unionByName(orphans)
        .unionByName(strange)
        .unionByName(overlapping)
        .unionByName(_beyond_the_log(readable, logs))
    )


def _beyond_the_log(readable: DataFrame, logs: DataFrame) -> DataFrame:
    """State batches and start offsets beyond the end of the log."""
    from pyspark.sql import functions as F

    first, last, start, end = map(F.col, ("first_offset", "last_offset", "start_offset", "log_end"))
    placed = readable.join(logs.select(*LOG, "log_end"), list(LOG))
    batches = placed.where(last >= end)
    beyond = _finding(batches, CHECKS[7].name, ERROR, first, last, F.format_string("the log ends at %d", end))
    starts = (
        placed.where(start > end)
        .groupBy(*SHARE, "topic")
        .agg(F.first("start_offset").alias("start_offset"), F.first("log_end").alias("log_end"))
    )
    ahead = _finding(
        starts,
        CHECKS[7].name,
        ERROR,
        start,
        start,
        F.format_string("the state begins at %d, but the log ends at %d", start, end),
    )
    return beyond.unionByName(ahead)


def of_letters(letters: DataFrame, state: DataFrame, waiting: DataFrame) -> DataFrame:
    """Records with a dead letter that are not archived, or that are parked (`waiting`) for anything
    but their dead letter. `letters` must have `source_topic_id`.

    A dead letter older than the state was written before the group's offsets were reset, or before
    the group was deleted and recreated.
    """
    from pyspark.sql import functions as F

    named = letters.select(
        "group", F.col("source_topic_id").alias("topic_id"), F.col("source_partition").alias("partition"),
        F.col("source_topic").alias("topic"), F.col("source_offset").alias("offset"), "timestamp",
    )  # fmt: skip
    heads = state.where(F.col("problem").isNull()).groupBy(*SHARE).agg(
        F.first("start_offset").alias("start_offset"), F.first("created").alias("created")
    )  # fmt: skip
    behind = named.join(heads, list(SHARE)).where(F.col("offset") >= F.col("start_offset")).alias("letter")
    held = (
        state.where(F.col("problem").isNull())
        .select(*SHARE, "first_offset", "last_offset", "state")
        .alias("held")
    )
    inside = F.col("letter.offset").between(F.col("held.first_offset"), F.col("held.last_offset"))
    for name in SHARE:
        inside = inside & (F.col(f"letter.{name}") == F.col(f"held.{name}"))
    joined = behind.join(held, inside, "left").select("letter.*", "held.state")
    wrong = joined.where(
        F.coalesce(F.col("state"), F.lit("not delivered")).isin("not delivered", "available", "acknowledged")
    )
    # The place of a parked record in the window is archived, or gone.
    waits = waiting.where(F.col("waits_for") != "dead letter").select(
        *SHARE, "offset", F.concat(F.lit("waiting for its "), "waits_for").alias("state")
    )
    alive = named.join(heads, list(SHARE)).join(waits, [*SHARE, "offset"])
    wrong = wrong.unionByName(alive.select(*wrong.columns))
    severity = F.when(F.col("timestamp") < F.col("created"), NOTE).otherwise(ERROR)
    detail = F.concat(
        F.lit("it has a dead letter, but is "),
        F.coalesce("state", F.lit("not delivered")),
        F.when(severity == NOTE, "; the dead letter is older than the group's state").otherwise(""),
    )
    live = _finding(wrong, CHECKS[8].name, severity, "offset", "offset", detail)
    many = (
        named.groupBy(*SHARE, "topic", "offset")
        .agg(F.count("*").alias("letters"))
        .where(F.col("letters") > 1)
    )
    text = F.format_string(
        "%d dead letters: harmless if the group's offsets were reset in between", F.col("letters")
    )
    return live.unionByName(_finding(many, CHECKS[9].name, NOTE, "offset", "offset", text))
