"""New offsets for groups: how `reset-offsets` of `kbroker groups` and `kbroker share-groups`
computes and prints them.

As in Kafka's tools, partitions and offsets are chosen here, from the offsets of the logs. The
broker receives absolute offsets.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import click

from kbroker.cli.exits import CommandFailed, say
from kbroker.cli.output import Table, print_json, print_table
from kbroker.cli.params import DateTimeType, TopicPartitionsType, bootstrap_option, json_option, options
from kbroker.clock import wall_clock_ms

if TYPE_CHECKING:
    from kbroker.client.group_admin import TopicPartition
    from kbroker.client.rpc import Connection

OFFSET = click.IntRange(0, (1 << 63) - 1)
Offsets: TypeAlias = "dict[TopicPartition, int]"
Scope: TypeAlias = Sequence[tuple[str, tuple[int, ...] | None]]
"""Topics with the numbers of their partitions; None: all."""
F = TypeVar("F", bound=Callable[..., Any])


class OffsetTarget(NamedTuple):
    """The options that choose the new offset, by name. `by_duration`: milliseconds before now."""

    to_earliest: bool
    to_latest: bool
    to_datetime: int | None
    to_offset: int | None
    to_current: bool
    from_file: IO[str] | None
    shift_by: int | None = None
    by_duration: int | None = None

    @classmethod
    def of(cls, topics: Scope, all_topics: bool, targets: Mapping[str, Any]) -> OffsetTarget:
        """`targets`: those options that the command has. Raises UsageError unless exactly one of
        them is given, and exactly one option that chooses partitions."""
        target = cls(**targets)
        exactly_one({f"--{each.replace('_', '-')}": targets[each] for each in cls._fields if each in targets})
        exactly_one({"--topic": topics, "--all-topics": all_topics, "--from-file": target.from_file})
        return target


def exactly_one(options: Mapping[str, object]) -> None:
    """Raises UsageError unless exactly one of these options is given (name -> value; 0 is a
    value)."""
    if sum(value is not None and value is not False and value != () for value in options.values()) != 1:
        *names, last = options
        raise click.UsageError(f"exactly one of {', '.join(names)} and {last} is needed")


def reset_options(all_topics: str, to_current: str, *more: Callable[[Any], Any]) -> Callable[[F], F]:
    """The options of both commands. `all_topics`, `to_current`: help texts. `more`: targets that
    one command has."""
    return options(
        click.option("--all-topics", is_flag=True, help=all_topics),
        click.option("--to-current", is_flag=True, help=to_current),
        *more,
        click.option(
            "--topic",
            "topics",
            type=TopicPartitionsType(),
            multiple=True,
            help="A topic, or some of its partitions, as in orders:0,2; may be repeated.",
        ),
        click.option("--to-earliest", is_flag=True, help="To the first record of the log."),
        click.option(
            "--to-latest", is_flag=True, help="To the end of the log: only new records are delivered."
        ),
        click.option(
            "--to-datetime",
            type=DateTimeType(),
            metavar=DateTimeType.name,
            help="To the first record at or after this time, YYYY-MM-DDTHH:mm:SS[.sss], UTC unless Z or an "
            "offset such as +02:00 follows. To the end of the log, with a warning, if there is none.",
        ),
        click.option("--to-offset", type=OFFSET, metavar="N", help="To this offset."),
        click.option(
            "--from-file",
            type=click.File(encoding="utf-8-sig"),
            metavar="FILE",
            help="To the offsets in a file from --export; - for standard input. Its lines are "
            "TOPIC,PARTITION,OFFSET or begin with GROUP; lines of other groups are left out.",
        ),
        click.option("--dry-run", is_flag=True, help="Print the new offsets and change nothing."),
        click.option("--execute", is_flag=True, help="Change the offsets."),
        click.option(
            "--export",
            is_flag=True,
            help="Print the new offsets as lines TOPIC,PARTITION,OFFSET for --from-file; with several "
            "groups each begins with GROUP. Not with --json.",
        ),
        json_option("An array of objects: group, topic, partition, new_offset."),
        bootstrap_option,
    )


def partitions_of(connection: Connection, scope: Scope) -> list[TopicPartition]:
    """Raises KafkaError for a topic, and CommandFailed for a partition that does not exist."""
    from kbroker.client import admin
    from kbroker.client.group_admin import TopicPartition

    whole = [topic for topic, numbers in scope if numbers is None]
    known = {each.name: each.partitions for each in admin.topics(connection, whole)} if whole else {}
    places = (
        TopicPartition(topic, each)
        for topic, numbers in scope
        for each in (known[topic] if numbers is None else numbers)
    )
    found = list(dict.fromkeys(places))
    check_partitions(connection, found)
    return found


def check_partitions(connection: Connection, partitions: Collection[TopicPartition]) -> None:
    """Raises KafkaError for a topic, and CommandFailed for a partition that does not exist."""
    from kbroker.client import admin

    names = sorted({each.topic for each in partitions})
    known = {topic.name: topic.partitions for topic in admin.topics(connection, names)}
    if missing := [str(each) for each in sorted(partitions) if each.partition not in known[each.topic]]:
        raise CommandFailed(f"there is no partition {', '.join(missing)}")


def new_offsets(
    connection: Connection,
    group: str,
    partitions: Sequence[TopicPartition],
    target: OffsetTarget,
    plan: Offsets | None,
    current: Callable[[], Mapping[TopicPartition, int | None]],
) -> Offsets:
    """The new offsets of a group: those of `plan`, otherwise the offset that `target` selects in
    each partition.

    - `group`: its kind and name, for messages.
    - `current`: returns the group's own offsets.

    Raises KafkaError, and CommandFailed for a partition of the plan that does not exist, and if
    there is no offset to shift.
    """
    from kbroker.client import admin

    without = f"{group} has no offset of"
    if plan is not None:
        check_partitions(connection, plan)
        return clamped(connection, plan)
    if target.to_offset is not None:
        return clamped(connection, dict.fromkeys(partitions, target.to_offset))
    if target.shift_by is not None:
        return clamped(connection, _shifted(current(), partitions, target.shift_by, without))
    if target.to_earliest:
        return log_offsets(connection, partitions, admin.EARLIEST)
    if target.to_latest:
        return log_offsets(connection, partitions, admin.LATEST)
    at_ms = target.to_datetime if target.by_duration is None else max(0, wall_clock_ms() - target.by_duration)
    if at_ms is not None:
        dated = log_offsets(connection, partitions, at_ms)
        return _or_latest(connection, dated, lambda place: f"{place} has no record at or after that time")
    own = current()
    return _or_latest(
        connection, {place: own.get(place) for place in partitions}, lambda place: f"{without} {place} yet"
    )


def _shifted(
    own: Mapping[TopicPartition, int | None],
    partitions: Iterable[TopicPartition],
    shift_by: int,
    without: str,
) -> Offsets:
    offsets = {}
    for place in partitions:
        offset = own.get(place)
        if offset is None:
            raise CommandFailed(f"{without} {place} that could be shifted")
        offsets[place] = offset + shift_by
    return offsets


def _or_latest(
    connection: Connection, found: Mapping[TopicPartition, int | None], why: Callable[[TopicPartition], str]
) -> Offsets:
    """`found`, with the end of the log, and a warning, for a partition that has no offset."""
    from kbroker.client import admin
    from kbroker.client.group_admin import UNKNOWN

    missing = [place for place, offset in found.items() if offset in (None, UNKNOWN)]
    for place in missing:
        say(f"warning: {why(place)}; using its end")
    return {
        **{place: offset for place, offset in found.items() if offset is not None},
        **log_offsets(connection, missing, admin.LATEST),
    }


def clamped(connection: Connection, wanted: Mapping[TopicPartition, int]) -> Offsets:
    """`wanted`, with an offset outside the log moved to the log's nearest end, with a warning."""
    from kbroker.client import admin

    starts = log_offsets(connection, wanted, admin.EARLIEST)
    ends = log_offsets(connection, wanted, admin.LATEST)
    offsets = {}
    for place, offset in wanted.items():
        offsets[place] = min(max(offset, starts[place]), ends[place])
        if offset < starts[place]:
            say(f"warning: offset {offset} is below the start of {place}; using {offsets[place]}")
        elif offset > ends[place]:
            say(f"warning: offset {offset} is beyond the end of {place}; using {offsets[place]}")
    return offsets


