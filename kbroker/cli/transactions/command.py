"""`kbroker transactions`: list, describe and abort transactions, and find those that no coordinator
knows.

Longer commands are in separate files and are added at the end of this one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.exits import refuse, say
from kbroker.cli.group_views import assignment_text
from kbroker.cli.output import Cell, age_text, print_json, print_table, time_text
from kbroker.cli.params import (
    Bootstrap,
    ChoicesType,
    SpanType,
    bootstrap_option,
    connect,
    each_not_blank,
    json_option,
    not_blank,
    not_empty,
    partitions_option,
)
from kbroker.cli.suggesting import SuggestingGroup
from kbroker.cli.transactions.abort import abort
from kbroker.cli.transactions.hanging import find_hanging
from kbroker.client.spans import span_text
from kbroker.errors import KafkaError

if TYPE_CHECKING:
    from kbroker.client.group_admin import TopicPartition
    from kbroker.client.rpc import Connection
    from kbroker.client.transaction_admin import ProducerDescription, Transaction

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


@click.group(cls=SuggestingGroup)
def transactions() -> None:
    """List and describe transactions; find hanging ones; abort them."""


@transactions.command("list")
@click.option(
    "--state",
    "states",
    type=ChoicesType("STATES", STATES),
    multiple=True,
    help=f"Only ids in these states ({', '.join(STATES)}; separated by commas); may be repeated.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    type=click.IntRange(0, (1 << 63) - 1),
    metavar="N",
    multiple=True,
    help="Only the id of this producer id; may be repeated.",
)
@click.option(
    "--longer-than",
    "longer_than_ms",
    type=SpanType(),
    help="Only ids whose last transaction began longer ago than this, such as 5m. As in Kafka, "
    "ended ones match too, and so do ids that never had one.",
)
@click.option(
    "--pattern",
    metavar="REGEX",
    callback=not_empty,
    help="Only ids that match this regular expression (RE2) as a whole.",
)
@json_option("An array of objects: transactional_id, producer_id, state.")
@bootstrap_option
def list_transactions(
    states: tuple[tuple[str, ...], ...],
    producer_ids: tuple[int, ...],
    longer_than_ms: int | None,
    pattern: str | None,
    as_json: bool,
    bootstrap: Bootstrap,
) -> None:
    """List transactional ids: all, or those that match all options.

    An id without an open transaction is listed too, as Empty (the producer has begun with the id,
    or was fenced), CompleteCommit or CompleteAbort; --state Ongoing leaves those out.

    \b
    Examples:
      kbroker transactions list
      kbroker transactions list --state Ongoing --longer-than 5m
      kbroker transactions list --pattern 'billing-.*' --json
    """
    from kbroker.client import transaction_admin

    wanted = tuple(chain.from_iterable(states))
    with connect(bootstrap) as connection:
        found = transaction_admin.list_transactions(connection, wanted, producer_ids, longer_than_ms, pattern)
    if as_json:
        print_json([each._asdict() for each in found])
    elif found:
        print_table(("TRANSACTIONAL-ID", "PRODUCER-ID", "STATE"), found)
    elif wanted or producer_ids or longer_than_ms is not None or pattern:
        say("no transactional id matches")
    else:
        say("there are no transactional ids")


@transactions.command()
@click.argument("id", nargs=-1, required=True, callback=each_not_blank)
@json_option(
    "An array of objects: transactional_id, state, producer_id, producer_epoch, timeout_ms, "
    "started_ms and open_ms (null without an open transaction), partitions (numbers by topic)."
)
@bootstrap_option
def describe(id: tuple[str, ...], as_json: bool, bootstrap: Bootstrap) -> None:
    """Print state, producer, time-out and partitions of each transactional ID.

    The broker aborts an open transaction after the time-out. STARTED (UTC), OPEN-FOR and PARTITIONS
    are those of an open transaction. While it is being committed or aborted, PARTITIONS are all of
    its partitions. If an ID does not exist, the others are described, and the exit code is 1.

    \b
    Examples:
      kbroker transactions describe billing-1
    """
    from kbroker.client.transaction_admin import Transaction, describe_transactions

    with connect(bootstrap) as connection:
        answers = describe_transactions(connection, id)
    found = [each for each in answers if isinstance(each, Transaction)]
    now_ms = round(time.time() * 1000)
    if as_json:
        print_json([_as_json(each, now_ms) for each in found])
    elif found:
        columns = ("TRANSACTIONAL-ID", "PRODUCER-ID", "EPOCH", "STATE", "TIMEOUT")
        print_table((*columns, "STARTED", "OPEN-FOR", "PARTITIONS"), [_row(each, now_ms) for each in found])
    refuse([str(each.message) for each in answers if isinstance(each, KafkaError)])


def _as_json(found: Transaction, now_ms: int) -> dict[str, Any]:
    began_ms = found.started_ms if found.is_open else None
    open_ms = None if began_ms is None else max(0, now_ms - began_ms)
    return {**found._asdict(), "started_ms": began_ms, "open_ms": open_ms}


def _row(found: Transaction, now_ms: int) -> tuple[Cell, ...]:
    began_ms = found.started_ms if found.is_open else None
    return (
        found.transactional_id,
        found.producer_id,
        found.producer_epoch,
        found.state,
        span_text(found.timeout_ms),
        None if began_ms is None else time_text(began_ms),
        None if began_ms is None else age_text(max(0, now_ms - began_ms)),
        assignment_text(found.partitions) or None,
    )


@transactions.command()
@click.argument("topic", callback=not_blank)
@partitions_option("Only this partition; may be repeated.  [default: all]")
@json_option(
    "An array of objects: topic, partition, producers (producer_id, producer_epoch, last_sequence,"
    " last_timestamp_ms, coordinator_epoch, open_from; null where unknown)."
)
@bootstrap_option
def producers(topic: str, partitions: tuple[int, ...], as_json: bool, bootstrap: Bootstrap) -> None:
    """Print the idempotent and transactional producers that the partitions of TOPIC know.

    OPEN-FROM is the first offset of an open transaction; readers with read_committed wait there.
    COORDINATOR-EPOCH is that of the last marker. An unknown value is printed as -.

    \b
    Examples:
      kbroker transactions producers orders
      kbroker transactions producers orders --partition 0 --json
    """
    with connect(bootstrap) as connection:
        answers = _producers(connection, topic, partitions)
    found = {at: each for at, each in answers.items() if not isinstance(each, KafkaError)}
    if as_json:
        print_json(
            [{**at._asdict(), "producers": [each._asdict() for each in rows]} for at, rows in found.items()]
        )
    elif any(found.values()):
        columns = ("PRODUCER-ID", "EPOCH", "LAST-SEQUENCE", "LAST-TIMESTAMP", "COORDINATOR-EPOCH")
        rows = [_producer_row(at, each) for at, every in found.items() for each in every]
        print_table(("TOPIC", "PARTITION", *columns, "OPEN-FROM"), rows)
    elif found:
        say(f"no partition of topic {topic} that was looked at knows a producer")
    refuse([str(each.message) for each in answers.values() if isinstance(each, KafkaError)])


def _producers(
    connection: Connection, topic: str, partitions: tuple[int, ...]
) -> Mapping[TopicPartition, tuple[ProducerDescription, ...] | KafkaError]:
    from kbroker.client import admin
    from kbroker.client.group_admin import TopicPartition
    from kbroker.client.transaction_admin import describe_producers

    (found,) = admin.topics(connection, [topic])
    numbers = sorted(set(partitions)) or found.partitions
    return describe_producers(connection, [TopicPartition(topic, number) for number in numbers])


def _producer_row(at: TopicPartition, found: ProducerDescription) -> tuple[Cell, ...]:
    return (
        *at,
        found.producer_id,
        found.producer_epoch,
        found.last_sequence,
        time_text(found.last_timestamp_ms),
        found.coordinator_epoch,
        found.open_from,
    )


transactions.add_command(find_hanging)
transactions.add_command(abort)
