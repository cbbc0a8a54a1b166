"""`kbroker groups reset-offsets`: sets the offsets from which consumer groups resume.

A group with members is refused with a line, and the others are reset. Topics and partitions that do
not exist are refused before anything is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.exits import CommandFailed, refuse, say
from kbroker.cli.group_views import in_use, of_other_type, why_not
from kbroker.cli.offset_plans import (
    Offsets,
    OffsetTarget,
    Scope,
    new_offsets,
    partitions_of,
    print_offsets,
    read_plans,
    reset_options,
)
from kbroker.cli.params import (
    Bootstrap,
    DurationType,
    chosen_groups,
    connect,
    groups_options,
)
from kbroker.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.client.group_admin import TopicPartition
    from kbroker.client.rpc import Connection


@click.command("reset-offsets")
@groups_options
@click.option("--all-groups", is_flag=True, help="All consumer groups.")
@reset_options(
    "All partitions for which the group has committed offsets.",
    "To the committed offsets, mainly for --export. To the end of the log, with a warning, where there "
    "is none yet.",
    click.option(
        "--shift-by",
        type=int,
        metavar="N",
        help="N offsets forward from the committed offset, or back if N is negative.",
    ),
    click.option(
        "--by-duration",
        type=DurationType(),
        metavar=DurationType.name,
        help="To the first record that is not older than this duration.",
    ),
)
def reset_offsets(
    group: tuple[str, ...],
    more_groups: tuple[str, ...],
    all_groups: bool,
    topics: Scope,
    all_topics: bool,
    dry_run: bool,
    execute: bool,
    export: bool,
    as_json: bool,
    bootstrap: Bootstrap,
    **targets: Any,  # noqa: ANN401 - options
) -> None:
    """Set the offsets from which consumer groups resume.

    Without --execute the new offsets are printed and nothing is changed. GROUP must have no
    members; it is created if it does not exist. An offset outside the log is moved to its nearest
    end, with a warning. Needs --topic, --all-topics or --from-file, and one target. A topic or
    partition that does not exist is refused before anything changes. If the broker refuses a group
    or a partition, the others are reset, and the exit code is 1.

    \b
    Examples:
      kbroker groups reset-offsets billing --topic orders --to-earliest
      kbroker groups reset-offsets billing --topic orders:0,2 --by-duration PT1H30M --execute
      kbroker groups reset-offsets billing --all-topics --to-current --export > billing.csv
      kbroker groups reset-offsets billing --from-file billing.csv --execute
    """
    target = OffsetTarget.of(topics, all_topics, targets)
    names = chosen_groups(group, more_groups, all_groups)
    if dry_run and execute:
        raise click.UsageError("--dry-run and --execute exclude each other")
    if export and as_json:
        raise click.UsageError("--export and --json exclude each other")
    plans = None if target.from_file is None else read_plans(target.from_file, "consumer group", names)
    with connect(bootstrap) as connection:
        ready, problems = _ready(connection, names, plans)
        partitions = partitions_of(connection, topics)
        offsets: dict[str, Offsets] = {}
        for name in ready:
            try:
                offsets[name] = _offsets(connection, name, partitions, target, plans)
                problems += _execute(connection, name, offsets) if execute else ()
            except (KafkaError, CommandFailed) as error:
                problems.append(str(error) if isinstance(error, CommandFailed) else why_not(name, error))
    print_offsets(offsets, export=export, as_json=as_json, with_group=len(names) != 1)
    if not dry_run and not execute:
        say("nothing was changed; --execute changes the offsets")
    refuse(problems)


def _ready(
    connection: Connection, names: Sequence[str], plans: Mapping[str, Offsets] | None
) -> tuple[list[str], list[str]]:
    """Of these groups, or of all, with `plans` all in them: those that can be reset, and a line for
    each that cannot. A group that does not exist can: the reset creates it."""
    from kbroker.client import consumer_group_admin, group_admin

    if not names:
        every = consumer_group_admin.consumer_groups(connection)
        names = [each.group_id for each in every if plans is None or each.group_id in plans]
    types = group_admin.group_types(connection)
    ready, problems = [], []
    answers = consumer_group_admin.describe_consumer_groups(connection, names)
    for name, found in zip(names, answers, strict=True):
        problem = None
        if not isinstance(found, KafkaError):
            if found.state != consumer_group_admin.EMPTY:
                problem = in_use("consumer group", name, len(found.members))
        elif found.code is not ErrorCode.group_id_not_found:
            problem = why_not(name, found)
        elif name in types:
            problem = of_other_type(name, types[name], "reset-offsets")
        if problem is None:
            ready.append(name)
        else:
            problems.append(problem)
    return ready, problems


def _offsets(
    connection: Connection,
    group: str,
    named: Sequence[TopicPartition],
    target: OffsetTarget,
    plans: Mapping[str, Offsets] | None,
) -> Offsets:
    """New offsets of the named partitions, otherwise of those in the group's plan, otherwise of
    those with committed offsets. Raises what new_offsets raises."""

    def committed() -> dict[TopicPartition, int | None]:
        from kbroker.client import consumer_group_admin

        return {
            place: each.offset
            for place, each in consumer_group_admin.committed_offsets(connection, group).items()
        }

    plan = None if plans is None else plans[group]
    partitions = named or (list(committed()) if plan is None else [])
    if not partitions and plan is None:
        raise CommandFailed(f"consumer group {group} has committed no offsets: name topics with --topic")
    return new_offsets(connection, f"consumer group {group}", partitions, target, plan, committed)


def _execute(connection: Connection, group: str, offsets: dict[str, Offsets]) -> list[str]:
    """Commit the group's offsets. Removes refused ones from `offsets`, and returns a line for
    each."""
    from kbroker.client import consumer_group_admin

    refused = consumer_group_admin.commit_offsets(connection, group, offsets[group])
    offsets[group] = {place: offset for place, offset in offsets[group].items() if place not in refused}
    if refused and not offsets[group] and {error.code for error in refused.values()} <= _OF_MEMBERS:
        return [f"consumer group {group} is not empty any more: a member joined; nothing was changed"]
    return [f"{group}: {place} could not be reset: {error.message}" for place, error in refused.items()]


_OF_MEMBERS = {ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.stale_member_epoch}
"""A broker's errors for a commit without a member id while the group has members."""
