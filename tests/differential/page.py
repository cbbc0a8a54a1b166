"""The deliberate differences of docs/differences.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"
_ROW = re.compile(r"^\| (.*) \|$", re.MULTILINE)


class Listed(NamedTuple):
    """A deliberate difference."""

    id: str
    kafka: str
    kbroker: str
    why: str


def listed() -> list[Listed]:
    return [Listed(*cells) for cells in _rows(PAGE.read_text()) if cells[0].startswith("DIF-")]


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in row.split(" | ")] for row in _ROW.findall(text)]
