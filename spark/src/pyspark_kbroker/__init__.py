"""The source "kbroker", which Spark finds by this package's name:
`spark.read.format("kbroker").load(data_dir)` and `readStream`.

Imports stay trivial, because an import error in one such package hides the sources of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource", "register"]


class DefaultSource(DataSource):
    """Records of topics, with the columns and options of Spark's own Kafka source; see
    docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "kbroker"

    def schema(self) -> StructType:
        """Called at load(), unless the user passes a schema. Checks the options and the directory
        as far as possible at that time."""
        from kbroker_spark.data import DataDir
        from kbroker_spark.options import parse
        from kbroker_spark.schema import full_schema

        options = parse(self.options, streaming=None)
        DataDir.open(options.path)
        return full_schema(include_headers=options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        from kbroker_spark.batch_reader import BatchReader

        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from kbroker_spark.stream_reader import StreamReader

        return StreamReader(self.options, schema)


def register(spark: SparkSession) -> None:
    """Registers the source with a session that does not find it itself, such as one whose packages
    come with spark.submit.pyFiles."""
    spark.dataSource.register(DefaultSource)
