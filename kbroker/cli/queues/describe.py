"""`kbroker queues list` and `kbroker queues describe`: the number of jobs, the workers, and
settings that differ from those of a new queue."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.exits import say
from kbroker.cli.logging_setup import escaped
from kbroker.cli.output import Cell, age_text, human_bytes, print_json, print_table, table_lines
from kbroker.cli.params import (
    Bootstrap,
    bootstrap_option,
    connect,
    json_option,
    not_blank,
    optional_admin_option,
)
from kbroker.cli.watching import moments, print_all_json, show, watch_options
from kbroker.client.queues.found import existing
from kbroker.client.queues.settings import SETTINGS, Part
from kbroker.client.queues.values import shown
from kbroker.settings.queue import PAUSED

if TYPE_CHECKING:
    from rich.text import Text

    from kbroker.client.admin_endpoint import AdminEndpoint
    from kbroker.client.queues.report import QueueReport, Worker
    from kbroker.client.queues.settings import Queue
    from kbroker.client.rpc import Connection

_WORKER_HEADINGS = ("WORKER", "HOST", "MEMBER-ID", "JOBS", "LOCK-LEFT", "HOLDS")
_LABEL_WIDTH = 14
_MOST_PLACES = 4
_ADMIN_HINT = "-  (shown with --admin PORT)"


@click.command("list")
@json_option("An array of objects: name, partitions, unfinished, workers, dead_letters, dead_letter_topic.")
@bootstrap_option
def list_queues(as_json: bool, bootstrap: Bootstrap) -> None:
    """List all queues: topics that have a share group of the same name.

    UNFINISHED is the number of jobs that no worker has finished, including those in progress and
    those that wait. DEAD-LETTERS is the number of records in the dead letter topic; - means that
    there is none.

    \b
    Examples:
      kbroker queues list
      kbroker queues list --json
    """
    from kbroker.client.queues.counts import summaries

    with connect(bootstrap) as connection:
        found = [each._asdict() for each in summaries(connection)]
    if as_json:
        print_json(found)
        return
    if not found:
        say("there are no queues: `kbroker queues create NAME` creates one")
        return
    columns = ("name", "partitions", "unfinished", "workers", "dead_letters")
    headings = ("QUEUE", "PARTITIONS", "UNFINISHED", "WORKERS", "DEAD-LETTERS")
    print_table(headings, [tuple(row[column] for column in columns) for row in found])


@click.command()
@click.argument("name", callback=not_blank)
@watch_options
@json_option(
    "One object, with --watch one per line: name, partitions, paused, sent (ever), unfinished, "
    "ready, in_flight, waiting, archiving (waits for its dead letter), next_due_ms (of those "
    "waiting on disk), oldest_age_ms, dead_letter_topic, dead_letters, dead_letters_waiting_bytes "
    "(wait for room on the disk; null without --admin), log_holders (partition, group, "
    "from_offset, bytes that it holds alone, together_bytes that it and those before it hold; null"
    " without --admin), workers (member_id, client_id, host, in_group, jobs, left_ms, held: "
    "partition, first_offset and last_offset of the jobs that it holds, null without --admin), "
    "settings_unlike_defaults, sent_per_s and finished_per_s (null without --watch, and at first)."
)
@optional_admin_option
@bootstrap_option
def describe(
    name: str, watch: bool, interval_ms: int, as_json: bool, admin: AdminEndpoint | None, bootstrap: Bootstrap
) -> None:
    """Show jobs, workers, dead letters and settings of the queue NAME.

    With --admin it also shows the jobs in progress and their workers: ready, waiting, log held,
    JOBS, LOCK-LEFT and HOLDS. The broker must have been started with `kbroker start --admin`. A
    narrow terminal shows HOLDS in place of MEMBER-ID and HOST.

    waiting: jobs that wait for their redelivery, for their due time, or for another job of their
    key.

    oldest: the time since the oldest unfinished job was sent. Without --admin it is the job at the
    saved start offset, which may be finished, and jobs stored beside the log are left out.

    rates: with --watch. A job that was given up or purged is counted as finished.

    log held: how much of the log could be removed if not for a group, or for several groups
    together, and the offset from which they are not done.

    WORKER is the client id; "left the group" marks a worker that holds jobs but is no longer a
    member. HOLDS has partition and offset of its jobs: 0:7, or 0:7-9 for three. The table shows the
    first four, --json all.

    \b
    Examples:
      kbroker queues describe jobs
      kbroker queues describe jobs --watch --admin 9644
    """
    with connect(bootstrap) as connection:
        rates = JobRates()
        found = moments(lambda: rates.of(_document(connection, name, admin)), interval_ms if watch else None)
        if as_json:
            print_all_json(found)
        else:
            show(found, _draw, in_place=watch)


def _document(connection: Connection, name: str, admin: AdminEndpoint | None) -> dict[str, Any]:
    from kbroker.cli.inflight import ask_in_flight
    from kbroker.client.queues.report import report
    from kbroker.client.queues.settings import unlike_defaults

    queue = existing(connection, name)
    in_flight = None if admin is None else ask_in_flight(admin, name, name)
    found = report(connection, queue, in_flight)
    differing = unlike_defaults(queue)
    return {
        **_head(queue, found),
        # A broker of an earlier version does not report it.
        "dead_letters_waiting_bytes": (in_flight or {}).get("dead_letters_waiting_bytes"),
        "log_holders": None if in_flight is None else in_flight.get("log_holders", []),
        "workers": [_worker(each) for each in found.workers],
        "settings_unlike_defaults": {
            **{each: shown(SETTINGS[each], text) for each, text in differing.items()},
            **_further(queue),
        },
    }


def _further(queue: Queue) -> dict[str, str]:
    """Configs of the group that have no option of `create`, such as priorities. A pause is shown in
    the heading."""
    from kbroker.client.queues.settings import wish_of

    found = wish_of(queue).configs.get(Part.GROUP, {})
    return {name: text for name, text in found.items() if name != PAUSED}


def _worker(worker: Worker) -> dict[str, Any]:
    held = None if worker.held is None else [each._asdict() for each in worker.held]
    return {**worker._asdict(), "held": held}


def _head(queue: Queue, found: QueueReport) -> dict[str, Any]:
    assert queue.topic is not None
    age_ms = None if found.oldest_ms is None else max(0, round(time.time() * 1000) - found.oldest_ms)
    return {
        "name": queue.name,
        "partitions": len(queue.topic.partitions),
        "paused": queue.is_paused,
        "sent": found.sent,
        "unfinished": found.unfinished,
        "ready": found.ready,
        "in_flight": found.in_flight,
        "waiting": found.waiting,
        "archiving": found.archiving,
        "next_due_ms": found.next_due_ms,
        "oldest_age_ms": age_ms,
        "dead_letter_topic": queue.dead_letters or None,
        "dead_letters": found.dead_letters,
    }


class JobRates:
    """Jobs sent and finished per second, between two documents of `--watch`. A job that was given
    up or purged counts as finished."""

    def __init__(self) -> None:
        self._last: tuple[float, int, int] | None = None

    def of(self, document: dict[str, Any], now_s: float | None = None) -> dict[str, Any]:
        """The document with `sent_per_s` and `finished_per_s`, which are None the first time."""
        now_s = time.monotonic() if now_s is None else now_s
        sent, finished = document["sent"], document["sent"] - document["unfinished"]
        last, self._last = self._last, (now_s, sent, finished)
        rates: tuple[float | None, ...] = (None, None)
        if last is not None and now_s > last[0]:
            # Lag and log end are requested one after the other, and jobs may be sent in between.
            gone = (max(0, now - before) for now, before in zip((sent, finished), last[1:], strict=True))
            rates = tuple(round(number / (now_s - last[0]), 1) for number in gone)
        return {**document, "sent_per_s": rates[0], "finished_per_s": rates[1]}


def _draw(document: dict[str, Any], width: int) -> Sequence[Text]:
    from rich.text import Text

    paused = ", paused (`kbroker queues resume` resumes it)" if document["paused"] else ""
    lines = [Text(f"queue {escaped(document['name'])}{paused}", "bold")]
    lines += [Text(f"  {label:<{_LABEL_WIDTH}}{text}") for label, text in _rows(document)]
    if document["workers"]:
        lines += [Text(), *map(Text, _worker_lines(document["workers"], width))]
    return lines


def _worker_lines(workers: Sequence[dict[str, Any]], width: int) -> list[str]:
    """On a terminal that is too narrow for all columns, the places of the jobs come before random
    ids and addresses. `--json` has them all."""
    rows = [_worker_row(each) for each in workers]
    lines: list[str] = []
    for left_out in ((), ("MEMBER-ID",), ("MEMBER-ID", "HOST")):
        columns = [at for at, heading in enumerate(_WORKER_HEADINGS) if heading not in left_out]
        lines = table_lines(
            [_WORKER_HEADINGS[at] for at in columns], [[row[at] for at in columns] for row in rows]
        )
        if not sys.stdout.isatty() or max(map(len, lines)) <= width:
            break
    return lines


def _rows(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs of label and text."""
    partitions, workers = document["partitions"], len(document["workers"])
    rows = [("partitions", str(partitions)), ("unfinished", str(document["unfinished"]))]
    if document["ready"] is None:
        rows.append(("in flight", _ADMIN_HINT))
    else:
        rows += [("ready", str(document["ready"])), ("in flight", str(document["in_flight"]))]
        if document["waiting"]:
            rows.append(("waiting", f"{document['waiting']}{_next_due(document['next_due_ms'])}"))
        if document["archiving"]:
            rows.append(("archiving", str(document["archiving"])))
    age_ms = document["oldest_age_ms"]
    rows.append(("oldest", "-" if age_ms is None else age_text(age_ms)))
    if document["sent_per_s"] is not None:
        rows.append(
            ("rates", f"{document['sent_per_s']:g} sent/s, {document['finished_per_s']:g} finished/s")
        )
    rows.append(("workers", str(workers)))
    rows.append(("dead letters", _dead_letters(document)))
    if document["dead_letters_waiting_bytes"]:
        size = human_bytes(document["dead_letters_waiting_bytes"])
        rows.append(("", f"about {size} more wait for room on the broker's disk"))
    rows += [("log held", text) for text in _log_holders(document["log_holders"] or ())]
    differing = ", ".join(f"{name} {text}" for name, text in document["settings_unlike_defaults"].items())
    return [*rows, ("settings", differing or "the defaults of `kbroker queues create`")]


