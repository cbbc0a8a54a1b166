"""Share groups that keep the order of keys on a topic (`kbroker.queue.ordering`).

Adding partitions breaks that order: producers then send a key to another partition, whose records
do not wait for the key's unfinished records in the old one.
"""

from __future__ import annotations

from ..settings.queue import ORDERING
from . import admin, group_admin
from .admin import ResourceType
from .caller import Caller
from .queues.advice import Option, QueueRefused


def ordered_groups(connection: Caller, topic: str) -> list[str]:
    """Groups on which the setting is set and which read the topic or have its name. Raises
    KafkaError."""
    return [
        group_id
        for group_id in admin.groups_with_configs(connection)
        if _is_ordered(connection, group_id) and (group_id == topic or _reads(connection, group_id, topic))
    ]


def why_not_to_grow(topic: str, groups: list[str]) -> QueueRefused:
    names = ", ".join(groups)
    verb = "keeps" if len(groups) == 1 else "keep"
    return QueueRefused(
        f"share group {names} {verb} the order of keys on topic {topic}, and more partitions break it: "
        "new records of a key may go to another partition while older ones are unfinished. Once all "
        "records are finished it is safe: use ",
        Option("force"),
        " then",
    )


def _is_ordered(connection: Caller, group_id: str) -> bool:
    entries = admin.describe_configs(connection, ResourceType.GROUP, group_id)
    return any(entry.name == ORDERING and entry.value == "key" for entry in entries)


def _reads(connection: Caller, group_id: str, topic: str) -> bool:
    return any(row.topic == topic for row in group_admin.describe_share_group_offsets(connection, group_id))
