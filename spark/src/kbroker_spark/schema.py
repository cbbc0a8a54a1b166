"""The columns of the source "kbroker": those of Spark's own Kafka source, and a user's schema as a
choice among them.

Spark takes Arrow batches only with exactly the Arrow types that it would choose itself for the
schema (`to_arrow_schema` with UTC); those are written out, here and in arrow_columns, so that they
do not depend on pyspark's version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kbroker_spark.arrow_columns import TYPES
from kbroker_spark.errors import SourceError

HEADERS: Final = "headers"
_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_COLUMNS: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(_HEADER),
}
_ARROW: Final = {**TYPES, "topic": pa.string(), "partition": pa.int32()}
_NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestampType"})
_BY_LOWER_NAME: Final = {name.lower(): name for name in _COLUMNS}


def full_schema(*, include_headers: bool) -> StructType:
    """The seven columns, or eight. Spark looks for nulls in each value of each row, unless the
    schema says that there are none."""
    names = [name for name in _COLUMNS if include_headers or name != HEADERS]
    return StructType([StructField(name, _COLUMNS[name], nullable=name not in _NEVER_NULL) for name in names])


def checked(schema: StructType) -> StructType:
    """A schema that Spark or a user gives, as it is. SourceError when a column is not one of ours
    or has another type."""
    names = [field.name.lower() for field in schema.fields]
    for number, field in enumerate(schema.fields):
        name = _BY_LOWER_NAME.get(field.name.lower())
        if name is None:
            raise SourceError(f"There is no column {field.name}: a schema chooses among {_listing()}")
        kind = _COLUMNS[name]
        if _nullable(field.dataType) != kind:
            raise SourceError(
                f"Column {field.name} is {kind.simpleString()}, not {field.dataType.simpleString()}: read "
                "it so and cast it"
            )
        if names[number] in names[:number]:
            raise SourceError(f"Column {field.name} is twice in the schema: name it once")
    if not schema.fields:
        raise SourceError(f"The schema has no columns: choose among {_listing()}")
    return schema


def column_names(schema: StructType) -> Sequence[str]:
    """Our names of the columns of a checked schema, which may spell them in other case."""
    return [_BY_LOWER_NAME[field.name.lower()] for field in schema.fields]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Of a checked schema, with its spelling and nullability."""
    return pa.schema(
        [
            pa.field(field.name, _ARROW[name], nullable=field.nullable)
            for field, name in zip(schema.fields, column_names(schema), strict=True)
        ]
    )


def _nullable(kind: DataType) -> DataType:
    """Nullability inside an array says nothing about which column is meant."""
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _nullable(field.dataType)) for field in kind.fields])
    return kind


def _listing() -> str:
    return ", ".join(f"{name} {kind.simpleString()}" for name, kind in _COLUMNS.items())
