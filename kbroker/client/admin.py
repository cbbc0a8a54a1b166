"""Requests about topics, offsets and configs, as plain functions over a Caller, such as a
Connection, for the command line, tests and kbroker_client.

Each function sends one or two requests, converts response rows to named tuples, and raises
KafkaError for an error code. Nothing is printed or retried. Requests about groups are in
group_admin.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from ..errors import ErrorCode, KafkaError
from ..formats.state_values import ResourceType as ResourceType
from ..protocol.topic_names import is_legal, why_illegal
from .answers import check, lacking, reason
from .caller import Caller

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


class Bounds(NamedTuple):
    start_offset: int
    end_offset: int


class ConfigEntry(NamedTuple):
    """One config of a resource.

    - `value`: None if sensitive or unset.
    - `source`: a key of SOURCES.
    - `default`: the value in force if the resource sets none itself; None if the broker does not
      report it.
    - `is_own`: the value was set on this resource itself.
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
    connection: Caller,
    name: str,
    *,
    partitions: int = -1,
    config: Mapping[str, str] | None = None,
    validate_only: bool = False,
) -> None:
    """`partitions` -1: the broker's num.partitions. `validate_only`: check whether the topic could
    be created, and create nothing. Raises KafkaError, for instance topic_already_exists."""
    row = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": -1,
        "assignments": (),
        "configs": [{"name": key, "value": value} for key, value in (config or {}).items()],
    }
    answer = connection.call("create_topics", topics=[row], timeout=_TIMEOUT_MS, validate_only=validate_only)
    check(answer.topics[0].error_code, answer.topics[0].error_message, needs="create", name=name)


def delete_topic(connection: Caller, name: str) -> None:
    """Raises KafkaError, for instance unknown_topic_or_partition."""
    answer = connection.call("delete_topics", topics=[{"name": name, "topic_id": None}], timeout=_TIMEOUT_MS)
    row = answer.responses[0]
    check(row.error_code, reason(row.error_code, row.error_message), needs="delete", name=name)


def grow_topic(connection: Caller, name: str, partitions: int, *, validate_only: bool = False) -> None:
    """Raise a topic's partition count to `partitions`. Raises KafkaError, for instance
    invalid_partitions if it has as many already."""
    row = {"name": name, "count": partitions, "assignments": None}
    answer = connection.call(
        "create_partitions", topics=[row], timeout=_TIMEOUT_MS, validate_only=validate_only
    )
    result = answer.results[0]
    check(result.error_code, reason(result.error_code, result.error_message), needs="alter", name=name)


def delete_records(connection: Caller, topic: str, offsets: Mapping[int, int]) -> dict[int, int | KafkaError]:
    """Delete the records of each partition below its offset. Returns the new log start offset of
    each partition, or the error with which it was refused."""
    rows = [{"partition_index": partition, "offset": offset} for partition, offset in offsets.items()]
    if not rows:
        return {}
    answer = connection.call(
        "delete_records", topics=[{"name": topic, "partitions": rows}], timeout=_TIMEOUT_MS
    )
    return {
        row.partition_index: row.low_watermark
        if row.error_code is ErrorCode.none
        else KafkaError(
            row.error_code,
            f"{topic}-{row.partition_index}: {reason(row.error_code, needs='delete', name=topic)}",
        )
        for row in answer.topics[0].partitions
    }


def topics(connection: Caller, names: Sequence[str] | None = None) -> list[Topic]:
    """All topics, or the named ones, sorted by name; never creates a topic. Raises KafkaError for a
    name that does not exist."""
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
    """Metadata responses carry no error message, so the text is made here."""
    match code:
        case ErrorCode.unknown_topic_or_partition:
            return f"there is no topic {name}"
        case ErrorCode.invalid_topic_exception if not is_legal(name):
            return why_illegal(name)
    return lacking(code, "describe", name) or f"topic {name!r}: {reason(code)}"


def list_offsets(
    connection: Caller, topic: str, partitions: Iterable[int], timestamp_ms: int
) -> dict[int, int]:
    """For each partition, the offset of the first record at or after `timestamp_ms`. EARLIEST and
    LATEST give the log's start and end. Raises KafkaError."""
    found = find_offsets(connection, {topic: partitions}, timestamp_ms)
    offsets = {}
    for (_, partition), offset in found.items():
        if isinstance(offset, KafkaError):
            raise offset
        offsets[partition] = offset
    return offsets


def bounds(connection: Caller, topic: Topic) -> dict[int, Bounds]:
    """Log start offset and high watermark of every partition."""
    starts = list_offsets(connection, topic.name, topic.partitions, EARLIEST)
    ends = list_offsets(connection, topic.name, topic.partitions, LATEST)
    return {partition: Bounds(starts[partition], ends[partition]) for partition in topic.partitions}


def find_offsets(
    connection: Caller, partitions: Mapping[str, Iterable[int]], timestamp_ms: int
) -> dict[tuple[str, int], int | KafkaError]:
    """Like list_offsets for several topics, by topic and partition. An error stands in the place of
    its offset."""
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
            row.error_code,
            f"offsets of {topic.name}-{row.partition_index}: "
            + reason(row.error_code, needs="describe", name=topic.name),
        )
        for topic in answer.topics
        for row in topic.partitions
    }


def describe_configs(connection: Caller, kind: ResourceType, name: str) -> list[ConfigEntry]:
    """All configs of a resource, sorted by name. Raises KafkaError."""
    resource = {"resource_type": int(kind), "resource_name": name, "configuration_keys": None}
    answer = connection.call("describe_configs", resources=[resource], include_synonyms=True)
    result = answer.results[0]
    check(result.error_code, result.error_message, needs="describe-configs", name=name)
    own = _OWN_SOURCE[kind] if name else ALL_BROKERS_SOURCE
    entries = []
    for row in result.configs:
        weaker = next((each.value for each in row.synonyms if each.source != own), None)
        is_own = row.config_source == own
        default = weaker if is_own else row.value
        entries.append(ConfigEntry(row.name, row.value, row.config_source, row.read_only, default, is_own))
    return sorted(entries, key=lambda entry: entry.name)


def alter_configs(
    connection: Caller,
    kind: ResourceType,
    name: str,
    *,
    set_configs: Mapping[str, str] | None = None,
    delete_configs: Iterable[str] = (),
    validate_only: bool = False,
) -> None:
    """Set some configs of a resource and reset others to their defaults, all or none.
    `validate_only`: check the changes without making them. Raises KafkaError."""
    rows: list[dict[str, Any]] = [
        {"name": k, "config_operation": _SET, "value": v} for k, v in (set_configs or {}).items()
    ]
    rows += [{"name": key, "config_operation": _DELETE, "value": None} for key in delete_configs]
    resource = {"resource_type": int(kind), "resource_name": name, "configs": rows}
    answer = connection.call("incremental_alter_configs", resources=[resource], validate_only=validate_only)
    row = answer.responses[0]
    check(row.error_code, row.error_message, needs="alter-configs", name=name)


def groups_with_configs(connection: Caller) -> list[str]:
    """Ids of the groups on which configs are set; such a group need not exist."""
    answer = connection.call("list_config_resources", resource_types=(int(ResourceType.GROUP),))
    check(answer.error_code, needs="describe-configs")
    return sorted(row.resource_name for row in answer.config_resources)


def has_group_config(connection: Caller, group_id: str, config_name: str) -> bool:
    """Whether this config is set on the group itself, rather than inherited from the broker."""
    entries = describe_configs(connection, ResourceType.GROUP, group_id)
    return any(entry.name == config_name and entry.is_own for entry in entries)
