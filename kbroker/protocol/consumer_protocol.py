"""The embedded protocol of consumers: the metadata and assignments that they send in the classic
protocol (ConsumerProtocolSubscription and -Assignment; KIP-429, KIP-792).

Both begin with a version (2 bytes). As in Kafka, a newer version than those known here is read as
the newest known: each version only adds to the end. Topics are named, never by id. Any client may
send such bytes, so their array counts are checked before kio decodes them, like a request's
(array_check.py). Schemas are imported at first use. This module must not know groups.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple, cast

from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from kbroker.protocol.array_check import check_arrays, edited

CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type of consumers: the metadata of its members has this form."""

_VERSION: Final = struct.Struct(">h")
_NEWEST: Final = 3
_SUBSCRIPTION, _ASSIGNMENT = "Subscription", "Assignment"


class Subscription(NamedTuple):
    """A consumer's topics and, from version 1, the partitions that it owns. `version`: the one that
    it sent."""

    version: int
    topics: tuple[str, ...]
    owned: Mapping[str, tuple[int, ...]]
    rack_id: str | None


class ReadAssignment(NamedTuple):
    partitions: Mapping[str, tuple[int, ...]]
    user_data: bytes | None


def read_subscription(metadata: bytes) -> Subscription:
    """Raises ValueError for anything else."""
    version = _version(metadata)
    found = _read(_SUBSCRIPTION, version, metadata)
    owned = {row.topic: tuple(row.partitions) for row in getattr(found, "owned_partitions", ())}
    return Subscription(version, tuple(found.topics), owned, getattr(found, "rack_id", None))


def read_subscribed_topics(metadata: bytes) -> frozenset[str]:
    """Only the topics, with which every version begins. As in Kafka, neither the version nor the
    rest is checked. Raises ValueError."""
    return frozenset(_read(_SUBSCRIPTION, 0, metadata).topics)


def read_assignment(assignment: bytes) -> ReadAssignment:
    """Raises ValueError for anything else."""
    found = _read(_ASSIGNMENT, _version(assignment), assignment)
    return ReadAssignment(
        {row.topic: tuple(row.partitions) for row in found.assigned_partitions}, found.user_data
    )


def write_assignment(partitions: Mapping[str, tuple[int, ...]], version: int) -> bytes:
    """Encode in the version of the member's subscription."""
    version = min(version, _NEWEST)
    module = _module(_ASSIGNMENT, version)
    rows = tuple(
        module.TopicPartition(topic=name, partitions=numbers) for name, numbers in partitions.items()
    )
    out = io.BytesIO()
    out.write(_VERSION.pack(version))
    entity_writer(module.ConsumerProtocolAssignment)(
        out, module.ConsumerProtocolAssignment(assigned_partitions=rows, user_data=None)
    )
    return out.getvalue()


def _version(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise ValueError("malformed consumer protocol: it ends within its version")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise ValueError(f"malformed consumer protocol: version {version}")
    return version


def _read(message: str, version: int, data: bytes) -> Any:  # noqa: ANN401 - kio has a class for each version
    schema, read = _reader(message, min(version, _NEWEST))
    try:
        edits = check_arrays(schema, data, _VERSION.size)
        found, _ = read(edited(data, edits) if edits else data, _VERSION.size)
    except (SerialError, ValueError, LookupError, struct.error, OverflowError, TypeError) as error:
        raise ValueError(f"malformed consumer protocol: {error}") from error
    return found


@cache
def _reader(message: str, version: int) -> tuple[type[Any], Callable[[bytes, int], tuple[Any, int]]]:
    schema = cast(type[Any], getattr(_module(message, version), f"ConsumerProtocol{message}"))
    return schema, cast(Any, entity_reader(schema))


@cache
def _module(message: str, version: int) -> Any:  # noqa: ANN401 - a module has no narrower type
    return import_module(f"kio.schema.consumer_protocol_{message.lower()}.v{version}.data")
