"""`kbroker share-groups`: list, describe, reset and delete share groups, with the options and
columns of Kafka's tool.

Longer commands are in separate files and are added at the end of this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kbroker.cli.group_views import (
    delete_groups,
    report_deletions,
    report_offset_deletions,
    types_where_missing,
    why_not,
)
from kbroker.cli.inflight import inflight
from kbroker.cli.logging_setup import escaped
from kbroker.cli.output import Cell, Table, print_json, print_table
from kbroker.cli.params import (
    Bootstrap,
    bootstrap_option,
    connect,
    each_not_blank,
    json_option,
    not_blank,
    states_option,
)
from kbroker.cli.share_groups.describe import describe
from kbroker.cli.share_groups.reset import reset_offsets
from kbroker.cli.suggesting import SuggestingGroup
from kbroker.errors import KafkaError

if TYPE_CHECKING:
    from kbroker.client.rpc import Connection

STATES = ("Empty", "Stable", "Dead")


@click.group("share-groups", cls=SuggestingGroup)
def share_groups() -> None:
    """List, describe, reset and delete share groups."""


@share_groups.command("list")
@states_option(STATES)
@json_option("An array of objects: group, state.")
@bootstrap_option
def list_groups(states: tuple[str, ...] | None, as_json: bool, bootstrap: Bootstrap) -> None:
    """List the ids of all share groups, one per line.

    \b
    Examples:
      kbroker share-groups list --state
      kbroker share-groups list --state Empty --json
    """
    from kbroker.client import group_admin

    with connect(bootstrap) as connection:
        groups = group_admin.groups(connection, states=states or ())
    table = Table(("GROUP", "STATE"), [(group.group_id, group.state) for group in groups])
    if as_json:
        print_json(table.as_json())
    elif states is not None:
        print_table(*table)
    else:
        for group in groups:
            click.echo(escaped(group.group_id))


@share_groups.command()
@click.argument("group", nargs=-1, required=True, callback=each_not_blank)
@click.option("--force", is_flag=True, help="Delete even the group of a queue that has unfinished jobs.")
@json_option("An array of objects: group, deleted, error (null or the reason).")
@bootstrap_option
def delete(group: tuple[str, ...], force: bool, as_json: bool, bootstrap: Bootstrap) -> None:
    """Delete each GROUP with its offsets and configs.

    A group that has members is refused, and so is a name that is not a share group. The group of a
    queue that has unfinished jobs is refused without --force. The other groups are deleted, and the
    exit code is 1.

    \b
    Examples:
      kbroker share-groups delete workers
    """
    with connect(bootstrap) as connection:
        refused = _delete(connection, group, force=force)
    report_deletions("share group", group, refused, as_json=as_json)


def _delete(connection: Connection, names: tuple[str, ...], *, force: bool) -> dict[str, str]:
    """The reason for each group that was not deleted."""
    from kbroker.cli.queues.found import why_not_to_delete
    from kbroker.client.group_admin import group_types

    types = group_types(connection)
    others = {name: types[name] for name in names if types.get(name, "share") != "share"}
    kept = {} if force else why_not_to_delete(connection, names)
    return delete_groups(connection, "share group", names, others, kept)


@share_groups.command("delete-offsets")
@click.argument("group", callback=not_blank)
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC",
    multiple=True,
    required=True,
    callback=each_not_blank,
    help="Delete the offsets of this topic; may be repeated.",
)
@json_option(
    "An array of objects: topic, deleted, error (null or the reason), instead of the columns TOPIC"
    " and STATUS."
)
@bootstrap_option
def delete_offsets(group: str, topics: tuple[str, ...], as_json: bool, bootstrap: Bootstrap) -> None:
    """Delete the offsets of GROUP in topics.

    When GROUP reads these topics again, it begins as a new group. GROUP must have no members. If
    the offsets of a topic cannot be deleted, those of the others are, and the exit code is 1.

    \b
    Examples:
      kbroker share-groups delete-offsets workers --topic orders --topic returns
    """
    from kbroker.client import group_admin

    with connect(bootstrap) as connection:
        try:
            refused = group_admin.delete_share_group_offsets(connection, group, topics)
        except KafkaError as error:
            other = types_where_missing(connection, [error]).get(group)
            raise KafkaError(error.code, why_not(group, error, other, "delete-offsets")) from error
    results: dict[tuple[Cell, ...], str | None] = {
        (name,): refused[name].message if name in refused else None for name in topics
    }
    report_offset_deletions(("TOPIC",), results, as_json=as_json)


share_groups.add_command(describe)
share_groups.add_command(inflight)
share_groups.add_command(reset_offsets)
