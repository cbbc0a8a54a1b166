"""The calculations of queue-health, from share-group state to rows: functions from DataFrames to
DataFrames.

    batches    format kbroker-state, view batches: the state batches of each share-partition, with
               its epochs and start offset; with parked records as parked.resolved() returns them
    parts      the same format, view share-partitions: bounds of the logs, and lag
    letters    dead letters (letters.py)
    given_up   one row for each record that a group gave up: (group, topic_id, partition, offset,
               ...)

Records before a share-partition's start offset are finished, unless they are parked, and no longer
have state. `finished` is therefore the start offset plus the number of finished records after it,
without the parked ones before it. The state counts how many of them were given up (health_rows.py).
Which ones is known from the table `given_up`, which grows from run to run, as far as a run has seen
them. This module must not know where anything is stored, nor the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY: Final = ("group", "topic_id", "partition")
FINISHED: Final = ("acknowledged", "archived")
WORST_EACH: Final = 20
"""The most records of one state batch among the worst. A batch of thousands would otherwise leave
no room for others."""


def _size() -> Column:
    from pyspark.sql import functions as F

    return F.col("last_offset") - F.col("first_offset") + 1


def _sum_where(condition: Column, amount: Column) -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(F.sum(F.when(condition, amount)), F.lit(0)).cast("bigint")


def windows(batches: DataFrame) -> DataFrame:
    """One row for each share-partition, with sums over its state batches."""
    from pyspark.sql import functions as F

    size, count, state = _size(), F.col("delivery_count"), F.col("state")
    at_head = F.col("start_offset").between(F.col("first_offset"), F.col("last_offset"))
    is_below = F.col("is_parked") & (F.col("first_offset") < F.col("start_offset"))
    places = _sum_where(F.col("is_parked") & ~is_below, size)  # They are stored as finished.
    returned = state.isin("available", "parked")
    return batches.where(F.col("problem").isNull()).groupBy(*KEY).agg(
        F.first("topic").alias("topic"),
        F.first("start_offset").alias("start_offset"),
        F.first("state_epoch").alias("state_epoch"),
        (F.coalesce(F.first("delivery_complete_count"), F.lit(0)).cast("bigint") - places).alias(
            "finished_ahead"
        ),
        _sum_where(is_below, size).alias("parked_below"),
        _sum_where(returned & (count > 0), size).alias("waiting_again"),
        _sum_where(state == "archiving", size).alias("archiving"),
        _sum_where(state == "archived", size).alias("archived_ahead"),
        _sum_where(count > 0, size).alias("delivered"),
        _sum_where(count > 1, size).alias("redelivered"),
        _sum_where(count > 0, size * count).alias("deliveries"),
        F.coalesce(F.max("delivery_count"), F.lit(0)).alias("max_deliveries"),
        F.coalesce(F.max(F.when(at_head, state)), F.lit("not delivered")).alias("head_state"),
        F.coalesce(F.max(F.when(at_head, count)), F.lit(0)).alias("head_deliveries"),
    )  # fmt: skip


def oldest_unfinished(batches: DataFrame, parts: DataFrame) -> DataFrame:
    """The first unfinished offset of each share-partition that the log still has.

    It is the first parked record below the start offset. Without one it is the start offset, or the
    log's start offset if that is higher, moved past the finished batches that directly follow. In
    offset order, a finished batch directly follows if it begins
    where the sizes of those before it add up to.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    starts = parts.select(*KEY, F.col("log_start_offset").alias("log_start"))
    batches = batches.join(starts, list(KEY), "left").withColumn(
        "start_offset", F.greatest("start_offset", "log_start")
    )
    finished = batches.where(F.col("state").isin(*FINISHED) & (F.col("last_offset") >= F.col("start_offset")))
    finished = finished.withColumn("first_offset", F.greatest("first_offset", "start_offset"))
    before = Window.partitionBy(*KEY).orderBy("first_offset").rowsBetween(Window.unboundedPreceding, -1)
    expected = F.col("start_offset") + F.coalesce(F.sum(_size()).over(before), F.lit(0))
    touching = finished.withColumn("expected", expected).where(F.col("first_offset") == F.col("expected"))
    passed = touching.groupBy(*KEY).agg(F.max("last_offset").alias("passed"))
    heads = (
        batches.where(F.col("problem").isNull())
        .groupBy(*KEY)
        .agg(
            F.first("start_offset").alias("start_offset"),
            F.min(F.when(F.col("is_parked"), F.col("first_offset"))).alias("parked"),
        )
    )
    return heads.join(passed, list(KEY), "left").select(
        *KEY,
        F.least("parked", F.coalesce(F.col("passed") + 1, F.col("start_offset"))).alias("oldest_offset"),
    )


