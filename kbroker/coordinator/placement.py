"""Where Kafka places a coordinator: the partition of `__consumer_offsets` or `__share_group_state` for a key, by Java's string hash.

kbroker is every coordinator itself; FindCoordinator and inspection still speak of keys and partitions, and clients may send the
share coordinator's keys, `group:topic id:partition` with the topic id in Kafka's text form (URL-safe base64, 22 characters).
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.persister import TopicPartition


def java_string_hash(text: str) -> int:
    """String.hashCode: over UTF-16 code units, as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    found = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        found = (31 * found + (high << 8 | low)) & 0xFFFFFFFF
    return found - (1 << 32) if found >= 1 << 31 else found


def partition_for(key: str, partitions: int) -> int:
    """Utils.abs(hash) mod `partitions`; the absolute value of the smallest integer is 0."""
    found = java_string_hash(key)
    return 0 if found == -(1 << 31) else abs(found) % partitions


def share_coordinator_key(group_id: str, partition: TopicPartition) -> str:
    return f"{group_id}:{uuid_text(partition.topic_id)}:{partition.partition}"


def parse_share_coordinator_key(key: str) -> tuple[str, TopicPartition]:
    """The last two fields are the topic id and the partition, so that a group id may contain colons.

    Raises KafkaError INVALID_REQUEST for a key that is malformed or names no group. A negative partition passes, as in Kafka.
    """
    group_id, _, rest = key.rpartition(":")
    group_id, _, topic_id = group_id.rpartition(":")
    try:
        if not group_id:
            raise ValueError("no group")
        return group_id, TopicPartition(parse_uuid_text(topic_id), int(rest))
    except ValueError as error:
        raise KafkaError(ErrorCode.invalid_request, f"Not a share coordinator key: {key!r}") from error


def uuid_text(topic_id: UUID) -> str:
    """A topic id as Kafka prints it."""
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def parse_uuid_text(text: str) -> UUID:
    """Raises ValueError."""
    try:
        return UUID(bytes=urlsafe_b64decode(text + "=="))
    except binascii.Error as error:
        raise ValueError(f"not a topic id: {text!r}") from error
