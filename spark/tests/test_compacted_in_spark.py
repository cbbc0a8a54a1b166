"""Compacted topics with transactions in queries and streams of Spark, beside a live broker of each
engine; test_compacted*.py need no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker.testing.broker import open_test_broker
from spark.tests.filling import KEPT, consume_committed, rows_of, without_headers
from spark.tests.test_stream_source import Archive
from spark.tests.transactional import COMMITTED
from tests.brokers import DURABLE_ENGINES, require_engine
from tests.clients.compacted_topic import CLEANER, CompactedTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    "engine", ["segment", *(pytest.param(each, marks=pytest.mark.full) for each in DURABLE_ENGINES[1:])]
)
def test_the_rows_of_a_consumer(spark: SparkSession, engine: str, tmp_path: Path) -> None:
    """A query reads what compaction has left. A stream that began before has each of these records
    once, and of the others those that it read in time."""
    with open_test_broker(storage=require_engine(engine), config={**KEPT, **CLEANER}) as broker:
        topic = CompactedTopic(broker, "t")
        topic.fill()
        before = topic.offsets()
        options = {"subscribe": "t", "maxOffsetsPerTrigger": 7, **COMMITTED}
        early, late = (
            Archive(spark, tmp_path / each, broker.data_dir, **options) for each in ("early", "late")
        )
        assert sum(early.run()) == len(before)
        topic.compact()
        topic.forget_tombstones()
        topic.fill("again ")
        topic.compact()
        expected = without_headers(consume_committed(broker.bootstrap, "t"))
        assert [row.offset for row in expected] == list(topic.records)
        source = spark.read.format("kbroker").options(subscribe="t", **COMMITTED)
        assert rows_of(source.load(str(broker.data_dir))) == expected
        assert rows_of(source.option("minPartitions", 5).load(str(broker.data_dir))) == expected
        assert sum(late.run()) == len(expected)
        assert rows_of(late.frame()) == expected
        early.run()
        seen = [row.offset for row in rows_of(early.frame())]
        assert seen == sorted({*before, *topic.records})
        broker.kill()
        assert rows_of(source.load(str(broker.data_dir))) == expected
