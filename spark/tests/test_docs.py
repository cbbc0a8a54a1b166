"""docs/spark.md is complete: every option and every column of every format, and every format."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker_spark import options
from kbroker_spark.schema import full_schema
from kbroker_spark.session import SOURCE_PACKAGES
from spark.tests.filling import numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kbroker.testing.broker import RunningBroker

DOCUMENT = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
TABLES = ("state", "topics", "groups", "batches")


def named(text: str) -> set[str]:
    """The names in `code` in the first column of a table."""
    cells = re.findall(r"^\| *(`[^|]*) *\|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def section(format_name: str) -> str:
    """From the first heading that names the format to the next one of the same level."""
    heading = re.search(rf"^(#+) [^\n]*`{format_name}`[^\n]*$", DOCUMENT, re.MULTILINE)
    assert heading, f"docs/spark.md has no heading with `{format_name}`"
    level = len(heading[1])
    return re.split(rf"^#{{1,{level}}} ", DOCUMENT[heading.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def test_the_first_query_runs(
    spark: SparkSession, broker: RunningBroker, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it stands, with this broker's directory and topic."""
    (code, *_) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    produce(broker.bootstrap, name, numbered(3))
    exec(code.replace("/var/lib/kbroker", str(broker.data_dir)).replace('"orders"', f'"{name}"'), {})
    assert len(re.findall(r"UTC|20\d\d-", capsys.readouterr().out)) >= 3


def test_options_of_topics() -> None:
    known = options.OPTIONS | options.WITHOUT_EFFECT | set(options.REFUSED)
    assert known - named(section("kbroker")) == set()


def test_columns_of_topics() -> None:
    assert set(full_schema(include_headers=True).names) - named(section("kbroker")) == set()


@pytest.mark.parametrize("table", TABLES)
def test_options_of_tables(table: str) -> None:
    known = set(import_module(f"kbroker_spark.{table}_table").OPTIONS)
    assert known - {"path"} - named(section(f"kbroker-{table}")) == set()


@pytest.mark.parametrize("table", TABLES)
def test_columns_of_tables(table: str) -> None:
    """Of each view, if there are several."""
    module = import_module(f"kbroker_spark.{table}_table")
    schemas = module.SCHEMAS.values() if hasattr(module, "SCHEMAS") else [module.schema({})]
    assert {name for schema in schemas for name in schema.names} - named(section(f"kbroker-{table}")) == set()


def test_formats() -> None:
    formats = {import_module(package).DefaultSource.name() for package in SOURCE_PACKAGES}
    assert formats - named(DOCUMENT) == set()
