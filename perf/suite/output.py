"""The beginning and the end of every measuring command: a terminal and a directory for a run, and
its report as a table, as JSON and as a page."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click
from rich.console import Console

from perf.suite.results import Results, to_json, write_json

_PAPER_WIDTH = 200
_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
F = TypeVar("F", bound=Callable[..., Any])


def output_options(home: str) -> Callable[[F], F]:
    """`home`: the help of --home."""

    def add(command: F) -> F:
        command = click.option("--home", type=_FOLDER, help=home)(command)
        command = click.option(
            "--html", "html_file", type=_FILE, help="Write the report with plots to this file."
        )(command)
        return click.option("--json", "json_file", type=_FILE, help="Write all readings to this file.")(
            command
        )

    return add


def open_console() -> Console:
    """With a fixed width for pipes and files, which have none."""
    console = Console()
    return console if console.is_terminal else Console(width=_PAPER_WIDTH)


@contextmanager
def working_directory(home: Path | None) -> Iterator[Path]:
    """A new directory in `home`, removed at the end. From now on SIGTERM ends the run as Ctrl-C
    does."""
    signal.signal(signal.SIGTERM, _interrupt)
    if home is not None:
        home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kbroker-perf-", dir=home, ignore_cleanup_errors=True) as name:
        yield Path(name)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def report(results: Results, console: Console, json_file: Path | None, html_file: Path | None) -> None:
    """The JSON is written first, so that an error in a report cannot lose an hour of readings."""
    from perf.report import page, terminal

    data = to_json(results)
    if json_file is not None:
        write_json(results, json_file)
    terminal.show(data, console)
    if html_file is not None:
        page.write(data, html_file)
    for path in (json_file, html_file):
        if path is not None:
            console.print(f"written: {path}")
