"""Shared by the commands of `kbroker queues`: looks up a queue, or explains why there is none."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import TYPE_CHECKING

from kbroker.cli.exits import CommandFailed
from kbroker.cli.group_views import kind_of_group
from kbroker.client.queues.settings import counted, groups_with_dead_letters_in, look, names

if TYPE_CHECKING:
    from kbroker.client.queues.settings import Queue
    from kbroker.client.rpc import Connection


def existing(connection: Connection, name: str) -> Queue:
    """Raises CommandFailed if it does not exist, or only partly."""
    queue = look(connection, name)
    if not queue.is_whole:
        letters_of = [] if queue.topic is None else groups_with_dead_letters_in(connection, name)
        raise CommandFailed(_why_dead_letters(name, letters_of) if letters_of else why_missing(queue))
    return queue


def _why_dead_letters(topic: str, groups: list[str]) -> str:
    return (
        f"there is no queue {topic}: topic {topic} has the dead letters of {', '.join(groups)}, "
        f"`kbroker dead-letters list {shlex.quote(topic)}` shows them"
    )


def why_not_to_delete(connection: Connection, wanted: Collection[str]) -> dict[str, str]:
    """Of these topics or share groups, those that should not be deleted alone, each with the
    reason: it is part of a queue that has unfinished jobs."""
    from kbroker.client.queues.report import unfinished_jobs

    reasons = {}
    for name in set(wanted).intersection(names(connection)):
        queue = look(connection, name)
        if queue.is_whole and (unfinished := unfinished_jobs(connection, queue)):
            reasons[name] = (
                f"it is part of queue {name}, which has {counted(unfinished, 'unfinished job')}: "
                f"`kbroker queues delete {shlex.quote(name)}` deletes the queue, --force only this part"
            )
    return reasons


def why_missing(queue: Queue) -> str:
    """A line with the reason and the command that helps."""
    name, create = queue.name, f"`kbroker queues create {shlex.quote(queue.name)}"
    if queue.group_type not in (None, "share"):
        return f"there is no queue {name}: group {name} is {kind_of_group(queue.group_type or '')}"
    if queue.is_configured:
        return (
            f"queue {name} is incomplete: {create}` creates the missing parts, `kbroker queues delete` "
            "removes the others"
        )
    if queue.topic is not None:
        return (
            f"there is no queue {name}, only a topic of this name: {create} --update` turns it into a queue"
        )
    if queue.group_type is not None:
        return (
            f"there is no queue {name}, only a share group of this name: {create} --update` turns it "
            "into a queue"
        )
    return f"there is no queue {name}: {create}` creates one, `kbroker queues list` lists the existing ones"
