"""DeleteShareGroupOffsets (92), v0 (KIP-932): deletes the share state of topics, for a group
without members.

A deletion with code 0 is durable, and fetches no longer see the state. A topic without state is 3;
a group that does not exist 69, with members 68, one that is being changed 14.

With an authorizer the group needs DELETE (30 for the request), and each topic READ (29 in its row,
whether or not it exists).
"""

from __future__ import annotations

from kbroker.api.authorization import allows_on_topic, check_group, refusal
from kbroker.api.request import Request
from kbroker.errors import KafkaError
from kbroker.groups.share.messages import OffsetsReply, TopicDone
from kbroker.security.acls import Operation, ResourceType


async def handle(request: Request) -> OffsetsReply:
    group_id = request.body.group_id
    try:
        check_group(request, Operation.DELETE, group_id)
    except KafkaError as error:
        return OffsetsReply.refusal(error)
    names = [topic.topic_name for topic in request.body.topics]
    denied = [name for name in names if not allows_on_topic(request, Operation.READ, name)]
    if denied and len(denied) == len(names):
        reply = OffsetsReply()
    else:
        allowed = [name for name in names if name not in denied]
        reply = await request.broker.share_group_service.delete_offsets(group_id, allowed)
    if not denied or reply.error_code:
        return reply
    return reply._replace(responses=(*reply.responses, *map(_refused, denied)))


def _refused(name: str) -> TopicDone:
    error = refusal(ResourceType.TOPIC)
    return TopicDone(name, None, (), error.code, error.message)
