"""DeleteRecords (21), v0-2: moves log start offsets up. When the answer is sent, the records below
are permanently gone.

-1 means the high watermark. An offset below the log start changes nothing, and the answer has the
present log start. An offset above the high watermark or below -1 is 1. Internal topics are 17, and
topics that are only compacted (cleanup.policy=compact) 44. For a partition that is listed twice,
the last offset applies. Whole segments below the new start are removed from the disk. So are the
records below it that share groups keep beside the log (kept_records.py), even if the log already
begins there.

With an authorizer a topic needs DELETE (29, whether or not it exists).

Not done: the request's timeout.
"""

from __future__ import annotations

from kbroker.api.authorization import check_topic
from kbroker.api.request import Message, Request
from kbroker.broker.logs.topics import INTERNAL_TOPICS
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.security.acls import Operation
from kbroker.settings.topic_configs import CLEANUP_POLICY, COMPACT

_HIGH_WATERMARK = -1


async def handle(request: Request) -> Message:
    topics: dict[str, dict[int, int]] = {}
    for topic in request.body.topics:
        for row in topic.partitions:
            topics.setdefault(topic.name, {})[row.partition_index] = row.offset
    return {
        "topics": [
            {
                "name": name,
                "partitions": [await _row(request, name, index, offset) for index, offset in offsets.items()],
            }
            for name, offsets in topics.items()
        ]
    }


async def _row(request: Request, name: str, index: int, offset: int) -> Message:
    code, low_watermark = ErrorCode.none, -1
    try:
        low_watermark = await _delete(request, name, index, offset)
    except KafkaError as error:
        code = error.code
    except (NoSpace, StoreFailed):
        code = ErrorCode.kafka_storage_error
    return {"partition_index": index, "low_watermark": low_watermark, "error_code": code}


async def _delete(request: Request, name: str, index: int, offset: int) -> int:
    check_topic(request, Operation.DELETE, name)
    topics = request.broker.topics
    topic = topics.by_name(name)
    if name in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.invalid_topic_exception)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    partition = topic.partitions[index]
    if partition.deleted:
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    if topic.config[CLEANUP_POLICY] == (COMPACT,):
        raise KafkaError(ErrorCode.policy_violation)
    if offset == _HIGH_WATERMARK:
        offset = partition.high_watermark
    if not 0 <= offset <= partition.high_watermark:
        raise KafkaError(ErrorCode.offset_out_of_range)
    await topics.move_log_start(partition, offset)
    await request.broker.kept_records.purge(partition, offset)
    low_watermark: int = partition.log_start_offset
    return low_watermark
