"""`kbroker transactions abort`: aborts the open transaction of a transactional id and fences its
producer, or ends a hanging transaction in one log."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

import click

from kbroker.cli.exits import CommandFailed, ask
from kbroker.cli.group_views import assignment_text
from kbroker.cli.logging_setup import escaped
from kbroker.cli.output import age_text, print_json
from kbroker.cli.params import INDEX, Bootstrap, bootstrap_option, connect, json_option, not_empty, yes_option
from kbroker.cli.transactions.hanging import owners
from kbroker.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.client.group_admin import TopicPartition
    from kbroker.client.rpc import Connection
    from kbroker.client.transaction_admin import Fenced, ProducerDescription, Transaction

_MOST_TIMEOUT_MS = 10_000
"""The time-out that a fenced id gets at most. The next producer sets its own."""
_NOTHING = "nothing was aborted"


@click.command()
@click.argument("id", required=False, callback=not_empty)
@click.option("--topic", metavar="TOPIC", callback=not_empty, help="The topic of a hanging transaction.")
@click.option("--partition", "-p", type=INDEX, help="The partition of a hanging transaction.")
@click.option(
    "--start-offset",
    type=click.IntRange(0, (1 << 63) - 1),
    metavar="N",
    help="The first offset of a hanging transaction, as find-hanging prints it.",
)
@yes_option
@json_option(
    "One object. With ID: transactional_id, outcome (aborted, committed, or null if there was no "
    "open transaction), producer_id and producer_epoch (those that fence). Otherwise: topic, "
    "partition, start_offset, producer_id, producer_epoch."
)
@bootstrap_option
def abort(
    id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    yes: bool,
    as_json: bool,
    bootstrap: Bootstrap,
) -> None:
    """Abort the open transaction of the transactional ID, and fence its producer.

    The producer gets a fatal error with its next request, and has to be started again. It is fenced
    even if it has no open transaction. Asks for confirmation, for which it needs a terminal or
    --yes (exit code 2), and waits until the transaction has ended. If its commit was decided
    already, or the answer is no, the exit code is 1.

    Without ID, but with --topic, --partition and --start-offset, it aborts a hanging transaction in
    one partition. One that belongs to an ID is refused: it may be committed in other partitions.

    \b
    Examples:
      kbroker transactions abort billing-1
      kbroker transactions abort --topic orders --partition 0 --start-offset 4711 --yes
    """
    from kbroker.client.group_admin import TopicPartition

    place = (topic, partition, start_offset)
    if (id is None) == (place == (None, None, None)):
        raise click.UsageError("either ID, or --topic, --partition and --start-offset are needed, not both")
    if id is None and None in place:
        raise click.UsageError("--topic, --partition and --start-offset are needed together")
    with connect(bootstrap) as connection:
        if id is not None:
            _abort_id(connection, id, yes=yes, as_json=as_json)
        elif topic is not None and partition is not None and start_offset is not None:
            _abort_in_log(
                connection, TopicPartition(topic, partition), start_offset, yes=yes, as_json=as_json
            )


def _abort_id(connection: Connection, transactional_id: str, *, yes: bool, as_json: bool) -> None:
    from kbroker.client.transaction_admin import describe_transactions, fence

    (found,) = describe_transactions(connection, [transactional_id])
    if isinstance(found, KafkaError):
        is_missing = found.code is ErrorCode.transactional_id_not_found
        hint = "; `kbroker transactions list` names those that exist" if is_missing else ""
        raise CommandFailed(f"{found.message}{hint}")
    if not yes:
        ask(_question(found), _NOTHING)
    try:
        fenced = fence(connection, transactional_id, min(found.timeout_ms, _MOST_TIMEOUT_MS))
    except KafkaError as error:
        if error.code is not ErrorCode.concurrent_transactions:
            raise
        raise CommandFailed(
            f"the transaction of {transactional_id} has not ended in time, and its producer is not fenced: "
            "the broker's log has the reason; try again"
        ) from error
    if as_json:
        row = {"outcome": fenced.outcome, "producer_id": fenced.producer_id}
        print_json({"transactional_id": transactional_id, **row, "producer_epoch": fenced.producer_epoch})
    _conclude(found, fenced, as_json=as_json)


def _question(found: Transaction) -> str:
    from kbroker.client.transaction_admin import OUTCOMES

    name, producer = found.transactional_id, _name(found)
    if not found.is_open:
        return f"{name} has no open transaction. Fence its {producer}?"
    if (outcome := OUTCOMES.get(found.state)) is not None:
        return f"The transaction of {name} is being {outcome}. Wait for its end, and fence its {producer}?"
    began_ms = found.started_ms or 0
    age = age_text(max(0, round(time.time() * 1000) - began_ms))
    where = f" in {assignment_text(found.partitions)}" if found.partitions else ""
    return f"Abort the transaction of {name}, open for {age}{where}, and fence its {producer}?"


def _name(found: Transaction | ProducerDescription) -> str:
    return f"producer {found.producer_id} (epoch {found.producer_epoch})"


def _conclude(found: Transaction, fenced: Fenced, *, as_json: bool) -> None:
    """Raises CommandFailed if the transaction was committed."""
    name = found.transactional_id
    if fenced.outcome == "committed":
        raise CommandFailed(
            f"the transaction of {name} was committed: that was decided already; its producer is fenced"
        )
    if as_json:
        return
    if fenced.outcome == "aborted":
        click.echo(f"aborted the transaction of {escaped(name)} and fenced its {_name(found)}")
    else:
        click.echo(f"fenced the {_name(found)} of {escaped(name)}; it had no open transaction")


def _abort_in_log(
    connection: Connection, at: TopicPartition, start_offset: int, *, yes: bool, as_json: bool
) -> None:
    from kbroker.client.transaction_admin import abort_in_log

    producer = _producer_from(connection, at, start_offset)
    for each in owners(connection, [producer.producer_id]):
        if each.has(at):
            name = each.transactional_id
            raise CommandFailed(
                f"the transaction is not hanging, it belongs to {name}: "
                f"`kbroker transactions abort {shlex.quote(name)}` aborts it in all of its partitions"
            )
    if not yes:
        ask(f"Abort the transaction of {_name(producer)} in {at} from offset {start_offset} on?", _NOTHING)
    abort_in_log(connection, at, producer)
    if as_json:
        ids = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        print_json({**at._asdict(), "start_offset": start_offset, **ids})
    else:
        where = f"{escaped(str(at))} from offset {start_offset} on"
        click.echo(f"aborted the transaction of {_name(producer)} in {where}")


def _producer_from(connection: Connection, at: TopicPartition, start_offset: int) -> ProducerDescription:
    """The producer whose transaction begins there. Raises CommandFailed if there is none."""
    from kbroker.client.transaction_admin import describe_producers

    found = describe_producers(connection, [at])[at]
    if isinstance(found, KafkaError):
        raise CommandFailed(str(found.message))
    for each in found:
        if each.open_from == start_offset:
            return each
    raise CommandFailed(
        f"no open transaction of {at} begins at offset {start_offset}: "
        f"`kbroker transactions producers {shlex.quote(at.topic)} --partition {at.partition}` shows OPEN-FROM"
    )
