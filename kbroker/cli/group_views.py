"""What `kbroker groups` and `kbroker share-groups` have in common: views of a group, and how
deleting groups ends."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from kbroker.cli.exits import refuse, say
from kbroker.cli.output import Cell, print_json, print_table
from kbroker.cli.params import Address
from kbroker.errors import ErrorCode, KafkaError
from kbroker.logging_setup import escaped

if TYPE_CHECKING:
    from kbroker.client.group_admin import Coordinator
    from kbroker.client.rpc import Connection

VIEWS = ("offsets", "members", "state")
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=tuple[Any, ...])


class Table(NamedTuple):
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]


def view_options(offsets: str, members: str, state: str, verbose: str) -> Callable[[F], F]:
    """The options that choose a view, with their help."""

    def add(function: F) -> F:
        for name, text in (
            ("--verbose", verbose),
            ("--state", state),
            ("--members", members),
            ("--offsets", offsets),
        ):
            function = click.option(name, is_flag=True, help=text)(function)
        return function

    return add


def one_view(context: click.Context, offsets: bool, members: bool, state: bool) -> str:
    given = [view for view, is_given in zip(VIEWS, (offsets, members, state), strict=True) if is_given]
    if len(given) > 1:
        raise click.UsageError("--offsets, --members and --state exclude each other", context)
    return given[0] if given else "offsets"


def report(
    table: Table,
    notes: Iterable[str],
    documents: list[dict[str, Any]],
    problems: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """What was found, as JSON or as a table with notes for a person. Raises CommandFailed where
    there are problems."""
    if as_json:
        print_json(documents)
    else:
        for line in notes:
            say(line)
        if table.rows:
            print_table(*table)
    refuse(problems)


def told_apart(
    names: Sequence[str], described: Sequence[T | KafkaError], connection: Connection
) -> tuple[list[T], list[str]]:
    """What came of groups, sorted, and a line for each of which nothing came."""
    refused = {
        name: each for name, each in zip(names, described, strict=True) if isinstance(each, KafkaError)
    }
    types = types_where_missing(connection, refused.values())
    problems = [why_not(name, error, types.get(name)) for name, error in refused.items()]
    return sorted(each for each in described if not isinstance(each, KafkaError)), problems


def types_where_missing(connection: Connection, errors: Iterable[KafkaError]) -> Mapping[str, str]:
    """Types of all groups, asked for only where a group was not found: it may be of another
    type."""
    from kbroker.client import group_admin

    missing = any(error.code is ErrorCode.group_id_not_found for error in errors)
    return group_admin.group_types(connection) if missing else {}


def why_not(
    group_id: str, error: KafkaError, group_type: str | None = None, command: str = "describe"
) -> str:
    """A line for a group that could not be described. `group_type`: what there is of this name;
    `command`: what was to be done."""
    from kbroker.client.answers import reason

    if group_type is not None and error.code is ErrorCode.group_id_not_found:
        return of_other_type(group_id, group_type, command)
    text = reason(error.code, error.message)
    return text if group_id in text else f"group {group_id}: {text}"


def in_use(kind: str, group_id: str, members: int) -> str:
    """A line for a group that must have no members. None may be left of those that it still waits
    for."""
    who = (
        f"it has {members} member{'s' * (members > 1)}; stop them first"
        if members
        else "its members are leaving or coming; try again"
    )
    return f"{kind} {group_id} is not empty: {who}"


def of_other_type(group_id: str, group_type: str, command: str) -> str:
    """A line for a group that is of another type than the command is for: `command` is the
    subcommand that was meant."""
    return f"group {group_id} is {kind_of_group(group_type)}{instead(group_id, group_type, command)}"


def kind_of_group(group_type: str) -> str:
    """Groups of both protocols are consumer groups to a person."""
    return f"a {'consumer' if group_type == 'classic' else group_type} group"


def instead(group_id: str, group_type: str, command: str) -> str:
    """Which command is for groups of this type; nothing where none is."""
    commands = _COMMANDS.get(group_type)
    return "" if commands is None else f"; use `kbroker {commands} {command} {shlex.quote(group_id)}`"


_COMMANDS: Mapping[str, str] = {"share": "share-groups", "classic": "groups", "consumer": "groups"}


def coordinator_text(node: Coordinator) -> str:
    return f"{Address(node.host, node.port)} ({node.node_id})"


def assignment_text(assignment: Mapping[str, Sequence[int]]) -> str:
    """As Kafka writes it: `orders:0,1;returns:2`."""
    return ";".join(
        f"{topic}:{','.join(map(str, partitions))}" for topic, partitions in sorted(assignment.items())
    )


def report_deletions(kind: str, names: Sequence[str], refused: Mapping[str, str], *, as_json: bool) -> None:
    """Say which groups of a kind were deleted; a line for each that was `refused`, with its reason.
    Raises CommandFailed if any was."""
    deleted = [name for name in names if name not in refused]
    if as_json:
        print_json(
            [{"group": name, "deleted": name not in refused, "error": refused.get(name)} for name in names]
        )
    elif not refused:
        click.echo(f"Deletion of requested {kind}s ({_quoted(deleted)}) was successful.")
    elif deleted:
        click.echo(f"These {kind}s were deleted successfully: {_quoted(deleted)}")
    refuse([f"{kind} {name} could not be deleted: {why}" for name, why in refused.items()])


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{escaped(name)}'" for name in names)
