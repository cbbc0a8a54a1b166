"""`kbroker queues create`: creates a queue in one step. Run again, it changes nothing, or reports
how the queue differs from the request."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from kbroker.cli.exits import CommandFailed, refuse, say
from kbroker.cli.output import print_json
from kbroker.cli.params import COUNT, Bootstrap, bootstrap_option, connect, json_option, not_empty
from kbroker.cli.queues.settings import setting_options, settings_of, shown
from kbroker.client.queues.settings import DEAD_LETTER_TOPIC, SETTINGS, Part, Wish
from kbroker.errors import ErrorCode, KafkaError
from kbroker.logging_setup import escaped

if TYPE_CHECKING:
    from kbroker.client.queues.plan import Difference, Plan
    from kbroker.client.rpc import Connection


@click.command()
@click.argument("name", required=False, callback=not_empty)
@click.option(
    "--partitions",
    "-p",
    type=COUNT,
    help="Partitions of the topic; one is enough for any number of workers.  [default: 1]",
)
@setting_options
@click.option(
    "--dead-letters",
    metavar="TOPIC",
    callback=not_empty,
    help="The topic for jobs that are given up.  [default: dlq.NAME]",
)
@click.option("--no-dead-letters", is_flag=True, help="Drop jobs that are given up, without a dead letter.")
@click.option(
    "--from",
    "file",
    type=click.File("rb"),
    help="Create the queues of a TOML file, as written by `export`; - is standard input.",
)
@click.option("--update", is_flag=True, help="Alter an existing queue where it differs from the request.")
@click.option("--force", is_flag=True, help="Add partitions even if the queue keeps the order of keys.")
@json_option
@bootstrap_option
def create(
    name: str | None,
    partitions: int | None,
    dead_letters: str | None,
    no_dead_letters: bool,
    file: BinaryIO | None,
    update: bool,
    force: bool,
    as_json: bool,
    bootstrap: Bootstrap,
    **options: str | bool | None,
) -> None:
    """Create the queue NAME: a topic, a share group of the same name and a dead letter topic, with
    settings that suit jobs.

    Durations are written 500ms, 30s, 10m, 1h or 30d. If the queue exists, nothing is changed; where
    it differs from the given options, the command prints how and ends with exit code 1, and
    --update alters it. Settings without an option stay as they are. After an interruption the same
    command does the rest.

    \b
    Examples:
      kbroker queues create jobs
      kbroker queues create mails --prefetch 5 --delay 10s --max-delay 1h --deliveries 5
      kbroker queues create jobs --lock-max 4h --update
      kbroker queues create --from queues.toml
    """
    settings = settings_of(options)
    if dead_letters is not None and no_dead_letters:
        raise click.UsageError("--dead-letters and --no-dead-letters exclude each other")
    topic = "" if no_dead_letters else dead_letters
    if (name is None) == (file is None):
        raise click.UsageError("either NAME or --from is needed, not both")
    if file is not None:
        from kbroker.cli.queues.file import read_wishes

        if settings or partitions is not None or topic is not None:
            raise click.UsageError(
                "--from excludes the options for settings of a queue: they are in the file"
            )
        wishes = read_wishes(file)
    else:
        wishes = [Wish(name or "", partitions, topic, settings)]
    with connect(bootstrap) as connection:
        if file is None:
            _make(connection, wishes[0], update=update, force=force, as_json=as_json)
        else:
            _make_all(connection, wishes, update=update, force=force, as_json=as_json)


def _make_all(
    connection: Connection, wishes: list[Wish], *, update: bool, force: bool, as_json: bool
) -> None:
    """Create each queue, even if others are refused."""
    problems = []
    for wish in wishes:
        try:
            _make(connection, wish, update=update, force=force, as_json=as_json)
        except CommandFailed as error:
            problems.append(str(error))
        except KafkaError as error:
            problems.append(f"queue {wish.name}: {error.message or error.code.name.replace('_', ' ')}")
    refuse(problems)


def _make(connection: Connection, wish: Wish, *, update: bool, force: bool, as_json: bool) -> None:
    """Retries if another command creates one of the two topics at the same time: the plan is then
    computed again, at most once for each topic."""
    from kbroker.protocol.topic_names import is_legal, why_illegal

    if not is_legal(wish.name):
        raise CommandFailed(why_illegal(wish.name))
    for is_last in (False, False, True):
        try:
            _make_now(connection, wish, update=update, force=force, as_json=as_json)
        except KafkaError as error:
            if is_last or error.code is not ErrorCode.topic_already_exists:
                raise
        else:
            return


def _make_now(connection: Connection, wish: Wish, *, update: bool, force: bool, as_json: bool) -> None:
    """Nothing is changed before the broker has accepted every step in a check."""
    from kbroker.client.queues.plan import QueueRefused, plan

    try:
        made = plan(connection, wish)
        if made.differences and not update:
            if as_json:
                print_json(_as_json(made, done=False))
            else:
                for each in made.differences:
                    say(f"queue {wish.name}: {_line(each)}")
            outcome = (
                "was not created: --update creates it and alters that"
                if made.is_new
                else "was not changed: --update alters it"
            )
            raise CommandFailed(f"queue {wish.name} {outcome}")
        for step in made.steps:
            step.check(connection)
        if not force and any(each.config == "partitions" for each in made.differences):
            from kbroker.client.key_orders import ordered_groups, why_not_to_grow

            if ordered := ordered_groups(connection, wish.name):
                raise CommandFailed(why_not_to_grow(wish.name, ordered))
        for step in made.steps:
            step.run(connection)
            if not as_json:
                click.echo(escaped(step.done))
    except QueueRefused as refused:
        raise CommandFailed(str(refused)) from refused
    if as_json:
        print_json(_as_json(made, done=True))
    else:
        _conclude(made, wish)


def _as_json(made: Plan, *, done: bool) -> dict[str, Any]:
    """`done`: the steps of the plan were carried out."""
    return {
        "queue": made.name,
        "created": done and made.is_new,
        "altered": done and bool(made.steps) and not made.is_new,
        "steps": [step.done for step in made.steps] if done else [],
        "differences": [_difference_as_json(each) for each in made.differences],
        "unlike_a_new_queue": [_difference_as_json(each) for each in made.left],
    }


def _difference_as_json(difference: Difference) -> dict[str, str | None]:
    if difference.config is None:
        return {"setting": None, "present": difference.present, "wanted": None}
    present, wanted = _value(difference, difference.present), _value(difference, difference.wanted)
    return {"setting": _name(difference), "present": present, "wanted": wanted}


def _conclude(made: Plan, wish: Wish) -> None:
    name = escaped(made.name)
    if made.is_new:
        send = f"`kbroker queues send {shlex.quote(name)}` sends it jobs"
        click.echo(f"queue {name} is ready: {send}, `kbroker docs queues` has a worker")
        if "prefetch" not in wish.settings:
            jobs = SETTINGS["prefetch"].default
            click.echo(f"each worker gets {jobs} job at a time; more with --prefetch N --update")
    else:
        click.echo(
            f"queue {name} is altered" if made.steps else f"queue {name} exists; there is nothing to change"
        )
    for each in made.left:
        stays, new = _value(each, each.present), _value(each, each.wanted)
        say(f"queue {made.name}: {_name(each)} stays {stays}; a new queue would have {new}")


def _line(difference: Difference) -> str:
    if difference.config is None:
        return difference.present or ""
    present, wanted = _value(difference, difference.present), _value(difference, difference.wanted)
    return f"{_name(difference)} is {present}, requested is {wanted}"


def _name(difference: Difference) -> str:
    """The option's name, or the config's if there is no option."""
    for setting in SETTINGS.values():
        if (setting.part, setting.config) == difference[:2]:
            return setting.name
    if difference.config == DEAD_LETTER_TOPIC:
        return "dead-letters"
    where = {Part.GROUP: "", Part.TOPIC: "", Part.DEAD_LETTERS: "dead letter topic: "}[difference.part]
    return f"{where}{difference.config}"


def _value(difference: Difference, text: str | None) -> str:
    for setting in SETTINGS.values():
        if (setting.part, setting.config) == difference[:2]:
            return shown(setting, text)
    return "not set" if text is None else text or "none"
