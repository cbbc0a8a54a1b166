"""`kbroker dead-letters`: shows the content of a dead letter topic, and sends records back to their
topics.

`count` and `purge` are in a separate file and are added at the end of this one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.dead_letters.choice import PlaceType, choice_of, choice_options, find_topic, tell
from kbroker.cli.dead_letters.purge import count, purge
from kbroker.cli.exits import CommandFailed, refuse, say
from kbroker.cli.logging_setup import escaped
from kbroker.cli.output import Cell, headers_as_json, preview, print_json, print_table, text_fields, time_text
from kbroker.cli.params import COUNT, Bootstrap, bootstrap_option, connect, json_option, not_blank
from kbroker.cli.suggesting import SuggestingGroup

if TYPE_CHECKING:
    from kbroker.redrive.dead_letters import StoredDeadLetter
    from kbroker.redrive.plan import RedrivePlan
    from kbroker.redrive.sending import Summary


@click.group("dead-letters", cls=SuggestingGroup)
def dead_letters() -> None:
    """List, count, show, redrive and purge dead letters of share groups.

    `kbroker docs dead-letters` explains how records become dead letters.
    """


@dead_letters.command("list")
@click.argument("topic", callback=not_blank)
@choice_options
@click.option("--max", "most", type=COUNT, help="At most this many.")
@json_option(
    "A list of objects with partition, offset, timestamp_ms, source (topic, partition, offset), "
    "group, delivery_count, cause, message, reason (null, or type, message, traceback), "
    "redriven_by, key, value (key_base64, value_base64 for bytes that are no UTF-8)."
)
@bootstrap_option
def list_letters(topic: str, most: int | None, as_json: bool, bootstrap: Bootstrap, **chosen: Any) -> None:  # noqa: ANN401
    """List the dead letters in TOPIC, oldest first in each partition.

    Shows where each record came from, which group gave it up and why, and which redrive has sent it
    back. Other records of the topic are left out. REASON, with what the client said when it
    rejected the record, appears if a dead letter of the list has one.

    \b
    Examples:
      kbroker dead-letters list dlq.orders
      kbroker dead-letters list dlq.orders --group workers --cause exhausted --json
    """
    from itertools import islice

    from kbroker.client.topic_logs import bounds
    from kbroker.redrive import dead_letters as client
    from kbroker.redrive.notes import Notes

    with connect(bootstrap) as connection:
        found = find_topic(connection, topic)
        redriven = Notes(connection).redriven(found.topic_id)
        letters = islice(
            client.read_dead_letters(connection, found, bounds(connection, found), choice_of(chosen), tell),
            most,
        )
        if as_json:
            print_json([letter_as_json(letter, redriven) for letter in letters])
            return
        rows = _rows(letters, redriven)
    if rows:
        print_table(*_without_empty_reasons(_HEADINGS, rows))
    else:
        say(f"there are no matching dead letters in {topic}")


_HEADINGS = ("AT", "TIME", "SOURCE", "GROUP", "DELIVERIES", "CAUSE", "REASON", "REDRIVEN", "VALUE")


def _without_empty_reasons(
    headings: tuple[str, ...], rows: list[tuple[Cell, ...]]
) -> tuple[tuple[str, ...], list[tuple[Cell, ...]]]:
    """Only clients of kbroker's own give reasons."""
    at = headings.index("REASON")
    if any(row[at] is not None for row in rows):
        return headings, rows
    return headings[:at] + headings[at + 1 :], [row[:at] + row[at + 1 :] for row in rows]


def _rows(
    letters: Iterable[StoredDeadLetter], redriven: dict[tuple[int, int], str]
) -> list[tuple[Cell, ...]]:
    return [
        (
            f"{letter.partition}:{letter.offset}",
            time_text(letter.record.timestamp_ms),
            f"{letter.origin.topic}-{letter.origin.partition}:{letter.origin.offset}",
            letter.origin.group_id,
            letter.origin.delivery_count,
            letter.cause,
            _reason_in_brief(letter),
            redriven.get((letter.partition, letter.offset)),
            preview(letter.record.value),
        )
        for letter in letters
    ]


