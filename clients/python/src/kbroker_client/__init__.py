"""Queues of kbroker and of Apache Kafka for asyncio and trio: a share consumer, a producer
and the administration of queues."""

from ._shared.client.queues.counts import QueueSummary, QueueWorker
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
    QueueDifference,
    QueueDiffers,
    QueueMissing,
    QueueRefused,
    TimedOut,
    WokenUp,
)
from .producer import Producer, Sent
from .queue_admin import QueueAdmin, QueueCreated, QueueDeleted, QueueDescription
from .security import Security
from .share.consumer import Acquire, Mode, ShareConsumer
from .share.records import Outcome, Record

__all__ = [
    "Acquire", "BrokerUnreachable", "ClientClosed", "ClientError", "ErrorCode", "IllegalState",
    "KafkaError", "LockLost", "Mode", "NotAuthenticated", "Outcome", "Producer", "QueueAdmin",
    "QueueCreated", "QueueDeleted", "QueueDescription", "QueueDifference", "QueueDiffers",
    "QueueMissing", "QueueRefused", "QueueSummary", "QueueWorker", "Reason", "Record", "Security",
    "Sent", "ShareConsumer", "TimedOut", "TopicPartition", "WokenUp",
]  # fmt: skip
