"""`kbroker share-groups`: list, describe, reset and delete share groups, with the options and
columns of Kafka's tool.

Longer commands are in separate files and are added at the end of this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kbroker.cli.exits import CommandFailed
from kbroker.cli.group_views import instead, report_deletions, types_where_missing, why_not
from kbroker.cli.inflight import inflight
from kbroker.cli.logging_setup import escaped
from kbroker.cli.output import print_json, print_table
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
from kbroker.client.group_admin import kind_of_group
from kbroker.errors import ErrorCode, KafkaError

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
    if as_json:
        print_json([{"group": group.group_id, "state": group.state} for group in groups])
    elif states is not None:
        print_table(("GROUP", "STATE"), [(group.group_id, group.state) for group in groups])
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
    """The reason for each group that was not deleted. DeleteGroups accepts groups of any type, so
    groups of other types are excluded here."""
    from kbroker.cli.queues.found import why_not_to_delete
    from kbroker.client import group_admin

    types = group_admin.group_types(connection)
    reasons = {} if force else why_not_to_delete(connection, names)
    reasons |= {
        name: _of_other_type(name, types[name]) for name in names if types.get(name, "share") != "share"
    }  # The broker says so if there is no such group, or if this user may not see it.
    wanted = [name for name in names if name not in reasons]
    refused = group_admin.delete_groups(connection, wanted) if wanted else {}
    reasons |= {name: _why_not(error) for name, error in refused.items()}
    return {name: reasons[name] for name in names if name in reasons}


def _of_other_type(name: str, group_type: str) -> str:
    return f"it is {kind_of_group(group_type)}{instead(name, group_type, 'delete')}"


NO_SHARE_GROUP = "there is no share group of this name"
_REASONS = {
    ErrorCode.non_empty_group: "it has members; stop them first",
    ErrorCode.group_id_not_found: NO_SHARE_GROUP,
}


def _why_not(error: KafkaError) -> str:
    return _REASONS.get(error.code) or error.message or error.code.name


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
    if as_json:
        print_json(
            [
                {"topic": name, "deleted": name not in refused, "error": _text(refused.get(name))}
                for name in topics
            ]
        )
    else:
        print_table(
            ("TOPIC", "STATUS"),
            [
                (name, f"Error: {_text(refused[name])}" if name in refused else "Successful")
                for name in topics
            ],
        )
    if refused:
        raise CommandFailed(f"offsets of {len(refused)} of {len(topics)} topics could not be deleted")


def _text(error: KafkaError | None) -> str | None:
    return None if error is None else error.message


share_groups.add_command(describe)
share_groups.add_command(inflight)
share_groups.add_command(reset_offsets)
