"""The tables of docs/differences.md: deliberate differences, and features of Kafka 4.4 that no
recording of 4.3 can show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.checks.behaviour import ids_in

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"
_ROW = re.compile(r"^\| (.*) \|$", re.MULTILINE)
_PREFIX = re.compile(r"\b([A-Z]+)-\d")
_NEWER_HEADING = "## What only Kafka 4.4 has"


class Listed(NamedTuple):
    """A deliberate difference."""

    id: str
    kafka: str
    kbroker: str
    why: str


class Newer(NamedTuple):
    """A feature of Kafka 4.4, by rules of docs/behaviour.md; `tests`: files below tests/ that show
    it."""

    what: str
    rules: list[str]
    tests: list[str]


def listed() -> list[Listed]:
    return [Listed(*cells) for cells in _rows(PAGE.read_text()) if cells[0].startswith("DIF-")]


def only_in_newer() -> list[Newer]:
    _, _, section = PAGE.read_text().partition(_NEWER_HEADING)
    rows = _rows(section.partition("\n## ")[0])[2:]
    return [
        Newer(what, ids_in(rules, frozenset(_PREFIX.findall(rules))), re.findall(r"`([^`]+)`", tests))
        for what, rules, tests in rows
    ]


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in row.split(" | ")] for row in _ROW.findall(text)]
