"""The formats that are tables, in Spark: found by name, columns selected by a schema, one moment
per frame, one line per error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kbroker.testing.broker import RunningBroker
from kbroker_spark import batches_table, groups_table, state_table, topics_table
from spark.tests.share_work import (
    accepted,
    as_described,
    as_stored,
    described,
    mixed,
    prepare,
    send,
    stored,
    table,
    work,
)
from tests.brokers import DURABLE_ENGINES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

every_engine = pytest.mark.parametrize(
    "engine",
    [
        "segment",
        *(pytest.param(engine, marks=pytest.mark.full) for engine in DURABLE_ENGINES if engine != "segment"),
    ],
)


def load(spark: SparkSession, format_name: str, path: Path, **options: str) -> DataFrame:
    return spark.read.format(format_name).options(**options).load(str(path))


def dicts(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def plain(frame: DataFrame) -> list[dict[str, Any]]:
    """In the form of a table's rows: microseconds, lists of pairs for maps."""
    arrow = frame.toArrow()
    columns = {}
    for name in arrow.column_names:
        column = arrow[name]
        columns[name] = (
            column.cast("int64") if str(column.type).startswith("timestamp") else column
        ).to_pylist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@every_engine
def test_every_table_has_its_rows_in_spark(spark: SparkSession, broker: RunningBroker, name: str) -> None:
    """The same as its module returns; state equals the broker's answers."""
    prepare(broker, name, partitions=2, count=40)
    work(broker, name, mixed, count=40)
    path = broker.data_dir
    for format_name, module, views in (
        ("kbroker-state", state_table, state_table.VIEWS),
        ("kbroker-groups", groups_table, groups_table.VIEWS),
        ("kbroker-topics", topics_table, (None,)),
    ):
        for view in views:
            options = {} if view is None else {"view": view}
            frame = load(spark, format_name, path, **options)
            assert frame.schema == module.schema(options)
            assert plain(frame) == table(module, path, **options), (format_name, view)
    assert as_stored(dicts(load(spark, "kbroker-state", path, groups=name))) == stored(broker, name, name)
    stands = dicts(load(spark, "kbroker-state", path, groups=name, view="share-partitions"))
    assert as_described(stands) == described(broker, name)


@every_engine
def test_batches_are_read_in_parallel(spark: SparkSession, broker: RunningBroker, name: str) -> None:
    prepare(broker, name, partitions=3, count=300)
    frame = load(spark, "kbroker-batches", broker.data_dir, topics=name, bytesPerPartition="500")
    assert frame.schema == batches_table.SCHEMA
    assert frame.rdd.getNumPartitions() > 3
    rows = dicts(frame)
    assert {
        row["partition"]: sum(each["record_count"] for each in rows if each["partition"] == row["partition"])
        for row in rows
    } == {
        0: 100,
        1: 100,
        2: 100,
    }
    assert {(row["crc_ok"], row["problem"], row["codec"], row["topic"]) for row in rows} == {
        (True, None, "none", name)
    }
    assert load(spark, "kbroker-batches", broker.data_dir, topics="nothing").collect() == []


def test_a_frame_is_one_moment(spark: SparkSession, broker: RunningBroker, name: str) -> None:
    prepare(broker, name, count=10)
    work(broker, name, accepted, count=10)
    options = {"view": "share-partitions", "groups": name}
    frame = load(spark, "kbroker-state", broker.data_dir, **options)
    before = frame.collect()
    send(broker, name, range(10, 25))
    assert frame.collect() == frame.union(frame).distinct().collect() == before
    (now,) = load(spark, "kbroker-state", broker.data_dir, **options).collect()
    assert (now.lag - before[0].lag, now.log_end_offset - before[0].log_end_offset) == (15, 15)


def test_a_schema_chooses_columns(spark: SparkSession, broker: RunningBroker, name: str) -> None:
    prepare(broker, name, partitions=2, count=4)
    reader = (
        spark.read.format("kbroker-topics")
        .schema("end_offset bigint, Topic string, configs map<string, string>")
        .option("topics", name)
    )
    assert reader.load(str(broker.data_dir)).collect() == [(2, name, {}), (2, name, {})]
    spark.sql(
        f"create or replace temporary view t using `kbroker-topics` options (path '{broker.data_dir}', "
        f"topics '{name}')"
    )
    assert spark.sql("select sum(end_offset), count(*) from t").collect() == [(4, 2)]


@pytest.mark.parametrize(
    ("format_name", "options", "schema", "text"),
    [
        (
            "kbroker-state",
            {"view": "everything"},
            None,
            "Option 'view' is 'everything': expected batches or share-partitions or history",
        ),
        ("kbroker-groups", {"group": "a"}, None, "There is no option 'group': did you mean groups?"),
        ("kbroker-topics", {"topics": " , "}, None, "Option 'topics' is empty"),
        (
            "kbroker-batches",
            {"checkCrc": "perhaps"},
            None,
            "Option 'checkCrc' is 'perhaps': expected true or false",
        ),
        ("kbroker-topics", {}, "topic string, size int", "There is no column size"),
        ("kbroker-topics", {}, "topic int", "Column topic is string, not int"),
        ("kbroker-topics", {"path": "/no/such/place"}, None, "there is no directory /no/such/place"),
        ("kbroker-batches", {"path": "/no/such/place"}, None, "there is no directory /no/such/place"),
    ],
)
def test_what_is_refused(
    spark: SparkSession,
    broker: RunningBroker,
    format_name: str,
    options: dict[str, str],
    schema: str | None,
    text: str,
) -> None:
    reader = spark.read.format(format_name).options(**{"path": str(broker.data_dir), **options})
    with pytest.raises(Exception, match="SourceError") as caught:
        (reader.schema(schema) if schema else reader).load().collect()
    assert text in str(caught.value)
