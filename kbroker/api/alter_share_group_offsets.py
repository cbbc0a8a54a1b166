"""AlterShareGroupOffsets (91), v0 (KIP-932): sets the start offsets of a group without members. A
group that does not exist is created.

A change with code 0 is durable, and the next fetch starts from it. Start offsets are not checked;
-1 applies the reset policy. Errors: an unknown partition is 3 in its row; for all rows, a group
with members is 68, one that is being changed 14, a negative partition -1.
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
