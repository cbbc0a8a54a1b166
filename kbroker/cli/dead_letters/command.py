"""`kbroker dead-letters`: look at what a dead letter topic holds, and send it back to where it came
from.

Counting and purging are in a file of their own and are added at the end of this one.
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
from kbroker.cli.output import Cell, headers_as_json, preview, print_json, print_table, text_fields, time_text
from kbroker.cli.params import COUNT, Address, bootstrap_option, connect, json_option, not_blank
from kbroker.cli.suggesting import SuggestingGroup
from kbroker.logging_setup import escaped

if TYPE_CHECKING:
    from kbroker.redrive.dead_letters import DeadLetter
    from kbroker.redrive.plan import Plan
    from kbroker.redrive.sending import Summary


@click.group("dead-letters", cls=SuggestingGroup)
def dead_letters() -> None:
    """List, count, show, redrive and purge what share groups gave up.

    `kbroker docs dead-letters` says how records get there.
    """


@dead_letters.command("list")
@click.argument("topic", callback=not_blank)
@choice_options
@click.option("--max", "most", type=COUNT, help="No more than this many.")
@json_option
@bootstrap_option
def list_letters(topic: str, most: int | None, as_json: bool, bootstrap: Address, **chosen: Any) -> None:  # noqa: ANN401
    """Dead letters in TOPIC, oldest first in each partition.

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
        print_table(("AT", "TIME", "SOURCE", "GROUP", "DELIVERIES", "CAUSE", "REDRIVEN", "VALUE"), rows)
    else:
        say(f"there are no such dead letters in {topic}")


def _rows(letters: Iterable[DeadLetter], redriven: dict[tuple[int, int], str]) -> list[tuple[Cell, ...]]:
    return [
        (
            f"{letter.partition}:{letter.offset}",
            time_text(letter.record.timestamp_ms),
            f"{letter.origin.topic}-{letter.origin.partition}:{letter.origin.offset}",
            letter.origin.group_id,
            letter.origin.delivery_count,
            letter.cause,
            redriven.get((letter.partition, letter.offset)),
            preview(letter.record.value),
        )
        for letter in letters
    ]


@dead_letters.command()
@click.argument("topic", callback=not_blank)
@click.argument("place", type=PlaceType())
@json_option
@bootstrap_option
def show(topic: str, place: tuple[int, int], as_json: bool, bootstrap: Address) -> None:
    """Everything of the dead letter at PLACE, a partition and an offset of TOPIC, and the record it
    stands for where that is still there.

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
    help="Name of this redrive; the same one again goes on with it.",
)
@choice_options
@click.option("--to", "to_topic", metavar="TOPIC", help="Send them there.  [default: where each came from]")
@click.option("--again", is_flag=True, help="Also what other redrives have sent back already.")
@click.option(
    "--keep-schedule",
    is_flag=True,
    help="Jobs that were sent with a delay, or for a time, wait for it again.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be sent.")
@json_option
@bootstrap_option
def redrive(
    topic: str,
    name: str,
    to_topic: str | None,
    again: bool,
    keep_schedule: bool,
    dry_run: bool,
    as_json: bool,
    bootstrap: Address,
    **chosen: Any,  # noqa: ANN401
) -> None:
    """Send dead letters of TOPIC back to the topics they came from.

    Each chosen one is sent once, to the partition it was in, with a header __kbroker.redrive that
    names the dead letter; those that came after the start do not count. Interrupted, the same
    command goes on where it was. A dead letter without a copy is read from its topic, if it still
    is there.

    \b
    Examples:
      kbroker dead-letters redrive dlq.orders --name after-the-fix --dry-run
      kbroker dead-letters redrive dlq.orders --name after-the-fix --cause exhausted
    """
    from kbroker.redrive import plan as client
    from kbroker.redrive.notes import Notes, Wish
    from kbroker.redrive.sending import RedriveRefused

    with connect(bootstrap) as connection:
        found = find_topic(connection, topic)
        wish = Wish(choice_of(chosen), to_topic, again, keep_schedule)
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


def letter_as_json(letter: DeadLetter, redriven: dict[tuple[int, int], str]) -> dict[str, Any]:
    origin = letter.origin
    return {
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp_ms": letter.record.timestamp_ms,
        "source": {"topic": origin.topic, "partition": origin.partition, "offset": origin.offset},
        "group": origin.group_id,
        "delivery_count": origin.delivery_count,
        "cause": letter.cause,
        "message": origin.message,
        "redriven_by": redriven.get((letter.partition, letter.offset)),
        **text_fields("key", letter.record.key),
        **text_fields("value", letter.record.value),
    }


def _lines(values: dict[str, Any]) -> list[tuple[str, str]]:
    """For a person: name and text of everything."""
    source = values["source"]
    lines = [
        ("at", f"{values['partition']}:{values['offset']}"),
        ("time", time_text(values["timestamp_ms"])),
        ("source", f"{source['topic']}-{source['partition']}:{source['offset']}"),
        ("group", values["group"]),
        ("deliveries", str(values["delivery_count"])),
        ("cause", f"{values['cause']} ({values['message']})"),
        ("redriven by", values["redriven_by"] or "-"),
        *_contents("", values),
    ]
    original = values["original"]
    if original is None:
        return [*lines, ("original", "not in its topic any more, or cannot be read there")]
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
    """A bar on stderr, where somebody looks at it."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("redriving", total=None)
        yield lambda done, of: progress.update(task, completed=done, total=of)


def _print_plan(plan: Plan, as_json: bool) -> None:
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
        f"{plan.targets.total()} dead letters would be redriven, {plan.skipped} were before; nothing was "
        "sent (--dry-run)"
    )


def _print_summary(summary: Summary, as_json: bool) -> None:
    if as_json:
        print_json(asdict(summary))
        return
    _tell_all(summary.left_out)
    click.echo(
        f"{escaped(summary.redrive)}: {summary.chosen} dead letters, {summary.sent} sent now, "
        f"{summary.sent_before} before, "
        f"{summary.not_sent} could not be sent; {summary.skipped} left out, which other redrives had sent"
    )
    if not summary.sent and not summary.problems:
        say("nothing was left to send; dead letters that came since are for a redrive of another name")


dead_letters.add_command(count)
dead_letters.add_command(purge)
