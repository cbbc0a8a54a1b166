"""How far the demo is, and how that is shown: moving bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import click

from kbroker.cli.demo_worker import Progress as Report

if TYPE_CHECKING:
    from rich.progress import Progress

_PLAIN_INTERVAL_S = 2.0


@dataclass(slots=True)
class Tally:
    """What consumers reported, as a whole and by consumer."""

    count: int
    consumers: int
    total: Counter[str] = field(default_factory=Counter)
    by_worker: Counter[int] = field(default_factory=Counter)
    started_s: float = field(default_factory=time.monotonic)
    first_s: float | None = None
    last_s: float = 0.0

    def add(self, report: Report) -> None:
        self.last_s = time.monotonic()
        self.first_s = self.first_s or self.last_s
        self.by_worker[report.worker] += report.delivered
        counts = report._asdict()
        del counts["worker"]
        self.total.update(counts)

    @property
    def finished(self) -> int:
        """Orders that will never be delivered again."""
        return self.total["accepted"] + self.total["rejected"] + self.total["gave_up"]


class View(Protocol):
    """How progress is shown."""

    def say(self, text: str) -> None: ...
    def produced(self, confirmed: int) -> None: ...
    def consumed(self, tally: Tally) -> None: ...


@contextmanager
def open_view(count: int, consumers: int) -> Iterator[View]:
    """Moving bars on a terminal, a line now and then elsewhere."""
    if not sys.stdout.isatty():
        yield PlainView(count, click.echo)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns) as progress:
        yield BarView(progress, count, consumers)


class PlainView:
    def __init__(self, count: int, write: Callable[[str], None]) -> None:
        self._count, self._write = count, write
        self._shown_s = 0.0

    def say(self, text: str) -> None:
        self._write(text)

    def produced(self, confirmed: int) -> None:
        self._line(f"{confirmed} of {self._count} orders produced", confirmed == self._count)

    def consumed(self, tally: Tally) -> None:
        total = tally.total
        again = f"{total['redelivered']} deliveries after a failure, {total['rejected']} rejected, {total['gave_up']} given up"
        self._line(f"{tally.finished} of {self._count} orders finished; {again}", tally.finished == self._count)

    def _line(self, text: str, is_last: bool) -> None:
        if is_last or time.monotonic() - self._shown_s >= _PLAIN_INTERVAL_S:
            self._shown_s = time.monotonic()
            self._write(text)


class BarView:
    def __init__(self, progress: Progress, count: int, consumers: int) -> None:
        self._progress = progress
        self._produced = progress.add_task("orders produced", total=count, note="")
        self._finished = progress.add_task("orders finished", total=count, note="")
        self._workers = [progress.add_task(f"  consumer {n}", total=count, note="") for n in range(1, consumers + 1)]

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False)

    def produced(self, confirmed: int) -> None:
        self._progress.update(self._produced, completed=confirmed)

    def consumed(self, tally: Tally) -> None:
        total = tally.total
        note = f"{total['redelivered']} again, {total['rejected']} rejected, {total['gave_up']} given up"
        self._progress.update(self._finished, completed=tally.finished, note=note)
        for number, task in enumerate(self._workers, start=1):
            self._progress.update(task, completed=tally.by_worker[number])
