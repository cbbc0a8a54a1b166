"""Parked records in the calculations of queue-health: functions from DataFrames to DataFrames.

    waiting    format kbroker-state, view waiting: a row for each parked record
    parts      the same format, view share-partitions; `parks` says which of them park records

A record that waits long, for its redelivery or its schedule, leaves the window. Its place there is
stored as archived, and the record is parked. The place stays archived when a member accepts the
record later. So in a share-partition that parks, an archived place does not say that a record was
given up: only a dead letter says that. This module must not know where anything is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY: Final = ("group", "topic_id", "partition")


def really_given_up(found: DataFrame, parts: DataFrame) -> DataFrame:
    """Of these records, which have `dead_letter`, those that were given up. Earlier versions have
    stored others."""
    return found.where("dead_letter").unionByName(
        found.where("not dead_letter").join(parks(parts), list(KEY), "left_anti").select(*found.columns)
    )


def parks(parts: DataFrame) -> DataFrame:
    """The keys of the share-partitions that park records, or have parked some."""
    return parts.where("parks").select(*KEY)


def resolved(batches: DataFrame, parts: DataFrame, waiting: DataFrame, given_up: DataFrame) -> DataFrame:
    """The state batches with every record once, as what it is, and the column `is_parked`.

    - A parked record, also one before the start offset, is `parked`, or `archiving` if it waits
      for its dead letter, with its own delivery count.
    - An archived place of a share-partition that parks is `archived` if it has a dead letter, and
      otherwise `acknowledged`. Records given up without a dead letter are then among these: only
      the state's count has them.

    `given_up`: of all runs."""
    from pyspark.sql import functions as F

    names, keys = batches.columns, list(KEY)
    of_parking = batches.join(parks(parts), keys, "left_semi").select(*names)
    is_place = F.coalesce(F.col("state") == "archived", F.lit(False))
    starts = parts.select(*KEY, F.col("log_start_offset").alias("log_start"))
    waits = waiting.where(F.col("offset").isNotNull()).join(starts, keys)
    waits = waits.where(F.col("kept") | (F.col("offset") >= F.coalesce("log_start", F.lit(0)))).select(
        *KEY, "offset", "delivery_count",
        F.when(F.col("waits_for") == "dead letter", "archiving").otherwise("parked").alias("state"),
    )  # fmt: skip
    places = of_parking.where(is_place).withColumn(
        "offset", F.explode(F.sequence("first_offset", "last_offset"))
    )
    places = places.join(waits.select(*KEY, "offset"), [*KEY, "offset"], "left_anti")
    lettered = given_up.where("dead_letter").select(
        *KEY, "offset", F.col("delivery_count").alias("last_count")
    )
    places = (
        places.join(lettered, [*KEY, "offset"], "left")
        .withColumn("state", F.when(F.col("last_count").isNotNull(), "archived").otherwise("acknowledged"))
        .withColumn("delivery_count", F.coalesce("last_count", "delivery_count"))
    )
    heads = batches.where(F.col("problem").isNull()).dropDuplicates(keys).drop("state", "delivery_count")
    parked = heads.join(waits, keys)
    at = {"first_offset": F.col("offset"), "last_offset": F.col("offset")}
    whole = (
        batches.join(parks(parts), keys, "left_anti")
        .select(*names)
        .unionByName(of_parking.where(~is_place))
        .unionByName(places.withColumns(at).select(*names))
        .withColumn("is_parked", F.lit(False))
    )
    return whole.unionByName(parked.withColumns(at).select(*names).withColumn("is_parked", F.lit(True)))
