"""`kbroker groups`: lists groups of all types (KIP-1043), and describes and changes consumer
groups, with the options and columns of Kafka's tools.

Longer commands are in separate files and are added at the end of this one. Share groups have
separate commands: `kbroker share-groups`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kbroker.cli.group_views import (
    delete_groups,
    known_reason,
    of_other_type,
    report_deletions,
    report_offset_deletions,
    types_where_missing,
    why_not_deleted,
)
from kbroker.cli.groups.describe import describe
from kbroker.cli.groups.reset import reset_offsets
from kbroker.cli.output import Cell, Table, print_json, print_table
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
from kbroker.errors import KafkaError

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
    rows = [(each.group_id, each.type, each.protocol, each.state) for each in found]
    table = Table(("GROUP", "TYPE", "PROTOCOL", "STATE"), rows)
    if as_json:
        print_json(table.as_json())
    else:
        print_table(*table.without("STATE", unless=states is not None))


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
    was not deleted."""
    from kbroker.client import consumer_group_admin, group_admin

    types = group_admin.group_types(connection)
    names = names or tuple(each.group_id for each in consumer_group_admin.consumer_groups(connection))
    others = {name: types[name] for name in names if types.get(name) in consumer_group_admin.OTHER_TYPES}
    return names, delete_groups(connection, "consumer group", names, others, {})


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
    report_offset_deletions(("TOPIC", "PARTITION"), results, as_json=as_json)


def _delete_offsets(connection: Connection, group: str, topics: Scope) -> dict[tuple[Cell, ...], str | None]:
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
        known = known_reason("consumer group", error)
        text = f"group {group}: {known}" if known else error.message
        raise KafkaError(
            error.code, of_other_type(group, other, "delete-offsets") if other else text
        ) from error
    results: dict[tuple[Cell, ...], str | None] = {
        (topic, None): "there is no topic of this name"
        for topic, numbers in topics
        if numbers is None and topic not in existing
    }
    return results | {
        place: why_not_deleted("consumer group", refused[place]) if place in refused else None
        for place in partitions
    }


groups.add_command(describe)
groups.add_command(reset_offsets)
