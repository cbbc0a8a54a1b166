"""`kbroker queues`: work queues. A queue is a topic, a share group of the same name, a dead letter
topic, and their settings.

Longer commands are in separate files and are added at the end of this one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from kbroker.cli.exits import ask, say
from kbroker.cli.logging_setup import escaped
from kbroker.cli.output import print_json
from kbroker.cli.params import Bootstrap, bootstrap_option, connect, json_option, not_blank, yes_option
from kbroker.cli.queues.create import create
from kbroker.cli.queues.describe import describe, list_queues
from kbroker.cli.queues.file import export
from kbroker.cli.queues.jobs import peek, send
from kbroker.cli.suggesting import SuggestingGroup
from kbroker.client.queues.found import existing, missing
from kbroker.client.queues.settings import counted
from kbroker.settings.queue import PAUSED

if TYPE_CHECKING:
    from kbroker.client.queues.settings import Queue
    from kbroker.client.rpc import Connection


@click.group(cls=SuggestingGroup)
def queues() -> None:
    """Create, list, describe, fill, pause, purge and delete work queues.

    A queue is a topic, a share group of the same name and a dead letter topic, with settings that
    suit jobs.
    """


@queues.command()
@click.argument("name", callback=not_blank)
@click.option(
    "--force",
    is_flag=True,
    help="Purge even if the queue has workers: they leave the group and rejoin by themselves. Jobs "
    "that they hold are dropped too, and the broker refuses their acknowledgements.",
)
@yes_option
@json_option("One object: queue, dropped (a number of jobs).")
@bootstrap_option
def purge(name: str, force: bool, yes: bool, as_json: bool, bootstrap: Bootstrap) -> None:
    """Drop all jobs of the queue NAME that are not finished.

    Shows how many, and asks for confirmation. A queue that has workers is refused without --force;
    a killed worker remains until its session ends. The records stay in the topic until its
    retention removes them; dead letters stay.

    \b
    Examples:
      kbroker queues purge jobs
      kbroker queues purge jobs --yes
    """
    from kbroker.client.queues.counts import unfinished_jobs
    from kbroker.client.queues.deletion import check_workers, purge_queue

    with connect(bootstrap) as connection:
        queue = existing(connection, name)
        check_workers(connection, queue, force=force)
        jobs = unfinished_jobs(connection, queue)
        if jobs and not yes:
            ask(f"Drop {counted(jobs, 'job')} of queue {name} permanently?")
        if jobs:
            purge_queue(connection, queue, force=force)
    if as_json:
        print_json({"queue": name, "dropped": jobs})
    elif jobs:
        click.echo(f"dropped {counted(jobs, 'job')} of queue {escaped(name)}")
    else:
        say(f"there are no jobs in queue {name}")


@queues.command()
@click.argument("name", callback=not_blank)
@click.option(
    "--force",
    is_flag=True,
    help="Delete even if the queue has workers: they are removed from the group, and their clients "
    "report that it is gone.",
)
@click.option(
    "--with-dead-letters",
    is_flag=True,
    help="Also delete the dead letter topic with all its records; refused if another group has its "
    "dead letters there.",
)
@yes_option
@json_option("One object: queue, deleted, dead_letter_topic (null, or the topic that stays).")
@bootstrap_option
def delete(
    name: str, force: bool, with_dead_letters: bool, yes: bool, as_json: bool, bootstrap: Bootstrap
) -> None:
    """Delete the queue NAME with all its jobs.

    Asks for confirmation at a terminal, and without one refuses if jobs or dead letters would be
    lost. A queue that has workers is refused
    without --force. The dead letter topic stays without --with-dead-letters. After an interruption
    the same command does the rest.

    \b
    Examples:
      kbroker queues delete jobs
      kbroker queues delete jobs --with-dead-letters --yes
    """
    from kbroker.client.queues.deletion import check_deletion, delete_queue
    from kbroker.client.queues.settings import look

    with connect(bootstrap) as connection:
        queue = look(connection, name)
        if not queue.is_whole and not queue.is_configured:
            raise missing(queue)
        check_deletion(connection, queue, force=force, with_dead_letters=with_dead_letters)
        lost = _what_a_deletion_loses(connection, queue, with_dead_letters=with_dead_letters)
        if (lost or sys.stdin.isatty()) and not yes:
            ask(f"Delete queue {name} with {lost or 'its settings'} permanently?")
        deleted = delete_queue(connection, queue, force=force, with_dead_letters=with_dead_letters)
    if as_json:
        stays = None if with_dead_letters or queue.dead_letter_topic is None else queue.dead_letters
        print_json({"queue": name, "deleted": True, "dead_letter_topic": stays})
        return
    click.echo(f"deleted queue {escaped(name)}")
    if deleted.workers:
        were = (
            f"{counted(deleted.workers, 'worker')} of queue {name} "
            f"{'was' if deleted.workers == 1 else 'were'}"
        )
        say(
            f"warning: {were} removed from the group: stop them, their clients will report that the "
            f"group does not exist"
        )
    if queue.dead_letter_topic is not None and not with_dead_letters:
        say(f"its dead letters stay in topic {queue.dead_letters}")


def _what_a_deletion_loses(connection: Connection, queue: Queue, *, with_dead_letters: bool) -> str:
    """Empty if there are neither jobs nor dead letters."""
    from kbroker.client.queues.counts import dead_letters, unfinished_jobs

    jobs = unfinished_jobs(connection, queue) if queue.topic is not None else 0
    dead = (dead_letters(connection, queue) or 0) if with_dead_letters else 0
    parts = counted(jobs, "unfinished job") if jobs else "", counted(dead, "dead letter") if dead else ""
    return " and ".join(filter(None, parts))


@queues.command()
@click.argument("name", callback=not_blank)
@json_option("One object: queue, paused, changed.")
@bootstrap_option
def pause(name: str, as_json: bool, bootstrap: Bootstrap) -> None:
    """Stop delivering jobs of the queue NAME.

    Workers can finish jobs that they hold, and jobs can be sent. The pause lasts until `resume`,
    also after a restart of the broker.
    """
    _set_paused(name, bootstrap, as_json, paused=True)


@queues.command()
@click.argument("name", callback=not_blank)
@json_option("One object: queue, paused, changed.")
@bootstrap_option
def resume(name: str, as_json: bool, bootstrap: Bootstrap) -> None:
    """Resume delivering jobs of the queue NAME after `pause`."""
    _set_paused(name, bootstrap, as_json, paused=False)


def _set_paused(name: str, bootstrap: Bootstrap, as_json: bool, *, paused: bool) -> None:
    from kbroker.client.admin import ResourceType, alter_configs

    with connect(bootstrap) as connection:
        changed = existing(connection, name).is_paused != paused
        if changed and paused:
            alter_configs(connection, ResourceType.GROUP, name, set_configs={PAUSED: "true"})
        elif changed:
            alter_configs(connection, ResourceType.GROUP, name, delete_configs=[PAUSED])
    if as_json:
        print_json({"queue": name, "paused": paused, "changed": changed})
    elif changed:
        click.echo(f"{'paused' if paused else 'resumed'} queue {escaped(name)}")
    else:
        say(f"queue {name} is {'already paused' if paused else 'not paused'}")


queues.add_command(create)
queues.add_command(list_queues)
queues.add_command(describe)
queues.add_command(peek)
queues.add_command(send)
queues.add_command(export)
