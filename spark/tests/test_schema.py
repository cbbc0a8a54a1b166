"""Columns of the source "kbroker", and a user's schema as a selection of them."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from kbroker_spark.decode import COLUMNS
from kbroker_spark.errors import SourceError
from kbroker_spark.schema import arrow_schema, checked, column_names, full_schema

KAFKA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int"
    ",headers:array<struct<key:string,value:binary>>>"
)


def schema(*fields: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields])


def test_the_columns_are_those_of_sparks_kafka_source() -> None:
    assert full_schema(include_headers=True).simpleString() == KAFKA
    assert full_schema(include_headers=False).simpleString() == KAFKA.replace(
        ",headers:array<struct<key:string,value:binary>>", ""
    )


def test_columns_that_every_record_has_are_not_nullable() -> None:
    """Unlike in Spark's Kafka source: Spark then need not check each value for null."""
    assert [field.name for field in full_schema(include_headers=True) if field.nullable] == [
        "key",
        "value",
        "timestamp",
        "headers",
    ]


def test_arrow_types_are_exactly_what_spark_asks_for() -> None:
    whole = full_schema(include_headers=True)
    assert arrow_schema(whole).equals(to_arrow_schema(whole, timezone="UTC"))
    for name, kind in COLUMNS.items():
        assert arrow_schema(whole).field(name).type == kind


def test_a_users_schema_chooses_columns_in_its_own_order_and_spelling() -> None:
    wanted = schema(
        ("OFFSET", LongType()),
        ("value", BinaryType()),
        ("Headers", full_schema(include_headers=True)["headers"].dataType),
    )
    assert checked(wanted) is wanted
    assert column_names(wanted) == ["offset", "value", "headers"]
    assert arrow_schema(wanted).equals(to_arrow_schema(wanted, timezone="UTC"))


def test_columns_that_may_not_be_null_stay_so() -> None:
    wanted = StructType([StructField("offset", LongType(), nullable=False)])
    assert arrow_schema(checked(wanted)).equals(to_arrow_schema(wanted, timezone="UTC"))


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (
            schema(("id", LongType())),
            "There is no column id: a schema chooses among key binary, value binary, topic string, ",
        ),
        (schema(("offset", IntegerType())), "Column offset is bigint, not int: read it as that and cast it"),
        (schema(("value", StringType())), "Column value is binary, not string"),
        (schema(("timestamp", TimestampNTZType())), "Column timestamp is timestamp, not timestamp_ntz"),
        (
            schema(("headers", ArrayType(StringType()))),
            "Column headers is array<struct<key:string,value:binary>>, not array<string>",
        ),
        (schema(("offset", LongType()), ("Offset", LongType())), "Column Offset appears twice in the schema"),
        (schema(), "The schema has no columns"),
    ],
)
def test_refused_schemas(wanted: StructType, text: str) -> None:
    with pytest.raises(SourceError) as caught:
        checked(wanted)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
