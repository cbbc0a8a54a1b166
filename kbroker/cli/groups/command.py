"""`kbroker groups`: lists groups of all types (KIP-1043), and describes and changes consumer
groups, with the options and columns of Kafka's tools.

Longer commands are in separate files and are added at the end of this one. Share groups have
separate commands: `kbroker share-groups`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from kbroker.cli.exits import CommandFailed
from kbroker.cli.group_views import (
    instead,
    of_other_type,
    report_deletions,
    types_where_missing,
)
from kbroker.cli.groups.describe import describe
from kbroker.cli.groups.reset import reset_offsets
from kbroker.cli.output import Cell, print_json, print_table
from kbroker.cli.params import (
    Bootstrap,
    ChoicesType,
    TopicPartitionsType,
    bootstrap_option,
    chosen_groups,
    connect,
    groups_options,
    json_option,
    states_option,
)
from kbroker.cli.suggesting import SuggestingGroup
from kbroker.client.group_admin import kind_of_group
from kbroker.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.cli.offset_plans import Scope
    from kbroker.client.group_admin import Group
    from kbroker.client.rpc import Connection

TYPES = ("classic", "consumer", "share", "streams")
STATES = (
    "Empty",
    "Stable",
    "Dead",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "NotReady",
)


@click.group(cls=SuggestingGroup)
def groups() -> None:
    """List groups of all types; describe, reset and delete consumer groups."""


@groups.command("list")
@click.option(
    "--consumer",
    is_flag=True,
    help="Only consumer groups: those of type consumer, and classic groups whose protocol is "
    "consumer or empty.",
)
@click.option("--share", is_flag=True, help="Only share groups.")
@click.option(
    "--group-type",
    "--type",
    "types",
    type=ChoicesType("TYPES", TYPES),
    help=f"Only groups of these types: {', '.join(TYPES)}, separated by commas.",
)
@click.option(
    "--protocol",
    metavar="PROTOCOL",
    help="Only groups whose members speak this protocol; that of share groups is share.",
)
@states_option(STATES)
@json_option("An array of objects: group, type, protocol, state.")
@bootstrap_option
def list_groups(
    consumer: bool,
    share: bool,
    types: tuple[str, ...] | None,
    protocol: str | None,
    states: tuple[str, ...] | None,
    as_json: bool,
    bootstrap: Bootstrap,
) -> None:
    """List ids, types and protocols of groups.

    \b
    Examples:
      kbroker groups list
      kbroker groups list --consumer --state Stable,Empty
      kbroker groups list --type share --json
    """
    if consumer + share + (types is not None or protocol is not None) > 1:
        raise click.UsageError("--consumer and --share exclude each other, --group-type and --protocol")
    with connect(bootstrap) as connection:
        found = _found(connection, consumer, ("share",) if share else types or (), protocol, states or ())
    if as_json:
        print_json(
            [
                {"group": each.group_id, "type": each.type, "protocol": each.protocol, "state": each.state}
                for each in found
            ]
        )
        return
    columns = ("GROUP", "TYPE", "PROTOCOL", "STATE")[: 3 if states is None else 4]
    rows = [(each.group_id, each.type, each.protocol, each.state)[: len(columns)] for each in found]
    print_table(columns, rows)


def _found(
    connection: Connection, consumer: bool, types: Sequence[str], protocol: str | None, states: Sequence[str]
) -> list[Group]:
    from kbroker.client import consumer_group_admin, group_admin

    if consumer:
        return consumer_group_admin.consumer_groups(connection, states)
    return [
        each for each in group_admin.groups(connection, types, states) if protocol in (None, each.protocol)
    ]


@groups.command()
@groups_options
@click.option("--all-groups", is_flag=True, help="All consumer groups.")
@json_option("An array of objects: group, deleted, error (null or the reason).")
@bootstrap_option
def delete(
    group: tuple[str, ...],
    more_groups: tuple[str, ...],
    all_groups: bool,
    as_json: bool,
    bootstrap: Bootstrap,
) -> None:
    """Delete each consumer GROUP with its offsets.

    A group that has members is refused, and so is a name that is not a consumer group. The other
    groups are deleted, and the exit code is 1.

    \b
    Examples:
      kbroker groups delete billing
    """
    names = chosen_groups(group, more_groups, all_groups)
    with connect(bootstrap) as connection:
        names, refused = _delete(connection, names)
    report_deletions("consumer group", names, refused, as_json=as_json)


def _delete(connection: Connection, names: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Delete these groups, or all if none is named. Returns the names, and the reason for each that
    was not deleted.

    DeleteGroups accepts groups of any type, so groups of other types are excluded here.
    """
    from kbroker.client import consumer_group_admin, group_admin

    types = group_admin.group_types(connection)
    names = names or tuple(each.group_id for each in consumer_group_admin.consumer_groups(connection))
    reasons = {name: _why_no_consumer_group(name, types.get(name)) for name in names}
    wanted = [name for name, why in reasons.items() if why is None]
    refused = group_admin.delete_groups(connection, wanted) if wanted else {}
    reasons |= {name: _why_not(error) for name, error in refused.items()}
    return names, {name: why for name, why in reasons.items() if why is not None}


