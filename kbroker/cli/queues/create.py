"""`kbroker queues create`: creates a queue in one step. Run again, it changes nothing, or reports
how the queue differs from the request.

Its options, and the keys of a file, are generated from the table in kbroker.client.queues.settings.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from kbroker.cli.exits import refuse, say
from kbroker.cli.logging_setup import escaped
from kbroker.cli.output import print_json
from kbroker.cli.params import COUNT, Bootstrap, bootstrap_option, connect, json_option, not_empty, options
from kbroker.client.queues.advice import QueueRefused
from kbroker.client.queues.settings import SETTINGS, Kind, Setting, Wish
from kbroker.client.queues.values import shown, text_of, written
from kbroker.errors import KafkaError

if TYPE_CHECKING:
    from kbroker.client.queues.plan import QueuePlan
    from kbroker.client.rpc import Connection


class SettingType(click.ParamType[str]):
    """Converts the value that a person writes for a setting to the text of its config."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        choices = setting.definition.choices
        self.name = "|".join(choices) if setting.kind is Kind.WORD else setting.kind.value

    def convert(self, value: object, param: click.Parameter | None, context: click.Context | None) -> str:
        try:
            return text_of(self.setting, value)
        except ValueError as error:
            self.fail(str(error), param, context)


def _setting_option(setting: Setting) -> Callable[[Any], Any]:
    text = f"{setting.doc} ({setting.config})  [default: {shown(setting, setting.default)}]"
    if setting.kind is Kind.FLAG:
        return click.option(f"--{setting.name}/--no-{setting.name}", default=None, help=text)
    kind = SettingType(setting)
    return click.option(f"--{setting.name}", type=kind, metavar=kind.name, help=text)


setting_options = options(*map(_setting_option, SETTINGS.values()))
"""`settings_of` reads the command's keyword arguments."""


def settings_of(options: Mapping[str, str | bool | None]) -> dict[str, str]:
    """Name of a setting -> text of its config, for each option that was given."""
    found = {name: options[name.replace("-", "_")] for name in SETTINGS}
    return {
        name: text_of(SETTINGS[name], value) if isinstance(value, bool) else value
        for name, value in found.items()
        if value is not None
    }


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
    help="The topic for jobs that are given up; several queues may share one.  [default: dlq.NAME]",
)
@click.option("--no-dead-letters", is_flag=True, help="Drop jobs that are given up, without a dead letter.")
@click.option(
    "--from",
    "file",
    type=click.File("rb"),
    help="Create the queues of a TOML file instead of NAME, as written by `export`; - is standard "
    "input. If one queue is refused, the others are still created.",
)
@click.option("--update", is_flag=True, help="Alter an existing queue where it differs from the request.")
@click.option("--force", is_flag=True, help="Add partitions even if the queue keeps the order of keys.")
@json_option(
    "One object for each queue: queue, created, altered, steps (what was done), differences and "
    "unlike_a_new_queue (setting, present, wanted; a part that is missing has no setting)."
)
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

    Durations are written 500ms, 30s, 10m, 1h30m, 30d or 1w. A queue begins at offset 0, so jobs
    that are sent before the first worker starts are not lost. If the queue exists, nothing is
    changed. Where it differs from the given options, the command prints how and ends with exit code
    1, and --update alters it. Settings without an option stay as they are; stderr names those that
    a new queue would have otherwise. Partitions are never removed.

    The broker validates all steps before the first one: dead letter topic, configs of the share
    group, topic, share state. After an interruption the same command does the rest. A topic or
    share group of that name that is no queue is refused without --update.

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
        except QueueRefused as refused:
            problems.append(str(refused))
        except KafkaError as error:
            problems.append(f"queue {wish.name}: {error.message or error.code.name.replace('_', ' ')}")
    refuse(problems)


def _make(connection: Connection, wish: Wish, *, update: bool, force: bool, as_json: bool) -> None:
    from kbroker.client.queues.creation import QueueDiffers, create_queue

    def done(text: str) -> None:
        if not as_json:
            click.echo(escaped(text))

    try:
        made = create_queue(connection, wish, update=update, force=force, done=done)
    except QueueDiffers as refused:
        if as_json:
            print_json(_as_json(refused.plan, done=False))
        else:
            for each in refused.plan.differences:
                say(f"queue {wish.name}: {written(each)}")
        raise
    if as_json:
        print_json(_as_json(made, done=True))
    else:
        _conclude(made, wish)


def _as_json(made: QueuePlan, *, done: bool) -> dict[str, Any]:
    """`done`: the steps of the plan were carried out."""
    return {
        "queue": made.name,
        "created": done and made.is_new,
        "altered": done and bool(made.steps) and not made.is_new,
        "steps": [step.done for step in made.steps] if done else [],
        "differences": [written(each)._asdict() for each in made.differences],
        "unlike_a_new_queue": [written(each)._asdict() for each in made.left],
    }


def _conclude(made: QueuePlan, wish: Wish) -> None:
    name = escaped(made.name)
    if made.is_new:
        send = f"`kbroker queues send {shlex.quote(name)}` sends it jobs"
        click.echo(f"queue {name} is ready: {send}, `kbroker docs workers` shows workers")
        if "prefetch" not in wish.settings:
            jobs = SETTINGS["prefetch"].default
            click.echo(f"each worker gets {jobs} job at a time; more with --prefetch N --update")
    else:
        click.echo(
            f"queue {name} is altered" if made.steps else f"queue {name} exists; there is nothing to change"
        )
    for each in map(written, made.left):
        say(f"queue {made.name}: {each.setting} stays {each.present}; a new queue would have {each.wanted}")
