"""DescribeShareGroupOffsets (90), v0-1 (KIP-932; v1 with the lag, KIP-1226): the saved start
offsets of share groups.

Without topics, the answer has every partition that the group has state for; a group that does not
exist has none. A named partition always gets a row: where group, topic or partition do not exist,
start offset and lag are -1 without an error. An empty group id with named topics, a topic without
partitions and a negative partition are -1 for the group, as in Kafka.
"""

from __future__ import annotations

from typing import Any

from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode, KafkaError


async def handle(request: Request) -> Message:
    return {"groups": [await _group(request, group) for group in request.body.groups]}


async def _group(request: Request, group: Any) -> Message:
    wanted = None if group.topics is None else {topic.topic_name: topic.partitions for topic in group.topics}
    row: dict[str, Any] = {
        "group_id": group.group_id,
        "topics": (),
        "error_code": ErrorCode.none,
        "error_message": None,
    }
    try:
        return row | {
            "topics": await request.broker.share_group_service.describe_offsets(group.group_id, wanted)
        }
    except KafkaError as error:
        return row | {"error_code": error.code, "error_message": error.message}
