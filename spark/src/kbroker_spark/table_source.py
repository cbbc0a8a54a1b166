"""Sources that are tables: columns, rows and options, but no offsets. This is their common
interface to Spark; each table is a module.

A table of the state is small and must be consistent. It is therefore read at once, when Spark plans
the first action on a frame, and the rows travel with the plan. A frame shows one moment, and load()
makes a new frame.

    package pyspark_kbroker_X ── names ──▶ module kbroker_spark.X_table
                                           schema(options), reader(options, wanted schema)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from kbroker_spark.data import DataDir
    from kbroker_spark.tables import Row

Options: TypeAlias = Mapping[str, str]
_COMPRESSION: Final = "lz4"


class TableSource(DataSource):
    """Each package derives from this and names its `format` and the `module` of its table. The
    module is imported at first use."""

    format: ClassVar[str]
    module: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        return cls.format

    def schema(self) -> StructType:
        table = import_module(self.module)
        found: StructType = table.schema(self._options(table))
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        table = import_module(self.module)
        found: DataSourceReader = table.reader(self._options(table), schema)
        return found

    def _options(self, table: Any) -> Options:  # noqa: ANN401 - a module
        from kbroker_spark.tables import prepared

        return prepared(self.options, table.OPTIONS)


class Rows(InputPartition):
    """Some rows of a frozen table, as an Arrow stream."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(None)
        self.stream = stream


class FrozenReader(DataSourceReader):
    """Reads the whole table while the query is planned."""

    def __init__(
        self,
        rows: Callable[[DataDir, Options], Iterator[Row]],
        options: Options,
        own: StructType,
        wanted: StructType,
    ) -> None:
        from kbroker_spark.tables import projected

        projected(own, wanted)
        self._rows, self._options, self._own, self._wanted = rows, dict(options), own, wanted

    def partitions(self) -> Sequence[InputPartition]:
        from kbroker_spark.data import reading
        from kbroker_spark.tables import arrow_batches, read_whole

        with reading(self._options["path"]) as data, read_whole(self._options["path"]):
            return [
                Rows(_stream(batch))
                for batch in arrow_batches(self._rows(data, self._options), self._own, self._wanted)
            ]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Rows):  # Spark passes None where there are no partitions.
            import pyarrow as pa

            with pa.ipc.open_stream(partition.stream) as stream:
                yield from stream


def _stream(batch: pa.RecordBatch) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=_COMPRESSION)
    ) as stream:
        stream.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found
