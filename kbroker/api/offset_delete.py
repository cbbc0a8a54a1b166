"""OffsetDelete (47), v0 (KIP-496): deletes offsets of a group. Code 0 is durable, even if there was
no offset.

A topic that a member subscribes to is GROUP_SUBSCRIBED_TO_TOPIC, an unknown partition 3; neither
affects other rows. A group whose members are not consumers is NON_EMPTY_GROUP.
"""

from __future__ import annotations

from kbroker.api.offset_topics import find_topic, with_codes
from kbroker.api.request import Message, Request
from kbroker.errors import KafkaError


async def handle(request: Request) -> Message:
    body = request.body
    rows = [find_topic(request.broker.topics, topic, topic.partitions) for topic in body.topics]
    wanted = [row.partition(each.partition_index) for row in rows for each in row.known()]
    groups = request.broker.consumer_group_service
    try:
        errors = await groups.ask(lambda *_: groups.groups.delete_offsets(body.group_id, wanted))
    except KafkaError as error:
        return {"error_code": error.code, "topics": ()}
    if errors.error_code:
        return {"error_code": errors.error_code, "topics": ()}
    topics = [with_codes(row, errors) for row in rows if row.rows]
    return {"error_code": errors.error_code, "topics": topics}
