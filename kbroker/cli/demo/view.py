"""Progress of the demo: moving bars on a terminal, otherwise a line every few seconds. It fits into
80 columns and 24 lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import click

from kbroker.cli.demo.tally import Tally

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

_PLAIN_INTERVAL_S = 2.0
_CONSUMERS_SHOWN = 10


class View(Protocol):
    """Shows progress."""

    def say(self, text: str) -> None: ...
    def produced(self, confirmed: int) -> None: ...
    def consumed(self, tally: Tally) -> None: ...


@contextmanager
def open_view(count: int, consumers: int) -> Iterator[View]:
    """On a terminal the bars disappear before the summary is printed."""
    if not sys.stdout.isatty():
        yield PlainView(count, click.echo)
        return
    from rich.console import Console

    with open_bars(count, consumers, Console()) as view:
        yield view


@contextmanager
def open_bars(count: int, consumers: int, console: Console) -> Iterator[View]:
    from rich.console import RenderableType
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column
    from rich.text import Text

    class Bars(Progress):
        """Has a line of text below the bars, where it leaves room for the numbers."""

        note = ""

        def get_renderables(self) -> Iterable[RenderableType]:
            yield from super().get_renderables()
            yield Text(self.note)

    name = TextColumn("{task.description}", table_column=Column(no_wrap=True))
    numbers = TextColumn(
        "{task.fields[numbers]}",
        justify="right",
        table_column=Column(no_wrap=True, min_width=len(_of(count, count))),
    )
    with Bars(name, BarColumn(bar_width=30), numbers, console=console, transient=True) as progress:

        def show_note(text: str) -> None:
            progress.note = text

        yield BarView(progress, count, consumers, show_note)


def _of(done: int, count: int) -> str:
    return f"{done:,} of {count:,}"


def _what_came_back(tally: Tally) -> str:
    total = tally.total
    return f"{tally.again:,} delivered again, {total['rejected']:,} rejected, {total['gave_up']:,} given up"


class PlainView:
    def __init__(self, count: int, write: Callable[[str], None]) -> None:
        self._count, self._write = count, write
        self._shown_s = 0.0

    def say(self, text: str) -> None:
        self._write(text)

    def produced(self, confirmed: int) -> None:
        self._line(f"{_of(confirmed, self._count)} orders produced", confirmed == self._count)

    def consumed(self, tally: Tally) -> None:
        self._line(
            f"{_of(tally.finished, self._count)} finished; {_what_came_back(tally)}",
            tally.finished == self._count,
        )

    def _line(self, text: str, is_last: bool) -> None:
        if is_last or time.monotonic() - self._shown_s >= _PLAIN_INTERVAL_S:
            self._shown_s = time.monotonic()
            self._write(text)


class BarView:
    def __init__(
        self, progress: Progress, count: int, consumers: int, show_note: Callable[[str], None]
    ) -> None:
        self._progress, self._count, self._show_note = progress, count, show_note
        self._produced = self._bar("orders produced")
        self._finished = self._bar("orders finished")
        self._shows_consumers = consumers <= _CONSUMERS_SHOWN
        self._workers: dict[int, TaskID] = {}
        if self._shows_consumers:
            self._workers = {number: self._bar(f"  consumer {number}") for number in range(1, consumers + 1)}

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, soft_wrap=True)

    def produced(self, confirmed: int) -> None:
        self._progress.update(self._produced, completed=confirmed, numbers=_of(confirmed, self._count))

    def consumed(self, tally: Tally) -> None:
        self._progress.update(
            self._finished, completed=tally.finished, numbers=_of(tally.finished, self._count)
        )
        self._show_note(_what_came_back(tally))
        if not self._shows_consumers:
            return
        for number, deliveries in sorted(tally.by_worker.items()):
            if number not in self._workers:  # in place of one that was killed
                self._workers[number] = self._bar(f"  consumer {number}")
            self._progress.update(self._workers[number], completed=deliveries, numbers=f"{deliveries:,}")

    def _bar(self, name: str) -> TaskID:
        return self._progress.add_task(name, total=self._count, numbers="")
