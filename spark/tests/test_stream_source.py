"""The source "kbroker" in streaming queries of Spark: triggers, limits, checkpoints, losses; each
row once, and as it was sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from kbroker.testing.broker import RunningBroker
from spark.tests.filling import consume, delete_before, numbered, produce, rows_of, without_headers
from spark.tests.stored_topics import StoredTopics, stored_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

PATIENCE_S = 120


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[StoredTopics]:
    with stored_topics(tmp_path / "data") as stored:
        yield stored


class Archive:
    """A query into Parquet files, with its checkpoint."""

    def __init__(self, spark: SparkSession, home: Path, data_dir: Path, **options: object) -> None:
        self._spark = spark
        self._data_dir = data_dir
        self._options = {"startingOffsets": "earliest", **options}
        self.files = home / "files"
        self.checkpoint = home / "checkpoint"

    def start(self, **trigger: Any) -> StreamingQuery:
        source = self._spark.readStream.format("kbroker").options(**self._options).load(str(self._data_dir))
        sink = source.writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint))
        return sink.trigger(**(trigger or {"availableNow": True})).start(str(self.files))

    def run(self, **trigger: Any) -> list[int]:
        """Up to the present end; returns the rows of each batch that had any."""
        query = self.start(**trigger)
        assert query.awaitTermination(PATIENCE_S)
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    def frame(self) -> DataFrame:
        """As Spark reads it, which follows the sink's list of files."""
        return self._spark.read.parquet(str(self.files))

    def ends(self) -> list[dict[str, dict[str, int]]]:
        """The source's line of every batch in the checkpoint."""
        batches = sorted(
            (path for path in (self.checkpoint / "offsets").iterdir() if path.name.isdigit()),
            key=lambda path: int(path.name),
        )
        return [json.loads(path.read_text().splitlines()[2]) for path in batches]


def test_runs_go_on_where_the_last_one_ended(
    spark: SparkSession, broker: RunningBroker, name: str, tmp_path: Path
) -> None:
    topic, later = name, f"{name}-later"
    broker.create_topic(topic, partitions=2)
    produce(broker.bootstrap, topic, numbered(1000, partitions=2), codec="lz4")
    archive = Archive(
        spark,
        tmp_path,
        broker.data_dir,
        subscribePattern=f"{name}.*",
        includeHeaders=True,
        maxOffsetsPerTrigger=400,
    )
    assert archive.run() == [400, 400, 200]
    assert rows_of(archive.frame()) == consume(broker.bootstrap, topic, partitions=2)
    _forget_topic_ids(archive)
    broker.create_topic(later)
    produce(broker.bootstrap, later, numbered(50))
    produce(broker.bootstrap, topic, numbered(100, partitions=2, first=1000))
    assert sum(archive.run()) == 150
    assert rows_of(archive.frame()) == consume(broker.bootstrap, topic, partitions=2) + consume(
        broker.bootstrap, later
    )
    assert {key: value for key, value in archive.ends()[-1].items() if value} == {
        topic: {"0": 550, "1": 550},
        later: {"0": 50},
    }


def _forget_topic_ids(archive: Archive) -> None:
    """The last batch as Spark's Kafka source would have recorded it."""
    batches = archive.checkpoint / "offsets"
    last = batches / str(len(archive.ends()) - 1)
    lines = last.read_text().splitlines()
    offsets = {topic: partitions for topic, partitions in json.loads(lines[2]).items() if partitions}
    last.write_text("\n".join([*lines[:2], json.dumps(offsets, separators=(",", ":"))]))
    (batches / f".{last.name}.crc").unlink()


def test_from_the_latest_with_columns_of_ones_own(
    spark: SparkSession, broker: RunningBroker, name: str, tmp_path: Path
) -> None:
    broker.create_topic(name)
    produce(broker.bootstrap, name, numbered(30))
    source = (
        spark.readStream.format("kbroker")
        .schema("value binary, offset bigint")
        .option("subscribe", name)
        .load(str(broker.data_dir))
    )
    query = (
        source.writeStream.format("memory")
        .queryName("latest")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        query.processAllAvailable()
        for first in (30, 45):
            produce(broker.bootstrap, name, numbered(15, first=first))
            query.processAllAvailable()
        assert json.loads(query.lastProgress.json)["sources"][0]["latestOffset"] == {name: {"0": 60}}
    finally:
        query.stop()
    rows = spark.table("latest")
    assert rows.columns == ["value", "offset"]
    found = sorted((row.offset, bytes(row.value)) for row in rows.collect())
    assert found == [(row.offset, row.value) for row in consume(broker.bootstrap, name)[30:]]


def test_limits_and_the_trigger_that_ignores_them(
    spark: SparkSession, stored: StoredTopics, tmp_path: Path
) -> None:
    stored.create("t", 2)
    stored.append("t", 60)
    stored.append("t", 30, partition=1)
    options = {"subscribe": "t", "minOffsetsPerTrigger": 20, "maxOffsetsPerTrigger": 45}
    assert Archive(spark, tmp_path / "now", stored.path, **options).run() == [45, 45]
    assert Archive(spark, tmp_path / "once", stored.path, **options).run(once=True) == [90]


@pytest.mark.full
def test_an_aggregation_counts_each_record_once(
    spark: SparkSession, stored: StoredTopics, tmp_path: Path
) -> None:
    stored.create("t", 2)
    counts: dict[int, int] = {}

    def keep(frame: DataFrame, batch: int) -> None:
        counts.update({row.partition: row["count"] for row in frame.collect()})

    for size in (40, 2):
        stored.append("t", size)
        stored.append("t", 2 * size, partition=1)
        source = (
            spark.readStream.format("kbroker")
            .options(subscribe="t", startingOffsets="earliest")
            .load(str(stored.path))
        )
        sink = source.groupBy("partition").count().writeStream.outputMode("complete").foreachBatch(keep)
        query = (
            sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )
        assert query.awaitTermination(PATIENCE_S)
    assert counts == {0: 42, 1: 84}


def test_lost_data_ends_a_query_with_a_line(
    spark: SparkSession, broker: RunningBroker, name: str, tmp_path: Path
) -> None:
    broker.create_topic(name)
    produce(broker.bootstrap, name, numbered(50))
    archive = Archive(spark, tmp_path, broker.data_dir, subscribe=name)
    assert archive.run() == [50]
    produce(broker.bootstrap, name, numbered(50, first=50), batch_num_messages=10)
    delete_before(broker.bootstrap, name, 75)
    with pytest.raises(StreamingQueryException) as raised:
        archive.run()
    assert f"offsets 50 to 74 of {name}-0 are gone" in str(raised.value)
    assert "Set the option failOnDataLoss to false" in str(raised.value)
    assert len(archive.ends()) == 1
    assert Archive(spark, tmp_path, broker.data_dir, subscribe=name, failOnDataLoss=False).run() == [25]
    expected = consume(broker.bootstrap, name)
    assert rows_of(archive.frame())[50:] == without_headers(expected)


def test_what_cannot_be_done_is_said(spark: SparkSession, stored: StoredTopics, tmp_path: Path) -> None:
    stored.create("t")
    with pytest.raises(StreamingQueryException, match="there is no topic u in"):
        Archive(spark, tmp_path, stored.path, subscribe="u").run()