def _next_due(due_ms: int | None) -> str:
    return (
        ""
        if due_ms is None
        else f", the next one is due in {age_text(max(0, due_ms - round(time.time() * 1000)))}"
    )


def _dead_letters(document: dict[str, Any]) -> str:
    topic, count = document["dead_letter_topic"], document["dead_letters"]
    if topic is None:
        return "none are kept"
    return f"{count} in {escaped(topic)}" if count is not None else f"topic {escaped(topic)} does not exist"


def _log_holders(holders: Sequence[dict[str, Any]]) -> list[str]:
    """Groups that hold a part of a log which retention could otherwise remove: for each partition
    the smallest set of groups."""
    lines, partitions = [], sorted({each["partition"] for each in holders})
    for number in partitions:
        found = [each for each in holders if each["partition"] == number]
        # A broker of an earlier version reports only the bytes that one group alone holds.
        sizes = [each.get("together_bytes", each["bytes"]) for each in found]
        some = next((i for i, size_bytes in enumerate(sizes) if size_bytes), None)
        if some is None:
            continue
        names = [escaped(each["group"]) for each in found[: some + 1]]
        groups = (
            f"group {names[0]}" if some == 0 else f"groups {', '.join(names[:-1])} and {names[-1]} together"
        )
        lines.append(
            f"{human_bytes(sizes[some])} by {groups}, from offset {found[0]['from_offset']} of "
            f"partition {number} onward"
        )
    return lines


def _worker_row(worker: dict[str, Any]) -> tuple[Cell, ...]:
    left_ms = worker["left_ms"]
    name = worker["client_id"] + ("" if worker["in_group"] else ", left the group")
    left = None if left_ms is None else f"{left_ms / 1000:.1f} s"
    return name, worker["host"], worker["member_id"], worker["jobs"], left, _holds(worker["held"] or ())


def _holds(held: Sequence[dict[str, Any]]) -> str | None:
    """The places of the first jobs, as in `peek`: `0:4, 0:7-9`."""
    texts = [
        f"{each['partition']}:{each['first_offset']}"
        + ("" if each["first_offset"] == each["last_offset"] else f"-{each['last_offset']}")
        for each in held[:_MOST_PLACES]
    ]
    more = ["…"] if len(held) > _MOST_PLACES else []
    return ", ".join(texts + more) or None
