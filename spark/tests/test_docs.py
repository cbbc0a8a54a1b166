"""docs/spark.md is complete: every option and every column of every format, and every format."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from kbroker_spark import options
from kbroker_spark.schema import full_schema
from kbroker_spark.session import SOURCE_PACKAGES

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
