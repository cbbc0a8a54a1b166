"""The command line of workers: `kbroker-worker run module:app`, also `kbroker worker run` and
`python -m kbroker_client.worker run`."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Final

from ..addresses import addresses
from ..security import Security
from .app import DRAIN_S, App
from .service import run

_USAGE: Final = 2
_FAILED: Final = 1
_LEVELS: Final = ("debug", "info", "warning", "error")
_IMPORTING: Final = (__name__, "importlib")
LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class BadApp(Exception):
    """The argument names no app: one line for a person."""


def main(
    arguments: Sequence[str] | None = None,
    *,
    program: str = "kbroker-worker",
    security: Security | None = None,
) -> int:
    """Returns the exit code, or raises SystemExit with one line. `security`: in place of the app's
    own; not with --reload."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser(program).parse_args(given)
    if options.reload:
        from .reload import run_and_reload

        return run_and_reload([each for each in given if each != "--reload"], os.getcwd())
    logging.basicConfig(level=options.log_level.upper(), format=LOG_FORMAT)
    try:
        _check_loop(options.loop)
        app = load(options.app)
    except BadApp as error:
        print(f"{program}: {error}", file=sys.stderr)
        return _USAGE
    except Exception as error:
        found = _from_the_module(error.__traceback__)
        traceback.print_exception(error.with_traceback(found))
        print(f"{program}: {options.app.partition(':')[0]} cannot be imported", file=sys.stderr)
        return _FAILED
    if options.bootstrap:
        app.bootstrap = options.bootstrap
    try:
        addresses(app.bootstrap)
    except ValueError as error:  # Of the environment.
        print(f"{program}: {error}", file=sys.stderr)
        return _USAGE
    if security is not None:
        app.security = security
    run(app, loop=options.loop, queues=options.queue, concurrency=options.concurrency, drain=options.drain)
    return 0


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(program, description="Workers for the queues of kbroker and Kafka.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    # Not abbreviated: --reload is taken out of the arguments for the worker's own process.
    command = commands.add_parser(
        "run", allow_abbrev=False, help="Do the jobs of an app's queues until SIGTERM or SIGINT.",
        description="Do the jobs of an app's queues until SIGTERM or SIGINT. Running jobs may end; a second "
        "signal ends the worker at once.",
    )  # fmt: skip
    add = command.add_argument
    add("app", metavar="MODULE:APP", help="where the App is, such as shop.tasks:app (:app may be left out)")
    add("--queue", action="append", default=[], metavar="NAME", help="only this queue; may be repeated")
    add("--concurrency", type=_count, metavar="N", help="jobs at a time of each queue")
    add("--loop", choices=("asyncio", "trio"), default="asyncio", help="default: asyncio")
    add("--drain", type=_seconds, default=DRAIN_S, metavar="SECONDS",
        help=f"how long running jobs may continue after the first signal; default: {DRAIN_S:g}")  # fmt: skip
    add("--bootstrap-server", "-b", dest="bootstrap", type=_bootstrap, metavar="HOST:PORT",
        help="default: the app's own")  # fmt: skip
    add("--reload", action="store_true", help="start again when a .py file below this directory changes")
    add("--log-level", choices=_LEVELS, default="info", help="default: info")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def _bootstrap(text: str) -> str:
    try:
        addresses(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def _check_loop(loop: str) -> None:
    """Raises BadApp."""
    if loop == "trio" and importlib.util.find_spec("trio") is None:
        raise BadApp("--loop trio needs trio: pip install trio")


def load(place: str) -> App:
    """The app at `module:name`. Raises BadApp, and what the module raises."""
    module_name, _, name = place.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")) or module_name.endswith(".py"):
        file = os.path.normpath(module_name).removesuffix(".py").replace(os.sep, ".")
        example = f"{file}:{name or 'app'}" if module_name.endswith(".py") else "shop.tasks:app"
        raise BadApp(f"{place!r} is not MODULE:APP, such as {example}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # The module is there and imports one that is not.
        raise BadApp(f"there is no module {module_name} here or in the environment") from None
    found = getattr(module, name or "app", None)
    if not isinstance(found, App):
        apps = [key for key, value in vars(module).items() if isinstance(value, App)]
        hint = f"; it has {module_name}:{apps[0]}" if apps else ""
        raise BadApp(f"{module_name} has no App {name or 'app'}{hint}")
    return found


def _from_the_module(found: TracebackType | None) -> TracebackType | None:
    """Without the lines of the import system before it."""
    while found is not None and found.tb_frame.f_globals.get("__name__", "").startswith(_IMPORTING):
        found = found.tb_next
    return found


def console() -> None:
    """The console script."""
    sys.exit(main())
