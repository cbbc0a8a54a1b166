"""DeleteShareGroupOffsets (92), v0 (KIP-932): deletes the share state of topics, for a group
without members.

A deletion with code 0 is durable, and fetches no longer see the state. A topic without state is 3;
a group that does not exist 69, with members 68, one that is being changed 14.
"""

from __future__ import annotations

from kbroker.api.request import Request
from kbroker.groups.share.messages import OffsetsReply


async def handle(request: Request) -> OffsetsReply:
    names = [topic.topic_name for topic in request.body.topics]
    return await request.broker.share_group_service.delete_offsets(request.body.group_id, names)
