"""AlterShareGroupOffsets (91), v0 (KIP-932): sets the start offsets of a group without members. A
group that does not exist is created.

A change with code 0 is durable, and the next fetch starts from it. Start offsets are not checked;
-1 applies the reset policy. Errors: an unknown partition is 3 in its row; for all rows, a group
with members is 68, one that is being changed 14, a negative partition -1.

With an authorizer the group needs READ (30 for the request), and each topic READ (29 in its rows,
whether or not it exists).
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.api.authorization import allows_on_topic, check_group, refusal
from kbroker.api.request import Request
from kbroker.errors import KafkaError
from kbroker.groups.share.messages import OffsetsReply, PartitionDone, TopicDone
from kbroker.security.acls import Operation, ResourceType


async def handle(request: Request) -> OffsetsReply:
    group_id = request.body.group_id
    try:
        check_group(request, Operation.READ, group_id)
    except KafkaError as error:
        return OffsetsReply.refusal(error)
    wanted = {
        topic.topic_name: {row.partition_index: row.start_offset for row in topic.partitions}
        for topic in request.body.topics
    }
    denied = {name for name in wanted if not allows_on_topic(request, Operation.READ, name)}
    allowed = {name: offsets for name, offsets in wanted.items() if name not in denied}
    if denied and not allowed:
        reply = OffsetsReply()
    else:
        reply = await request.broker.share_group_service.alter_offsets(group_id, allowed)
    if not denied or reply.error_code:
        return reply
    refused = tuple(_refused(name, offsets) for name, offsets in wanted.items() if name in denied)
    return reply._replace(responses=(*reply.responses, *refused))


def _refused(name: str, partitions: Iterable[int]) -> TopicDone:
    error = refusal(ResourceType.TOPIC)
    rows = tuple(PartitionDone(index, error.code, error.message) for index in partitions)
    return TopicDone(name, None, rows)
