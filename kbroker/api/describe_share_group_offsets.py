"""DescribeShareGroupOffsets (90), v0-1 (KIP-932; v1 with the lag, KIP-1226): the saved start
offsets of share groups.

Without topics, the answer has every partition that the group has state for; a group that does not
exist has none. A named partition always gets a row: where group, topic or partition do not exist,
start offset and lag are -1 without an error. An empty group id with named topics, a topic without
partitions and a negative partition are -1 for the group, as in Kafka.

With an authorizer a group needs DESCRIBE (30 for the group). Topics without DESCRIBE are left out
of all partitions of a group; rows of named ones are 29, whether or not they exist, behind the
others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.api.authorization import allows_on_topic, check_group, refusal, sees_topic
from kbroker.api.request import Message, Request
from kbroker.api.turns import Turn
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.messages import Repeated
from kbroker.security.acls import Operation, ResourceType


async def handle(request: Request) -> Message:
    turn = Turn()
    made: dict[Any, Repeated] = {}
    rows: list[Repeated] = []
    for group in request.body.groups:
        await turn.row()
        if group not in made:
            made[group] = Repeated(await _group(request, group))
        rows.append(made[group])
    return {"groups": rows}


async def _group(request: Request, group: Any) -> Message:
    row: dict[str, Any] = {
        "group_id": group.group_id,
        "topics": (),
        "error_code": ErrorCode.none,
        "error_message": None,
    }
    try:
        check_group(request, Operation.DESCRIBE, group.group_id)
        return row | {"topics": await _topics(request, group)}
    except KafkaError as error:
        return row | {"error_code": error.code, "error_message": error.message}


async def _topics(request: Request, group: Any) -> list[Any]:
    describe = request.broker.share_group_service.describe_offsets
    if group.topics is None:
        found = await describe(group.group_id, None)
        return [topic for topic in found if sees_topic(request, topic.topic_name)]
    wanted = {topic.topic_name: topic.partitions for topic in group.topics}
    denied = {name for name in wanted if not allows_on_topic(request, Operation.DESCRIBE, name)}
    allowed = {name: partitions for name, partitions in wanted.items() if name not in denied}
    found = await describe(group.group_id, allowed) if allowed or not denied else []
    return [*found, *(_refused(name, wanted[name]) for name in wanted if name in denied)]


def _refused(name: str, partitions: Iterable[int]) -> Message:
    error = refusal(ResourceType.TOPIC)
    rows = [
        {
            "partition_index": index,
            "start_offset": -1,
            "leader_epoch": 0,
            "lag": -1,
            "error_code": error.code,
            "error_message": error.message,
        }
        for index in partitions
    ]
    return {"topic_name": name, "topic_id": None, "partitions": rows}