def _why_no_consumer_group(name: str, group_type: str | None) -> str | None:
    from kbroker.client import consumer_group_admin

    if group_type is None or group_type not in consumer_group_admin.OTHER_TYPES:
        return None  # The broker says so if there is none, or if this user may not see it.
    return f"it is {kind_of_group(group_type)}{instead(name, group_type, 'delete')}"


_REASONS: Mapping[ErrorCode, str] = {
    ErrorCode.non_empty_group: "it has members; stop them first",
    ErrorCode.group_id_not_found: "there is no consumer group of this name",
    ErrorCode.group_subscribed_to_topic: "the group has members that are subscribed to the topic",
}


def _why_not(error: KafkaError) -> str:
    return _REASONS.get(error.code) or error.message or error.code.name


@groups.command("delete-offsets")
@groups_options
@click.option(
    "--topic",
    "topics",
    type=TopicPartitionsType(),
    multiple=True,
    required=True,
    help="A topic, or some of its partitions, as in orders:0,2; may be repeated.",
)
@json_option(
    "An array of objects: topic, partition (null where the topic does not exist), deleted, error "
    "(null or the reason), instead of the columns TOPIC, PARTITION and STATUS."
)
@bootstrap_option
def delete_offsets(
    group: tuple[str, ...], more_groups: tuple[str, ...], topics: Scope, as_json: bool, bootstrap: Bootstrap
) -> None:
    """Delete the offsets that GROUP has committed for topics.

    Its next consumer begins there as in a new group. Topics that members of GROUP are subscribed to
    are refused. If some offsets cannot be deleted, the others are, and the exit code is 1.

    \b
    Examples:
      kbroker groups delete-offsets billing --topic orders --topic returns:0,1
    """
    names = chosen_groups(group, more_groups, all_groups=False)
    if len(names) != 1:
        raise click.UsageError("exactly one GROUP is needed")
    with connect(bootstrap) as connection:
        results = _delete_offsets(connection, names[0], topics)
    if as_json:
        rows = [(topic, number, error is None, error) for (topic, number), error in results.items()]
        print_json([dict(zip(("topic", "partition", "deleted", "error"), row, strict=True)) for row in rows])
    else:
        table: list[tuple[Cell, ...]] = [
            (topic, number, "Successful" if error is None else f"Error: {error}")
            for (topic, number), error in results.items()
        ]
        print_table(("TOPIC", "PARTITION", "STATUS"), table)
    if refused := [error for error in results.values() if error is not None]:
        raise CommandFailed(f"offsets of {len(refused)} of {len(results)} partitions could not be deleted")


def _delete_offsets(
    connection: Connection, group: str, topics: Scope
) -> dict[tuple[str, int | None], str | None]:
    """(topic, partition) -> None if the offset was deleted, otherwise the reason. The partition is
    None if the topic does not exist. Raises KafkaError if the broker refuses the group."""
    from kbroker.client import admin, consumer_group_admin
    from kbroker.client.group_admin import TopicPartition

    existing = {each.name: each.partitions for each in admin.topics(connection)}
    partitions = [
        TopicPartition(topic, number)
        for topic, numbers in topics
        for number in (existing.get(topic, ()) if numbers is None else numbers)
    ]
    try:
        refused = consumer_group_admin.delete_offsets(connection, group, partitions)
    except KafkaError as error:
        other = types_where_missing(connection, [error]).get(group)
        text = (
            of_other_type(group, other, "delete-offsets")
            if other
            else f"group {group}: {_REASONS[error.code]}"
            if error.code in _REASONS
            else error.message
        )
        raise KafkaError(error.code, text) from error
    results: dict[tuple[str, int | None], str | None] = {
        (topic, None): "there is no topic of this name"
        for topic, numbers in topics
        if numbers is None and topic not in existing
    }
    return results | {place: _why_not(refused[place]) if place in refused else None for place in partitions}


groups.add_command(describe)
groups.add_command(reset_offsets)
