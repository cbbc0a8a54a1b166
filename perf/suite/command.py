"""The command of a suite: its rows, candidates, durations and output files.

    make perf                                            everything, under an hour
    make perf-quick                                      the main rows, under five minutes
    python -m perf.suite --rows 'produce*' --candidates segment-os,kafka --rounds 1
    python -m perf.queues --rows 'one-*'                 another suite: work queues, kbroker alone

Run it on an otherwise idle machine. perf/README.md explains the measurements and their results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console

from perf.suite.candidates import KINDS
from perf.suite.goals import Goal, all_goals, engine_ratios, judge
from perf.suite.output import open_console, output_options, report, working_directory
from perf.suite.results import Results
from perf.suite.rows import Row, footprint, latency, produce, scale, share
from perf.suite.runner import Runner, Settings

FULL = Settings(rounds=3, seconds=2.0, warming_s=3.0, warm_up_s=0.5, quick=False, budget_s=58 * 60)
QUICK = Settings(rounds=1, seconds=1.0, warming_s=1.0, warm_up_s=0.3, quick=True, budget_s=5 * 60)
QUICK_CANDIDATES = ("segment-os", "segment-disk", "kafka", "kafka-sync")


class Suite(NamedTuple):
    """The rows, candidates and goals of a command. `about`: the text of its --help. `with_tls`: its
    brokers have a second listener with TLS."""

    about: str
    rows: Callable[[], list[Row]]
    candidates: Sequence[str]
    quick_candidates: Sequence[str]
    goals: Callable[[], Iterable[Goal]]
    full: Settings
    quick: Settings
    with_tls: bool = False


def all_rows() -> list[Row]:
    """In the order in which they run and are shown. Memory comes last, after all other work."""
    return [*produce.ROWS, *share.ROWS, *latency.ROWS, *scale.ROWS, *footprint.ROWS]


SUITE = Suite(
    "Measure kbroker on every engine and Apache Kafka, in turns, and report rates, latencies, CPU, "
    "memory and their ratios.",
    all_rows,
    tuple(KINDS),
    QUICK_CANDIDATES,
    all_goals,
    FULL,
    QUICK,
)


def chosen_rows(patterns: Sequence[str], *, quick: bool, suite: Suite = SUITE) -> list[Row]:
    """The rows that match the patterns; without a pattern, all rows, or those of the quick suite.
    Raises click.UsageError if none match."""
    rows = suite.rows()
    if not patterns:
        return [row for row in rows if row.quick or not quick]
    found = [row for row in rows if any(fnmatch(row.key, pattern) for pattern in patterns)]
    if not found:
        raise click.UsageError(f"no row is named {', '.join(patterns)}; --list shows them")
    return found


def chosen_candidates(names: Sequence[str], *, quick: bool, suite: Suite = SUITE) -> list[str]:
    """The named candidates, or the defaults. Raises click.UsageError."""
    unknown = [name for name in names if name not in suite.candidates]
    if unknown:
        raise click.UsageError(
            f"there is no candidate {', '.join(unknown)}; there are {', '.join(suite.candidates)}"
        )
    return list(names or (suite.quick_candidates if quick else suite.candidates))


def finish(
    results: Results,
    console: Console,
    json_file: Path | None,
    html_file: Path | None,
    goals: Callable[[], Iterable[Goal]] = all_goals,
) -> None:
    """Judges, writes and shows the results."""
    results.goals = judge(results, goals())
    results.engines = engine_ratios(results)
    report(results, console, json_file, html_file)


def _split(_: click.Context, __: click.Parameter, text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


class _Choice(NamedTuple):
    """The options of a suite's command."""

    quick: bool
    rows: Sequence[str]
    candidates: Sequence[str]
    rounds: int | None
    seconds: float | None
    json_file: Path | None
    html_file: Path | None
    home: Path | None


def _run(suite: Suite, choice: _Choice) -> None:
    console = open_console()
    defaults = suite.quick if choice.quick else suite.full
    settings = defaults._replace(
        rounds=choice.rounds or defaults.rounds, seconds=choice.seconds or defaults.seconds
    )
    wanted = chosen_rows(choice.rows, quick=choice.quick, suite=suite)
    keys = chosen_candidates(choice.candidates, quick=choice.quick, suite=suite)
    with working_directory(choice.home) as home:
        runner = Runner(keys, wanted, settings, home, console, with_tls=suite.with_tls)
        runner.run()
    finish(runner.results, console, choice.json_file, choice.html_file, suite.goals)


def command_of(suite: Suite) -> click.Command:
    """The command of a suite. Its options are the same for all suites."""

    def listed(_: click.Context, __: click.Parameter, wanted: bool) -> None:
        if wanted:
            for row in suite.rows():
                click.echo(f"{row.key:28} {'quick' if row.quick else '':6} {row.group:10} {row.title}")
            sys.exit(0)

    every, few = ", ".join(suite.candidates), ", ".join(suite.quick_candidates)
    full, quick = suite.full, suite.quick

    @click.command(help=f"{suite.about}\n\nCtrl-C ends it early; the readings up to then are reported.")
    @click.option(
        "--quick",
        is_flag=True,
        help="The main rows, fewer candidates, short windows: for a first look only.",
    )
    @click.option(
        "--rows", callback=_split, metavar="PATTERN,…", help="Rows by name, * and ? allowed.  [default: all]"
    )
    @click.option(
        "--candidates",
        callback=_split,
        metavar="KEY,…",
        help=f"Some of {every}.  [default: all; --quick: {few}]",
    )
    @click.option(
        "--rounds",
        type=click.IntRange(min=1),
        help=f"Readings of each figure.  [default: {full.rounds}; --quick: {quick.rounds}]",
    )
    @click.option(
        "--seconds",
        type=float,
        help=f"Length of a window.  [default: {full.seconds:g}; --quick: {quick.seconds:g}]",
    )
    @output_options("Directory for the brokers' data, on a disk with 30 GB free.")
    @click.option(
        "--list",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=listed,
        help="Print the rows and end.",
    )
    def command(**options: Any) -> None:  # noqa: ANN401 (the values of the options above)
        _run(suite, _Choice(**options))

    return command


main = command_of(SUITE)
