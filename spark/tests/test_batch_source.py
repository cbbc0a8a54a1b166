"""The source "kbroker" in Spark: every value equals what a Kafka consumer reads from the broker, on every engine, live and offline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.testing.broker import RunningBroker
from spark.tests.filling import consume, numbered, produce, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_equals_a_consumer(spark: SparkSession, broker: RunningBroker, name: str) -> None:
    broker.create_topic(name, partitions=3)
    produce(broker.bootstrap, name, numbered(2000, partitions=3), codec="zstd")
    frame = spark.read.format("kbroker").options(subscribe=name, includeHeaders=True).load(str(broker.data_dir))
    assert rows_of(frame) == consume(broker.bootstrap, name, partitions=3)
