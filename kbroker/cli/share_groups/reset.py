"""`kbroker share-groups reset-offsets`: sets the offsets from which a share group resumes (KIP-932,
KIP-1323).

Groups with members, topics and partitions that do not exist are refused before anything is changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.exits import CommandFailed, refuse
from kbroker.cli.group_views import in_use, of_other_type
from kbroker.cli.offset_plans import (
    Offsets,
    OffsetTarget,
    Scope,
    check_partitions,
    exactly_one,
    new_offsets,
    partitions_of,
    print_offsets,
    read_plans,
    reset_options,
)
from kbroker.cli.params import Bootstrap, connect, not_blank
from kbroker.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.client.group_admin import TopicPartition
    from kbroker.client.rpc import Connection


@click.command("reset-offsets")
@click.argument("group", callback=not_blank)
@reset_options(
    "All topics for which GROUP has offsets.",
    "To the start offsets of describe: records beyond them are redelivered, also finished ones. To the "
    "end of the log, with a warning, if there is none yet.",
)
def reset_offsets(
    group: str,
    topics: Scope,
    all_topics: bool,
    dry_run: bool,
    execute: bool,
    export: bool,
    as_json: bool,
    bootstrap: Bootstrap,
    **targets: Any,  # noqa: ANN401 - options
) -> None:
    """Set the offsets from which GROUP resumes.

    GROUP must have no members; it is created if it does not exist. The state of records beyond the
    new offsets is dropped, so they are redelivered. Jobs of a queue that wait and are no longer in
    the log are dropped; the broker logs their number. An offset outside the log is moved to the
    nearest end of the log, with a warning.

    Needs --topic, --all-topics or --from-file, one target, and --dry-run or --execute. Topics and
    partitions that do not exist are refused before anything changes. If the broker refuses a
    partition, the others are reset, and the exit code is 1.

    \b
    Examples:
      kbroker share-groups reset-offsets workers --topic orders --to-earliest --dry-run
      kbroker share-groups reset-offsets workers --topic orders:0,2 --to-earliest --execute
      kbroker share-groups reset-offsets jobs --all-topics --to-current --dry-run --export > j.csv
      kbroker share-groups reset-offsets jobs --from-file j.csv --execute
    """
    target = OffsetTarget.of(topics, all_topics, targets)
    exactly_one({"--dry-run": dry_run, "--execute": execute})
    if export and as_json:
        raise click.UsageError("--export and --json exclude each other")
    plan = None if target.from_file is None else read_plans(target.from_file, "share group", [group])[group]
    with connect(bootstrap) as connection:
        _check_group(connection, group)
        offsets = _offsets(connection, group, topics, target, plan)
        refused = _execute(connection, group, offsets) if execute else {}
    done = {place: offset for place, offset in offsets.items() if place not in refused}
    print_offsets({group: done}, export=export, as_json=as_json)
    refuse([f"{place} could not be reset: {error.message}" for place, error in refused.items()])


def _check_group(connection: Connection, group: str) -> None:
    """Raises CommandFailed for a group that has members or is of another type. A group that does
    not exist may be reset: the reset creates it."""
    from kbroker.client import group_admin

    (found,) = group_admin.describe_share_groups(connection, [group])
    if not isinstance(found, KafkaError):
        if found.members:
            raise CommandFailed(in_use("share group", group, len(found.members)))
    elif found.code is not ErrorCode.group_id_not_found:
        raise found
    elif other := group_admin.group_types(connection).get(group):
        raise CommandFailed(of_other_type(group, other, "reset-offsets"))


def _offsets(
    connection: Connection, group: str, topics: Scope, target: OffsetTarget, plan: Offsets | None
) -> Offsets:
    """New offsets of the topics, or of the plan, or, if there are neither, of all partitions for
    which the group has offsets."""

    def start_offsets() -> dict[TopicPartition, int | None]:
        from kbroker.client import group_admin
        from kbroker.client.group_admin import TopicPartition

        found = group_admin.describe_share_group_offsets(connection, group)
        return {TopicPartition(each.topic, each.partition): each.start_offset for each in found}

    partitions = partitions_of(connection, topics) if topics else []
    if not topics and plan is None:
        partitions = list(start_offsets())
        if not partitions:
            raise CommandFailed(f"share group {group} has no offset information: name topics with --topic")
        check_partitions(connection, partitions)
    return new_offsets(connection, f"share group {group}", partitions, target, plan, start_offsets)


def _execute(connection: Connection, group: str, offsets: Offsets) -> dict[TopicPartition, KafkaError]:
    from kbroker.client import group_admin

    try:
        return group_admin.alter_share_group_offsets(connection, group, offsets)
    except KafkaError as error:
        if error.code is not ErrorCode.non_empty_group:
            raise
        raise CommandFailed(
            f"share group {group} is not empty any more: a member joined; nothing was changed"
        ) from error
