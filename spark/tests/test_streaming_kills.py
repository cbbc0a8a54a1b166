"""Exactly once: a streaming query is killed, driver and JVM, at random moments, and every record is
in its files once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker.testing.broker import RunningBroker
from spark.tests.filling import consume, rows_of
from spark.tests.streaming_kills import PARTITIONS, PATIENCE_S, TOPIC_CONFIG, Life, producing, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def kill_and_compare(
    spark: SparkSession, broker: RunningBroker, topic: str, home: Path, *, kills: int, seed: int
) -> None:
    broker.create_topic(topic, partitions=PARTITIONS, config=TOPIC_CONFIG)
    moment = random.Random(seed)
    with producing(broker.bootstrap, topic):
        within_a_batch = [Life(broker.data_dir, topic, home).kill_at(moment) for _ in range(kills)]
    assert any(within_a_batch)
    query = start(spark, broker.data_dir, topic, home, to_the_end=True)
    assert query.awaitTermination(PATIENCE_S)
    assert rows_of(spark.read.parquet(str(home / "files"))) == consume(
        broker.bootstrap, topic, partitions=PARTITIONS
    )


@pytest.mark.full
def test_every_record_once_after_kills(
    spark: SparkSession, broker: RunningBroker, name: str, tmp_path: Path
) -> None:
    kill_and_compare(spark, broker, name, tmp_path, kills=2, seed=1)


@pytest.mark.full
def test_every_record_once_after_many_kills(
    spark: SparkSession, broker: RunningBroker, name: str, tmp_path: Path
) -> None:
    kill_and_compare(spark, broker, name, tmp_path, kills=20, seed=2)


@pytest.mark.full
@pytest.mark.parametrize("engine", ["lmdb", "rocksdb", "sqlite"])
def test_every_record_once_on_other_engines(
    spark: SparkSession, broker: RunningBroker, name: str, tmp_path: Path
) -> None:
    kill_and_compare(spark, broker, name, tmp_path, kills=4, seed=3)
