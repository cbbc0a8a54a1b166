"""DeleteRecords (21), v0-2: moves log start offsets up; what is below is gone for good when the answer leaves.

-1 means the high watermark. An offset below the log start changes nothing and is answered with the present one; one above the high
watermark or below -1 is 1. Internal topics are 17. Whole segments below the new start are removed from the disk.

Not done: the request's timeout.
"""

from __future__ import annotations

from typing import Any

from kbroker.broker.connection import Message, Request
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed

_HIGH_WATERMARK = -1


async def handle(request: Request) -> Message:
    return {
        "topics": [
            {"name": topic.name, "partitions": [await _row(request, topic.name, row) for row in topic.partitions]}
            for topic in request.body.topics
        ]
    }


async def _row(request: Request, name: str, asked: Any) -> Message:
    code, low_watermark = ErrorCode.none, -1
    try:
        low_watermark = await _delete(request, name, asked)
    except KafkaError as error:
        code = error.code
    except (NoSpace, StoreFailed):
        code = ErrorCode.kafka_storage_error
    return {"partition_index": asked.partition_index, "low_watermark": low_watermark, "error_code": code}


async def _delete(request: Request, name: str, asked: Any) -> int:
    topics = request.broker.topics
    topic = topics.by_name(name)
    if topic is None or not 0 <= asked.partition_index < len(topic.partitions):
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    if topic.is_internal:
        raise KafkaError(ErrorCode.invalid_topic_exception)
    partition = topic.partitions[asked.partition_index]
    if partition.deleted:
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    offset: int = partition.high_watermark if asked.offset == _HIGH_WATERMARK else asked.offset
    if not 0 <= offset <= partition.high_watermark:
        raise KafkaError(ErrorCode.offset_out_of_range)
    await topics.move_log_start(partition, offset)
    low_watermark: int = partition.log_start_offset
    return low_watermark
