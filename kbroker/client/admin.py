"""What the command line and tests ask of a broker, as plain functions over a Connection: topics,
their offsets, configs.

Each sends one or two requests, turns rows into small values of ours and an error code into
KafkaError. No printing, no retry. What is asked of groups is in group_admin.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.client.answers import check, reason
from kbroker.client.rpc import Connection
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.state import ResourceType as ResourceType
from kbroker.protocol.topic_names import is_legal, why_illegal

EARLIEST = -2
LATEST = -1
_TIMEOUT_MS = 30_000
_SET, _DELETE = 0, 1  # IncrementalAlterConfigs operations
_NO_AUTHORIZED_OPERATIONS = {
    "include_topic_authorized_operations": False,
    "include_cluster_authorized_operations": False,
}
_DEFAULT_SOURCE = 5
_OWN_SOURCE = {ResourceType.TOPIC: 1, ResourceType.BROKER: 2, ResourceType.GROUP: 8}
ALL_BROKERS_SOURCE = 3
SOURCES: Mapping[int, str] = {
    1: "topic", 2: "dynamic broker", 3: "dynamic cluster", 4: "static broker", 5: "default",
    6: "broker logger", 8: "group",
}  # fmt: skip


class Topic(NamedTuple):
    name: str
    topic_id: UUID
    partitions: tuple[int, ...]
    is_internal: bool


class ConfigEntry(NamedTuple):
    """`value` None: sensitive, or unset. `source` as in SOURCES.

    `default`: what holds where the resource sets no value of its own; None also where the broker
    does not say it. `is_own`: it was set for this resource itself.
    """

    name: str
    value: str | None
    source: int
    is_read_only: bool
    default: str | None
    is_own: bool

    @property
    def is_default(self) -> bool:
        return self.source == _DEFAULT_SOURCE


def create_topic(
    connection: Connection,
    name: str,
    *,
    partitions: int = -1,
    config: Mapping[str, str] | None = None,
    validate_only: bool = False,
) -> None:
    """`partitions` -1: the broker's num.partitions. `validate_only`: only find out whether it could
    be made. Raises KafkaError, for instance topic_already_exists."""
    row = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": -1,
        "assignments": (),
        "configs": [{"name": key, "value": value} for key, value in (config or {}).items()],
    }
    answer = connection.call("create_topics", topics=[row], timeout=_TIMEOUT_MS, validate_only=validate_only)
    check(answer.topics[0].error_code, answer.topics[0].error_message)


def delete_topic(connection: Connection, name: str) -> None:
    """Raises KafkaError, for instance unknown_topic_or_partition."""
    answer = connection.call("delete_topics", topics=[{"name": name, "topic_id": None}], timeout=_TIMEOUT_MS)
    row = answer.responses[0]
    check(row.error_code, reason(row.error_code, row.error_message))


def grow_topic(connection: Connection, name: str, partitions: int, *, validate_only: bool = False) -> None:
    """Give a topic this many partitions in all. Raises KafkaError, for instance invalid_partitions
    where it has as many or more."""
    row = {"name": name, "count": partitions, "assignments": None}
    answer = connection.call(
        "create_partitions", topics=[row], timeout=_TIMEOUT_MS, validate_only=validate_only
    )
    result = answer.results[0]
    check(result.error_code, reason(result.error_code, result.error_message))


def delete_records(
    connection: Connection, topic: str, offsets: Mapping[int, int]
) -> dict[int, int | KafkaError]:
    """Delete what lies below an offset, by partition, for good. The log start offset of each
    partition then, or why it was refused."""
    rows = [{"partition_index": partition, "offset": offset} for partition, offset in offsets.items()]
    if not rows:
        return {}
    answer = connection.call(
        "delete_records", topics=[{"name": topic, "partitions": rows}], timeout=_TIMEOUT_MS
    )
    return {
        row.partition_index: row.low_watermark
        if row.error_code is ErrorCode.none
        else KafkaError(row.error_code, f"{topic}-{row.partition_index}: {reason(row.error_code)}")
        for row in answer.topics[0].partitions
    }


def topics(connection: Connection, names: Sequence[str] | None = None) -> list[Topic]:
    """All topics, or those named, by name; never creates one. Raises KafkaError for one that does
    not exist."""
    wanted = None if names is None else [{"name": name, "topic_id": None} for name in names]
    answer = connection.call(
        "metadata", topics=wanted, allow_auto_topic_creation=False, **_NO_AUTHORIZED_OPERATIONS
    )
    found = []
    for row in answer.topics:
        check(row.error_code, _refusal(row.name, row.error_code))
        partitions = tuple(sorted(p.partition_index for p in row.partitions))
        found.append(Topic(row.name, row.topic_id, partitions, row.is_internal))
    return sorted(found)


def _refusal(name: str, code: ErrorCode) -> str:
    """A Metadata answer has no words of the broker's."""
    match code:
        case ErrorCode.unknown_topic_or_partition:
            return f"there is no topic {name}"
        case ErrorCode.invalid_topic_exception if not is_legal(name):
            return why_illegal(name)
    return f"topic {name!r}: {reason(code)}"


