"""Shared by `kbroker groups` and `kbroker share-groups`: views of groups, reasons why a group is
refused, and deletions."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import click

from kbroker.cli.exits import CommandFailed, refuse, say
from kbroker.cli.logging_setup import escaped
from kbroker.cli.output import Cell, Table, print_json, print_table
from kbroker.cli.params import Address, options
from kbroker.client.group_admin import kind_of_group
from kbroker.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.client.consumer_group_admin import ConsumerGroupDescription
    from kbroker.client.group_admin import CoordinatorNode, ShareGroupDescription
    from kbroker.client.rpc import Connection

VIEWS = ("offsets", "members", "state")
F = TypeVar("F", bound=Callable[..., Any])
G = TypeVar("G", "ConsumerGroupDescription", "ShareGroupDescription")
Row = TypeVar("Row")


class Described(NamedTuple, Generic[G, Row]):
    """The data of a view, and a line for each thing that could not be described."""

    groups: list[G]
    offsets: dict[str, list[Row]]
    coordinators: dict[str, CoordinatorNode]
    problems: list[str]


def view_options(**texts: str) -> Callable[[F], F]:
    """The options that choose a view, with their help texts."""
    return options(*(click.option(f"--{name}", is_flag=True, help=text) for name, text in texts.items()))


def one_view(views: Mapping[str, bool]) -> str:
    given = [view for view in VIEWS if views[view]]
    if len(given) > 1:
        raise click.UsageError("--offsets, --members and --state exclude each other")
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


def described(
    connection: Connection,
    names: Sequence[str],
    answers: Sequence[G | KafkaError],
    view: str,
    offsets_of: Callable[[Connection, Sequence[G]], dict[str, list[Row]]],
) -> Described[G, Row]:
    """`answers`: one for each name. Requests what the view needs in addition."""
    from kbroker.client.group_admin import find_coordinators

    refused = {name: each for name, each in zip(names, answers, strict=True) if isinstance(each, KafkaError)}
    types = types_where_missing(connection, refused.values())
    problems = [why_not(name, error, types.get(name)) for name, error in refused.items()]
    groups = sorted(each for each in answers if not isinstance(each, KafkaError))
    offsets = offsets_of(connection, groups) if view == "offsets" else {}
    coordinators = {}
    if view == "state" and groups:
        coordinators = find_coordinators(connection, [each.group_id for each in groups])
    return Described(groups, offsets, coordinators, problems)


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


def delete_groups(
    connection: Connection,
    kind: str,
    names: Sequence[str],
    others: Mapping[str, str],
    kept: Mapping[str, str],
) -> dict[str, str]:
    """Delete these groups. Returns the reason for each that was not deleted.

    - `others`: types of groups that are not of this kind. DeleteGroups accepts groups of any type,
      so they are excluded here.
    - `kept`: reasons why groups of this kind are not deleted.
    """
    from kbroker.client import group_admin

    reasons = dict(kept)
    for name, other in others.items():
        reasons[name] = f"it is {kind_of_group(other)}{instead(name, other, 'delete')}"
    # The broker says so if there is no such group, or if this user may not see it.
    wanted = [name for name in names if name not in reasons]
    refused = group_admin.delete_groups(connection, wanted) if wanted else {}
    reasons |= {name: why_not_deleted(kind, error) for name, error in refused.items()}
    return {name: reasons[name] for name in names if name in reasons}


def why_not_deleted(kind: str, error: KafkaError) -> str:
    return known_reason(kind, error) or error.message or error.code.name


def known_reason(kind: str, error: KafkaError) -> str | None:
    """Why a group, or an offset of a group, was not deleted. None for other codes."""
    return {
        ErrorCode.non_empty_group: "it has members; stop them first",
        ErrorCode.group_id_not_found: f"there is no {kind} of this name",
        ErrorCode.group_subscribed_to_topic: "the group has members that are subscribed to the topic",
    }.get(error.code)


def report_offset_deletions(
    columns: tuple[str, ...], results: Mapping[tuple[Cell, ...], str | None], *, as_json: bool
) -> None:
    """Print which offsets were deleted. `results`: the reason why not, by the cells of `columns`.
    Raises CommandFailed if there is one."""
    rows: list[tuple[Cell, ...]]
    if as_json:
        rows = [(*place, error is None, error) for place, error in results.items()]
        print_json(Table((*columns, "DELETED", "ERROR"), rows).as_json())
    else:
        rows = [(*place, f"Error: {error}" if error else "Successful") for place, error in results.items()]
        print_table((*columns, "STATUS"), rows)
    if refused := sum(error is not None for error in results.values()):
        what = f"{refused} of {len(results)} {columns[-1].lower()}s"
        raise CommandFailed(f"offsets of {what} could not be deleted")


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
