"""`--watch`: shows something repeatedly, as JSON, as pages one after the other, or in place on a
terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from kbroker.cli.output import print_json
from kbroker.cli.params import options

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.text import Text

Document: TypeAlias = dict[str, Any]
Draw: TypeAlias = "Callable[[Document, int], Sequence[Text]]"
"""Returns the lines for one document, for a terminal of this width."""


watch_options = options(
    click.option("--watch", is_flag=True, help="Refresh at an interval until Ctrl-C."),
    click.option(
        "--interval-ms",
        type=click.IntRange(100, 3_600_000),
        default=1000,
        show_default=True,
        help="The interval of --watch.",
    ),
)


def moments(look: Callable[[], Document], interval_ms: int | None) -> Iterator[Document]:
    """The result of `look` now, and with an interval repeatedly."""
    yield look()
    while interval_ms is not None:
        time.sleep(interval_ms / 1000)
        yield look()


def print_all_json(found: Iterator[Document]) -> None:
    for document in found:
        print_json(document)


def show(found: Iterator[Document], draw: Draw, *, in_place: bool) -> None:
    """Print documents for a person. `in_place`: on a terminal each replaces the one before."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    if in_place and sys.stdout.isatty():
        with Live(_lines(console, draw, next(found)), console=console, auto_refresh=False) as live:
            for document in found:
                live.update(_lines(console, draw, document), refresh=True)
    else:
        _print(console, draw, next(found))
        for document in found:
            click.echo()
            _print(console, draw, document)


def _print(console: Console, draw: Draw, document: Document) -> None:
    for line in draw(document, console.width):
        console.print(line, soft_wrap=True)


def _lines(console: Console, draw: Draw, document: Document) -> Group:
    """Cuts lines that are too long for the terminal, so that the picture stays in place."""
    from rich.console import Group

    lines = draw(document, console.width)
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)
