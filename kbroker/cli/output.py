"""Tables and JSON on stdout. A table is plain aligned text; a terminal that is too narrow does not
cut or fold it."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

import click

from kbroker.cli.logging_setup import escaped

Cell: TypeAlias = str | int | float | None
"""None is printed as `-`, Kafka's sign for an unknown value."""
_PREVIEW = 40


class Table(NamedTuple):
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def without(self, *names: str, unless: bool = False) -> Table:
        """The table without these columns; with `unless` it stays as it is."""
        if unless:
            return self
        kept = [i for i, column in enumerate(self.columns) if column not in names]
        return Table([self.columns[i] for i in kept], [[row[i] for i in kept] for row in self.rows])

    def as_json(self) -> list[dict[str, Cell]]:
        """An object for each row, with the names of the columns: `new_offset` of NEW-OFFSET."""
        names = [column.lower().replace("-", "_") for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    for line in table_lines(columns, rows):
        click.echo(line)


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Numeric columns are right-aligned."""
    cells = [["-" if cell is None else escaped(str(cell)) for cell in row] for row in rows]
    is_number = [
        any(rows) and all(isinstance(row[i], (int, float, type(None))) for row in rows)
        for i in range(len(columns))
    ]
    widths = [max(len(column), *(len(row[i]) for row in cells), 0) for i, column in enumerate(columns)]
    lines = []
    for line in [list(columns), *cells]:
        aligned = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, is_number, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    return lines


def print_json(value: object) -> None:
    """One document, on one line unless stdout is a terminal."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def text_fields(name: str, content: bytes | None) -> dict[str, str | None]:
    """`{name: text}`, or `{name_base64: …}` where the bytes are not UTF-8."""
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content or b"").decode()}


def time_text(timestamp_ms: int) -> str:
    """In UTC. A timestamp outside the calendar is printed as a number: a producer may send any
    value."""
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return when.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def age_text(age_ms: int) -> str:
    """In the two largest units, such as `2d 3h`; seconds are the smallest."""
    seconds = age_ms // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {seconds % 60}s" if minutes else f"{seconds}s"


def preview(value: bytes | None) -> str | None:
    """The beginning of a key or value, for a cell of a table."""
    if value is None:
        return None
    text = value.decode(errors="replace")
    return text if len(text) <= _PREVIEW else text[: _PREVIEW - 1] + "…"


def headers_as_json(headers: Iterable[tuple[str, bytes | None]]) -> list[dict[str, str | None]]:
    """A part of a name that is not UTF-8 becomes question marks: no broker checks names."""
    return [
        {"name": name.encode(errors="replace").decode(), **text_fields("value", value)}
        for name, value in headers
    ]


def human_bytes(size: int) -> str:
    """`1.5 MiB`."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")
