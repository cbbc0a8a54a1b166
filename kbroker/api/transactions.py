"""What the APIs of transactions share (KIP-98, KIP-664)."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from kbroker.broker.broker import Broker
from kbroker.broker.logs.partition import Partition
from kbroker.errors import ErrorCode
from kbroker.formats.transactions import TransactionState

STATE_NAMES: Final = {state: state.name.title().replace("_", "") for state in TransactionState}
"""As in Kafka: PrepareCommit."""


def find_partition(broker: Broker, topic: str | UUID, index: int) -> Partition | None:
    """`topic`: its name or id."""
    topics = broker.topics
    found = topics.by_id(topic) if isinstance(topic, UUID) else topics.by_name(topic)
    if found is None or not 0 <= index < len(found.partitions) or found.partitions[index].deleted:
        return None
    return found.partitions[index]


def known_to(version: int, code: ErrorCode, fenced_from: int) -> ErrorCode:
    """`fenced_from`: the API's first version with PRODUCER_FENCED (KIP-588). Earlier ones have
    INVALID_PRODUCER_EPOCH instead."""
    is_new = code is ErrorCode.producer_fenced and version < fenced_from
    return ErrorCode.invalid_producer_epoch if is_new else code
