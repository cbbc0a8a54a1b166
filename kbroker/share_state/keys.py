"""The share coordinator's keys in FindCoordinator: `group:topic id:partition`, with the topic id in
Kafka's text form (URL-safe base64, 22 characters). kbroker is the coordinator of every key, so no
key has to be placed."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode
from uuid import UUID

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.persister import TopicPartition


def parse_share_coordinator_key(key: str) -> tuple[str, TopicPartition]:
    """Group and partition. The last two fields are the topic id and the partition, so a group id
    may contain colons.

    Raises KafkaError INVALID_REQUEST for a malformed key, or one without a group (blanks are no
    name). A negative partition passes, as in Kafka.
    """
    group_id, _, rest = key.rpartition(":")
    group_id, _, topic_id = group_id.rpartition(":")
    try:
        if not group_id.strip():
            raise ValueError("no group")
        return group_id, TopicPartition(_topic_id(topic_id), int(rest))
    except ValueError as error:
        raise KafkaError(ErrorCode.invalid_request, f"Not a share coordinator key: {key!r}") from error


def _topic_id(text: str) -> UUID:
    try:
        return UUID(bytes=urlsafe_b64decode(text + "=="))
    except binascii.Error as error:
        raise ValueError(f"not a topic id: {text!r}") from error
