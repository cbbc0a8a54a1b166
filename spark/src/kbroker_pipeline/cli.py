"""The command line: `kbroker-pipeline JOB DATA_DIR`; also `python -m kbroker_pipeline`, or
spark-submit with `__main__.py`.

Commands check their arguments before they start Spark. A job's result is a short table on stdout
(with `--json`, one document) and an HTML page. Messages go to stderr, and an error is one line with
one of kbroker's exit codes. This module must not know what a job does.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import click

from kbroker_pipeline.exits import CommandFailed, Exit, end_of, is_of_spark
from kbroker_pipeline.terminal import Progress, print_result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kbroker_pipeline.report import Page
    from kbroker_pipeline.sources import Directory
    from kbroker_pipeline.store import Store

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_OUT = "kbroker-tables"
DEFAULTS: Mapping[str, str] = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.metricsEnabled": "false",
}
"""Defaults of a session that the jobs start themselves. Most shuffles are small, so few partitions
are faster."""


class Moment(click.ParamType[int]):
    """A time in ISO 8601, in UTC unless it has an offset, converted to milliseconds."""

    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, context: click.Context | None) -> int:
        from datetime import UTC, datetime

        if isinstance(value, int):
            return value
        try:
            found = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a time such as 2026-01-31T08:00:00", param, context)
        return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


class Setting(click.ParamType[tuple[str, str]]):
    """A Spark setting: NAME=VALUE."""

    name = "NAME=VALUE"

    def convert(
        self, value: object, param: click.Parameter | None, context: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not equals or not name.startswith("spark."):
            self.fail(f"{value!r} is not spark.NAME=VALUE", param, context)
        return name, text


class Common(NamedTuple):
    """The argument and options of all jobs."""

    data_dir: Path
    out: Path
    report: Path | None
    as_json: bool
    master: str | None
    settings: Mapping[str, str]
    now_ms: int | None

    def moment_ms(self) -> int:
        """The time given with --as-of, or now."""
        return self.now_ms if self.now_ms is not None else time.time_ns() // 1_000_000


def job_options(function: F) -> F:
    """Adds the argument and the options of all jobs."""
    for option in (
        click.option(
            "--as-of",
            "now_ms",
            type=Moment(),
            help="The time to use instead of now, for ages and for dates of snapshots.",
        ),
        click.option(
            "--conf", "settings", type=Setting(), multiple=True, help="A Spark setting; may be repeated."
        ),
        click.option(
            "--master", metavar="URL", help="Where Spark runs. Default: local[*], or spark-submit's setting."
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table."),
        click.option(
            "--report",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="The HTML page. Default: OUT/reports/JOB.html.",
        ),
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            default=DEFAULT_OUT,
            show_default=True,
            metavar="DIR",
            help="The directory of the tables.",
        ),
        click.argument("data_dir", type=click.Path(path_type=Path)),
    ):
        function = option(function)
    return function


class Work(NamedTuple):
    """The resources of a running job."""

    spark: SparkSession
    store: Store
    directory: Directory
    progress: Progress


@contextmanager
def working(job: str, common: Common) -> Iterator[Work]:
    """Checks the directories and starts Spark. At the end, unlocks the tables and stops Spark.
    Raises errors that exits.end_of handles."""
    from kbroker_pipeline.sources import look
    from kbroker_pipeline.store import opened

    directory = look(common.data_dir)
    if common.out.resolve().is_relative_to(directory.path.resolve()):
        raise CommandFailed(
            f"{common.out} lies in the broker's data directory: choose another --out", Exit.USAGE
        )
    with opened(common.out, job, directory.cluster_id) as store, Progress() as progress:
        progress.tell("starting Spark")
        with spark_session(common.master, common.settings) as spark:
            yield Work(spark, store, directory, progress)


@contextmanager
def spark_session(
    master: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session with the settings that the jobs need. An existing session is used and not stopped.
    Raises CommandFailed if Spark does not start."""
    from pyspark.sql import SparkSession

    from kbroker_pipeline.frames import SETTINGS
    from kbroker_spark.session import register, session

    existing = SparkSession.getActiveSession()
    conf = {**DEFAULTS, **(settings or {}), **({} if master is None else {"spark.master": master})}
    if existing is None:
        quieten_gateway()
    try:
        spark = existing or session("kbroker-pipeline", **conf)
    except Exception as error:
        if not is_of_spark(error):
            raise
        why = " ".join(str(error).splitlines()[:2])
        raise CommandFailed(f"Spark did not start; check --master and --conf: {why}") from error
    if existing is None and threading.current_thread() is threading.main_thread():
        # Spark's own handler calls the JVM, possibly in the middle of another call.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    register(spark)
    try:
        yield spark
    finally:
        if existing is None:
            spark.stop()


def quieten_gateway() -> None:
    """Hides the tracebacks that py4j logs, mostly with the root logger, when Ctrl-C interrupts a
    call to the JVM. The exception is reported anyway."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_the_gateway)


def _is_not_of_the_gateway(record: logging.LogRecord) -> bool:
    return record.module not in ("java_gateway", "clientserver")


def finish(
    work: Work,
    common: Common,
    page: Page,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    facts: Mapping[str, Any],
) -> None:
    """Writes the page and prints the result: `facts` first, then each of `rows` as a table."""
    from kbroker_pipeline.report import write

    work.progress.tell("writing the page")
    path = write(page, common.report or work.store.report)
    work.progress.end()
    print_result(page.title, facts, rows, path, as_json=common.as_json)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="pyspark-kbroker", prog_name="kbroker-pipeline")
def cli() -> None:
    """Jobs on a kbroker data directory, whether or not its broker runs. Each writes Parquet tables
    and an HTML page."""


def load_commands() -> click.Group:
    """The command group with all its commands."""
    from kbroker_pipeline import commands, demo

    for command in (
        commands.archive,
        commands.queue_health,
        commands.dead_letter_report,
        commands.verify,
        demo.demo,
    ):
        cli.add_command(command)
    return cli


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    try:
        result = load_commands().main(arguments, prog_name="kbroker-pipeline", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        return end_of(error)
    return result if isinstance(result, int) else Exit.OK


def main() -> NoReturn:
    """The console script."""
    code = run()
    try:
        sys.stdout.flush()
    except OSError:  # The reader of stdout has gone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or Exit.REFUSED
    sys.exit(code)
