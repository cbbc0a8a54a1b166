"""What the commands of `kbroker queues` have in common: the queue that is meant, or a line that
says why there is none."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from kbroker.cli.exits import CommandFailed
from kbroker.cli.group_views import kind_of_group
from kbroker.client.queues.settings import look

if TYPE_CHECKING:
    from kbroker.client.queues.settings import Queue
    from kbroker.client.rpc import Connection


def existing(connection: Connection, name: str) -> Queue:
    """Raises CommandFailed where it does not exist, or only a part of it."""
    queue = look(connection, name)
    if not queue.is_whole:
        raise CommandFailed(why_missing(queue))
    return queue


def why_missing(queue: Queue) -> str:
    """A line with the command that helps."""
    name, create = queue.name, f"`kbroker queues create {shlex.quote(queue.name)}"
    if queue.group_type not in (None, "share"):
        return f"there is no queue {name}: group {name} is {kind_of_group(queue.group_type or '')}"
    if queue.is_configured:
        return (
            f"queue {name} is not whole: {create}` makes what is missing, `kbroker queues delete` "
            "removes the rest"
        )
    if queue.topic is not None:
        return f"there is no queue {name}, only a topic of this name: {create} --update` makes it a queue"
    if queue.group_type is not None:
        return (
            f"there is no queue {name}, only a share group of this name: {create} --update` makes it a queue"
        )
    return f"there is no queue {name}: {create}` makes one, `kbroker queues list` shows those that there are"
