"""The command line: `kbroker COMMAND`.

One file or folder per command group; a command's file is imported when it is called, so that
`kbroker --help` stays quick. Commands parse and print; the server, the RPC client, the storage
readers and the ordinary Kafka client library do the work. Results go to stdout, messages for a
person to stderr. A refusal is one line with a documented exit code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple, NoReturn

import click

import kbroker
from kbroker.cli.exits import OK, end_of
from kbroker.cli.suggesting import SuggestingGroup


class LazyCommand(NamedTuple):
    """`target`: module in this package and the name of its click command. `summary`: the first line
    of its help."""

    target: str
    summary: str


COMMANDS: Mapping[str, LazyCommand] = {
    "start": LazyCommand("start:start", "Run a broker until SIGTERM or SIGINT."),
    "demo": LazyCommand(
        "demo.command:demo", "Show a durable queue at work: a broker, 50 000 orders, four share consumers."
    ),
    "queues": LazyCommand(
        "queues.command:queues", "Create, list, describe, fill, pause, purge and delete work queues."
    ),
    "worker": LazyCommand("worker:worker", "Run workers, functions in Python that do the jobs of queues."),
    "topics": LazyCommand("topics:topics", "Create, list, describe, alter and delete topics."),
    "produce": LazyCommand("produce:produce", "Send the lines of a file, or of standard input, as records."),
    "consume": LazyCommand(
        "consume:consume", "Print records of topics, from an offset onward or as a member of a group."
    ),
    "share-consume": LazyCommand(
        "share_consume:share_consume", "Print and acknowledge records as a member of a share group."
    ),
    "share-groups": LazyCommand(
        "share_groups.command:share_groups", "List, describe, reset and delete share groups."
    ),
    "dead-letters": LazyCommand(
        "dead_letters.command:dead_letters",
        "List, count, show, redrive and purge dead letters of share groups.",
    ),
    "groups": LazyCommand(
        "groups.command:groups", "List groups of all types; describe, reset and delete consumer groups."
    ),
    "transactions": LazyCommand(
        "transactions.command:transactions", "List and describe transactions; find hanging ones; abort them."
    ),
    "configs": LazyCommand(
        "configs:configs", "Describe, set and delete configs of topics, groups and brokers."
    ),
    "users": LazyCommand(
        "users.command:users", "Create, alter, delete and list users, who log in with a password."
    ),
    "acls": LazyCommand("acls.command:acls", "List, add and remove the entries that say what users may do."),
    "quotas": LazyCommand(
        "quotas:quotas", "List, set and remove quotas: how much users, client ids and addresses may use."
    ),
    "admin": LazyCommand("admin:admin", "The admin endpoint of a broker (`kbroker start --admin`)."),
    "tls": LazyCommand("tls.command:tls", "Make certificates, with which a broker encrypts its connections."),
    "docs": LazyCommand("docs:docs", "Read the documents: list the pages, or print one."),
    "storage": LazyCommand("storage:storage", "Inspect a data directory, even while a broker runs on it."),
}


class LazyGroup(SuggestingGroup):
    """Lists its commands from `COMMANDS` and imports a command only to run it."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        entry = COMMANDS.get(name)
        if entry is None:
            return None
        module, attribute = entry.target.split(":")
        command = getattr(import_module(f"kbroker.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


CONTEXT: Final[Mapping[str, Any]] = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
"""Settings of the outermost command; its subcommands inherit them."""


@click.group(cls=LazyGroup, context_settings=dict(CONTEXT))
@click.version_option(kbroker.__version__, prog_name="kbroker")
def cli() -> None:
    """A broker that speaks the Kafka protocol and turns topics into durable queues (share groups,
    KIP-932).

    `kbroker docs` has the documents.
    """


def run(
    arguments: Sequence[str] | None = None, command: click.Command = cli, prog_name: str = "kbroker"
) -> int:
    """Run one command and return its exit code. `command`: another outermost command, with the same
    errors and exit codes."""
    try:
        result = command.main(arguments, prog_name=prog_name, standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        return end_of(error)
    return result if isinstance(result, int) else OK


def main(command: click.Command = cli, prog_name: str = "kbroker") -> NoReturn:
    """The console script, or another program whose outermost command is `command`."""
    _open_standard_streams()
    code = run(None, command, prog_name)
    try:
        sys.stdout.flush()
    except OSError as error:
        code = end_of(error)
    sys.exit(code)


def _open_standard_streams() -> None:
    """Open /dev/null for each standard stream that is closed (`>&-`). Otherwise the broker's first
    file would get that number, and output of a C library would end up in the file."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        name = ("stdin", "stdout", "stderr")[fd]
        setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w"))
    os.close(fd)
