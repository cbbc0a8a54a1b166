"""Deleting a queue: topic, dead letter topic, share group. The group comes last, as its configs
name the rest: after a crash the same call does what is left."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.client import admin, group_admin
from kbroker.client.queue_plan import QueueRefused
from kbroker.client.queues import Part, Queue, groups_with_dead_letters_in, has_workers
from kbroker.client.rpc import Connection
from kbroker.errors import ErrorCode, KafkaError

_LEAVE_EPOCH = -1
_ATTEMPTS = 5
_MAY_HAVE_LETTERS = "errors.deadletterqueue.group.enable"


class Deleted(NamedTuple):
    """`workers`: how many were put out of the group."""

    workers: int


def delete_queue(connection: Connection, queue: Queue, *, force: bool, with_dead_letters: bool) -> Deleted:
    """All of it is gone, durably, on return. Raises QueueRefused, before anything is done, and
    KafkaError."""
    workers = _workers(connection, queue)
    if workers and not force:
        raise QueueRefused(
            f"{has_workers(queue, len(workers))}: stop them first, or put them out with --force"
        )
    letters = queue.dead_letters if with_dead_letters else ""
    if letters:
        if queue.value(Part.DEAD_LETTERS, _MAY_HAVE_LETTERS) == "false":
            raise QueueRefused(f"topic {letters} is for something else than dead letters: delete without --with-dead-letters")
        others = [each for each in groups_with_dead_letters_in(connection, letters) if each != queue.name]
        if others:
            raise QueueRefused(
                f"dead letter topic {letters} is used by {', '.join(others)}, too: delete without --with-dead-letters"
            )
    for topic in filter(None, (queue.name, letters)):
        _delete_topic(connection, topic)
    _delete_group(connection, queue, force=force)
    return Deleted(len(workers))


def _workers(connection: Connection, queue: Queue) -> list[str]:
    if queue.group_type is None:
        return []
    return [member.member_id for member in group_admin.describe_share_group(connection, queue.name).members]


def _delete_topic(connection: Connection, name: str) -> None:
    try:
        admin.delete_topic(connection, name)
    except KafkaError as error:
        if error.code is not ErrorCode.unknown_topic_or_partition:
            raise


def _delete_group(connection: Connection, queue: Queue, *, force: bool) -> None:
    """With `force` members are put out. One that has a heartbeat between that and the deletion is
    back: then once more."""
    if queue.group_type is None:
        configs = list(queue.own(Part.GROUP))
        admin.alter_configs(connection, admin.ResourceType.GROUP, queue.name, delete_configs=configs)
        return
    for attempt in range(_ATTEMPTS):
        if force:
            _put_out(connection, queue)
        refused = group_admin.delete_groups(connection, [queue.name])
        error = refused.get(queue.name)
        if error is None or error.code is ErrorCode.group_id_not_found:
            return
        if error.code is not ErrorCode.non_empty_group or not force or attempt == _ATTEMPTS - 1:
            raise KafkaError(error.code, f"share group {queue.name} could not be deleted: {error.message}")


def _put_out(connection: Connection, queue: Queue) -> None:
    """Leave the group in the place of each member."""
    for member_id in _workers(connection, queue):
        connection.call(
            "share_group_heartbeat",
            group_id=queue.name,
            member_id=member_id,
            member_epoch=_LEAVE_EPOCH,
            rack_id=None,
            subscribed_topic_names=None,
        )
