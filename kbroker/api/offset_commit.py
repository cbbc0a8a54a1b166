"""OffsetCommit (8), v2-10: commits a group's offsets; topics by id from v10 (KIP-848).

Code 0 is durable like a record with acks=all. A client that is not a member (no member id,
generation -1) may commit to a group without members; a group that does not exist is created with
offsets only. An unknown topic or partition is 3 (an unknown id 100) in its row. If the group or the
member is refused, every other row has that code. `retention_time` (v2-4) is honoured.

With an authorizer the group needs READ (30 in every row), and each topic READ (29 in its rows,
whether or not it exists).
"""

from __future__ import annotations

from kbroker.api.offset_topics import TopicRow, commits_of, find_topic, permitted, refused, with_codes
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.groups.offsets.messages import CommitRequest, OffsetErrors
from kbroker.security.acls import Operation, ResourceType


async def handle(request: Request) -> Message:
    rows = [find_topic(request.broker.topics, topic, topic.partitions) for topic in request.body.topics]
    rights = request.connection.rights
    if rights is not None:
        if rights.allows(Operation.READ, ResourceType.GROUP, request.body.group_id):
            rows = permitted(rows, rights, Operation.READ)
        else:
            rows = refused(rows, ErrorCode.group_authorization_failed)
    errors = await _committed(request, rows)
    return {"topics": [with_codes(row, errors) for row in rows]}


async def _committed(request: Request, rows: list[TopicRow]) -> OffsetErrors:
    body = request.body
    commits = commits_of(rows)
    if not commits:
        return OffsetErrors()
    retention = getattr(body, "retention_time", None)
    wanted = CommitRequest(
        group_id=body.group_id,
        offsets=commits,
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        generation=body.generation_id_or_member_epoch,
        version=request.version,
        retention_ms=-1 if retention is None else round(retention.total_seconds() * 1000),
    )
    groups = request.broker.consumer_group_service
    try:
        return await groups.ask(lambda _, now_ms: groups.groups.commit_offsets(wanted, now_ms=now_ms))
    except KafkaError as error:
        return OffsetErrors(error.code)
