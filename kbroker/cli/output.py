"""Tables and JSON on stdout. Tables are plain aligned text, also on a terminal: what is wider than
that is not cut or folded."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

import click

from kbroker.logging_setup import escaped

Cell: TypeAlias = str | int | float | None
"""None is printed as `-`, Kafka's sign for a value that is not known."""
_PREVIEW = 40


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    for line in table_lines(columns, rows):
        click.echo(line)


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Columns of numbers are aligned to the right."""
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
    """One document, on one line where stdout is no terminal."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def text_fields(name: str, content: bytes | None) -> dict[str, str | None]:
    """`{name: text}`, or `{name_base64: …}` where the bytes are no UTF-8."""
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content or b"").decode()}


def time_text(timestamp_ms: int) -> str:
    """UTC; the bare number for what no calendar has: a producer may write any timestamp."""
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return when.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def preview(value: bytes | None) -> str | None:
    """The beginning of a key or value, for a table."""
    if value is None:
        return None
    text = value.decode(errors="replace")
    return text if len(text) <= _PREVIEW else text[: _PREVIEW - 1] + "…"


def headers_as_json(headers: Iterable[tuple[str, bytes | None]]) -> list[dict[str, str | None]]:
    """What is no UTF-8 in a name is replaced by question marks: no broker looks at names."""
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
