"""What ordinary consumers put into the metadata and assignments of the classic protocol (ConsumerProtocolSubscription and -Assignment).

Both begin with a version (2 bytes). One that is newer than those known here is read as the newest, as Kafka does: each version only adds
to the end. Everything speaks of topics by name. Must not know groups.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kio.schema.consumer_protocol_assignment.v0 import data as assignment_v0
from kio.schema.consumer_protocol_assignment.v1 import data as assignment_v1
from kio.schema.consumer_protocol_assignment.v2 import data as assignment_v2
from kio.schema.consumer_protocol_assignment.v3 import data as assignment_v3
from kio.schema.consumer_protocol_subscription.v0 import data as subscription_v0
from kio.schema.consumer_protocol_subscription.v1 import data as subscription_v1
from kio.schema.consumer_protocol_subscription.v2 import data as subscription_v2
from kio.schema.consumer_protocol_subscription.v3 import data as subscription_v3
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

_VERSION: Final = struct.Struct(">h")
_SUBSCRIPTIONS: Final = (subscription_v0, subscription_v1, subscription_v2, subscription_v3)
_ASSIGNMENTS: Final = (assignment_v0, assignment_v1, assignment_v2, assignment_v3)


class Subscription(NamedTuple):
    """What a consumer subscribes to and (from version 1 on) has; `version` is the one that it wrote."""

    version: int
    topics: tuple[str, ...]
    owned: Mapping[str, tuple[int, ...]]
    rack_id: str | None


class ReadAssignment(NamedTuple):
    partitions: Mapping[str, tuple[int, ...]]
    user_data: bytes | None


def read_subscription(metadata: bytes) -> Subscription:
    """Raises ValueError for anything else."""
    found, version = _read(metadata, [module.ConsumerProtocolSubscription for module in _SUBSCRIPTIONS])
    owned = {row.topic: tuple(row.partitions) for row in getattr(found, "owned_partitions", ())}
    return Subscription(version, tuple(found.topics), owned, getattr(found, "rack_id", None))


def read_assignment(assignment: bytes) -> ReadAssignment:
    """Raises ValueError for anything else."""
    found, _ = _read(assignment, [module.ConsumerProtocolAssignment for module in _ASSIGNMENTS])
    return ReadAssignment({row.topic: tuple(row.partitions) for row in found.assigned_partitions}, found.user_data)


def write_assignment(partitions: Mapping[str, tuple[int, ...]], version: int) -> bytes:
    """In the version that the member's subscription is in."""
    version = min(version, len(_ASSIGNMENTS) - 1)
    module: Any = _ASSIGNMENTS[version]
    rows = tuple(module.TopicPartition(topic=name, partitions=numbers) for name, numbers in partitions.items())
    out = io.BytesIO()
    out.write(_VERSION.pack(version))
    entity_writer(module.ConsumerProtocolAssignment)(out, module.ConsumerProtocolAssignment(assigned_partitions=rows, user_data=None))
    return out.getvalue()


def _read(data: bytes, versions: list[Any]) -> tuple[Any, int]:
    try:
        (version,) = _VERSION.unpack_from(data)
        if version < 0:
            raise ValueError(f"version {version}")
        found, _ = entity_reader(versions[min(version, len(versions) - 1)])(data, _VERSION.size)
    except (SerialError, struct.error, OverflowError) as error:
        raise ValueError(f"malformed consumer protocol: {error}") from error
    return found, version
