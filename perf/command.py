"""The suite's command: which rows and candidates, how long, and where the results go.

    make perf                                            everything, under an hour
    make perf-quick                                      the main rows, under five minutes
    python -m perf.suite --rows 'produce*' --candidates segment-os,kafka --rounds 1

Run it on a machine that does nothing else; perf/README.md says what is measured and how to read it.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from perf.candidates import KINDS
from perf.goals import all_goals, engine_ratios, judge
from perf.results import Results, to_json, write_json
from perf.rows import Row, all_rows
from perf.runner import Runner, Settings

FULL = Settings(rounds=3, seconds=2.0, warming_s=3.0, warm_up_s=0.5, quick=False, budget_s=58 * 60)
QUICK = Settings(rounds=1, seconds=1.0, warming_s=1.0, warm_up_s=0.3, quick=True, budget_s=5 * 60)
QUICK_CANDIDATES = ("segment-os", "segment-disk", "kafka", "kafka-sync")
_PAPER_WIDTH = 200


def chosen_rows(patterns: Sequence[str], *, quick: bool) -> list[Row]:
    """Without a pattern all of them, or the quick suite's; a pattern means the rows it names. Raises click.UsageError for none."""
    rows = all_rows()
    if not patterns:
        return [row for row in rows if row.quick or not quick]
    found = [row for row in rows if any(fnmatch(row.key, pattern) for pattern in patterns)]
    if not found:
        raise click.UsageError(f"no row is named {', '.join(patterns)}; --list shows them")
    return found


def chosen_candidates(names: Sequence[str], *, quick: bool) -> list[str]:
    """Raises click.UsageError."""
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise click.UsageError(f"there is no candidate {', '.join(unknown)}; there are {', '.join(KINDS)}")
    return list(names or (QUICK_CANDIDATES if quick else KINDS))


def finish(results: Results, console: Console, json_file: Path | None, html_file: Path | None) -> None:
    """Judge, write and show what there is. The JSON is written first: no fault of a report can lose an hour's readings."""
    from perf.report import page, terminal

    results.goals = judge(results, all_goals())
    results.engines = engine_ratios(results)
    data = to_json(results)
    if json_file is not None:
        write_json(results, json_file)
    terminal.show(data, console)
    if html_file is not None:
        page.write(data, html_file)
    for path in (json_file, html_file):
        if path is not None:
            console.print(f"written: {path}")


def _listed(_: click.Context, __: click.Parameter, wanted: bool) -> None:
    if wanted:
        for row in all_rows():
            click.echo(f"{row.key:28} {'quick' if row.quick else '':6} {row.group:10} {row.title}")
        sys.exit(0)


def _split(_: click.Context, __: click.Parameter, text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@click.command()
@click.option("--quick", is_flag=True, help="The main rows, segment engine and Kafka, short windows; for a look, not for claims.")
@click.option("--rows", callback=_split, metavar="PATTERN,…", help="Rows by name, * and ? allowed.  [default: all]")
@click.option("--candidates", callback=_split, metavar="KEY,…", help=f"Of {', '.join(KINDS)}.  [default: all; --quick: not LMDB, RocksDB]")
@click.option("--rounds", type=click.IntRange(min=1), help=f"Readings of each figure.  [default: {FULL.rounds}; --quick: {QUICK.rounds}]")
@click.option("--seconds", type=float, help=f"Length of a window.  [default: {FULL.seconds:g}; --quick: {QUICK.seconds:g}]")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write every reading there.")
@click.option("--html", "html_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the report with plots there.")
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Where brokers keep data: a disk with 30 GB.")
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_listed, help="Print the rows and end.")
def main(
    quick: bool,
    rows: Sequence[str],
    candidates: Sequence[str],
    rounds: int | None,
    seconds: float | None,
    json_file: Path | None,
    html_file: Path | None,
    home: Path | None,
) -> None:
    """Measure kbroker on every engine beside Apache Kafka, in turns, and report rates, latencies, CPU, memory and their ratios.

    Ctrl-C ends it early; what was measured until then is reported.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PAPER_WIDTH)
    defaults = QUICK if quick else FULL
    settings = defaults._replace(rounds=rounds or defaults.rounds, seconds=seconds or defaults.seconds)
    wanted, keys = chosen_rows(rows, quick=quick), chosen_candidates(candidates, quick=quick)
    signal.signal(signal.SIGTERM, _interrupt)
    if home is not None:
        home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kbroker-perf-", dir=home, ignore_cleanup_errors=True) as directory:
        runner = Runner(keys, wanted, settings, Path(directory), console)
        runner.run()
    finish(runner.results, console, json_file, html_file)
