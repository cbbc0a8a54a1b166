"""`kbroker groups describe`: offsets and lag, members, or the state of consumer groups, in Kafka's
columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

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
    groups_options,
    json_option,
)
from kbroker.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.cli.group_views import Described
    from kbroker.client.consumer_group_admin import (
        CommittedOffset,
        ConsumerGroupDescription,
        ConsumerMemberDescription,
    )
    from kbroker.client.group_admin import TopicPartition
    from kbroker.client.rpc import Connection

    Found: TypeAlias = Described[ConsumerGroupDescription, "OffsetRow"]

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
def describe(
    group: tuple[str, ...],
    more_groups: tuple[str, ...],
    all_groups: bool,
    verbose: bool,
    as_json: bool,
    bootstrap: Bootstrap,
    **views: bool,
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
    view = one_view(views)
    names = chosen_groups(group, more_groups, all_groups)
    with connect(bootstrap) as connection:
        found = find(connection, names, view)
    documents = [_as_json(each, view, found) for each in found.groups]
    report(TABLES[view](found, verbose), notes(found, view), documents, found.problems, as_json=as_json)


def find(connection: Connection, names: Sequence[str], view: str) -> Found:
    """Describe these groups, or all if there are none. Raises KafkaError if the broker refuses the
    whole request."""
    from kbroker.client import consumer_group_admin

    names = names or tuple(each.group_id for each in consumer_group_admin.consumer_groups(connection))
    answers = consumer_group_admin.describe_consumer_groups(connection, names)
    return described(connection, names, answers, view, _offsets)


def _offsets(
    connection: Connection, groups: Sequence[ConsumerGroupDescription]
) -> dict[str, list[OffsetRow]]:
    """By group. The ends of the logs are requested once for all groups."""
    from kbroker.client import consumer_group_admin

    committed = {
        each.group_id: consumer_group_admin.committed_offsets(connection, each.group_id) for each in groups
    }
    owners = {each.group_id: _owners(each.members) for each in groups}
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


def _owners(members: Iterable[ConsumerMemberDescription]) -> dict[TopicPartition, ConsumerMemberDescription]:
    from kbroker.client.group_admin import TopicPartition

    return {
        TopicPartition(topic, each): member
        for member in members
        for topic, part in member.assignment.items()
        for each in part
    }


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
    offset, epoch, metadata = (None, None, None) if committed is None else committed
    lag = None if offset is None or end is None else end - offset
    member_id, host, client_id = (
        (None, None, None) if owner is None else (owner.member_id, owner.client_host, owner.client_id)
    )
    return OffsetRow(*place, epoch, offset, end, lag, member_id, host, client_id, metadata)


def notes(found: Found, view: str) -> Iterable[str]:
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


def _offsets_table(found: Found, verbose: bool) -> Table:
    columns = ("GROUP", "TOPIC", "PARTITION", "LEADER-EPOCH", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
    rows = [(group_id, *each[:-1]) for group_id, offsets in found.offsets.items() for each in offsets]
    table = Table((*columns, "CONSUMER-ID", "HOST", "CLIENT-ID"), rows)
    return table.without("LEADER-EPOCH", unless=verbose)


def _members_table(found: Found, verbose: bool) -> Table:
    """With GROUP-INSTANCE-ID if there are static members, and UPGRADED if a group of KIP-848 still
    has classic members."""
    members = [(group, each) for group in found.groups for each in group.members]
    columns = ("GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS")
    more = ("CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT", "UPGRADED")
    rows = [
        (
            group.group_id,
            each.member_id,
            each.instance_id,
            each.client_host,
            each.client_id,
            sum(len(partitions) for partitions in each.assignment.values()),
            each.member_epoch,
            assignment_text(each.assignment) or None,
            group.assignment_epoch,
            assignment_text(each.target_assignment or {}) or None,
            None if each.is_classic is None else str(not each.is_classic).lower(),
        )
        for group, each in members
    ]
    table = Table((*columns, *more), rows).without(*more, unless=verbose)
    table = table.without(
        "GROUP-INSTANCE-ID", unless=any(each.instance_id is not None for _, each in members)
    )
    return table.without("UPGRADED", unless=any(each.is_classic for _, each in members))


def _state_table(found: Found, verbose: bool) -> Table:
    epochs = ("GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH")
    rows = [
        (
            each.group_id,
            coordinator_text(found.coordinators[each.group_id]),
            each.assignor or None,
            each.state,
            each.group_epoch,
            each.assignment_epoch,
            len(each.members),
        )
        for each in found.groups
    ]
    columns = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", *epochs, "#MEMBERS")
    return Table(columns, rows).without(*epochs, unless=verbose)


TABLES = {"offsets": _offsets_table, "members": _members_table, "state": _state_table}


def _as_json(group: ConsumerGroupDescription, view: str, found: Found) -> dict[str, Any]:
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
