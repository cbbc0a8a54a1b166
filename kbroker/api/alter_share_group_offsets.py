"""AlterShareGroupOffsets (91), v0 (KIP-932): the start offsets of a group without members, which is
made if it does not exist.

What is answered with code 0 is durable and what the next fetch goes by. Start offsets are not
judged: -1 asks the reset policy again. Unknown partitions are 3 in their rows; a group with members
is 68, one that is being changed 14, a negative partition -1 for all.
"""

from __future__ import annotations

from kbroker.api.request import Request
from kbroker.groups.share.messages import OffsetsReply


async def handle(request: Request) -> OffsetsReply:
    wanted = {
        topic.topic_name: {row.partition_index: row.start_offset for row in topic.partitions}
        for topic in request.body.topics
    }
    return await request.broker.share_group_service.alter_offsets(request.body.group_id, wanted)
