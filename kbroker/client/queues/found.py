"""Looks up a queue, or says why there is none."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import KafkaError
from ..admin import topics
from ..answers import KINDS
from ..caller import Caller
from ..group_admin import describe_share_group, kind_of_group
from .advice import Command, Option, QueueMissing
from .settings import Queue, groups_with_dead_letters_in, look


def existing(connection: Caller, name: str) -> Queue:
    """Raises QueueMissing if it does not exist, or only partly."""
    queue = look(connection, name)
    if queue.is_whole:
        return queue
    check_visible(connection, queue)
    if queue.topic is not None and (groups := groups_with_dead_letters_in(connection, name)):
        raise QueueMissing(
            f"there is no queue {name}: topic {name} has the dead letters of {', '.join(groups)}, "
            f"`kbroker dead-letters list {shlex.quote(name)}` shows them"
        )
    raise missing(queue)


def check_visible(connection: Caller, queue: Queue) -> None:
    """Raises KafkaError if a part only looks missing, because this user may not describe it."""
    if queue.topic is None:
        with _only_rights():
            topics(connection, [queue.name])
    if queue.group_type is None:
        with _only_rights():
            describe_share_group(connection, queue.name)


@contextmanager
def _only_rights() -> Iterator[None]:
    """Raises no refusal but one for lack of rights."""
    try:
        yield
    except KafkaError as error:
        if error.code in KINDS:
            raise


def missing(queue: Queue) -> QueueMissing:
    """The error for a queue that is not whole, with the command that helps."""
    name, create = queue.name, Command("create", queue.name)
    update = Command("create", name, (Option("update"),))
    if queue.group_type not in (None, "share"):
        return QueueMissing(
            f"there is no queue {name}: group {name} is {kind_of_group(queue.group_type or '')}"
        )
    if queue.is_configured:
        return QueueMissing(
            f"queue {name} is incomplete: ", create, " creates the missing parts, ",
            Command("delete", name), " removes the others",
        )  # fmt: skip
    if queue.topic is not None:
        return QueueMissing(
            f"there is no queue {name}, only a topic of this name: ", update, " turns it into a queue"
        )
    if queue.group_type is not None:
        return QueueMissing(
            f"there is no queue {name}, only a share group of this name: ", update, " turns it into a queue"
        )
    return QueueMissing(
        f"there is no queue {name}: ", create, " creates one, ", Command("list"), " lists the existing ones"
    )