@dead_letters.command()
@click.argument("topic", callback=not_blank)
@click.argument("place", type=PlaceType())
@json_option(
    "One object: as list has it, with headers and original (null, or timestamp_ms, key, value, headers)."
)
@bootstrap_option
def show(topic: str, place: tuple[int, int], as_json: bool, bootstrap: Bootstrap) -> None:
    """Show the dead letter at PLACE (PARTITION:OFFSET of TOPIC) in full, with the original record
    if that still exists.

    \b
    Examples:
      kbroker dead-letters show dlq.orders 0:17
    """
    from kbroker.client import admin
    from kbroker.client.topic_logs import bounds
    from kbroker.redrive import dead_letters as client
    from kbroker.redrive.notes import Notes

    with connect(bootstrap) as connection:
        found = find_topic(connection, topic)
        spans = bounds(connection, found)
        letter = next(
            client.read_dead_letters(connection, found, spans, client.Choice(places=(place,)), tell), None
        )
        if letter is None:
            raise CommandFailed(f"there is no dead letter at {place[0]}:{place[1]} of {topic}")
        topics = {each.name: each for each in admin.topics(connection)}
        original = client.Originals(connection, topics).get(letter)
        redriven = Notes(connection).redriven(found.topic_id)
    values = letter_as_json(letter, redriven)
    values["headers"] = headers_as_json(letter.record.headers)
    values["original"] = original and {
        "timestamp_ms": original.timestamp_ms,
        **text_fields("key", original.key),
        **text_fields("value", original.value),
        "headers": headers_as_json(original.headers),
    }
    if as_json:
        print_json(values)
        return
    for name, value in _lines(values):
        click.echo(f"{name:<16}{escaped(value)}")


@dead_letters.command()
@click.argument("topic", callback=not_blank)
@click.option(
    "--name",
    required=True,
    callback=not_blank,
    help="Name of this redrive; the same name with the same options resumes it.",
)
@choice_options
@click.option(
    "--to",
    "to_topic",
    metavar="TOPIC",
    help="Send them to this topic, to the same partition (modulo their number).  [default: the "
    "topic that each came from]",
)
@click.option("--again", is_flag=True, help="Include dead letters that other redrives have already sent.")
@click.option(
    "--keep-schedule",
    is_flag=True,
    help="Also send the headers kbroker-deliver-at and kbroker-delay-ms, so that the record waits "
    "again. Without it, it is delivered at once.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be sent, and send nothing.")
@json_option(
    "One object: redrive, chosen, sent (now), sent_before, skipped (sent by other redrives), "
    "not_sent, problems (lines that name those), left_out (lines that name unreadable records), "
    "finished; for a dry run chosen, skipped, left_out, targets."
)
@bootstrap_option
def redrive(
    topic: str,
    name: str,
    to_topic: str | None,
    again: bool,
    keep_schedule: bool,
    dry_run: bool,
    as_json: bool,
    bootstrap: Bootstrap,
    **chosen: Any,  # noqa: ANN401
) -> None:
    """Send dead letters of TOPIC back to the topics they came from.

    Each chosen dead letter is sent once, to its original partition, with its own key, value and
    headers and a header __kbroker.redrive that names the dead letter. Dead letters that arrive
    after the redrive has started are not included. A dead letter without a copy of the record is
    read from the original topic, if it is still there.

    After an interruption the same command finds out which records arrived, and resumes; a finished
    redrive sends nothing. Other redrives leave out what earlier ones have sent. They know it from
    the topic __kbroker_redrives: without it, the next one sends every chosen dead letter again. A
    topic has one redrive at a time: until it is finished, others are refused.

    The exit code is 1 if some could not be sent: the record is gone and was not copied, its topic
    is gone or takes no record that large, or records of its topic were deleted while the redrive
    was interrupted. Another redrive can try them again.

    \b
    Examples:
      kbroker dead-letters redrive dlq.orders --name after-the-fix --dry-run
      kbroker dead-letters redrive dlq.orders --name after-the-fix --cause exhausted
    """
    from kbroker.redrive import plan as client
    from kbroker.redrive.notes import Notes, RedriveWish
    from kbroker.redrive.sending import RedriveRefused

    with connect(bootstrap) as connection:
        found = find_topic(connection, topic)
        wish = RedriveWish(choice_of(chosen), to_topic, again, keep_schedule)
        try:
            if dry_run:
                _print_plan(client.plan(connection, Notes(connection), found, wish), as_json)
                return
            with _progress() as on_progress:
                summary = client.redrive(connection, found, name, wish, on_progress)
        except RedriveRefused as refused:
            raise CommandFailed(str(refused)) from refused
    _print_summary(summary, as_json)
    refuse(summary.problems)


