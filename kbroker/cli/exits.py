"""How a command ends: exit codes, and which error leads to which. docs/exit-codes.md explains them
to operators."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click
from click.exceptions import NoArgsIsHelpError

from kbroker.logging_setup import escaped

OK = 0
REFUSED = 1
USAGE = 2
UNREACHABLE = 3
DATA_DIRECTORY = 4
INTERRUPTED = 130


class CommandFailed(Exception):
    """A command ends with this exit code and one line on stderr."""

    def __init__(self, message: str, exit_code: int = REFUSED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def say(message: str) -> None:
    """One line for the person at the terminal, on stderr: stdout belongs to data."""
    click.echo(f"kbroker: {escaped(message)}", err=True)


def refuse(problems: Sequence[str]) -> None:
    """One line for each of several things that could not be done; returns only where there is
    none."""
    for problem in problems[:-1]:
        say(problem)
    if problems:
        raise CommandFailed(problems[-1])


def ask(question: str) -> None:
    """Go on only where a person at the terminal says yes; the question goes to stderr, stdout
    belongs to data.

    Raises CommandFailed where the answer is no, or where nobody can be asked: what is piped in is
    no answer.
    """
    if not sys.stdin.isatty():
        raise CommandFailed("nothing was deleted: nobody can be asked here, so --yes is needed", USAGE)
    try:
        answer = click.confirm(escaped(question), err=True)
    except click.Abort as error:
        if not isinstance(error.__context__, EOFError):
            raise
        click.echo(err=True)  # Ctrl-D ends the input, not the line
        answer = False
    if not answer:
        raise CommandFailed("nothing was deleted")


def end_of(error: BaseException) -> int:
    """Print the one line that an error deserves and return the exit code; what is none of ours is
    raised again."""
    match error:
        case NoArgsIsHelpError():
            error.show()
            return USAGE
        case click.UsageError():
            command = error.ctx.command_path if error.ctx is not None else "kbroker"
            say(f"{error.format_message()} (see {command} --help)")
            return USAGE
        case CommandFailed():
            say(str(error))
            return error.exit_code
        case click.ClickException():
            say(error.format_message())
            return REFUSED
        case KeyboardInterrupt() | click.Abort():
            return INTERRUPTED
        case BrokenPipeError():  # The reader of our output has left (`| head`): no news.
            give_up_stdout()
            return REFUSED
        case OSError():
            give_up_stdout()
            say(str(error))
            return REFUSED
        # Python's stand-ins for bytes of the command line that are no text
        case UnicodeEncodeError(encoding="utf-8"):
            say(f"{error.object!a} is no UTF-8")
            return USAGE
    return _end_of_work(error)


def give_up_stdout() -> None:
    """To be called when writing has failed: where it still does, what is left in the buffer is
    dropped. Python would complain at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        drop_stdout()


def drop_stdout() -> None:
    """What is written from now on, or still lies in the buffer, goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end_of_work(error: BaseException) -> int:
    """The errors of the parts that do the work, imported here because they are slow to import and
    `--help` has no use for them."""
    from kbroker.client.rpc import BrokerUnreachable
    from kbroker.errors import KafkaError, OperatorError

    match error:
        case KafkaError():
            say(error.message or error.code.name.replace("_", " "))
            return REFUSED
        case OperatorError():
            say(str(error))
            return UNREACHABLE if isinstance(error, BrokerUnreachable) else DATA_DIRECTORY
    raise error
