"""The columns of the source "kbroker", which are those of Spark's own Kafka source. A user's schema
selects among them.

Spark accepts Arrow batches only if they have exactly the Arrow types that it would choose for the
schema itself (`to_arrow_schema` with UTC). The types are written out here and in arrow_columns, so
that they do not depend on the version of pyspark.
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
    """The seven columns, or eight with the headers. Spark checks each value of each row for null,
    unless the schema excludes nulls."""
    names = [name for name in _COLUMNS if include_headers or name != HEADERS]
    return StructType([StructField(name, _COLUMNS[name], nullable=name not in _NEVER_NULL) for name in names])


def checked(schema: StructType) -> StructType:
    """Returns the schema of Spark or a user unchanged. Raises SourceError for an unknown column or
    a wrong type."""
    names = [field.name.lower() for field in schema.fields]
    for number, field in enumerate(schema.fields):
        name = _BY_LOWER_NAME.get(field.name.lower())
        if name is None:
            raise SourceError(f"There is no column {field.name}: a schema chooses among {_listing()}")
        kind = _COLUMNS[name]
        if _nullable(field.dataType) != kind:
            raise SourceError(
                f"Column {field.name} is {kind.simpleString()}, not {field.dataType.simpleString()}: read "
                "it as that and cast it"
            )
        if names[number] in names[:number]:
            raise SourceError(f"Column {field.name} appears twice in the schema: name it once")
    if not schema.fields:
        raise SourceError(f"The schema has no columns: choose among {_listing()}")
    return schema


def column_names(schema: StructType) -> Sequence[str]:
    """This source's names of the columns of a checked schema, whose case may differ."""
    return [_BY_LOWER_NAME[field.name.lower()] for field in schema.fields]


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of a checked schema, with its spelling and nullability."""
    return pa.schema(
        [
            pa.field(field.name, _ARROW[name], nullable=field.nullable)
            for field, name in zip(schema.fields, column_names(schema), strict=True)
        ]
    )


def _nullable(kind: DataType) -> DataType:
    """The type with nullable elements and fields throughout, since nullability does not distinguish
    types here."""
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _nullable(field.dataType)) for field in kind.fields])
    return kind


def _listing() -> str:
    return ", ".join(f"{name} {kind.simpleString()}" for name, kind in _COLUMNS.items())
