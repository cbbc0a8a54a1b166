"""Queues of kbroker and of Apache Kafka for asyncio and trio: a share consumer and a producer."""

from ._shared.share.reasons import Reason
from .cluster import TopicPartition
from .errors import (
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    ErrorCode,
    IllegalState,
    KafkaError,
    LockLost,
    NotAuthenticated,
    TimedOut,
    WokenUp,
)
from .producer import Producer, Sent
from .security import Security
from .share.consumer import Acquire, Mode, ShareConsumer
from .share.records import Outcome, Record

__all__ = [
    "Acquire", "BrokerUnreachable", "ClientClosed", "ClientError", "ErrorCode", "IllegalState",
    "KafkaError", "LockLost", "Mode", "NotAuthenticated", "Outcome", "Producer", "Reason", "Record",
    "Security", "Sent", "ShareConsumer", "TimedOut", "TopicPartition", "WokenUp",
]  # fmt: skip
