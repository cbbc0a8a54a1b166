"""Share groups that keep the order of keys on a topic (`kbroker.queue.ordering`): more partitions
would send keys to other partitions, where nothing waits for what is left of them in the old
ones."""

from __future__ import annotations

from kbroker.client import admin, group_admin
from kbroker.client.admin import ResourceType
from kbroker.client.rpc import Connection
from kbroker.settings.queue import ORDERING


def ordered_groups(connection: Connection, topic: str) -> list[str]:
    """Those that have the setting themselves, and read the topic or have its name. Raises
    KafkaError."""
    return [
        group_id
        for group_id in admin.groups_with_configs(connection)
        if _is_ordered(connection, group_id) and (group_id == topic or _reads(connection, group_id, topic))
    ]


def why_not_to_grow(topic: str, groups: list[str]) -> str:
    names = ", ".join(groups)
    verb = "keeps" if len(groups) == 1 else "keep"
    return (
        f"share group {names} {verb} the order of keys on topic {topic}, and more partitions break it: "
        "records of a key go to another "
        "partition while older ones of it are not done. Once all records are done it does no harm: add "
        "--force then"
    )


def _is_ordered(connection: Connection, group_id: str) -> bool:
    entries = admin.describe_configs(connection, ResourceType.GROUP, group_id)
    return any(entry.name == ORDERING and entry.value == "key" for entry in entries)


def _reads(connection: Connection, group_id: str, topic: str) -> bool:
    return any(row.topic == topic for row in group_admin.describe_share_group_offsets(connection, group_id))
