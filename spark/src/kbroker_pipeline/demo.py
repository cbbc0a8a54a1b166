"""`kbroker-pipeline demo`: runs a broker, orders, two share groups, and all jobs on the directory
of the running broker. The pages are kept."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext, redirect_stdout
from io import StringIO
from pathlib import Path

import click

from kbroker_pipeline.cli import load_commands, spark_session
from kbroker_pipeline.exits import CommandFailed, Exit, say

QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
}
"""For many small queries, where optimizing compilation would take longer than execution."""


@click.command()
@click.option(
    "--home",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The directory for all files. Default: a new temporary directory.",
)
@click.option(
    "--storage", default="segment", show_default=True, metavar="ENGINE", help="The broker's storage engine."
)
@click.option(
    "--orders",
    "count",
    type=click.IntRange(min=100),
    default=20_000,
    show_default=True,
    metavar="N",
    help="Number of orders.",
)
@click.option(
    "--rounds",
    type=click.IntRange(2, 50),
    default=5,
    show_default=True,
    metavar="N",
    help="Number of snapshots of the queues.",
)
def demo(home: Path | None, storage: str, count: int, rounds: int) -> None:
    """Run a broker, orders (some of them poison), two share groups, and all jobs on its directory.

    Prints the paths of the pages. Nothing is removed at the end.
    """
    from kbroker import plugins
    from kbroker.errors import OperatorError
    from kbroker_pipeline import demo_work

    if storage == "memory":
        raise click.UsageError("the memory engine stores nothing on disk")
    try:
        plugins.log_store_factory(storage)
        plugins.state_store_factory(storage)
    except OperatorError as error:
        raise CommandFailed(str(error), Exit.USAGE) from error
    home = (home or Path(tempfile.mkdtemp(prefix="kbroker-spark-demo-"))).absolute()
    data_dir, out = home / "data", home / "tables"
    if data_dir.exists():
        raise CommandFailed(f"{data_dir} already exists: choose another --home", Exit.USAGE)
    home.mkdir(parents=True, exist_ok=True)
    with spark_session(settings=QUICK), demo_work.broker(data_dir, storage) as bootstrap:
        say(f"a broker runs at {bootstrap} on {data_dir}")
        demo_work.prepare(bootstrap)
        each = count // rounds
        for number in range(rounds):
            _round(bootstrap, number, each, last=number == rounds - 1)
            if number < rounds - 1:
                _job("queue-health", data_dir, out, quiet=True)
        for job in ("archive", "queue-health", "dead-letter-report", "verify"):
            _job(job, data_dir, out)
    click.echo("\nThe broker has ended. Open these pages:")
    for page in sorted((out / "reports").glob("*.html")):
        click.echo(f"  {page.as_uri()}")


def _round(bootstrap: str, number: int, count: int, *, last: bool) -> None:
    """Produces orders. order-workers process most of them; mailer falls further behind in each
    round and stops before the last."""
    from kbroker_pipeline import demo_work

    say(f"round {number + 1}: {count:,} orders")
    demo_work.produce(bootstrap, number * count, count)
    most = None if number % 2 else count * 4 // 5
    demo_work.consume(bootstrap, demo_work.WORKERS, demo_work.worker, most)
    if not last:
        demo_work.consume(bootstrap, demo_work.MAILER, demo_work.mailer, count // (2 + number))


def _job(job: str, data_dir: Path, out: Path, *, quiet: bool = False) -> None:
    """Runs the command with a user's arguments, in this process and on its Spark session."""
    arguments = [job, str(data_dir), "--out", str(out)]
    if job == "queue-health":
        arguments += ["--stuck-after", "0"]
    if job == "archive":
        arguments += ["--batch-records", "2500"]
    say("kbroker-pipeline " + " ".join(arguments))
    with redirect_stdout(StringIO()) if quiet else nullcontext():
        code = load_commands().main(arguments, prog_name="kbroker-pipeline", standalone_mode=False)
    if isinstance(code, int) and code:
        raise CommandFailed(f"{job} ended with exit code {code}", Exit(code))
