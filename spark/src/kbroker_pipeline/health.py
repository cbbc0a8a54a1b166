"""The sums of queue-health: share-group state to rows, DataFrames to DataFrames.

    batches    format kbroker-state, view batches: the state batches of each share-partition, and
               where it stands
    parts      the same format, view share-partitions: bounds of the logs, and lag
    letters    dead letters (letters.py)
    given_up   one row for each record that a group gave up: (group, topic_id, partition, offset,
               ...)

What lies before a share-partition's start offset is finished and has no state any more. So
`finished` is the start offset and the finished records behind it; what of these was given up is
known from the table `given_up`, which grows from run to run. This module must not know where
anything is stored, nor when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY: Final = ("group", "topic_id", "partition")
FINISHED: Final = ("acknowledged", "archived")
WORST_EACH: Final = 20
"""Records of one state batch among the worst: a batch of thousands would leave no room for
others."""


def _size() -> Column:
    from pyspark.sql import functions as F

    return F.col("last_offset") - F.col("first_offset") + 1


def _sum_where(condition: Column, amount: Column) -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(F.sum(F.when(condition, amount)), F.lit(0)).cast("bigint")


def windows(batches: DataFrame) -> DataFrame:
    """One row for each share-partition: what its state batches add up to."""
    from pyspark.sql import functions as F

    size, count, state = _size(), F.col("delivery_count"), F.col("state")
    at_head = F.col("first_offset") <= F.col("start_offset")
    return batches.where(F.col("problem").isNull()).groupBy(*KEY).agg(
        F.first("topic").alias("topic"),
        F.first("start_offset").alias("start_offset"),
        F.first("state_epoch").alias("state_epoch"),
        F.coalesce(F.first("delivery_complete_count"), F.lit(0)).cast("bigint").alias("finished_ahead"),
        _sum_where((state == "available") & (count > 0), size).alias("waiting_again"),
        _sum_where(state == "archiving", size).alias("archiving"),
        _sum_where(count > 0, size).alias("delivered"),
        _sum_where(count > 1, size).alias("redelivered"),
        _sum_where(count > 0, size * count).alias("deliveries"),
        F.coalesce(F.max("delivery_count"), F.lit(0)).alias("max_deliveries"),
        F.coalesce(F.max(F.when(at_head, state)), F.lit("not delivered")).alias("head_state"),
        F.coalesce(F.max(F.when(at_head, count)), F.lit(0)).alias("head_deliveries"),
    )  # fmt: skip


def oldest_unfinished(batches: DataFrame, parts: DataFrame) -> DataFrame:
    """The first offset of each share-partition that the log has and that is not finished: its start
    offset, or the log's where retention has passed that, unless what is finished there was not yet
    passed.

    Finished batches in offset order touch from there on as long as each begins where the sizes of
    those before it end.
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
        .agg(F.first("start_offset").alias("start_offset"))
    )
    return heads.join(passed, list(KEY), "left").select(
        *KEY, F.coalesce(F.col("passed") + 1, F.col("start_offset")).alias("oldest_offset")
    )


def given_up_now(batches: DataFrame, letters: DataFrame) -> DataFrame:
    """Each record that the state says is archived, or that has a dead letter. `letters` must have
    `source_topic_id`."""
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
    """Those that no run has seen before."""
    return now.join(known.select(*KEY, "offset"), [*KEY, "offset"], "left_anti")


def shares(windows: DataFrame, parts: DataFrame, oldest: DataFrame, given_up: DataFrame) -> DataFrame:
    """A row for each share-partition of a live topic: the columns of the table `queue_health` but
    when it was taken and `oldest_ms`."""
    from pyspark.sql import functions as F

    totals = given_up.groupBy(*KEY).agg(
        F.count("*").alias("archived"),
        F.sum(F.col("dead_letter").cast("bigint")).cast("bigint").alias("dead_lettered"),
    )
    bounds = parts.select(
        *KEY, F.col("log_start_offset").alias("log_start"), F.col("log_end_offset").alias("log_end"), "lag"
    )
    joined = (
        windows.where(F.col("topic").isNotNull())
        .join(bounds, list(KEY), "left")
        .join(oldest, list(KEY), "left")
        .join(totals, list(KEY), "left")
    )
    finished = (F.coalesce(F.col("start_offset"), F.lit(0)) + F.col("finished_ahead")).alias("finished")
    backlog = F.greatest(F.col("lag"), F.lit(0))
    return (
        joined.withColumn("finished", finished)
        .withColumn("archived", F.least(F.coalesce("archived", F.lit(0)), F.col("finished")))
        .withColumn("oldest_offset", F.when(backlog > 0, F.col("oldest_offset")))
        .select(
            *KEY, "topic", "log_start", "log_end",
            F.coalesce("start_offset", F.lit(-1)).alias("start_offset"), "state_epoch",
            F.coalesce("log_end", F.lit(0)).alias("produced"), "finished",
            (F.col("finished") - F.col("archived")).alias("acknowledged"),
            "archived", F.coalesce("dead_lettered", F.lit(0)).alias("dead_lettered"),
            backlog.alias("backlog"),
            "waiting_again", "archiving",
            "finished_ahead", "delivered", "redelivered", "deliveries", "max_deliveries", "oldest_offset",
            "head_state", "head_deliveries",
        )
        .orderBy("group", "topic", "partition")
    )  # fmt: skip


def delivery_counts(batches: DataFrame, new_given_up: DataFrame) -> DataFrame:
    """How many records of a group, topic and partition were delivered how often: those with a
    state, and those given up since the last run that have none any more, as the start offset has
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
    """The records that were delivered most often, of those with a state and those that were given
    up since the last run."""
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
    """Share-partitions with backlog whose start offset was the same in earlier snapshots: since
    which one (`since_ms`), and whether records behind it were finished since (`ahead_moves`).
    Snapshots without backlog do not count: there was nothing to move for."""
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
    """Sums of each group and topic in each of the last `most` snapshots."""
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