def list_offsets(
    connection: Connection, topic: str, partitions: Iterable[int], timestamp_ms: int
) -> dict[int, int]:
    """Offset by partition of the first record at or after `timestamp_ms`, or EARLIEST or LATEST.
    Raises KafkaError."""
    found = find_offsets(connection, {topic: partitions}, timestamp_ms)
    offsets = {}
    for (_, partition), offset in found.items():
        if isinstance(offset, KafkaError):
            raise offset
        offsets[partition] = offset
    return offsets


def find_offsets(
    connection: Connection, partitions: Mapping[str, Iterable[int]], timestamp_ms: int
) -> dict[tuple[str, int], int | KafkaError]:
    """As list_offsets, of partitions of several topics, by topic and partition; errors in their
    places."""
    wanted = [
        {
            "name": topic,
            "partitions": [{"partition_index": number, "timestamp": timestamp_ms} for number in numbers],
        }
        for topic, numbers in partitions.items()
    ]
    if not wanted:
        return {}
    answer = connection.call(
        "list_offsets", replica_id=-1, isolation_level=0, topics=wanted, timeout=_TIMEOUT_MS
    )
    return {
        (topic.name, row.partition_index): row.offset
        if row.error_code is ErrorCode.none
        else KafkaError(
            row.error_code, f"offsets of {topic.name}-{row.partition_index}: {reason(row.error_code)}"
        )
        for topic in answer.topics
        for row in topic.partitions
    }


def describe_configs(connection: Connection, kind: ResourceType, name: str) -> list[ConfigEntry]:
    """All configs of a resource, by name. Raises KafkaError."""
    resource = {"resource_type": int(kind), "resource_name": name, "configuration_keys": None}
    answer = connection.call("describe_configs", resources=[resource], include_synonyms=True)
    result = answer.results[0]
    check(result.error_code, result.error_message)
    own = _OWN_SOURCE[kind] if name else ALL_BROKERS_SOURCE
    entries = []
    for row in result.configs:
        weaker = next((each.value for each in row.synonyms if each.source != own), None)
        is_own = row.config_source == own
        default = weaker if is_own else row.value
        entries.append(ConfigEntry(row.name, row.value, row.config_source, row.read_only, default, is_own))
    return sorted(entries, key=lambda entry: entry.name)


def alter_configs(
    connection: Connection,
    kind: ResourceType,
    name: str,
    *,
    set_configs: Mapping[str, str] | None = None,
    delete_configs: Iterable[str] = (),
    validate_only: bool = False,
) -> None:
    """Set some configs of a resource and put others back to their default, all or none.
    `validate_only`: only find out whether that could be done. Raises KafkaError."""
    rows: list[dict[str, Any]] = [
        {"name": k, "config_operation": _SET, "value": v} for k, v in (set_configs or {}).items()
    ]
    rows += [{"name": key, "config_operation": _DELETE, "value": None} for key in delete_configs]
    resource = {"resource_type": int(kind), "resource_name": name, "configs": rows}
    answer = connection.call("incremental_alter_configs", resources=[resource], validate_only=validate_only)
    check(answer.responses[0].error_code, answer.responses[0].error_message)


def groups_with_configs(connection: Connection) -> list[str]:
    """Ids of the groups that have configs of their own; such a group need not exist."""
    answer = connection.call("list_config_resources", resource_types=(int(ResourceType.GROUP),))
    check(answer.error_code)
    return sorted(row.resource_name for row in answer.config_resources)


def has_group_config(connection: Connection, group_id: str, config_name: str) -> bool:
    """Whether the group sets this config itself, instead of having the broker's value."""
    entries = describe_configs(connection, ResourceType.GROUP, group_id)
    return any(entry.name == config_name and entry.is_own for entry in entries)
