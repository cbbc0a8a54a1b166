"""kafka.isolation.level in queries and streams of Spark; test_transactions*.py need no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker.testing.broker import RunningBroker
from spark.tests.filling import consume_committed, rows_of, without_headers
from spark.tests.test_stream_source import Archive
from spark.tests.transactional import COMMITTED, LiveLog
from tests.brokers import DURABLE_ENGINES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    "engine", ["segment", *(pytest.param(each, marks=pytest.mark.full) for each in DURABLE_ENGINES[1:])]
)
def test_rows_of_committed_transactions(
    spark: SparkSession, broker: RunningBroker, name: str, tmp_path: Path
) -> None:
    """Beside a live broker of each engine."""
    broker.create_topic(name)
    log = LiveLog(broker.bootstrap, name)
    archive = Archive(spark, tmp_path, broker.data_dir, subscribe=name, maxOffsetsPerTrigger=5, **COMMITTED)
    log.send(3, 1)
    log.send(4, 2)
    log.abort(1)
    log.send(2)
    log.send(2, 1)
    log.commit(2)
    source = spark.read.format("kbroker").option("subscribe", name)
    expected = without_headers(consume_committed(broker.bootstrap, name))
    assert [row.offset for row in expected] == log.committed == [3, 4, 5, 6, 8, 9]
    committed = source.options(**COMMITTED).load(str(broker.data_dir))
    assert rows_of(committed) == expected
    assert sum(archive.run()) == 6
    log.commit(1)
    assert rows_of(committed) == expected
    assert sum(archive.run()) == 2
    expected = without_headers(consume_committed(broker.bootstrap, name))
    assert rows_of(archive.frame()) == expected
    every = source.option("kafka.isolation.level", "read_uncommitted").load(str(broker.data_dir))
    assert every.count() == 11
    with pytest.raises(Exception, match="expected read_uncommitted or read_committed"):
        source.option("kafka.isolation.level", "serializable").load(str(broker.data_dir))
