"""Purging a queue, and deleting its topic, dead letter topic and share group.

The group is deleted last, because its configs name the rest: after a crash, the same call finishes
the deletion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...errors import ErrorCode, KafkaError
from .. import admin, group_admin
from ..caller import Caller
from ..group_admin import TopicPartition
from .advice import Option, QueueRefused
from .settings import Part, Queue, groups_with_dead_letters_in, has_workers

_LEAVE_EPOCH = -1
_ATTEMPTS = 5
_MAY_HAVE_LETTERS = "errors.deadletterqueue.group.enable"
_FORCE, _WITH_DEAD_LETTERS = Option("force"), Option("with-dead-letters")


class Deleted(NamedTuple):
    """`workers`: how many were removed from the group."""

    workers: int


def delete_queue(connection: Caller, queue: Queue, *, force: bool, with_dead_letters: bool) -> Deleted:
    """Delete the queue; durable on return. Raises QueueRefused before it changes anything, and
    KafkaError."""
    workers = check_deletion(connection, queue, force=force, with_dead_letters=with_dead_letters)
    for topic in filter(None, (queue.name, queue.dead_letters if with_dead_letters else "")):
        _delete_topic(connection, topic)
    _delete_group(connection, queue, force=force)
    return Deleted(workers)


def check_deletion(connection: Caller, queue: Queue, *, force: bool, with_dead_letters: bool) -> int:
    """Returns the number of workers. Raises QueueRefused where delete_queue would."""
    workers = check_workers(connection, queue, force=force)
    letters = queue.dead_letters if with_dead_letters else ""
    if letters:
        if queue.value(Part.DEAD_LETTERS, _MAY_HAVE_LETTERS) == "false":
            raise QueueRefused(
                f"topic {letters} is for something else than dead letters: delete without ",
                _WITH_DEAD_LETTERS,
            )
        others = [each for each in groups_with_dead_letters_in(connection, letters) if each != queue.name]
        if others:
            raise QueueRefused(
                f"dead letter topic {letters} is used by {', '.join(others)}, too: delete without ",
                _WITH_DEAD_LETTERS,
            )
    return workers


def purge_queue(connection: Caller, queue: Queue, *, force: bool) -> None:
    """Move the share group's start to the end of the topic, so that it drops all jobs sent before
    the call; durable on return.

    With `force` the workers are first removed from the group. They rejoin with their next
    heartbeat, and the broker refuses their acknowledgements of jobs that they held. If QueueRefused
    is raised, no job was dropped; after a KafkaError, those of some partitions may be.
    """
    check_workers(connection, queue, force=force)
    assert queue.topic is not None
    ends = admin.list_offsets(connection, queue.name, queue.topic.partitions, admin.LATEST)
    offsets = {TopicPartition(queue.name, partition): end for partition, end in ends.items()}

    def purge() -> None:
        for each in group_admin.alter_share_group_offsets(connection, queue.name, offsets).values():
            raise each

    _without_workers(connection, queue, purge, force=force)


def check_workers(connection: Caller, queue: Queue, *, force: bool) -> int:
    """Returns the number of workers. Raises QueueRefused if there are any and `force` is not
    set."""
    workers = len(_workers(connection, queue))
    if workers and not force:
        raise QueueRefused(f"{has_workers(queue, workers)}: stop them first, or put them out with ", _FORCE)
    return workers


def _workers(connection: Caller, queue: Queue) -> list[str]:
    if queue.group_type is None:
        return []
    try:
        group = group_admin.describe_share_group(connection, queue.name)
    except KafkaError as error:
        if error.code is not ErrorCode.group_id_not_found:
            raise
        return []  # It was deleted meanwhile.
    return [member.member_id for member in group.members]


def _delete_topic(connection: Caller, name: str) -> None:
    try:
        admin.delete_topic(connection, name)
    except KafkaError as error:
        if error.code is not ErrorCode.unknown_topic_or_partition:
            raise


def _delete_group(connection: Caller, queue: Queue, *, force: bool) -> None:
    if queue.group_type is None:
        configs = list(queue.own(Part.GROUP))
        admin.alter_configs(connection, admin.ResourceType.GROUP, queue.name, delete_configs=configs)
        return

    def delete() -> None:
        error = group_admin.delete_groups(connection, [queue.name]).get(queue.name)
        if error is not None and error.code is not ErrorCode.group_id_not_found:
            raise KafkaError(error.code, f"share group {queue.name} could not be deleted: {error.message}")

    _without_workers(connection, queue, delete, force=force)


def _without_workers(connection: Caller, queue: Queue, act: Callable[[], None], *, force: bool) -> None:
    """Call `act`, whose request the broker refuses while the group has members.

    With `force` the members are removed first. A heartbeat can bring one back before the request
    arrives, so both are repeated a few times.
    """
    for attempt in range(_ATTEMPTS):
        if force:
            _put_out(connection, queue)
        try:
            act()
        except KafkaError as error:
            if error.code is not ErrorCode.non_empty_group:
                raise
            if not force:
                raise QueueRefused(
                    f"{has_workers(queue, 1)}: it joined just now; stop it, or use ", _FORCE
                ) from error
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def _put_out(connection: Caller, queue: Queue) -> None:
    """Send a leave request on behalf of each member."""
    for member_id in _workers(connection, queue):
        connection.call(
            "share_group_heartbeat",
            group_id=queue.name,
            member_id=member_id,
            member_epoch=_LEAVE_EPOCH,
            rack_id=None,
            subscribed_topic_names=None,
        )
