"""Parses dead letters from the records of dead letter topics (KIP-1191; docs/dead-letters.md):
functions from DataFrames to DataFrames.

    column                                meaning
    topic, partition, offset, timestamp   the position of the dead letter, and its timestamp
    source_topic, source_partition,       the original record
    source_offset
    group, delivery_count, message        the group that gave it up, its delivery count, and the
                                          broker's message
    cause                                 rejected, exhausted, expired, or other
    key, value                            the copied key and value if the group copies records, else
                                          null

This module must not know how records are read, nor how the dead letters are used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from kbroker.share.dead_letter import HEADER_NAMES, MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from kbroker_pipeline.sources import Part

ENABLED: Final = "errors.deadletterqueue.group.enable"
OTHER_CAUSE: Final = "other"
COLUMNS: Final = (
    "group", "source_topic", "source_partition", "source_offset", "delivery_count", "message", "cause",
    "topic", "partition", "offset", "timestamp", "key", "value",
)  # fmt: skip


def dead_letter_parts(parts: Iterable[Part]) -> list[Part]:
    """The partitions of topics that groups may use as dead letter topics."""
    return [part for part in parts if part.topic.config.get(ENABLED) == "true"]


def parse(records: DataFrame) -> DataFrame:
    """Parses records of the format kbroker, with headers. Records that are not dead letters, or
    whose headers are not text, are left out. Of repeated headers the first is used: a dead letter
    of a dead letter has each header twice."""
    from pyspark.sql import functions as F

    def header(name: str) -> Column:
        return F.try_validate_utf8(
            F.get(F.filter("headers", lambda each: each["key"] == name), F.lit(0))["value"].cast("string")
        )

    topic, partition, offset, group, count, message = (header(name) for name in HEADER_NAMES)
    cause = F.lit(OTHER_CAUSE)
    for each, text in MESSAGES.items():
        cause = F.when(F.col("message") == text, each.name.lower()).otherwise(cause)
    return (
        records.where(F.col("headers").isNotNull())
        .withColumns(
            {
                "source_topic": topic,
                "source_partition": partition.try_cast("int"),
                "source_offset": offset.try_cast("bigint"),
                "group": group,
                "delivery_count": count.try_cast("int"),
                "message": message,
            }
        )
        .dropna(
            subset=["source_topic", "source_partition", "source_offset", "group", "delivery_count", "message"]
        )
        .withColumn("cause", cause)
        .select(*COLUMNS)
    )


def identified(letters: DataFrame, parts: Iterable[Part], how: str = "inner") -> DataFrame:
    """Adds `source_topic_id`, the id of the topic that has the name now. `how` is the kind of the
    join, since that topic may not exist."""
    ids = sorted({(part.topic.name, str(part.topic.topic_id)) for part in parts})
    named = letters.sparkSession.createDataFrame(ids, "source_topic string, source_topic_id string")
    return letters.join(named, "source_topic", how).select(*letters.columns, "source_topic_id")


def by_source(letters: DataFrame) -> DataFrame:
    """The number of dead letters by source partition and group."""
    return _summed(letters, "source_topic", "source_partition", "group")


def by_key(letters: DataFrame, most: int) -> DataFrame:
    """The keys with the most dead letters. Dead letters are left out if neither they nor their
    originals have a key."""
    from pyspark.sql import functions as F

    keyed = letters.withColumn("any_key", F.coalesce("key", "original_key")).where(
        F.col("any_key").isNotNull()
    )
    return (
        _summed(keyed, "any_key", "source_topic", "group")
        .orderBy(F.desc("letters"), F.desc("last_ms"), "any_key")
        .limit(most)
    )


def by_time(letters: DataFrame, width_ms: int) -> DataFrame:
    """The number of dead letters in each interval, by cause. `at_ms` is the start of the
    interval."""
    from pyspark.sql import functions as F

    at = (F.floor(F.unix_millis("timestamp") / width_ms) * width_ms).cast("bigint")
    return letters.groupBy(at.alias("at_ms"), "cause").agg(F.count("*").alias("letters"))


def _summed(letters: DataFrame, *by: str) -> DataFrame:
    from pyspark.sql import functions as F

    def of(cause: str) -> Column:
        return F.sum(F.when(F.col("cause") == cause, 1).otherwise(0)).alias(cause)

    return letters.groupBy(*by).agg(
        F.count("*").alias("letters"),
        of("rejected"),
        of("exhausted"),
        F.max("delivery_count").alias("most_deliveries"),
        F.unix_millis(F.min("timestamp")).alias("first_ms"),
        F.unix_millis(F.max("timestamp")).alias("last_ms"),
    )
