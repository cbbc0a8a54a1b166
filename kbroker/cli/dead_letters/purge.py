"""`kbroker dead-letters count` and `purge`: counts dead letters, and deletes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.dead_letters.choice import choice_of, choice_options, find_topic, tell
from kbroker.cli.exits import ask, refuse, say
from kbroker.cli.logging_setup import escaped
from kbroker.cli.output import print_json, print_table
from kbroker.cli.params import (
    Bootstrap,
    bootstrap_option,
    connect,
    dry_run_option,
    json_option,
    not_blank,
    yes_option,
)
from kbroker.errors import KafkaError

if TYPE_CHECKING:
    from kbroker.client.admin import Topic
    from kbroker.redrive.dead_letters import StoredDeadLetter
    from kbroker.redrive.notes import Notes
    from kbroker.redrive.purge import PartitionPurge


@click.command()
@click.argument("topic", callback=not_blank)
@choice_options
@json_option(
    "One object: topic, dead_letters, redriven, and kinds, an array of objects with group, "
    "source_topic, cause, dead_letters, redriven."
)
@bootstrap_option
def count(topic: str, as_json: bool, bootstrap: Bootstrap, **chosen: Any) -> None:  # noqa: ANN401
    """Count the dead letters in TOPIC by group, source topic and cause, and how many were redriven.

    Reads the whole topic.

    \b
    Examples:
      kbroker dead-letters count dlq.orders
      kbroker dead-letters count dlq.orders --group workers --json
    """
    from kbroker.client.topic_logs import bounds
    from kbroker.redrive import dead_letters as client
    from kbroker.redrive.notes import Notes

    letters: Counter[tuple[str, str, str]] = Counter()
    sent: Counter[tuple[str, str, str]] = Counter()
    with connect(bootstrap) as connection:
        found = find_topic(connection, topic)
        redriven = Notes(connection).redriven(found.topic_id)
        for letter in client.read_dead_letters(
            connection, found, bounds(connection, found), choice_of(chosen), tell
        ):
            kind = (letter.origin.group_id, letter.origin.topic, letter.cause)
            letters[kind] += 1
            sent[kind] += (letter.partition, letter.offset) in redriven
    rows = [(*kind, number, sent[kind]) for kind, number in sorted(letters.items())]
    if as_json:
        names = ("group", "source_topic", "cause", "dead_letters", "redriven")
        kinds = [dict(zip(names, row, strict=True)) for row in rows]
        print_json(
            {"topic": topic, "dead_letters": letters.total(), "redriven": sent.total(), "kinds": kinds}
        )
        return
    if rows:
        print_table(("GROUP", "SOURCE-TOPIC", "CAUSE", "DEAD-LETTERS", "REDRIVEN"), rows)
    say(f"{_letters(letters.total())} in {topic}, of which {sent.total()} were redriven")


@click.command()
@click.argument("topic", callback=not_blank)
@choice_options
@click.option("--redriven", is_flag=True, help="Only dead letters that a redrive has sent.")
@yes_option
@dry_run_option
@json_option(
    "One object: topic, purged, staying, and partitions, an array of objects with partition, "
    "below, letters, not_redriven, staying, error."
)
@bootstrap_option
def purge(
    topic: str,
    redriven: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    bootstrap: Bootstrap,
    **chosen: Any,  # noqa: ANN401
) -> None:
    """Delete dead letters of TOPIC permanently.

    Deletes all that exist now, or the chosen ones, after a confirmation that says how many, and how
    many no redrive has sent back. Only the beginning of a partition can be deleted. So a chosen
    dead letter stays if another record precedes it (STAYING), and a record that is not a dead
    letter always stays.

    \b
    Examples:
      kbroker dead-letters purge dlq.orders --dry-run
      kbroker dead-letters purge dlq.orders --redriven --until 2026-01-31T00:00:00Z
    """
    from kbroker.client import admin
    from kbroker.client.topic_logs import bounds
    from kbroker.redrive.notes import Notes
    from kbroker.redrive.purge import purges

    choice = choice_of(chosen)
    with connect(bootstrap) as connection:
        found = find_topic(connection, topic)
        notes = Notes(connection)
        sent = notes.redriven(found.topic_id)
        _warn_of_unfinished(notes, found)

        def is_redriven(letter: StoredDeadLetter) -> bool:
            return (letter.partition, letter.offset) in sent

        def is_meant(letter: StoredDeadLetter) -> bool:
            return choice.takes(letter) and (not redriven or is_redriven(letter))

        plan = purges(connection, found, bounds(connection, found), is_meant, is_redriven)
        letters = sum(each.letters for each in plan)
        if not as_json:
            _print(plan)
        if not dry_run and letters:
            if not yes:
                ask(f"Delete {_letters(letters)} of {topic} permanently?")
            answers = admin.delete_records(
                connection, topic, {each.partition: each.below for each in plan if each.letters}
            )
        else:
            answers = {}
    _report(
        topic,
        plan,
        {number: each for number, each in answers.items() if isinstance(each, KafkaError)},
        dry_run,
        as_json,
    )


def _letters(number: int) -> str:
    from kbroker.client.queues.settings import counted

    return counted(number, "dead letter")


def _warn_of_unfinished(notes: Notes, topic: Topic) -> None:
    for each in notes.of_topic(topic.topic_id):
        if each.finished_ms is None:
            say(
                f"warning: redrive {each.name} of {topic.name} is not finished; dead letters that are "
                f"deleted before it has sent them are lost"
            )


def _print(plan: Sequence[PartitionPurge]) -> None:
    rows = [
        (each.partition, each.letters, each.not_redriven, each.staying)
        for each in plan
        if each.letters or each.staying
    ]
    if rows:
        print_table(("PARTITION", "DEAD-LETTERS", "NOT-REDRIVEN", "STAYING"), rows)


def _report(
    topic: str, plan: Sequence[PartitionPurge], refused: dict[int, KafkaError], dry_run: bool, as_json: bool
) -> None:
    """Raises CommandFailed if some partitions were refused; the dead letters of the others are
    deleted."""
    done = sum(each.letters for each in plan if each.partition not in refused)
    staying = sum(each.staying for each in plan)
    if as_json:
        errors = {number: error.message for number, error in refused.items()}
        rows = [{**each._asdict(), "error": errors.get(each.partition)} for each in plan]
        print_json({"topic": topic, "purged": 0 if dry_run else done, "staying": staying, "partitions": rows})
    elif dry_run:
        say(f"{_letters(done)} would be deleted; nothing was (--dry-run)")
    elif any(each.letters for each in plan):
        click.echo(f"deleted {_letters(done)} of {escaped(topic)}")
    else:
        say(f"there are no matching dead letters in {topic} that could be deleted")
    if staying:
        say(
            f"{_letters(staying)} of {topic} cannot be deleted yet: other records precede, and only the "
            "beginning of a partition can be deleted"
        )
    refuse([f"dead letters of {error.message}" for error in refused.values()])
