"""The end of a command: kbroker's exit codes, and one line on stderr for each expected error.

Errors of data sources arrive wrapped in tracebacks of Spark's worker processes, from which the line
that says what to do is extracted.
"""

from __future__ import annotations

import re
from enum import IntEnum

import click
from click.exceptions import NoArgsIsHelpError

from kbroker.errors import OperatorError
from kbroker_spark.errors import AFTER_LOSS, SourceError

_SOURCE_ERROR = re.compile(
    r"^(?:[\w.]+\.)?(?:SourceError|DataLoss|OperatorError|CorruptBatch|CommandFailed): (.+)$", re.MULTILINE
)
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded|Read-only file system")


class Exit(IntEnum):
    """The exit codes of docs/exit-codes.md."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    DATA_DIRECTORY = 4
    INTERRUPTED = 130


class CommandFailed(Exception):
    """Ends a command with this exit code and one line on stderr."""

    def __init__(self, message: str, exit_code: Exit = Exit.REFUSED) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code


def say(message: str) -> None:
    """Prints one line on stderr, since stdout is for results."""
    click.echo("kbroker-pipeline: " + " ".join(message.split()), err=True)


def end_of(error: BaseException) -> Exit:
    """Prints one line for an expected error and returns its exit code. Raises unexpected errors
    again."""
    match error:
        case NoArgsIsHelpError():
            error.show()
            return Exit.USAGE
        case click.UsageError():
            command = error.ctx.command_path if error.ctx is not None else "kbroker-pipeline"
            say(f"{error.format_message()} (see {command} --help)")
            return Exit.USAGE
        case CommandFailed():
            say(str(error))
            return error.exit_code
        case click.ClickException():
            say(error.format_message())
            return Exit.REFUSED
        case KeyboardInterrupt() | click.Abort():
            return Exit.INTERRUPTED
        case SourceError() | OperatorError():
            say(str(error))
            return Exit.DATA_DIRECTORY
        case OSError():
            say(
                f"cannot use {error.filename}: {error.strerror}"
                if error.filename and error.strerror
                else str(error)
            )
            return Exit.REFUSED
    return _end_of_spark(error)


def _end_of_spark(error: BaseException) -> Exit:
    line = line_of(error)
    if line is not None:
        say(line)
        return Exit.DATA_DIRECTORY
    problem = _NO_ROOM.search(str(error)) if is_of_spark(error) else None
    if problem is None:
        raise error
    say(
        f"Spark could not write ({problem[0]}): free space for --out and for Spark's temporary files, and "
        "run it again"
    )
    return Exit.REFUSED


def line_of(error: BaseException) -> str | None:
    """The data source's line in an exception of Spark; None if there is none. `archive` is the only
    job that fails on data loss."""
    if not is_of_spark(error):
        return None
    found = _SOURCE_ERROR.findall(str(error))
    return str(found[0]).replace(AFTER_LOSS, "Give --skip-lost to continue without it") if found else None


def is_of_spark(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")
