"""OffsetDelete (47), v0 (KIP-496): deletes offsets of a group. Code 0 is durable, even if there was
no offset.

A topic that a member subscribes to is GROUP_SUBSCRIBED_TO_TOPIC, an unknown partition 3; neither
affects other rows. A group whose members are not consumers is NON_EMPTY_GROUP.

With an authorizer the group needs DELETE (30 for the request), and each topic READ (29 in its rows,
whether or not it exists).
"""

from __future__ import annotations

from kbroker.api.authorization import check_group
from kbroker.api.offset_topics import find_topic, permitted, with_codes
from kbroker.api.request import Message, Request
from kbroker.errors import KafkaError
from kbroker.security.acls import Operation


async def handle(request: Request) -> Message:
    body = request.body
    try:
        check_group(request, Operation.DELETE, body.group_id)
    except KafkaError as error:
        return {"error_code": error.code, "topics": ()}
    rows = [find_topic(request.broker.topics, topic, topic.partitions) for topic in body.topics]
    if (rights := request.connection.rights) is not None:
        rows = permitted(rows, rights, Operation.READ)
    wanted = [row.partition(each.partition_index) for row in rows for each in row.known()]
    groups = request.broker.consumer_group_service
    await groups.expressions.prepare(body.group_id, None, None)  # Members may subscribe by one.
    try:
        errors = await groups.ask(lambda *_: groups.groups.delete_offsets(body.group_id, wanted))
    except KafkaError as error:
        return {"error_code": error.code, "topics": ()}
    if errors.error_code:
        return {"error_code": errors.error_code, "topics": ()}
    topics = [with_codes(row, errors) for row in rows if row.rows]
    return {"error_code": errors.error_code, "topics": topics}
