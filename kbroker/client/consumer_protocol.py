"""What members of classic consumer groups tell each other through the coordinator: the embedded protocol of consumers (KIP-429, KIP-792).

The coordinator passes subscriptions and assignments on as bytes; tools that show them have to read them. A version that is not known
is read as the newest that is: later versions only add fields at the end.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import NamedTuple

from kio.serial import entity_reader
from kio.serial.errors import SerialError

from kbroker.client.rpc import Entity

PROTOCOL_TYPE = "consumer"
_NEWEST = 3
_VERSION = struct.Struct(">h")


class Subscription(NamedTuple):
    topics: tuple[str, ...]
    rack_id: str | None


def read_subscription(data: bytes) -> Subscription | None:
    """None where these are no consumer's bytes, or none at all."""
    found = _read("subscription", "ConsumerProtocolSubscription", data)
    return None if found is None else Subscription(tuple(sorted(found.topics)), getattr(found, "rack_id", None))


def read_assignment(data: bytes) -> Mapping[str, tuple[int, ...]] | None:
    """Partitions by topic; None where these are no consumer's bytes, or none at all."""
    found = _read("assignment", "ConsumerProtocolAssignment", data)
    return None if found is None else {row.topic: tuple(sorted(row.partitions)) for row in found.assigned_partitions}


def _read(message: str, class_name: str, data: bytes) -> Entity | None:
    try:
        (version,) = _VERSION.unpack_from(data)
        if version < 0:
            return None
        entity, _ = entity_reader(_schema(message, class_name, min(version, _NEWEST)))(data, _VERSION.size)
    except (SerialError, ValueError, LookupError, struct.error, OverflowError):  # what kio raises for bytes that mean nothing
        return None
    return entity


@cache
def _schema(message: str, class_name: str, version: int) -> Entity:
    return getattr(import_module(f"kio.schema.consumer_protocol_{message}.v{version}.data"), class_name)
