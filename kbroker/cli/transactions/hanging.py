"""`kbroker transactions find-hanging`: finds transactions that are open in a log, and that no
transactional id is about to end.

Readers with read_committed get nothing behind the start of such a transaction. It never times out,
because the coordinator does not know it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.exits import refuse, say
from kbroker.cli.logging_setup import escaped
from kbroker.cli.output import age_text, print_json, print_table, time_text
from kbroker.cli.params import Bootstrap, SpanType, bootstrap_option, connect, json_option, not_empty
from kbroker.errors import KafkaError

if TYPE_CHECKING:
    from kbroker.client.group_admin import TopicPartition
    from kbroker.client.rpc import Connection
    from kbroker.client.transaction_admin import ProducerDescription, Transaction


@click.command("find-hanging")
@click.option("--topic", metavar="TOPIC", callback=not_empty, help="Only in this topic.  [default: all]")
@click.option(
    "--longer-than",
    "longer_than_ms",
    type=SpanType(),
    default="20m",
    show_default=True,
    help="Only transactions without a new record for longer than this.",
)
@json_option(
    "An array of objects: topic, partition, start_offset, producer_id, producer_epoch, "
    "coordinator_epoch, last_timestamp_ms, idle_ms."
)
@bootstrap_option
def find_hanging(topic: str | None, longer_than_ms: int, as_json: bool, bootstrap: Bootstrap) -> None:
    """Find transactions that are open in a partition, and that the coordinator does not know.

    Such a transaction never times out, and readers with read_committed get nothing behind its
    start. The default of --longer-than is 5 minutes more than transaction.max.timeout.ms: by then
    the coordinator has aborted every transaction that it knows. `abort --topic` ends one that was
    found; stderr has the command for the first one.

    \b
    Examples:
      kbroker transactions find-hanging
      kbroker transactions find-hanging --topic orders --longer-than 1h --json
    """
    from kbroker.client import admin
    from kbroker.client.group_admin import TopicPartition

    with connect(bootstrap) as connection:
        topics = admin.topics(connection, None if topic is None else [topic])
        places = [TopicPartition(each.name, number) for each in topics for number in each.partitions]
        now_ms = round(time.time() * 1000)
        found, problems = _hanging(connection, places, now_ms - longer_than_ms)
    if as_json:
        print_json([_as_json(at, each, now_ms) for at, each in found])
    elif found:
        columns = ("TOPIC", "PARTITION", "START-OFFSET", "PRODUCER-ID", "EPOCH", "LAST-TIMESTAMP", "IDLE-FOR")
        print_table(columns, [_row(at, each, now_ms) for at, each in found])
        at, first = found[0]
        say(
            f"`kbroker transactions abort --topic {escaped(at.topic)} --partition {at.partition} "
            f"--start-offset {first.open_from}` aborts the first of these"
        )
    elif not problems:
        say("there are no hanging transactions")
    refuse(problems)


def _hanging(
    connection: Connection, places: Sequence[TopicPartition], before_ms: int
) -> tuple[list[tuple[TopicPartition, ProducerDescription]], list[str]]:
    """The hanging transactions, by place; and a line for each log that could not be read. A
    topic that was deleted meanwhile is left out."""
    from kbroker.client.transaction_admin import describe_producers
    from kbroker.errors import ErrorCode

    suspects, problems = [], []
    for at, each in describe_producers(connection, places).items():
        if not isinstance(each, KafkaError):
            suspects += [
                (at, one) for one in each if one.open_from is not None and one.last_timestamp_ms < before_ms
            ]
        elif each.code is not ErrorCode.unknown_topic_or_partition:
            problems.append(str(each.message))
    known = owners(connection, {each.producer_id for _, each in suspects})
    hanging = [
        (at, each)
        for at, each in suspects
        if not any(one.producer_id == each.producer_id and one.has(at) for one in known)
    ]
    return sorted(hanging), problems


def owners(connection: Connection, producer_ids: Iterable[int]) -> list[Transaction]:
    """The transactional ids of these producers."""
    from kbroker.client.transaction_admin import Transaction, describe_transactions, list_transactions

    wanted = tuple(producer_ids)
    listed = list_transactions(connection, producer_ids=wanted) if wanted else []
    described = describe_transactions(connection, [each.transactional_id for each in listed])
    return [each for each in described if isinstance(each, Transaction)]


def _as_json(at: TopicPartition, found: ProducerDescription, now_ms: int) -> dict[str, Any]:
    return {
        **at._asdict(),
        "start_offset": found.open_from,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "coordinator_epoch": found.coordinator_epoch,
        "last_timestamp_ms": found.last_timestamp_ms,
        "idle_ms": now_ms - found.last_timestamp_ms,
    }


def _row(at: TopicPartition, found: ProducerDescription, now_ms: int) -> tuple[str | int | None, ...]:
    return (
        *at,
        found.open_from,
        found.producer_id,
        found.producer_epoch,
        time_text(found.last_timestamp_ms),
        age_text(max(0, now_ms - found.last_timestamp_ms)),
    )
