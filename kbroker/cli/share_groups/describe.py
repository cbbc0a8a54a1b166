"""`kbroker share-groups describe`: offsets and lag, members, or the state of share groups, in
Kafka's columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from kbroker.cli.group_views import (
    assignment_text,
    coordinator_text,
    described,
    one_view,
    report,
    view_options,
)
from kbroker.cli.output import Table
from kbroker.cli.params import (
    Bootstrap,
    bootstrap_option,
    chosen_groups,
    connect,
    each_not_blank,
    json_option,
)

if TYPE_CHECKING:
    from kbroker.cli.group_views import Described
    from kbroker.client.group_admin import ShareGroupDescription, ShareOffset
    from kbroker.client.rpc import Connection

    Found: TypeAlias = Described[ShareGroupDescription, ShareOffset]


@click.command()
@click.argument("group", nargs=-1, callback=each_not_blank)
@click.option("--all-groups", is_flag=True, help="All share groups.")
@view_options(
    offsets="Start offset and lag of each share-partition. This is the default.",
    members="Members and the partitions assigned to them.",
    state="Coordinator, state and number of members.",
    verbose="More columns: LEADER-EPOCH of offsets, MEMBER-EPOCH of members, GROUP-EPOCH and "
    "ASSIGNMENT-EPOCH of groups.",
)
@json_option(
    "An array with an object for each group: group and state; with --offsets also offsets (topic, "
    "partition, start_offset, leader_epoch, lag, error); with --members members (member_id, "
    "member_epoch, client_id, client_host, subscribed_topics, assignment: partitions by topic); "
    "with --state coordinator (node_id, host, port), group_epoch, assignment_epoch, assignor, "
    "member_count."
)
@bootstrap_option
def describe(
    group: tuple[str, ...],
    all_groups: bool,
    verbose: bool,
    as_json: bool,
    bootstrap: Bootstrap,
    **views: bool,
) -> None:
    """Print offsets, members or state of each GROUP.

    Everything before START-OFFSET, the saved one, is finished; it may stay behind the group's
    progress until the next acknowledgement. LAG is exact: the records that the group has not
    finished, including those in flight (KIP-1226), without those that retention has removed. It is
    negative if START-OFFSET is beyond the log's end, as in Kafka. An unknown value is printed as -,
    and is null in JSON; a share-partition has no start offset and no lag before its first use. If a
    group does not exist, the others are described, and the exit code is 1.

    \b
    Examples:
      kbroker share-groups describe workers
      kbroker share-groups describe workers --members --verbose
      kbroker share-groups describe --all-groups --state --json
    """
    view = one_view(views)
    names = chosen_groups(group, (), all_groups)
    with connect(bootstrap) as connection:
        found = find(connection, names, view)
    documents = [_as_json(each, view, found) for each in found.groups]
    report(TABLES[view](found, verbose), notes(found, view), documents, found.problems, as_json=as_json)


def find(connection: Connection, names: Sequence[str], view: str) -> Found:
    """Describe these groups, or all if there are none. Raises KafkaError if the broker refuses the
    whole request."""
    from kbroker.client import group_admin

    names = names or tuple(each.group_id for each in group_admin.groups(connection))
    answers = group_admin.describe_share_groups(connection, names) if names else []
    found = described(connection, names, answers, view, _offsets)
    for group_id, rows in found.offsets.items():
        found.problems.extend(
            f"group {group_id}, {row.topic}-{row.partition}: {row.error.message}" for row in rows if row.error
        )
    return found


def _offsets(connection: Connection, groups: Sequence[ShareGroupDescription]) -> dict[str, list[ShareOffset]]:
    from kbroker.client.group_admin import describe_share_group_offsets

    return {each.group_id: describe_share_group_offsets(connection, each.group_id) for each in groups}


def notes(found: Found, view: str) -> Iterable[str]:
    """Lines that explain why something is missing."""
    if not found.groups and not found.problems:
        yield "there are no share groups"
    for each in found.groups:
        if view == "offsets" and not found.offsets[each.group_id]:
            yield f"share group {each.group_id} has no offset information"
        elif view == "members" and not each.members:
            yield f"share group {each.group_id} has no active members"


def _offsets_table(found: Found, verbose: bool) -> Table:
    rows = [
        (group_id, each.topic, each.partition, each.leader_epoch, each.start_offset, each.lag)
        for group_id, offsets in found.offsets.items()
        for each in offsets
    ]
    columns = ("GROUP", "TOPIC", "PARTITION", "LEADER-EPOCH", "START-OFFSET", "LAG")
    return Table(columns, rows).without("LEADER-EPOCH", unless=verbose)


def _members_table(found: Found, verbose: bool) -> Table:
    rows = [
        (
            group.group_id,
            each.member_id,
            each.client_host,
            each.client_id,
            sum(len(partitions) for partitions in each.assignment.values()),
            each.member_epoch,
            assignment_text(each.assignment),
        )
        for group in found.groups
        for each in group.members
    ]
    columns = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "MEMBER-EPOCH", "ASSIGNMENT")
    return Table(columns, rows).without("MEMBER-EPOCH", unless=verbose)


def _state_table(found: Found, verbose: bool) -> Table:
    epochs = ("GROUP-EPOCH", "ASSIGNMENT-EPOCH")
    rows = [
        (
            each.group_id,
            coordinator_text(found.coordinators[each.group_id]),
            each.state,
            each.group_epoch,
            each.assignment_epoch,
            len(each.members),
        )
        for each in found.groups
    ]
    table = Table(("GROUP", "COORDINATOR (ID)", "STATE", *epochs, "#MEMBERS"), rows)
    return table.without(*epochs, unless=verbose)


TABLES = {"offsets": _offsets_table, "members": _members_table, "state": _state_table}


def _as_json(group: ShareGroupDescription, view: str, found: Found) -> dict[str, Any]:
    head = {"group": group.group_id, "state": group.state}
    if view == "members":
        return {**head, "members": [member._asdict() for member in group.members]}
    if view == "offsets":
        return {**head, "offsets": [_offset_as_json(each) for each in found.offsets[group.group_id]]}
    return {
        **head,
        "coordinator": found.coordinators[group.group_id]._asdict(),
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor": group.assignor,
        "member_count": len(group.members),
    }


def _offset_as_json(offset: ShareOffset) -> dict[str, Any]:
    return {**offset._asdict(), "error": offset.error and offset.error.message}
