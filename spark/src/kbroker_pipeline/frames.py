"""Small things between Spark, Arrow and plain rows. Must not know what a table is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TEXT_PARTITIONS: Final = "spark.sql.sources.partitionColumnTypeInference.enabled"
SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    TEXT_PARTITIONS: "false",
}
"""What the jobs need of a session: days are UTC's, timestamps are such as all readers of Parquet
know, a topic named 007 is no number."""
INTEGERS: Final = frozenset(
    {
        "partition",
        "state_epoch",
        "delivery_count",
        "source_partition",
        "max_deliveries",
        "head_deliveries",
        "last_partition",
    }
)
TEXTS: Final = frozenset(
    {
        "date",
        "topic",
        "topic_id",
        "group",
        "state",
        "head_state",
        "key",
        "value",
        "check",
        "severity",
        "detail",
    }
)
MOMENTS: Final = frozenset({"taken", "seen"})
FLAGS: Final = frozenset({"dead_letter"})
"""Columns by their type, in all tables that are made of rows; the others are numbers of 64 bits."""


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """All rows, as the driver can hold them."""
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return found


def table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows as Arrow; the type of a column is told by its name, so that a table's files agree
    whatever is null in one of them."""
    import pyarrow as pa

    types = {name: kind for names, kind in _types() for name in names}
    return pa.table(
        {name: pa.array([row[name] for row in rows], types.get(name, pa.int64())) for name in rows[0]}
    )


def _types() -> list[tuple[frozenset[str], pa.DataType]]:
    import pyarrow as pa

    return [
        (INTEGERS, pa.int32()),
        (TEXTS, pa.string()),
        (MOMENTS, pa.timestamp("us", tz="UTC")),
        (FLAGS, pa.bool_()),
    ]


def read_table(spark: SparkSession, path: Path) -> DataFrame | None:
    """A table of the store; None where nothing was written to it yet."""
    if not path.is_dir():
        return None
    return spark.read.parquet(str(path))


def empty(spark: SparkSession, schema: str) -> DataFrame:
    return spark.createDataFrame([], schema)
