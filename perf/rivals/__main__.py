"""One-at-a-time queue work: kbroker beside Redis Streams, RabbitMQ and NATS JetStream.

make perf-rivals installs, measures, keeps results python -m perf.rivals --sides
segment-disk,redis-streams some of them python -m perf.rivals --rows 'delayed-*' --rounds 1 a row

The first one installs missing servers if root runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import click

from perf.rivals.comparison import Comparison
from perf.rivals.sides import OURS, RIVALS, Settings, queue_rows
from perf.suite.output import open_console, output_options, report, working_directory

KEYS = (*OURS, *(rival.key for rival in RIVALS))


def _chosen(_: click.Context, __: click.Parameter, text: str | None) -> Sequence[str]:
    keys = [part.strip() for part in (text or "").split(",") if part.strip()]
    unknown = [key for key in keys if key not in KEYS]
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)}; there are {', '.join(KEYS)}")
    return keys or KEYS


def _patterns(_: click.Context, __: click.Parameter, text: str | None) -> Sequence[str]:
    patterns = [part.strip() for part in (text or "*").split(",") if part.strip()]
    names = [row.key for row in queue_rows(Settings(rounds=1, seconds=1.0, warm_up_s=0.0))]
    if not any(fnmatch(name, pattern) for name in names for pattern in patterns):
        raise click.BadParameter(f"no row is named {', '.join(patterns)}; there are {', '.join(names)}")
    return patterns


@click.command()
@click.option(
    "--sides", callback=_chosen, metavar="KEY,…", help=f"Some of {', '.join(KEYS)}.  [default: all]"
)
@click.option(
    "--rows", callback=_patterns, metavar="PATTERN,…", help="Rows by name, * and ? allowed.  [default: all]"
)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Readings of each figure."
)
@click.option(
    "--seconds", type=click.FloatRange(min=0.2), default=3.0, show_default=True, help="Length of a window."
)
@output_options("Directory for the servers' data, on a disk with 5 GB free.")
def main(
    sides: Sequence[str],
    rows: Sequence[str],
    rounds: int,
    seconds: float,
    json_file: Path | None,
    html_file: Path | None,
    home: Path | None,
) -> None:
    """Take one record, acknowledge it, take the next: kbroker beside other queues, in turns, each
    with its own Python client.

    Ctrl-C ends it early; the readings up to then are reported.
    """
    console = open_console()
    settings = Settings(rounds=rounds, seconds=seconds, warm_up_s=0.5)
    with working_directory(home) as directory:
        comparison = Comparison(sides, settings, directory, console, rows)
        comparison.run()
    report(comparison.results, console, json_file, html_file)


if __name__ == "__main__":
    main()
