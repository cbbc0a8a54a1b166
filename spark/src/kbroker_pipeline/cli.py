"""The command line: `kbroker-pipeline JOB DATA_DIR`, and `python -m kbroker_pipeline` or
spark-submit of `__main__.py` for the same.

Commands check what they are given before Spark is started. A job's result is a short table (or,
with `--json`, one document) on stdout and an HTML page; everything said to a person goes to stderr,
and a refusal is one line with an exit code of kbroker's. This module must not know what a job does.
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
"""Of a session that the jobs start themselves, where nothing else is set. Most of what they shuffle
is small: few parts are quicker."""


class Moment(click.ParamType[int]):
    """A moment in ISO 8601, UTC unless it says otherwise; milliseconds."""

    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, context: click.Context | None) -> int:
        from datetime import UTC, datetime

        if isinstance(value, int):
            return value
        try:
            found = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no time such as 2026-01-31T08:00:00", param, context)
        return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


class Setting(click.ParamType[tuple[str, str]]):
    """One of Spark's settings: NAME=VALUE."""

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
    """What all jobs are given."""

    data_dir: Path
    out: Path
    report: Path | None
    as_json: bool
    master: str | None
    settings: Mapping[str, str]
    now_ms: int | None

    def moment_ms(self) -> int:
        """Now, unless another time is to count as now."""
        return self.now_ms if self.now_ms is not None else time.time_ns() // 1_000_000


def job_options(function: F) -> F:
    """The argument and the options of all jobs."""
    for option in (
        click.option(
            "--as-of",
            "now_ms",
            type=Moment(),
            help="What counts as now, for ages and for dates of snapshots. Default: now.",
        ),
        click.option(
            "--conf", "settings", type=Setting(), multiple=True, help="A setting of Spark; may be repeated."
        ),
        click.option(
            "--master", metavar="URL", help="Where Spark runs. Default: local[*], or what spark-submit says."
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
            help="Where the tables are kept.",
        ),
        click.argument("data_dir", type=click.Path(path_type=Path)),
    ):
        function = option(function)
    return function


class Work(NamedTuple):
    """What a job works with."""

    spark: SparkSession
    store: Store
    directory: Directory
    progress: Progress


@contextmanager
def working(job: str, common: Common) -> Iterator[Work]:
    """Checks the directories, starts Spark, and sees to it that both are given back. Raises what
    exits.end_of knows."""
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
    """A session with what the jobs need. It is stopped at the end, unless there was one before.
    CommandFailed: Spark does not start."""
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
        raise CommandFailed(f"Spark did not start, are --master and --conf right? {why}") from error
    if existing is None and threading.current_thread() is threading.main_thread():
        # Spark's own asks the JVM in the middle of another question.
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
    """Ctrl-C cuts off a question to the JVM, for which py4j logs tracebacks, mostly with the root
    logger; what it raises is told anyway."""
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
    """Write the page, and print the result: `facts` on top, then each of `rows` as a table."""
    from kbroker_pipeline.report import write

    work.progress.tell("writing the page")
    path = write(page, common.report or work.store.report)
    work.progress.end()
    print_result(page.title, facts, rows, path, as_json=common.as_json)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="pyspark-kbroker", prog_name="kbroker-pipeline")
def cli() -> None:
    """Jobs on a kbroker data directory: tables in Parquet, a page to look at, beside a live broker
    or without one."""


def load_commands() -> click.Group:
    """The group with all its commands."""
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
    """Run one command and return its exit code."""
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
    except OSError:  # The reader of our output has left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or Exit.REFUSED
    sys.exit(code)