def log_offsets(connection: Connection, partitions: Collection[TopicPartition], timestamp_ms: int) -> Offsets:
    from kbroker.client import admin
    from kbroker.client.group_admin import TopicPartition, by_topic

    found = {
        topic: admin.list_offsets(connection, topic, each, timestamp_ms)
        for topic, each in by_topic(partitions).items()
    }
    return {
        TopicPartition(topic, partition): offset
        for topic, offsets in found.items()
        for partition, offset in offsets.items()
    }


def read_plans(file: IO[str], kind: str, groups: Sequence[str]) -> dict[str, Offsets]:
    """Offsets by group, from rows GROUP,TOPIC,PARTITION,OFFSET of a file. A row
    TOPIC,PARTITION,OFFSET belongs to the only one of `groups`.

    Raises UsageError, also if there are other rows without a group, or one of `groups` is missing.
    """
    from kbroker.client.group_admin import TopicPartition

    group = groups[0] if len(groups) == 1 else None
    plans: dict[str, Offsets] = {}
    wanted = "TOPIC,PARTITION,OFFSET" if group is not None else "GROUP,TOPIC,PARTITION,OFFSET"
    try:
        rows = list(csv.reader(io.StringIO(file.read()), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise click.UsageError(f"{file.name} cannot be read: {error}") from error
    for number, row in enumerate(rows, 1):
        if not row:
            continue
        *owner, topic, partition, offset = row if len(row) in (3, 4) else ("", "", "")
        name = owner[0].strip() if owner else group
        try:
            place = TopicPartition(topic.strip(), int(partition))
            new = int(offset)
        except ValueError:
            name = None
        if name is None:
            raise click.UsageError(f"line {number} of {file.name} is not {wanted}")
        plan = plans.setdefault(name, {})
        if place in plan:
            raise click.UsageError(f"line {number} of {file.name}: {place} is listed twice")
        plan[place] = new
    for name in groups:
        if name not in plans:
            raise click.UsageError(f"{file.name} has no offsets for {kind} {name}")
    return plans


def print_offsets(
    plans: Mapping[str, Offsets], *, export: bool, as_json: bool, with_group: bool = False
) -> None:
    """Print the new offsets of groups. `with_group`: exported rows begin with the group."""
    rows = [
        (group, place.topic, place.partition, new)
        for group, offsets in plans.items()
        for place, new in sorted(offsets.items())
    ]
    table = Table(("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), rows)
    if as_json:
        print_json(table.as_json())
    elif export:
        csv.writer(sys.stdout, lineterminator="\n").writerows(row if with_group else row[1:] for row in rows)
    elif rows:
        print_table(*table)
