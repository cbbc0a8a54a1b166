"""The output of a job: progress on stderr while it runs, and its result on stdout. Must not know
the jobs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from kbroker_pipeline.report import human_time

_LINE_EVERY_S: Final = 5.0
_MOST_ROWS: Final = 20
_MOMENT: Final = "_ms"
"""The suffix of times; that of durations is _s. Times are milliseconds since 1970 in JSON, and
dates in tables."""


class Progress:
    """Progress: on a terminal, one line that is rewritten; elsewhere, a line for each step, and one
    every few seconds while records are processed."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._bars = Bars(*columns, console=self._console, transient=True)
        self._task = self._bars.add_task("", total=None)
        self._text = ""
        self._done = self._total = 0
        self._said_s = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def tell(self, text: str, total: int = 0) -> None:
        """Starts a step. `total`: its number of records, if known."""
        self._text, self._done, self._total = text, 0, total
        self._bars.update(self._task, description=escape(text), completed=0, total=total or None)
        if not self._console.is_terminal:
            self._say(text)

    def add(self, records: int) -> None:
        """Adds finished records. They may exceed the total while a broker adds records."""
        self._done += records
        self._total = max(self._total, self._done) if self._total else 0
        self._bars.update(self._task, completed=self._done, total=self._total or None)
        if not self._console.is_terminal and time.monotonic() - self._said_s > _LINE_EVERY_S:
            self._say(
                f"{self._text}: {self._done:,}"
                + (f" of {self._total:,} records" if self._total else " records")
            )

    def _say(self, text: str) -> None:
        self._said_s = time.monotonic()
        self._console.print(f"kbroker-pipeline: {text}", markup=False, highlight=False, soft_wrap=True)


def print_result(
    title: str,
    facts: Mapping[str, Any],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    page: Path,
    *,
    as_json: bool,
) -> None:
    """Prints one JSON document; or a table for each of `rows`, with the columns of its first row,
    and the location of the page."""
    if as_json:
        print(
            json.dumps(
                {**facts, **rows, "report": str(page)},
                default=str,
                ensure_ascii=False,
                indent=2 if sys.stdout.isatty() else None,
            )
        )
        return
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(f"[bold]{escape(title)}[/]")
    for name, value in facts.items():
        if not isinstance(value, Mapping):
            console.print(f"  {_label(name)}: {escape(_value(name, value))}", soft_wrap=True)
    for name, each in rows.items():
        if each:
            console.print(_table(name, each))
    console.print(f"page: {page.as_uri()}", soft_wrap=True)


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    more = f" (the first {_MOST_ROWS} of {len(rows):,})" if len(rows) > _MOST_ROWS else ""
    table = Table(
        title=name.replace("_", " ") + more,
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    for column in rows[0]:
        numbers = all(isinstance(row[column], int | float | None) for row in rows)
        table.add_column(_label(column), justify="right" if numbers else "left", overflow="fold")
    for row in rows[:_MOST_ROWS]:
        table.add_row(*(escape(_value(column, value)) for column, value in row.items()))
    return table


def _label(name: str) -> str:
    return name.removesuffix(_MOMENT).replace("_", " ")


def _value(name: str, value: object) -> str:
    if name.endswith(_MOMENT) and isinstance(value, int):
        return human_time(value).replace(" UTC", "Z")
    return shown(value)


def shown(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.2f}"
    text = str(value)
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