def given_up_now(batches: DataFrame, letters: DataFrame) -> DataFrame:
    """The records that are archived according to the state as it is stored, or have a dead letter;
    parked.really_given_up() has to look at them. `letters` must have `source_topic_id`."""
    from pyspark.sql import functions as F

    columns = ("group", "topic", "topic_id", "partition", "offset", "delivery_count", "dead_letter")
    archived = batches.where((F.col("state") == "archived") & (_size() > 0)).select(
        "group", "topic", "topic_id", "partition",
        F.explode(F.sequence("first_offset", "last_offset")).alias("offset"), "delivery_count",
        F.lit(False).alias("dead_letter"),
    )  # fmt: skip
    lettered = letters.select(
        "group",
        F.col("source_topic").alias("topic"),
        F.col("source_topic_id").alias("topic_id"),
        F.col("source_partition").alias("partition"),
        F.col("source_offset").alias("offset"),
        "delivery_count",
        F.lit(True).alias("dead_letter"),
    )
    return (
        archived.select(*columns)
        .unionByName(lettered)
        .groupBy(*KEY, "offset")
        .agg(
            F.first("topic", ignorenulls=True).alias("topic"),
            F.max("delivery_count").alias("delivery_count"),
            F.max("dead_letter").alias("dead_letter"),
        )
    )


def newly_given_up(now: DataFrame, known: DataFrame) -> DataFrame:
    """The records of `now` that no earlier run has seen."""
    return now.join(known.select(*KEY, "offset"), [*KEY, "offset"], "left_anti")


def shares(windows: DataFrame, parts: DataFrame, oldest: DataFrame, given_up: DataFrame) -> DataFrame:
    """A row for each share-partition of a live topic, with the columns of the table `queue_health`
    except the time of the snapshot and `oldest_ms`. `archived`: the finished records of the table
    `given_up`. A dead letter may be there before its record is finished."""
    from pyspark.sql import functions as F

    is_passed = F.col("offset") < F.col("start_offset")
    totals = given_up.join(windows.select(*KEY, "start_offset"), list(KEY)).groupBy(*KEY).agg(
        F.count(F.when(is_passed, 1)).alias("archived_behind"),
        F.sum(F.col("dead_letter").cast("bigint")).cast("bigint").alias("dead_lettered"),
    )  # fmt: skip
    bounds = parts.select(
        *KEY, F.col("log_start_offset").alias("log_start"), F.col("log_end_offset").alias("log_end"), "lag",
        F.coalesce("given_up", F.lit(0)).alias("given_up"),
    )  # fmt: skip
    joined = (
        windows.where(F.col("topic").isNotNull())
        .join(bounds, list(KEY), "left")
        .join(oldest, list(KEY), "left")
        .join(totals, list(KEY), "left")
    )
    finished = F.coalesce(F.col("start_offset"), F.lit(0)) + F.col("finished_ahead") - F.col("parked_below")
    # A start offset beyond the log's end makes the lag negative. Otherwise that error must show.
    backlog = F.when(F.col("start_offset") > F.col("log_end"), F.greatest("lag", F.lit(0))).otherwise(
        F.col("lag")
    )
    return (
        joined.withColumn("finished", finished)
        .withColumn("archived", F.coalesce("archived_behind", F.lit(0)) + F.col("archived_ahead"))
        .withColumn("archived", F.least("archived", "finished"))
        .withColumn("oldest_offset", F.when(backlog > 0, F.col("oldest_offset")))
        .select(
            *KEY, "topic", "log_start", "log_end",
            F.coalesce("start_offset", F.lit(-1)).alias("start_offset"), "state_epoch",
            F.coalesce("log_end", F.lit(0)).alias("produced"), "finished",
            (F.col("finished") - F.col("archived")).alias("acknowledged"),
            "archived", F.coalesce("dead_lettered", F.lit(0)).alias("dead_lettered"), "given_up",
            backlog.alias("backlog"),
            "waiting_again", "archiving",
            "finished_ahead", "delivered", "redelivered", "deliveries", "max_deliveries", "oldest_offset",
            "head_state", "head_deliveries",
        )
        .orderBy("group", "topic", "partition")
    )  # fmt: skip


