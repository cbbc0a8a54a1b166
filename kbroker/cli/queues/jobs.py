"""`kbroker queues peek` and `kbroker queues send`: show jobs without acquiring them, and send
jobs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from kbroker.cli.exits import CommandFailed, say
from kbroker.cli.output import headers_as_json, preview, print_json, print_table, text_fields, time_text
from kbroker.cli.params import (
    COUNT,
    Bootstrap,
    DateTimeType,
    NameValue,
    SpanType,
    bootstrap_option,
    connect,
    json_option,
    not_blank,
)
from kbroker.cli.produce import send_records
from kbroker.client.answers import KINDS
from kbroker.client.queues.found import check_visible, existing, missing
from kbroker.client.queues.settings import Part, look
from kbroker.client.spans import span_text
from kbroker.clock import wall_clock_ms
from kbroker.errors import KafkaError
from kbroker.formats.schedule_headers import DELAY_MS, DELIVER_AT, schedule_of
from kbroker.settings.group_configs import GROUP_CONFIGS
from kbroker.settings.queue import SCHEDULING, SCHEDULING_MAX_DELAY

if TYPE_CHECKING:
    from kbroker.client.queues.settings import Queue
    from kbroker.client.rpc import Connection
    from kbroker.formats.batches import Record

_TIMEOUT_MS = 30_000
MAX_DELAY = GROUP_CONFIGS[SCHEDULING_MAX_DELAY]


@click.command()
@click.argument("name", callback=not_blank)
@click.option(
    "--max", "-n", "most", type=COUNT, default=10, show_default=True, help="At most this many jobs."
)
@json_option(
    "An array of objects: partition, offset, timestamp_ms, due_ms (null: now), key, value, "
    "headers. Bytes that are no UTF-8 come as key_base64 and value_base64."
)
@bootstrap_option
def peek(name: str, most: int, as_json: bool, bootstrap: Bootstrap) -> None:
    """Show the next jobs of the queue NAME without acquiring them.

    Jobs are read from the start offset of the share group onward, so some of them may be in
    progress or already finished. Jobs that were sent with a delay follow, earliest first, with
    their due time in DUE (UTC); a purged one is shown as long as the topic has it and the queue has
    other jobs. Jobs that wait for a redelivery are not shown.

    \b
    Examples:
      kbroker queues peek jobs
      kbroker queues peek jobs -n 100 --json
    """
    with connect(bootstrap) as connection:
        found = _jobs(connection, existing(connection, name), most)
    if as_json:
        print_json([_as_json(job) for job in found])
    elif found:
        has_due = any(job.due_ms is not None for job in found)
        columns = ("AT", "TIME", "DUE", "KEY", "VALUE") if has_due else ("AT", "TIME", "KEY", "VALUE")
        print_table(columns, [_row(job, has_due=has_due) for job in found])
    else:
        say(f"there are no jobs in queue {name}")


class Job(NamedTuple):
    """`due_ms`: since 1970; None: now."""

    partition: int
    record: Record
    due_ms: int | None


def _jobs(connection: Connection, queue: Queue, most: int) -> list[Job]:
    """The next `most` jobs: first jobs without a due time in the order of each partition, then
    scheduled jobs by due time.

    Scheduled jobs lie outside the in-flight window, even below the start offset. Only their headers
    distinguish them from finished ones.
    """
    starts = {row.partition: row.start_offset for row in queue.offsets}
    done = {row.partition for row in queue.offsets if row.lag == 0}
    found = list(islice((job for job in _read(connection, queue, starts, done) if job.due_ms is None), most))
    if len(found) < most and queue.value(Part.GROUP, SCHEDULING) == "true":
        later = (job for job in _read(connection, queue, {}, done) if job.due_ms is not None)
        found += nsmallest(
            most - len(found), later, key=lambda job: (job.due_ms, job.partition, job.record.offset)
        )
    return found


def _read(
    connection: Connection, queue: Queue, starts: Mapping[int, int | None], done: Collection[int]
) -> Iterator[Job]:
    """Jobs from these start offsets onward, or from the start of a partition's log. Skips
    partitions in `done`."""
    from kbroker.client.topic_logs import bounds, read_records

    assert queue.topic is not None
    is_scheduled, now_ms, max_delay_ms = (
        queue.value(Part.GROUP, SCHEDULING) == "true",
        wall_clock_ms(),
        max_delay_of(queue),
    )
    for partition, (start, end) in bounds(connection, queue.topic).items():
        if partition in done:
            continue
        first = max(start, starts.get(partition) or 0)
        for record in read_records(
            connection, queue.topic, partition, first, end, lambda damage: say(str(damage))
        ):
            due_ms = schedule_of(record, now_ms, max_delay_ms).due_ms if is_scheduled else None
            yield Job(partition, record, due_ms)


def max_delay_of(queue: Queue) -> int:
    """How far ahead a job may be scheduled, in milliseconds."""
    return int(queue.value(Part.GROUP, SCHEDULING_MAX_DELAY) or MAX_DELAY.default or 0)


def _row(job: Job, *, has_due: bool) -> tuple[str | None, ...]:
    record = job.record
    due = None if job.due_ms is None else time_text(job.due_ms)
    return (
        f"{job.partition}:{record.offset}",
        time_text(record.timestamp_ms),
        *((due,) if has_due else ()),
        preview(record.key),
        preview(record.value),
    )


def _as_json(job: Job) -> dict[str, Any]:
    record = job.record
    return {
        "partition": job.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "due_ms": job.due_ms,
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
@click.option(
    "--delay",
    "delay_ms",
    type=SpanType(),
    help="Deliver these jobs no earlier than this long after they are sent, by this machine's "
    "clock: the header kbroker-delay-ms.",
)
@click.option(
    "--at",
    "at_ms",
    type=DateTimeType(),
    help="Deliver these jobs no earlier than this time; UTC unless a zone is given; not with "
    "--delay. It is the header kbroker-deliver-at.",
)
@bootstrap_option
def send(
    name: str,
    job: tuple[str, ...],
    key: str | None,
    headers: tuple[tuple[str, str], ...],
    delay_ms: int | None,
    at_ms: int | None,
    bootstrap: Bootstrap,
) -> None:
    """Send jobs to the queue NAME.

    Sends each JOB, or each line of standard input if there is none. The command ends when the
    broker has confirmed every job (acks=all), with exit code 1 if any was refused. A due time in
    the past means at once. One is refused if the queue's scheduling is false, or if it is further
    ahead than kbroker.queue.scheduling.max.delay.ms of the share group.

    \b
    Examples:
      kbroker queues send jobs 'resize 17.png' 'resize 18.png'
      seq 100 | kbroker queues send jobs --key customer-7 --header origin=shell
      kbroker queues send jobs 'remind ada' --delay 2h
      kbroker queues send jobs 'happy new year' --at 2027-01-01T00:00+01:00
    """
    schedule = _schedule(delay_ms, at_ms, headers)
    with connect(bootstrap) as connection:
        try:
            queue = look(connection, name)
        except KafkaError as error:
            if schedule or error.code not in KINDS:
                raise
            # This user may not see what the queue is, and may send to its topic all the same.
        else:
            if queue.topic is None or (not queue.is_whole and not queue.is_configured):
                check_visible(connection, queue)
                raise missing(queue)
            if schedule:
                _check_schedule(queue, delay_ms, at_ms)
    headers += schedule
    record: dict[str, Any] = {} if key is None else {"key": key.encode()}
    if headers:
        record["headers"] = [(header, value.encode()) for header, value in headers]
    if not job and sys.stdin.isatty():
        say("each line is a job; Ctrl-D at the beginning of a line ends the input")
    values = (each.encode() for each in job) if job else _lines(sys.stdin.buffer)
    send_records(
        bootstrap, name, ({**record, "value": value} for value in values), timeout_ms=_TIMEOUT_MS, noun="job"
    )


def _schedule(
    delay_ms: int | None, at_ms: int | None, headers: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    """The headers for these options. Raises UsageError if the due time is ambiguous."""
    if delay_ms is not None and at_ms is not None:
        raise click.UsageError("--delay and --at exclude each other")
    given = [header for header, _ in headers if header in (DELAY_MS, DELIVER_AT)]
    if delay_ms is None and at_ms is None:
        return ()
    if given:
        raise click.UsageError(
            f"--header {given[0]} already has the due time of these jobs: omit --delay and --at"
        )
    return ((DELIVER_AT, str(at_ms)),) if delay_ms is None else ((DELAY_MS, str(delay_ms)),)


def _check_schedule(queue: Queue, delay_ms: int | None, at_ms: int | None) -> None:
    """Raises CommandFailed if the queue would not honour the schedule."""
    name = shlex.quote(queue.name)
    if queue.value(Part.GROUP, SCHEDULING) != "true":
        raise CommandFailed(
            f"queue {queue.name} would deliver these jobs at once: "
            f"`kbroker queues create {name} --scheduling true --update` turns scheduling on"
        )
    ahead_ms, max_delay_ms = delay_ms if at_ms is None else at_ms - wall_clock_ms(), max_delay_of(queue)
    if ahead_ms is None or ahead_ms <= max_delay_ms:
        return
    most_ms = int(MAX_DELAY.maximum or max_delay_ms)
    told = f"queue {queue.name} accepts no jobs scheduled more than {span_text(max_delay_ms)} ahead"
    if ahead_ms > most_ms:
        raise CommandFailed(f"{told}, and no queue accepts more than {span_text(most_ms)}")
    days_ms = 86_400_000
    wanted_ms = min(most_ms, -(-ahead_ms // days_ms) * days_ms)
    raises = f"kbroker configs set --group {name} {SCHEDULING_MAX_DELAY}={wanted_ms}"
    raise CommandFailed(f"{told}: `{raises}` raises the limit")


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    for line in file:
        yield line.rstrip(b"\r\n") if line.endswith(b"\n") else line
