"""Dead letters out of the records of dead letter topics (KIP-1191; docs/dead-letters.md).
DataFrames to DataFrames.

    column                                what
    topic, partition, offset, timestamp   where the dead letter lies, and its timestamp
    source_topic, source_partition,       the record it stands for
    source_offset
    group, delivery_count, message        who gave it up, after how many deliveries, in the broker's
                                          words
    cause                                 rejected, exhausted, expired, or other
    key, value                            the copy, where the group makes one; else null

This module must not know how records are read, nor what becomes of the letters.
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
    """Those of topics that groups may write dead letters into."""
    return [part for part in parts if part.topic.config.get(ENABLED) == "true"]


def parse(records: DataFrame) -> DataFrame:
    """Records of the format kbroker, with headers, to dead letters; what is none, or whose headers
    are no text, is left out. Of headers that are there twice the first counts: a dead letter that
    was given up itself has them twice."""
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
    """With `source_topic_id`, of the topic that has the name now; `how` they are joined, as not
    every name has one."""
    ids = sorted({(part.topic.name, str(part.topic.topic_id)) for part in parts})
    named = letters.sparkSession.createDataFrame(ids, "source_topic string, source_topic_id string")
    return letters.join(named, "source_topic", how).select(*letters.columns, "source_topic_id")


def by_source(letters: DataFrame) -> DataFrame:
    """How many of each partition that they came from."""
    return _summed(letters, "source_topic", "source_partition", "group")


def by_key(letters: DataFrame, most: int) -> DataFrame:
    """The keys that most dead letters have: top offenders. Letters without a key, and without an
    original that had one, are left out."""
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
    """How many in each piece of time, by cause; `at_ms` is where a piece begins."""
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