def delivery_counts(batches: DataFrame, new_given_up: DataFrame) -> DataFrame:
    """The number of records by group, topic, partition and delivery count. Counts records with
    state, and records given up since the last run whose state is gone because the start offset has
    passed them."""
    from pyspark.sql import functions as F

    stored = batches.where((F.col("delivery_count") > 0) & F.col("topic").isNotNull())
    counted = stored.groupBy(*KEY, "topic", "delivery_count").agg(
        F.sum(_size()).cast("bigint").alias("records")
    )
    starts = batches.groupBy(*KEY).agg(F.first("start_offset").alias("start_offset"))
    passed = new_given_up.join(starts, list(KEY)).where(
        (F.col("offset") < F.col("start_offset")) & F.col("topic").isNotNull()
    )
    gone = passed.groupBy(*KEY, "topic", "delivery_count").agg(F.count("*").alias("records"))
    both = counted.unionByName(gone)
    return both.groupBy("group", "topic", "partition", "delivery_count").agg(
        F.sum("records").cast("bigint").alias("records")
    )


def worst(batches: DataFrame, new_given_up: DataFrame, most: int) -> DataFrame:
    """The records with the highest delivery counts, of those with state and those given up since
    the last run."""
    from pyspark.sql import functions as F

    last = F.least(F.col("last_offset"), F.col("first_offset") + WORST_EACH - 1)
    columns = (*KEY, "topic", "offset", "state", "delivery_count")
    stored = (
        batches.where((F.col("delivery_count") > 1) & (_size() > 0) & F.col("topic").isNotNull())
        .orderBy(F.desc("delivery_count"))
        .limit(most)
    )
    stored = stored.withColumn("offset", F.explode(F.sequence(F.col("first_offset"), last))).select(*columns)
    gone = new_given_up.where(F.col("topic").isNotNull() & (F.col("delivery_count") > 1)).withColumn(
        "state", F.lit("archived")
    )
    gone = gone.join(stored.select(*KEY, "offset"), [*KEY, "offset"], "left_anti")
    every = stored.unionByName(gone.select(*columns))
    return every.orderBy(F.desc("delivery_count"), "group", "topic", "partition", "offset").limit(most)


def standing(history: DataFrame, current: DataFrame) -> DataFrame:
    """Share-partitions with backlog whose start offset was the same in earlier snapshots.

    - `since_ms`: the first of these snapshots. A snapshot without backlog interrupts the series,
      since there was no record to advance over.
    - `ahead_moves`: records after the start offset were finished since then.
    """
    from pyspark.sql import functions as F

    now = current.where((F.col("backlog") > 0) & (F.col("start_offset") >= 0)).select(
        *KEY,
        *(F.col(name).alias(f"now_{name}") for name in ("start_offset", "state_epoch", "finished_ahead")),
    )
    seen = history.join(now, list(KEY))
    same = (
        (F.col("start_offset") == F.col("now_start_offset"))
        & (F.col("state_epoch") == F.col("now_state_epoch"))
        & (F.col("backlog") > 0)
    )
    other = seen.groupBy(*KEY).agg(
        F.max(F.when(~F.coalesce(same, F.lit(False)), F.col("taken_ms"))).alias("other_ms")
    )
    since = seen.join(other, list(KEY)).where(
        same & (F.col("other_ms").isNull() | (F.col("taken_ms") > F.col("other_ms")))
    )
    return since.groupBy(*KEY).agg(
        F.min("taken_ms").alias("since_ms"),
        (F.min("finished_ahead") < F.first("now_finished_ahead")).alias("ahead_moves"),
    )


def points(history: DataFrame, most: int) -> DataFrame:
    """Sums by group and topic, for each of the last `most` snapshots."""
    from pyspark.sql import functions as F

    moments = history.select("taken_ms").distinct().orderBy(F.desc("taken_ms")).limit(most)
    sums = ("produced", "finished", "acknowledged", "archived", "dead_lettered")
    return (
        history.join(moments, ["taken_ms"])
        .groupBy("taken_ms", "group", "topic")
        .agg(
            *(F.sum(name).cast("bigint").alias(name) for name in sums),
            F.coalesce(F.sum("backlog"), F.lit(0)).cast("bigint").alias("backlog"),
            F.min("oldest_ms").alias("oldest_ms"),
        )
        .orderBy("taken_ms", "group", "topic")
    )
