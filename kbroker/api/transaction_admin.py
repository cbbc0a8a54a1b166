"""What the APIs for the administration of transactions share (KIP-664)."""

from __future__ import annotations

from typing import Final

from kbroker.broker.broker import Broker
from kbroker.broker.logs.partition import Partition
from kbroker.formats.transactions import TransactionState

STATE_NAMES: Final = {state: state.name.title().replace("_", "") for state in TransactionState}
"""As in Kafka: PrepareCommit."""


def find_partition(broker: Broker, name: str, index: int) -> Partition | None:
    topic = broker.topics.by_name(name)
    if topic is None or not 0 <= index < len(topic.partitions) or topic.partitions[index].deleted:
        return None
    return topic.partitions[index]