def _tell_all(lines: Iterable[str]) -> None:
    for line in lines:
        say(line)


def letter_as_json(letter: StoredDeadLetter, redriven: dict[tuple[int, int], str]) -> dict[str, Any]:
    origin, reason = letter.origin, letter.reason
    return {
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp_ms": letter.record.timestamp_ms,
        "source": {"topic": origin.topic, "partition": origin.partition, "offset": origin.offset},
        "group": origin.group_id,
        "delivery_count": origin.delivery_count,
        "cause": letter.cause,
        "message": origin.message,
        "reason": reason and reason._asdict(),
        "redriven_by": redriven.get((letter.partition, letter.offset)),
        **text_fields("key", letter.record.key),
        **text_fields("value", letter.record.value),
    }


def _reason_in_brief(letter: StoredDeadLetter) -> str | None:
    reason = letter.reason
    return None if reason is None else preview(": ".join(filter(None, reason[:2])).encode())


def _reason_lines(reason: dict[str, str] | None) -> list[tuple[str, str]]:
    if reason is None:
        return []
    texts = [("reason", ": ".join(filter(None, (reason["type"], reason["message"]))))]
    texts += [("traceback", reason["traceback"])]
    return [
        ("" if number else name, line)
        for name, text in texts
        for number, line in enumerate(text.splitlines())
    ]


def _lines(values: dict[str, Any]) -> list[tuple[str, str]]:
    """For a person: name and text of each field."""
    source = values["source"]
    lines = [
        ("at", f"{values['partition']}:{values['offset']}"),
        ("time", time_text(values["timestamp_ms"])),
        ("source", f"{source['topic']}-{source['partition']}:{source['offset']}"),
        ("group", values["group"]),
        ("deliveries", str(values["delivery_count"])),
        ("cause", f"{values['cause']} ({values['message']})"),
        *_reason_lines(values["reason"]),
        ("redriven by", values["redriven_by"] or "-"),
        *_contents("", values),
    ]
    original = values["original"]
    if original is None:
        return [*lines, ("original", "no longer in its topic, or not readable there")]
    return [*lines, ("original time", time_text(original["timestamp_ms"])), *_contents("original ", original)]


def _contents(prefix: str, values: dict[str, Any]) -> list[tuple[str, str]]:
    found = [(prefix + name, _text(name, values)) for name in ("key", "value")]
    return found + [
        (prefix + "header", f"{each['name']}: {_text('value', each)}") for each in values["headers"]
    ]


def _text(name: str, values: dict[str, Any]) -> str:
    if name in values:
        return "-" if values[name] is None else str(values[name])
    return f"{values[name + '_base64']} (base64)"


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("redriving", total=None)
        yield lambda done, of: progress.update(task, completed=done, total=of)


def _print_plan(plan: RedrivePlan, as_json: bool) -> None:
    rows = [(target.topic, target.partition, count) for target, count in sorted(plan.targets.items())]
    if as_json:
        targets = [
            {"topic": topic, "partition": partition, "dead_letters": count}
            for topic, partition, count in rows
        ]
        print_json(
            {
                "chosen": plan.targets.total(),
                "skipped": plan.skipped,
                "left_out": plan.left_out,
                "targets": targets,
            }
        )
        return
    _tell_all(plan.left_out)
    if rows:
        print_table(("TO", "PARTITION", "DEAD-LETTERS"), rows)
    say(
        f"{plan.targets.total()} dead letters would be redriven, {plan.skipped} were redriven before; "
        f"nothing was sent (--dry-run)"
    )


def _print_summary(summary: Summary, as_json: bool) -> None:
    if as_json:
        print_json(asdict(summary))
        return
    from kbroker.client.queues.settings import counted

    _tell_all(summary.left_out)
    click.echo(
        f"{escaped(summary.redrive)}: {counted(summary.chosen, 'dead letter')}, {summary.sent} sent now, "
        f"{summary.sent_before} before, "
        f"{summary.not_sent} could not be sent; {summary.skipped} skipped, which other redrives had sent"
    )
    if not summary.sent and not summary.problems:
        say("nothing was left to send; use another name for dead letters that have arrived since")


dead_letters.add_command(count)
dead_letters.add_command(purge)
