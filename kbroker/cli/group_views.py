"""What `kbroker groups` and `kbroker share-groups` have in common: views of a group, and how deleting groups ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from kbroker.cli.exits import refuse, say
from kbroker.cli.output import Cell, print_json, print_table
from kbroker.cli.params import Address
from kbroker.errors import KafkaError
from kbroker.logging_setup import escaped

if TYPE_CHECKING:
    from kbroker.client.group_admin import Coordinator

VIEWS = ("offsets", "members", "state")
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=tuple[Any, ...])


class Table(NamedTuple):
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]


def view_options(offsets: str, members: str, state: str, verbose: str) -> Callable[[F], F]:
    """The options that choose a view, with their help."""

    def add(function: F) -> F:
        for name, text in (("--verbose", verbose), ("--state", state), ("--members", members), ("--offsets", offsets)):
            function = click.option(name, is_flag=True, help=text)(function)
        return function

    return add


def one_view(context: click.Context, offsets: bool, members: bool, state: bool) -> str:
    given = [view for view, is_given in zip(VIEWS, (offsets, members, state), strict=True) if is_given]
    if len(given) > 1:
        raise click.UsageError("--offsets, --members and --state exclude each other", context)
    return given[0] if given else "offsets"


def report(table: Table, notes: Iterable[str], documents: list[dict[str, Any]], problems: Sequence[str], *, as_json: bool) -> None:
    """What was found, as JSON or as a table with notes for a person. Raises CommandFailed where there are problems."""
    if as_json:
        print_json(documents)
    else:
        for line in notes:
            say(line)
        if table.rows:
            print_table(*table)
    refuse(problems)


def told_apart(names: Sequence[str], described: Sequence[T | KafkaError]) -> tuple[list[T], list[str]]:
    """What came of groups, sorted, and a line for each of which nothing came."""
    problems = [why_not(name, each) for name, each in zip(names, described, strict=True) if isinstance(each, KafkaError)]
    return sorted(each for each in described if not isinstance(each, KafkaError)), problems


def why_not(group_id: str, error: KafkaError) -> str:
    """A line for a group that could not be described."""
    from kbroker.client.answers import reason

    text = reason(error.code, error.message)
    return text if group_id in text else f"group {group_id}: {text}"


def in_use(kind: str, group_id: str, members: int) -> str:
    """A line for a group that must have no members. None may be left of those that it still waits for."""
    who = f"it has {members} member{'s' * (members > 1)}; stop them first" if members else "its members are leaving or coming; try again"
    return f"{kind} {group_id} is not empty: {who}"


def of_other_type(group_id: str, group_type: str) -> str:
    """A line for a group that should be a consumer group."""
    return f"group {group_id} is no consumer group: its type is {group_type}"


def coordinator_text(node: Coordinator) -> str:
    return f"{Address(node.host, node.port)} ({node.node_id})"


def assignment_text(assignment: Mapping[str, Sequence[int]]) -> str:
    """As Kafka writes it: `orders:0,1;returns:2`."""
    return ";".join(f"{topic}:{','.join(map(str, partitions))}" for topic, partitions in sorted(assignment.items()))


def report_deletions(kind: str, names: Sequence[str], refused: Mapping[str, str], *, as_json: bool) -> None:
    """Say which groups of a kind were deleted; a line for each that was `refused`, with its reason. Raises CommandFailed if any was."""
    deleted = [name for name in names if name not in refused]
    if as_json:
        print_json([{"group": name, "deleted": name not in refused, "error": refused.get(name)} for name in names])
    elif not refused:
        click.echo(f"Deletion of requested {kind}s ({_quoted(deleted)}) was successful.")
    elif deleted:
        click.echo(f"These {kind}s were deleted successfully: {_quoted(deleted)}")
    refuse([f"{kind} {name} could not be deleted: {why}" for name, why in refused.items()])


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{escaped(name)}'" for name in names)
