"""`kbroker groups describe`: offsets and lag, members, or the state of consumer groups, in Kafka's
columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kbroker.cli.group_views import (
    Table,
    assignment_text,
    coordinator_text,
    one_view,
    report,
    told_apart,
    view_options,
)
from kbroker.cli.output import Cell
from kbroker.cli.params import (
    Bootstrap,
    bootstrap_option,
    chosen_groups,
    connect,
    groups_options,
    json_option,
)
from kbroker.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.client.consumer_group_admin import (
        Assignment,
        CommittedOffset,
        ConsumerGroupDescription,
        ConsumerMemberDescription,
    )
    from kbroker.client.group_admin import CoordinatorNode, TopicPartition
    from kbroker.client.rpc import Connection

_REBALANCING = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")


class OffsetRow(NamedTuple):
    """A partition for which the group has committed an offset, or that is assigned to a member.
    None: unknown, or no member."""

    topic: str
    partition: int
    leader_epoch: int | None
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None
    member_id: str | None
    client_host: str | None
    client_id: str | None
    metadata: str | None


class DescribedGroups(NamedTuple):
    """The data of a view, and a line for each thing that could not be described."""

    groups: list[ConsumerGroupDescription]
    offsets: dict[str, list[OffsetRow]]
    coordinators: dict[str, CoordinatorNode]
    problems: list[str]


@click.command()
@groups_options
@click.option("--all-groups", is_flag=True, help="All consumer groups.")
@view_options(
    offsets="Committed offset, lag and member of each partition; this is the default.",
    members="Members and how many partitions they have; GROUP-INSTANCE-ID if there are static members.",
    state="Coordinator, assignment strategy, state and number of members.",
    verbose="More columns: LEADER-EPOCH of offsets; assignments and epochs of members, and UPGRADED if"
    " a group of KIP-848 has members that speak the classic protocol; epochs of groups. "
    "Classic groups have no epochs.",
)
@json_option(
    "An array with an object for each group: group, type and state; with --offsets also offsets "
    "(topic, partition, leader_epoch, current_offset, log_end_offset, lag, member_id, client_host,"
    " client_id, metadata); with --members assignment_epoch and members (member_id, instance_id, "
    "client_id, client_host, rack_id, member_epoch, subscribed_topics, subscribed_regex, "
    "assignment and target_assignment: partitions by topic, is_classic); with --state coordinator "
    "(node_id, host, port), assignment_strategy, group_epoch, assignment_epoch, member_count."
)
@bootstrap_option
@click.pass_context
def describe(
    context: click.Context,
    group: tuple[str, ...],
    more_groups: tuple[str, ...],
    all_groups: bool,
    offsets: bool,
    members: bool,
    state: bool,
    verbose: bool,
    as_json: bool,
    bootstrap: Bootstrap,
) -> None:
    """Print offsets, members or state of each consumer GROUP.

    An unknown value is printed as -, and is null in JSON; a partition without a committed offset
    has no lag. stderr names groups that have no active members or are rebalancing, and those that
    do not exist or are no consumer groups. For the latter the exit code is 1.

    \b
    Examples:
      kbroker groups describe billing
      kbroker groups describe billing --members --verbose
      kbroker groups describe --all-groups --state --json
    """
    view = one_view(context, offsets, members, state)
    names = chosen_groups(group, more_groups, all_groups)
    with connect(bootstrap) as connection:
        found = find(connection, names, view)
    documents = [_as_json(each, view, found) for each in found.groups]
    report(TABLES[view](found, verbose), notes(found, view), documents, found.problems, as_json=as_json)


def find(connection: Connection, names: Sequence[str], view: str) -> DescribedGroups:
    """Describe these groups, or all if there are none. Raises KafkaError if the broker refuses the
    whole request."""
    from kbroker.client import consumer_group_admin, group_admin

    names = names or tuple(each.group_id for each in consumer_group_admin.consumer_groups(connection))
    groups, problems = told_apart(
        names, consumer_group_admin.describe_consumer_groups(connection, names), connection
    )
    offsets, coordinators = {}, {}
    if view == "state" and groups:
        coordinators = group_admin.find_coordinators(connection, [each.group_id for each in groups])
    elif view == "offsets":
        offsets = _offsets(connection, groups)
    return DescribedGroups(groups, offsets, coordinators, problems)


def _offsets(
    connection: Connection, groups: Sequence[ConsumerGroupDescription]
) -> dict[str, list[OffsetRow]]:
    """By group. The ends of the logs are requested once for all groups."""
    from kbroker.client import consumer_group_admin

    committed = {
        each.group_id: consumer_group_admin.committed_offsets(connection, each.group_id) for each in groups
    }
    owners = {each.group_id: dict(_owners(each.members)) for each in groups}
    ends = _log_ends(
        connection, {place for known in (committed, owners) for places in known.values() for place in places}
    )
    return {
        each.group_id: [
            _row(place, committed[each.group_id].get(place), ends[place], owners[each.group_id].get(place))
            for place in sorted(committed[each.group_id].keys() | owners[each.group_id].keys())
        ]
        for each in groups
    }


def _owners(
    members: Iterable[ConsumerMemberDescription],
) -> Iterable[tuple[TopicPartition, ConsumerMemberDescription]]:
    from kbroker.client.group_admin import TopicPartition

    return (
        (TopicPartition(topic, each), member)
        for member in members
        for topic, part in member.assignment.items()
        for each in part
    )


def _log_ends(
    connection: Connection, places: Iterable[TopicPartition]
) -> Mapping[tuple[str, int], int | None]:
    """None for a partition that no longer exists."""
    from kbroker.client import admin
    from kbroker.client.group_admin import by_topic

    ends: dict[tuple[str, int], int | None] = {}
    for place, end in admin.find_offsets(connection, by_topic(sorted(places)), admin.LATEST).items():
        if isinstance(end, KafkaError) and end.code is not ErrorCode.unknown_topic_or_partition:
            raise end
        ends[place] = None if isinstance(end, KafkaError) else end
    return ends


def _row(
    place: TopicPartition,
    committed: CommittedOffset | None,
    end: int | None,
    owner: ConsumerMemberDescription | None,
) -> OffsetRow:
    offset = None if committed is None else committed.offset
    return OffsetRow(
        place.topic,
        place.partition,
        None if committed is None else committed.leader_epoch,
        offset,
        end,
        None if offset is None or end is None else end - offset,
        None if owner is None else owner.member_id,
        None if owner is None else owner.client_host,
        None if owner is None else owner.client_id,
        None if committed is None else committed.metadata,
    )


def notes(found: DescribedGroups, view: str) -> Iterable[str]:
    """Lines that explain why something is missing, or will soon change."""
    if not found.groups and not found.problems:
        yield "there are no consumer groups"
    for each in found.groups:
        if each.state in _REBALANCING:
            yield f"warning: consumer group {each.group_id} is rebalancing"
        elif not each.members:
            yield f"consumer group {each.group_id} has no active members"
        if view == "offsets" and not found.offsets[each.group_id]:
            yield f"consumer group {each.group_id} has committed no offsets"


def _offsets_table(found: DescribedGroups, verbose: bool) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for group_id, offsets in found.offsets.items():
        for each in offsets:
            epoch = (each.leader_epoch,) if verbose else ()
            numbers = (each.current_offset, each.log_end_offset, each.lag)
            rows.append(
                (
                    group_id,
                    each.topic,
                    each.partition,
                    *epoch,
                    *numbers,
                    each.member_id,
                    each.client_host,
                    each.client_id,
                )
            )
    epoch_column = ("LEADER-EPOCH",) if verbose else ()
    offset_columns = ("CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
    return Table(
        ("GROUP", "TOPIC", "PARTITION", *epoch_column, *offset_columns, "CONSUMER-ID", "HOST", "CLIENT-ID"),
        rows,
    )


def _members_table(found: DescribedGroups, verbose: bool) -> Table:
    """With GROUP-INSTANCE-ID if there are static members, and UPGRADED if a group of KIP-848 still
    has classic members."""
    members = [(group, each) for group in found.groups for each in group.members]
    has_static = any(each.instance_id is not None for _, each in members)
    has_classic = any(each.is_classic for _, each in members)
    rows: list[tuple[Cell, ...]] = []
    for group, each in members:
        static = (each.instance_id,) if has_static else ()
        more = _verbose_cells(group, each, has_classic) if verbose else ()
        count = sum(len(partitions) for partitions in each.assignment.values())
        rows.append((group.group_id, each.member_id, *static, each.client_host, each.client_id, count, *more))
    static_column = ("GROUP-INSTANCE-ID",) if has_static else ()
    epoch_columns = (
        ("CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT") if verbose else ()
    )
    upgraded_column = ("UPGRADED",) if verbose and has_classic else ()
    return Table(
        (
            "GROUP",
            "CONSUMER-ID",
            *static_column,
            "HOST",
            "CLIENT-ID",
            "#PARTITIONS",
            *epoch_columns,
            *upgraded_column,
        ),
        rows,
    )


def _verbose_cells(
    group: ConsumerGroupDescription, member: ConsumerMemberDescription, with_upgraded: bool
) -> tuple[Cell, ...]:
    target = None if member.target_assignment is None else _assignment_cell(member.target_assignment)
    cells = (member.member_epoch, _assignment_cell(member.assignment), group.assignment_epoch, target)
    upgraded = None if member.is_classic is None else str(not member.is_classic).lower()
    return (*cells, upgraded) if with_upgraded else cells


def _assignment_cell(assignment: Assignment) -> str | None:
    return assignment_text(assignment) or None


def _state_table(found: DescribedGroups, verbose: bool) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for each in found.groups:
        node = coordinator_text(found.coordinators[each.group_id])
        epochs = (each.group_epoch, each.assignment_epoch) if verbose else ()
        rows.append((each.group_id, node, each.assignor or None, each.state, *epochs, len(each.members)))
    epoch_columns = ("GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH") if verbose else ()
    return Table(
        ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", *epoch_columns, "#MEMBERS"), rows
    )


TABLES = {"offsets": _offsets_table, "members": _members_table, "state": _state_table}


def _as_json(group: ConsumerGroupDescription, view: str, found: DescribedGroups) -> dict[str, Any]:
    head = {"group": group.group_id, "type": group.type, "state": group.state}
    if view == "members":
        return {
            **head,
            "assignment_epoch": group.assignment_epoch,
            "members": [each._asdict() for each in group.members],
        }
    if view == "offsets":
        return {**head, "offsets": [each._asdict() for each in found.offsets[group.group_id]]}
    return {
        **head,
        "coordinator": found.coordinators[group.group_id]._asdict(),
        "assignment_strategy": group.assignor or None,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "member_count": len(group.members),
    }
