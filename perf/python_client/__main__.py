"""Figures of kbroker-client beside confluent-kafka.

make perf-python-client                                   ten rounds, ten minutes
python -m perf.python_client --rounds 3 --seconds 2
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from perf.python_client.comparison import Comparison
from perf.python_client.consumers import SIDES
from perf.suite.output import open_console, output_options, report, working_directory

_KEYS = [side.key for side in SIDES]


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
@output_options("Directory for the broker's data.")
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
    console = open_console()
    with working_directory(home) as directory:
        comparison = Comparison(sides, rounds, seconds, directory, console)
        comparison.run()
    report(comparison.results, console, json_file, html_file)


if __name__ == "__main__":
    main(prog_name="python -m perf.python_client")
