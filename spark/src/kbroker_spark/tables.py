"""Helpers for sources that are tables: columns, conversion of rows to Arrow, options. Must not know
any single table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import islice
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kbroker_spark.errors import SourceError
from kbroker_spark.options import ISOLATION, ISOLATION_LEVELS

ROWS_IN_BATCH: Final = 20_000
Row: TypeAlias = tuple[Any, ...]
"""Values in the order of a table's columns. pyarrow must accept each for its column's type;
timestamps are microseconds (`micros`)."""

STRING, INT, BIGINT, BOOLEAN, TIMESTAMP = (
    StringType(),
    IntegerType(),
    LongType(),
    BooleanType(),
    TimestampType(),
)
STRINGS: Final = ArrayType(STRING)
STRING_MAP: Final = MapType(STRING, STRING)
_MOST_MS: Final = (2**63 - 1) // 1000


def columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


def array_of(**types: DataType) -> ArrayType:
    """Of structs."""
    return ArrayType(columns(**types))


def micros(timestamp_ms: int | None) -> int | None:
    """A timestamp in Spark's unit. None for a time below 0, which means no time, and for one beyond
    the range of Spark's timestamps."""
    return None if timestamp_ms is None or not 0 <= timestamp_ms <= _MOST_MS else timestamp_ms * 1000


def projected(own: StructType, wanted: StructType) -> list[int]:
    """The indexes of the wanted columns in the table. Raises SourceError for an unknown column or a
    wrong type."""
    places = {field.name: place for place, field in enumerate(own.fields)}
    found = []
    for field in wanted.fields:
        place = places.get(field.name.lower())
        if place is None:
            raise SourceError(f"There is no column {field.name}: a schema chooses among {', '.join(places)}")
        kind = own.fields[place].dataType
        if field.dataType != kind:
            raise SourceError(
                f"Column {field.name} is {kind.simpleString()}, not {field.dataType.simpleString()}: read "
                "it as that and cast it"
            )
        found.append(place)
    if not found or len(set(found)) < len(found):
        raise SourceError(f"A schema names columns once each: choose among {', '.join(places)}")
    return found


def arrow_batches(
    rows: Iterable[Row], own: StructType, wanted: StructType, size: int = ROWS_IN_BATCH
) -> Iterator[pa.RecordBatch]:
    """Batches with exactly the wanted columns, as Spark requires."""
    places = projected(own, wanted)
    schema = to_arrow_schema(wanted, timezone="UTC")
    remaining = iter(rows)
    while chunk := list(islice(remaining, size)):
        arrays = [
            pa.array([row[place] for row in chunk], field.type)
            for place, field in zip(places, schema, strict=True)
        ]
        yield record_batch(arrays, schema)


def record_batch(arrays: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Raises SourceError if the user's schema declares a column with nulls NOT NULL. Spark would
    trust the schema and fail on the nulls."""
    for field, array in zip(schema, arrays, strict=True):
        if not field.nullable and array.null_count:
            raise SourceError(
                f"Column {field.name} is NOT NULL in the schema, but it is null in some rows: "
                "declare it nullable"
            )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def prepared(options: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """Options by lower-case name. Unknown options may be meant for other code, so they are refused
    only if they resemble a known one, or if they would show less than a table does. Raises
    SourceError for those, and if there is no path."""
    found = {name.lower(): value for name, value in options.items()}
    names = {name.lower(): name for name in known}
    if "paths" in found:
        raise SourceError("load() takes one data directory, not several: read each and union them")
    for name in sorted(found.keys() - names.keys()):
        for close in get_close_matches(name, names, n=1, cutoff=0.8):
            raise SourceError(f"There is no option '{name}': did you mean {names[close]}?")
    if found.get(ISOLATION, ISOLATION_LEVELS[0]).strip().lower() != ISOLATION_LEVELS[0]:
        raise SourceError(
            f"Option '{ISOLATION}' is '{found[ISOLATION]}', but only the format kbroker has it: a table "
            "shows what is stored, however its transaction ended"
        )
    if not found.get("path"):
        raise SourceError("There is no path: load(DATA_DIR), the --data-dir of a broker")
    return found


def listed(options: Mapping[str, str], name: str) -> frozenset[str] | None:
    """A list separated by commas; None where the option is not given. Raises SourceError for an
    empty one."""
    text = options.get(name.lower())
    if text is None:
        return None
    found = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise SourceError(f"Option '{name}' is empty: name some, or leave it out for all")
    return found


def chosen(options: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """One of the choices, the first where the option is not given. Raises SourceError."""
    text = options.get(name.lower(), choices[0]).strip().lower()
    if text not in choices:
        raise SourceError(f"Option '{name}' is '{options[name.lower()]}': expected {' or '.join(choices)}")
    return text


def switched(options: Mapping[str, str], name: str, default: bool) -> bool:
    return chosen(options, name, ("true", "false") if default else ("false", "true")) == "true"


@contextmanager
def read_whole(path: str) -> Iterator[None]:
    """Turns the ValueError of a value that cannot be decoded into a SourceError."""
    try:
        yield
    except SourceError:
        raise
    except ValueError as error:
        raise SourceError(f"cannot read {path}: {error}; look at it with kbroker storage inspect") from error
