"""Shared by `kbroker groups` and `kbroker share-groups`: views of groups, reasons why a group is
refused, and the report of deletions."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from kbroker.cli.exits import refuse, say
from kbroker.cli.logging_setup import escaped
from kbroker.cli.output import Cell, print_json, print_table
from kbroker.cli.params import Address
from kbroker.client.group_admin import kind_of_group
from kbroker.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.client.group_admin import CoordinatorNode
    from kbroker.client.rpc import Connection

VIEWS = ("offsets", "members", "state")
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=tuple[Any, ...])


class Table(NamedTuple):
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]


def view_options(offsets: str, members: str, state: str, verbose: str) -> Callable[[F], F]:
    """The options that choose a view, with the given help texts."""

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
    """Print the result, as JSON or as a table with notes for a person. Raises CommandFailed if
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
    """The described groups, sorted, and a line for each group that could not be described."""
    refused = {
        name: each for name, each in zip(names, described, strict=True) if isinstance(each, KafkaError)
    }
    types = types_where_missing(connection, refused.values())
    problems = [why_not(name, error, types.get(name)) for name, error in refused.items()]
    return sorted(each for each in described if not isinstance(each, KafkaError)), problems


def types_where_missing(connection: Connection, errors: Iterable[KafkaError]) -> Mapping[str, str]:
    """Types of all groups if one of `errors` is "not found", since that group may be of another
    type; otherwise empty, without a request."""
    from kbroker.client import group_admin

    missing = any(error.code is ErrorCode.group_id_not_found for error in errors)
    return group_admin.group_types(connection) if missing else {}


def why_not(
    group_id: str, error: KafkaError, group_type: str | None = None, command: str = "describe"
) -> str:
    """A line for a group that could not be described. `group_type`: the type of the group of this
    name, if there is one. `command`: the subcommand that was called."""
    from kbroker.client.answers import reason

    if group_type is not None and error.code is ErrorCode.group_id_not_found:
        return of_other_type(group_id, group_type, command)
    text = reason(error.code, error.message)
    return text if group_id in text else f"group {group_id}: {text}"


def in_use(kind: str, group_id: str, members: int) -> str:
    """A line for a group that must be empty and is not. `members` may be 0 while the group waits
    for members."""
    who = (
        f"it has {members} member{'s' * (members > 1)}; stop them first"
        if members
        else "members are leaving or joining; try again"
    )
    return f"{kind} {group_id} is not empty: {who}"


def of_other_type(group_id: str, group_type: str, command: str) -> str:
    """A line for a group of another type than the command is for. `command`: the subcommand that
    was called."""
    return f"group {group_id} is {kind_of_group(group_type)}{instead(group_id, group_type, command)}"


def instead(group_id: str, group_type: str, command: str) -> str:
    """Names the command for groups of this type; empty where there is none."""
    commands = _COMMANDS.get(group_type)
    return "" if commands is None else f"; use `kbroker {commands} {command} {shlex.quote(group_id)}`"


_COMMANDS: Mapping[str, str] = {"share": "share-groups", "classic": "groups", "consumer": "groups"}


def coordinator_text(node: CoordinatorNode) -> str:
    return f"{Address(node.host, node.port)} ({node.node_id})"


def assignment_text(assignment: Mapping[str, Sequence[int]]) -> str:
    """In Kafka's form: `orders:0,1;returns:2`."""
    return ";".join(
        f"{topic}:{','.join(map(str, partitions))}" for topic, partitions in sorted(assignment.items())
    )


def report_deletions(kind: str, names: Sequence[str], refused: Mapping[str, str], *, as_json: bool) -> None:
    """Print which groups were deleted, and a line with the reason for each that was `refused`.
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
