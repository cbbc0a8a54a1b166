"""How a command ends: the exit codes, and the error behind each. docs/exit-codes.md explains them
to operators."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click
from click.exceptions import NoArgsIsHelpError

from kbroker.cli.logging_setup import escaped
from kbroker.cli.suggesting import no_such_option

OK = 0
REFUSED = 1
USAGE = 2
UNREACHABLE = 3
DATA_DIRECTORY = 4
INTERRUPTED = 130


class CommandFailed(Exception):
    """Ends the command with this exit code and one line on stderr."""

    def __init__(self, message: str, exit_code: int = REFUSED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def say(message: str) -> None:
    """Print a line for a person on stderr; stdout is for data."""
    click.echo(f"kbroker: {escaped(message)}", err=True)


def refuse(problems: Sequence[str], exit_code: int = REFUSED) -> None:
    """Print a line for each problem and fail; returns only if there is none."""
    for problem in problems[:-1]:
        say(problem)
    if problems:
        raise CommandFailed(problems[-1], exit_code)


def ask(question: str, if_not: str = "nothing was deleted") -> None:
    """Return only if a person at the terminal answers yes. The question goes to stderr; stdout is
    for data. `if_not`: what to say otherwise.

    Raises CommandFailed if the answer is no, or if stdin is not a terminal: piped input is not an
    answer.
    """
    if not sys.stdin.isatty():
        raise CommandFailed(f"{if_not}: there is no terminal to confirm on, so --yes is needed", USAGE)
    try:
        answer = click.confirm(escaped(question), err=True)
    except click.Abort as error:
        if not isinstance(error.__context__, EOFError):
            raise
        click.echo(err=True)  # Ctrl-D ends the input, not the line
        answer = False
    if not answer:
        raise CommandFailed(if_not)


def end_of(error: BaseException) -> int:
    """Print an error's line and return its exit code. An error that is not kbroker's is raised
    again."""
    match error:
        case NoArgsIsHelpError():
            error.show()
            return USAGE
        case click.UsageError():
            command = error.ctx.command_path if error.ctx is not None else "kbroker"
            line = no_such_option(error) if isinstance(error, click.NoSuchOption) else error.format_message()
            say(f"{line} (see {command} --help)")
            return USAGE
        case CommandFailed():
            say(str(error))
            return error.exit_code
        case click.ClickException():
            say(error.format_message())
            return REFUSED
        case KeyboardInterrupt() | click.Abort():
            return INTERRUPTED
        case BrokenPipeError():  # The reader of the output has closed it (`| head`): not worth a line.
            give_up_stdout()
            return REFUSED
        case OSError():
            give_up_stdout()
            say(str(error))
            return REFUSED
        # surrogate escapes: bytes of the command line that are not UTF-8
        case UnicodeEncodeError(encoding="utf-8"):
            say(f"{error.object!a} is not UTF-8")
            return USAGE
    return _end_of_work(error)


def give_up_stdout() -> None:
    """Call it after a failed write. If a flush fails again, drops the buffered output, about which
    Python would complain at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        drop_stdout()


def drop_stdout() -> None:
    """Discard all output from now on, and the buffered output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end_of_work(error: BaseException) -> int:
    """Errors of the server, the storage and the client. They are imported here, since the imports
    are slow and `--help` does not need them."""
    from kbroker.client.queues.advice import QueueRefused
    from kbroker.client.rpc import BrokerUnreachable
    from kbroker.errors import KafkaError, OperatorError

    match error:
        case QueueRefused():
            say(str(error))
            return REFUSED
        case KafkaError():
            say(error.message or error.code.name.replace("_", " "))
            return REFUSED
        case OperatorError():
            say(str(error))
            return UNREACHABLE if isinstance(error, BrokerUnreachable) else DATA_DIRECTORY
    raise error
