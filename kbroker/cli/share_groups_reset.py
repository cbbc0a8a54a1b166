"""`kbroker share-groups reset-offsets`: another place for a share group to go on from.

As Kafka's tool does it (KIP-932, KIP-1323): which partitions and which offsets is worked out here, from the log's offsets; the broker
is told absolute offsets. Groups with members, topics and partitions that do not exist are refused before anything is changed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import IO, TYPE_CHECKING, NamedTuple, TypeAlias

import click

from kbroker.cli.exits import CommandFailed, refuse, say
from kbroker.cli.output import print_json, print_table
from kbroker.cli.params import Address, DateTimeType, TopicPartitionsType, bootstrap_option, connect, json_option, not_blank
from kbroker.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.client.group_admin import TopicPartition
    from kbroker.client.rpc import Connection

OFFSET = click.IntRange(0, (1 << 63) - 1)
Offsets: TypeAlias = "dict[TopicPartition, int]"


class Target(NamedTuple):
    """Exactly one of the options that say where to. `at_ms`: the first record from this time on."""

    earliest: bool
    latest: bool
    at_ms: int | None
    offset: int | None
    current: bool
    plan: IO[str] | None

    def check(self) -> None:
        if sum(each is not None and each is not False for each in self) != 1:  # 0 is an offset
            raise click.UsageError(
                "exactly one of --to-earliest, --to-latest, --to-datetime, --to-offset, --to-current and --from-file is needed"
            )


@click.command("reset-offsets")
@click.argument("group", callback=not_blank)
@click.option("--topic", "topics", type=TopicPartitionsType(), multiple=True, help="A topic, or some of its partitions; may be repeated.")
@click.option("--all-topics", is_flag=True, help="All topics that GROUP has offsets of.")
@click.option("--to-earliest", is_flag=True, help="To the first record of the log.")
@click.option("--to-latest", is_flag=True, help="To the end of the log: only new records are delivered.")
@click.option(
    "--to-datetime", type=DateTimeType(), metavar=DateTimeType.name, help="To the first record from this time on; UTC without a zone."
)
@click.option("--to-offset", type=OFFSET, metavar="N", help="To this offset.")
@click.option("--to-current", is_flag=True, help="To the start offsets of describe: what is finished beyond them comes again.")
@click.option(
    "--from-file",
    type=click.File(encoding="utf-8-sig"),
    metavar="FILE",
    help="To the offsets in a file from --export; - for standard input.",
)
@click.option("--dry-run", is_flag=True, help="Print the new offsets, change nothing.")
@click.option("--execute", is_flag=True, help="Change the offsets.")
@click.option("--export", is_flag=True, help="Print the new offsets as lines TOPIC,PARTITION,OFFSET.")
@json_option
@bootstrap_option
def reset_offsets(
    group: str,
    topics: tuple[tuple[str, tuple[int, ...] | None], ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_datetime: int | None,
    to_offset: int | None,
    to_current: bool,
    from_file: IO[str] | None,
    dry_run: bool,
    execute: bool,
    export: bool,
    as_json: bool,
    bootstrap: Address,
) -> None:
    """Let GROUP go on from other offsets.

    GROUP must have no members; one that does not exist yet is made. What was delivered, released or finished beyond the new
    offsets is forgotten. Offsets outside of the log are moved to its nearest end, with a warning.

    \b
    Examples:
      kbroker share-groups reset-offsets workers --topic orders --to-earliest --dry-run
      kbroker share-groups reset-offsets workers --topic orders:0,2 --to-datetime 2026-01-31T08:00:00.000 --execute
      kbroker share-groups reset-offsets workers --all-topics --to-current --dry-run --export > workers.csv
      kbroker share-groups reset-offsets workers --from-file workers.csv --execute
    """
    target = Target(to_earliest, to_latest, to_datetime, to_offset, to_current, from_file)
    target.check()
    if sum((bool(topics), all_topics, from_file is not None)) != 1:
        raise click.UsageError("exactly one of --topic, --all-topics and --from-file is needed")
    if dry_run == execute:
        raise click.UsageError("exactly one of --dry-run and --execute is needed")
    if export and as_json:
        raise click.UsageError("--export and --json exclude each other")
    plan = read_plan(from_file, group) if from_file is not None else None
    with connect(bootstrap) as connection:
        _check_group(connection, group)
        partitions = list(plan) if plan is not None else _partitions(connection, group, topics)
        _check_partitions(connection, partitions)
        offsets = _clamped(connection, plan) if plan is not None else _offsets(connection, group, partitions, target)
        refused = _execute(connection, group, offsets) if execute else {}
    _print(group, {place: offset for place, offset in sorted(offsets.items()) if place not in refused}, export=export, as_json=as_json)
    refuse([f"{place} could not be reset: {error.message}" for place, error in refused.items()])


def _check_group(connection: Connection, group: str) -> None:
    """Raises CommandFailed for a group that has members or is of another type. One that does not exist may be reset: that makes it."""
    from kbroker.client import group_admin

    (found,) = group_admin.describe_share_groups(connection, [group])
    if not isinstance(found, KafkaError):
        if found.members:
            count = len(found.members)
            raise CommandFailed(f"share group {group} is not empty: it has {count} member{'s' * (count > 1)}; stop them first")
    elif found.code is not ErrorCode.group_id_not_found:
        raise found
    elif other := [each.type for each in group_admin.groups(connection, types=()) if each.group_id == group]:
        raise CommandFailed(f"group {group} is no share group: its type is {other[0]}")


def _partitions(connection: Connection, group: str, topics: Sequence[tuple[str, tuple[int, ...] | None]]) -> list[TopicPartition]:
    """What is to be reset; without topics all that the group has."""
    from kbroker.client import admin, group_admin
    from kbroker.client.group_admin import TopicPartition

    if not topics:
        found = group_admin.describe_share_group_offsets(connection, group)
        if not found:
            raise CommandFailed(f"share group {group} has no offset information: name topics with --topic")
        return [TopicPartition(each.topic, each.partition) for each in found]
    whole = [topic for topic, numbers in topics if numbers is None]
    known = {each.name: each.partitions for each in admin.topics(connection, whole)} if whole else {}
    places = (TopicPartition(topic, each) for topic, numbers in topics for each in (known[topic] if numbers is None else numbers))
    return list(dict.fromkeys(places))


def _check_partitions(connection: Connection, partitions: Collection[TopicPartition]) -> None:
    from kbroker.client import admin

    names = sorted({each.topic for each in partitions})
    known = {topic.name: topic.partitions for topic in admin.topics(connection, names)}
    if missing := [str(each) for each in sorted(partitions) if each.partition not in known[each.topic]]:
        raise CommandFailed(f"there is no partition {', '.join(missing)}")


def _offsets(connection: Connection, group: str, partitions: Sequence[TopicPartition], target: Target) -> Offsets:
    from kbroker.client import admin, group_admin

    if target.offset is not None:
        return _clamped(connection, dict.fromkeys(partitions, target.offset))
    if target.earliest:
        return _log_offsets(connection, partitions, admin.EARLIEST)
    if target.latest:
        return _log_offsets(connection, partitions, admin.LATEST)
    if target.at_ms is not None:
        found = _log_offsets(connection, partitions, target.at_ms)
        return _or_latest(connection, found, lambda place: f"{place} has no record from that time on")
    start = {(each.topic, each.partition): each.start_offset for each in group_admin.describe_share_group_offsets(connection, group)}
    current = {place: start.get(place) for place in partitions}
    return _or_latest(connection, current, lambda place: f"share group {group} has no offset of {place} yet")


def _or_latest(connection: Connection, found: Mapping[TopicPartition, int | None], why: Callable[[TopicPartition], str]) -> Offsets:
    """The end of the log where nothing was found, with a warning."""
    from kbroker.client import admin
    from kbroker.client.group_admin import UNKNOWN

    missing = [place for place, offset in found.items() if offset in (None, UNKNOWN)]
    for place in missing:
        say(f"warning: {why(place)}; its end is taken")
    return {**{place: offset for place, offset in found.items() if offset is not None}, **_log_offsets(connection, missing, admin.LATEST)}


def _clamped(connection: Connection, wanted: Mapping[TopicPartition, int]) -> Offsets:
    """Offsets outside of the log are moved to its nearest end, with a warning."""
    from kbroker.client import admin

    starts = _log_offsets(connection, wanted, admin.EARLIEST)
    ends = _log_offsets(connection, wanted, admin.LATEST)
    offsets = {}
    for place, offset in wanted.items():
        offsets[place] = min(max(offset, starts[place]), ends[place])
        if offset < starts[place]:
            say(f"warning: offset {offset} is below the start of {place}; {offsets[place]} is taken")
        elif offset > ends[place]:
            say(f"warning: offset {offset} is beyond the end of {place}; {offsets[place]} is taken")
    return offsets


def _log_offsets(connection: Connection, partitions: Collection[TopicPartition], timestamp_ms: int) -> Offsets:
    from kbroker.client import admin
    from kbroker.client.group_admin import TopicPartition

    numbers: dict[str, list[int]] = {}
    for place in partitions:
        numbers.setdefault(place.topic, []).append(place.partition)
    found = {topic: admin.list_offsets(connection, topic, each, timestamp_ms) for topic, each in numbers.items()}
    return {TopicPartition(topic, partition): offset for topic, offsets in found.items() for partition, offset in offsets.items()}


def _execute(connection: Connection, group: str, offsets: Offsets) -> dict[TopicPartition, KafkaError]:
    from kbroker.client import group_admin

    try:
        return group_admin.alter_share_group_offsets(connection, group, offsets)
    except KafkaError as error:
        if error.code is not ErrorCode.non_empty_group:
            raise
        raise CommandFailed(f"share group {group} is not empty any more: a member joined; nothing was changed") from error


def read_plan(file: IO[str], group: str) -> Offsets:
    """The rows TOPIC,PARTITION,OFFSET of a file, or of GROUP,TOPIC,PARTITION,OFFSET those of the group. Raises UsageError."""
    from kbroker.client.group_admin import TopicPartition

    offsets: Offsets = {}
    try:
        rows = list(csv.reader(io.StringIO(file.read()), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise click.UsageError(f"{file.name} cannot be read: {error}") from error
    for number, row in enumerate(rows, 1):
        if not row:
            continue
        *owner, topic, partition, offset = row if len(row) in (3, 4) else ("", "", "")
        try:
            place = TopicPartition(topic.strip(), int(partition))
            wanted = int(offset)
        except ValueError:
            raise click.UsageError(f"line {number} of {file.name} is not TOPIC,PARTITION,OFFSET") from None
        if owner and owner[0].strip() != group:
            continue
        if place in offsets:
            raise click.UsageError(f"line {number} of {file.name}: {place} is there twice")
        offsets[place] = wanted
    if not offsets:
        raise click.UsageError(f"{file.name} has no offsets for share group {group}")
    return offsets


def _print(group: str, offsets: Offsets, *, export: bool, as_json: bool) -> None:
    if as_json:
        print_json([{"group": group, "topic": topic, "partition": number, "new_offset": new} for (topic, number), new in offsets.items()])
    elif export:
        for (topic, number), new in offsets.items():
            click.echo(f"{topic},{number},{new}")
    elif offsets:
        rows = [(group, topic, number, new) for (topic, number), new in offsets.items()]
        print_table(("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), rows)
