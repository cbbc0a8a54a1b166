"""Conversions between Spark, Arrow and plain rows. Must not know any single table."""

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
"""The session settings that the jobs need: days are in UTC, all Parquet readers understand the
timestamps, and a topic named 007 stays a string."""
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
"""Columns by type, in all tables made from rows. All other columns are 64-bit integers."""


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """All rows, in the driver's memory."""
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return found


def table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows as Arrow. A column's name determines its type, so that a table's files agree even where
    one of them has only nulls in a column."""
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
    """A table of the store; None if nothing has been written to it yet."""
    if not path.is_dir():
        return None
    return spark.read.parquet(str(path))


def empty(spark: SparkSession, schema: str) -> DataFrame:
    return spark.createDataFrame([], schema)
