"""Figures of kbroker-client beside confluent-kafka.

make perf-python-client                                   ten rounds, ten minutes
python -m perf.python_client --rounds 3 --seconds 2
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from perf.python_client.comparison import Comparison
from perf.python_client.consumers import SIDES
from perf.report import page, terminal
from perf.suite.results import to_json, write_json

_FILE = click.Path(dir_okay=False, path_type=Path)
_PAPER_WIDTH = 200
_KEYS = [side.key for side in SIDES]


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@click.command()
@click.option(
    "--side",
    "sides",
    type=click.Choice(_KEYS),
    multiple=True,
    default=_KEYS,
    help="May be repeated.  [default: all]",
)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=10, show_default=True, help="Readings of each figure."
)
@click.option(
    "--seconds", type=click.FloatRange(min=0.2), default=3.0, show_default=True, help="Length of a window."
)
@click.option("--json", "json_file", type=_FILE, help="Write all readings to this file.")
@click.option("--html", "html_file", type=_FILE, help="Write the report with plots to this file.")
@click.option(
    "--home", type=click.Path(file_okay=False, path_type=Path), help="Directory for the broker's data."
)
def main(
    sides: Sequence[str],
    rounds: int,
    seconds: float,
    json_file: Path | None,
    html_file: Path | None,
    home: Path | None,
) -> None:
    """Take one record, accept it, take the next: kbroker-client under asyncio and trio beside
    confluent-kafka, in turns: one consumer, eight of one process, eight processes.

    Ctrl-C ends it early; the readings up to then are reported.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PAPER_WIDTH)
    signal.signal(signal.SIGTERM, _interrupt)
    if home is not None:
        home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix="kbroker-client-", dir=home, ignore_cleanup_errors=True
    ) as directory:
        comparison = Comparison(sides, rounds, seconds, Path(directory), console)
        comparison.run()
    if json_file is not None:
        write_json(comparison.results, json_file)
    terminal.show(to_json(comparison.results), console)
    if html_file is not None:
        page.write(to_json(comparison.results), html_file)
    for path in (json_file, html_file):
        if path is not None:
            console.print(f"written: {path}")


if __name__ == "__main__":
    main(prog_name="python -m perf.python_client")
