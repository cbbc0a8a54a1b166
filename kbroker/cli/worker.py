"""`kbroker worker run`: the command of the worker library, a distribution of its own. Apart from
click it is the same as `kbroker-worker run`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from kbroker.cli.exits import CommandFailed
from kbroker.cli.params import COUNT, FiniteRange
from kbroker.cli.security_options import command_config_option, security_of
from kbroker.cli.suggesting import SuggestingGroup
from kbroker.client.worker_security import client_security


@click.group(cls=SuggestingGroup)
def worker() -> None:
    """Run workers, functions in Python that do the jobs of queues."""


@worker.command()
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--queue",
    multiple=True,
    metavar="NAME",
    help="Only this queue; may be repeated.  [default: all queues of the app]",
)
@click.option("--concurrency", type=COUNT, help="Jobs at a time of each queue.  [default: the task's own]")
@click.option("--loop", type=click.Choice(["asyncio", "trio"]), help="The event loop.  [default: asyncio]")
@click.option(
    "--drain",
    type=FiniteRange(min=0),
    metavar="SECONDS",
    help="How many seconds running jobs may continue after the first signal; then they are "
    "cancelled and released.  [default: 30]",
)
@click.option(
    "--reload",
    is_flag=True,
    help="Restart when a .py file below this directory changes, also after an error; not with "
    "--command-config.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="The least level to log.  [default: info]",
)
@click.option(
    "--bootstrap-server",
    "-b",
    metavar="HOST:PORT",
    help="Address of the broker.  [default: the app's own; otherwise KBROKER_BOOTSTRAP or 127.0.0.1:9092]",
)
@command_config_option
@click.pass_context
def run(context: click.Context, /, app: str, **options: Any) -> int:  # noqa: ANN401
    """Do the jobs of an app's queues until SIGTERM or SIGINT.

    MODULE:APP is where the App is, such as shop.tasks:app; without :APP it is app. The module is
    looked for in this directory first. At the first signal running jobs may end; a second one ends
    the worker at once. --command-config, or KBROKER_SECURITY_* of the environment, replaces the
    security that the app has.

    Needs the package kbroker-client, whose `kbroker-worker run` is the same command.
    """
    try:
        from kbroker_client.worker.cli import main
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("kbroker_client"):
            raise
        raise CommandFailed(
            "workers need the package kbroker-client: in a checkout, pip install ./clients/python"
        ) from error
    security = client_security(security_of(context))
    if security is not None and options["reload"]:
        raise CommandFailed("--reload cannot be used with --command-config: give the App its security")
    try:
        return main(["run", *_arguments(options), "--", app], program="kbroker worker", security=security)
    except SystemExit as error:
        if isinstance(error.code, str):
            raise CommandFailed(error.code.removeprefix("worker: ")) from error
        raise


def _arguments(options: dict[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            if value:
                yield option
        elif isinstance(value, tuple):
            yield from (f"{option}={each}" for each in value)
        elif value is not None:
            yield f"{option}={value}"
