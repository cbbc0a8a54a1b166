"""`kbroker topics alter` and `kbroker topics delete-records`: change existing topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from kbroker.cli.exits import USAGE, CommandFailed, ask, refuse, say
from kbroker.cli.logging_setup import escaped
from kbroker.cli.offset_plans import OFFSET, exactly_one
from kbroker.cli.output import print_json, print_table
from kbroker.cli.params import (
    COUNT,
    Bootstrap,
    bootstrap_option,
    connect,
    dry_run_option,
    json_option,
    not_blank,
    partitions_option,
    yes_option,
)
from kbroker.errors import KafkaError

if TYPE_CHECKING:
    from kbroker.client.admin import Topic
    from kbroker.client.rpc import Connection


@click.command()
@click.argument("topic", callback=not_blank)
@click.option(
    "--partitions",
    "-p",
    type=COUNT,
    required=True,
    help="Total number of partitions; more than TOPIC has.",
)
@click.option(
    "--force", is_flag=True, help="Add partitions even if a share group keeps the order of keys on TOPIC."
)
@bootstrap_option
def alter(topic: str, partitions: int, force: bool, bootstrap: Bootstrap) -> None:
    """Add partitions to TOPIC.

    Partitions are never removed. Where producers choose a partition by a record's key, new records
    of a key may go to another partition. So a topic that a share group with
    kbroker.queue.ordering=key reads is refused without --force. Configs of a topic are changed with
    `kbroker configs set --topic`.

    \b
    Examples:
      kbroker topics alter orders --partitions 6
    """
    from kbroker.client import admin
    from kbroker.client.key_orders import ordered_groups, why_not_to_grow

    with connect(bootstrap) as connection:
        (found,) = admin.topics(connection, [topic])
        present = len(found.partitions)
        if partitions <= present:
            has = f"topic {topic} has {present} partition{'s' * (present > 1)}"
            if partitions < present:
                raise CommandFailed(
                    f"{has}, and partitions are never removed; to have fewer, create a new topic"
                )
            raise CommandFailed(f"{has} already; --partitions is the total number")
        if not force and (ordered := ordered_groups(connection, topic)):
            raise why_not_to_grow(topic, ordered)
        admin.grow_topic(connection, topic, partitions)
    click.echo(
        f"topic {escaped(topic)} has {partitions} partitions now, {partitions - present} more than before"
    )


class Cut(NamedTuple):
    """The records to delete from a partition: from `start` up to, but not including, `below`. The
    log ends at `end`."""

    partition: int
    start: int
    below: int
    end: int

    @property
    def records(self) -> int:
        return max(0, self.below - self.start)


@click.command("delete-records")
@click.argument("topic", callback=not_blank)
@partitions_option("Delete only from this partition; may be repeated.  [default: all]")
@click.option(
    "--to-offset",
    type=OFFSET,
    metavar="N",
    help="Delete records below this offset; only with --partition, or for a topic with one partition.",
)
@click.option("--to-end", is_flag=True, help="Delete all records that exist now.")
@yes_option
@dry_run_option
@json_option(
    "An array of objects: topic, partition, start_offset, new_start_offset, records, error (null "
    "or the reason)."
)
@bootstrap_option
def delete_records(
    topic: str,
    partitions: tuple[int, ...],
    to_offset: int | None,
    to_end: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    bootstrap: Bootstrap,
) -> None:
    """Delete the oldest records of TOPIC permanently.

    Shows how many, warns of groups that have not finished or read them, and asks for confirmation.
    The topic and its offsets remain: the next record that is produced follows the last one. RECORDS
    counts offsets. For a share group the warning has an upper bound, as only the number of its
    unfinished records is known. Without a terminal --yes is needed (exit code 2); the answer no is
    exit code 1.

    \b
    Examples:
      kbroker topics delete-records orders --to-end --dry-run
      kbroker topics delete-records orders --partition 0 --to-offset 1000
    """
    exactly_one({"--to-offset": to_offset, "--to-end": to_end})
    with connect(bootstrap) as connection:
        cuts = _cuts(connection, topic, partitions, to_offset)
        total = sum(cut.records for cut in cuts)
        for line in _warnings(connection, topic, cuts) if total else ():
            say(f"warning: {line}")
        if not as_json:
            _print(topic, cuts)
        if dry_run or not total:
            if as_json:
                print_json([_as_json(topic, cut, None) for cut in cuts])
            say(
                f"{total} records would be deleted; nothing was (--dry-run)"
                if dry_run
                else "there is nothing to delete"
            )
            return
        if not yes:
            ask(f"Delete {total} records of {topic} permanently?")
        _delete(connection, topic, cuts, as_json=as_json)


def _cuts(connection: Connection, name: str, partitions: Sequence[int], to_offset: int | None) -> list[Cut]:
    """Raises CommandFailed for partitions and offsets that do not exist."""
    from kbroker.client import admin
    from kbroker.client.topic_logs import bounds

    (topic,) = admin.topics(connection, [name])
    wanted = _wanted(topic, partitions)
    if to_offset is not None and not partitions and len(wanted) > 1:
        raise CommandFailed(
            f"--to-offset is an offset of one partition, and {name} has {len(wanted)}: name one with "
            "--partition",
            USAGE,
        )
    spans = bounds(connection, topic)
    cuts = []
    for partition in wanted:
        start, end = spans[partition]
        if to_offset is not None and to_offset > end:
            raise CommandFailed(
                f"{name}-{partition} ends at offset {end}, before --to-offset {to_offset}; --to-end "
                "deletes all of it"
            )
        cuts.append(Cut(partition, start, end if to_offset is None else max(start, to_offset), end))
    return cuts


def _wanted(topic: Topic, partitions: Sequence[int]) -> list[int]:
    for partition in partitions:
        if partition not in topic.partitions:
            raise CommandFailed(
                f"topic {topic.name} has no partition {partition}: it has {len(topic.partitions)}, "
                f"numbered from 0"
            )
    return sorted(set(partitions or topic.partitions))


def _warnings(connection: Connection, topic: str, cuts: Sequence[Cut]) -> Iterator[str]:
    """A line for each group that has not finished or read the records to be deleted. Sends a
    request for each group of the broker."""
    from kbroker.client import consumer_group_admin, group_admin

    below = {cut.partition: cut for cut in cuts if cut.records}
    for group in group_admin.groups(connection, types=()):
        if group.type == "share":
            count = _unfinished(connection, group.group_id, topic, below)
            what = (
                f"share group {group.group_id} has not finished up to {count} of these records and will "
                f"not receive them"
            )
        elif group.protocol in (consumer_group_admin.CONSUMER, ""):
            count = _unread(connection, group.group_id, topic, below)
            what = f"consumer group {group.group_id} has not read {count} of these records"
        else:
            continue
        if count:
            yield what


def _unfinished(connection: Connection, group: str, topic: str, cuts: Mapping[int, Cut]) -> int:
    """An upper bound. The group reports only its lag in the whole log. Lag that exceeds the records
    from the start offset onward is of records that wait below the start offset."""
    from kbroker.client import group_admin

    count = 0
    for row in group_admin.describe_share_group_offsets(connection, group, {topic: list(cuts)}):
        if row.start_offset is not None and (cut := cuts.get(row.partition)) is not None:
            behind = max(0, cut.below - max(cut.start, row.start_offset))
            lag = behind if row.lag is None or row.lag < 0 else row.lag
            waiting = max(0, lag - max(0, cut.end - row.start_offset))
            count += min(behind + waiting, lag)
    return count


def _unread(connection: Connection, group: str, topic: str, cuts: Mapping[int, Cut]) -> int:
    from kbroker.client import consumer_group_admin

    committed = consumer_group_admin.committed_offsets(connection, group)
    return sum(
        max(0, cuts[place.partition].below - max(cuts[place.partition].start, each.offset))
        for place, each in committed.items()
        if place.topic == topic and place.partition in cuts
    )


def _print(topic: str, cuts: Sequence[Cut]) -> None:
    rows = [(topic, cut.partition, cut.start, cut.below, cut.records) for cut in cuts]
    print_table(("TOPIC", "PARTITION", "START-OFFSET", "NEW-START-OFFSET", "RECORDS"), rows)


def _as_json(topic: str, cut: Cut, error: KafkaError | None) -> dict[str, object]:
    return {
        "topic": topic,
        "partition": cut.partition,
        "start_offset": cut.start,
        "new_start_offset": cut.below,
        "records": cut.records,
        "error": error and error.message,
    }


def _delete(connection: Connection, topic: str, cuts: Sequence[Cut], *, as_json: bool) -> None:
    """Raises CommandFailed if some partitions were refused; the records of the others are
    deleted."""
    from kbroker.client import admin

    answers = admin.delete_records(
        connection, topic, {cut.partition: cut.below for cut in cuts if cut.records}
    )
    refused = {partition: answer for partition, answer in answers.items() if isinstance(answer, KafkaError)}
    if as_json:
        print_json([_as_json(topic, cut, refused.get(cut.partition)) for cut in cuts])
    else:
        click.echo(
            f"deleted {sum(cut.records for cut in cuts if cut.partition not in refused)} records of "
            f"{escaped(topic)}"
        )
    refuse([f"records of {error.message}" for error in refused.values()])
