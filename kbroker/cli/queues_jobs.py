"""`kbroker queues peek` and `kbroker queues send`: looking at jobs without taking them, and sending
some."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import click

from kbroker.cli.exits import CommandFailed, say
from kbroker.cli.output import headers_as_json, preview, print_json, print_table, text_fields, time_text
from kbroker.cli.params import COUNT, Address, NameValue, bootstrap_option, connect, json_option, not_blank
from kbroker.cli.produce import send_records
from kbroker.cli.queues_found import existing, why_missing
from kbroker.client.queues import look

if TYPE_CHECKING:
    from kbroker.client.queues import Queue
    from kbroker.client.rpc import Connection
    from kbroker.records import Record

_TIMEOUT_MS = 30_000


@click.command()
@click.argument("name", callback=not_blank)
@click.option(
    "--max", "-n", "most", type=COUNT, default=10, show_default=True, help="No more jobs than this."
)
@json_option
@bootstrap_option
def peek(name: str, most: int, as_json: bool, bootstrap: Address) -> None:
    """Show the next jobs of the queue NAME without taking them.

    They are read from where the share group begins. So some of them may be in work, or finished before older ones were.

    \b
    Examples:
      kbroker queues peek jobs
      kbroker queues peek jobs -n 100 --json
    """
    with connect(bootstrap) as connection:
        found = list(islice(_jobs(connection, existing(connection, name), most), most))
    if as_json:
        print_json([_as_json(partition, record) for partition, record in found])
    elif found:
        columns = ("AT", "TIME", "KEY", "VALUE")
        print_table(columns, [_row(partition, record) for partition, record in found])
    else:
        say(f"there are no jobs in queue {name}")


def _jobs(connection: Connection, queue: Queue, most: int) -> Iterator[tuple[int, Record]]:
    """With their partitions; a partition without share state begins where its log does."""
    from kbroker.client.topic_logs import bounds, read_records

    assert queue.topic is not None
    starts = {row.partition: row.start_offset for row in queue.offsets}
    for partition, (start, end) in bounds(connection, queue.topic).items():
        first = max(start, starts.get(partition) or 0)
        records = read_records(
            connection, queue.topic, partition, first, end, lambda damage: say(str(damage))
        )
        yield from ((partition, record) for record in islice(records, most))


def _row(partition: int, record: Record) -> tuple[str | None, ...]:
    return (
        f"{partition}:{record.offset}",
        time_text(record.timestamp_ms),
        preview(record.key),
        preview(record.value),
    )


def _as_json(partition: int, record: Record) -> dict[str, Any]:
    return {
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **text_fields("key", record.key),
        **text_fields("value", record.value),
        "headers": headers_as_json(record.headers),
    }


@click.command()
@click.argument("name", callback=not_blank)
@click.argument("job", nargs=-1)
@click.option("--key", help="The key of all these jobs.")
@click.option(
    "--header",
    "headers",
    type=NameValue(),
    multiple=True,
    help="A header of all these jobs; may be repeated.",
)
@bootstrap_option
def send(
    name: str, job: tuple[str, ...], key: str | None, headers: tuple[tuple[str, str], ...], bootstrap: Address
) -> None:
    """Send jobs to the queue NAME.

    Each JOB is one, or without any each line of standard input. The command ends when every job is on the broker's disk (acks=all),
    with exit code 1 if any was refused.

    \b
    Examples:
      kbroker queues send jobs 'resize 17.png' 'resize 18.png'
      seq 100 | kbroker queues send jobs --key customer-7 --header origin=shell
    """
    with connect(bootstrap) as connection:
        queue = look(connection, name)
        if queue.topic is None or (not queue.is_whole and not queue.is_configured):
            raise CommandFailed(why_missing(queue))
    record: dict[str, Any] = {} if key is None else {"key": key.encode()}
    if headers:
        record["headers"] = [(header, value.encode()) for header, value in headers]
    if not job and sys.stdin.isatty():
        say("each line is a job; Ctrl-D at the beginning of a line ends them")
    values = (each.encode() for each in job) if job else _lines(sys.stdin.buffer)
    send_records(bootstrap, name, ({**record, "value": value} for value in values), timeout_ms=_TIMEOUT_MS)


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    for line in file:
        yield line.rstrip(b"\r\n") if line.endswith(b"\n") else line
