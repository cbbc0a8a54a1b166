"""DescribeTopicPartitions (75), v0 (KIP-966): topics by name, sorted by name, in pages of
partitions.

No topics named means all. The answer has at most `response_partition_limit` partitions (0 means 1;
never more than MAX_PARTITIONS), and a cursor for the next page if there is one. If the cursor's
topic is not among the named ones, or its partition is negative, every row is 42. Unknown topics are
3, illegal names 17.

With an authorizer, topics without DESCRIBE are left out of a list of all. Named ones are 29,
whether or not they exist, behind all other rows.

There are no eligible leader replicas: one broker has the only copy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain

from kbroker.api.authorization import allows_on_topic, sees_topic
from kbroker.api.authorized_operations import NOT_REQUESTED, topic_operations
from kbroker.api.metadata import partition_rows
from kbroker.api.request import Message, Request
from kbroker.api.turns import RowTurn
from kbroker.broker.logs.topics import Topic, check_name
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.acls import Operation

MAX_PARTITIONS = 2000
"""Kafka's max.request.partition.size.limit."""


async def handle(request: Request) -> Message:
    turn = RowTurn()
    body = request.body
    asked = sorted({topic.name for topic in body.topics})
    cursor = body.cursor
    if cursor is not None and (cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)):
        return {
            "topics": (_row(name, None, ErrorCode.invalid_request, (), NOT_REQUESTED) for name in asked),
            "next_cursor": None,
        }
    names = asked or await _all_names(turn, request)
    first_partition = 0
    if cursor is not None:
        names = names[bisect_left(names, cursor.topic_name) :]
        first_partition = cursor.partition_index if names and names[0] == cursor.topic_name else 0
    limit = max(1, min(body.response_partition_limit, MAX_PARTITIONS))
    seen: Sequence[str] = names
    denied: Sequence[str] = ()
    if asked and request.connection.rights is not None:
        allowed: dict[str, bool] = {}
        for name in names:
            await turn.row()
            allowed[name] = allows_on_topic(request, Operation.DESCRIBE, name)
        seen = [name for name, is_allowed in allowed.items() if is_allowed]
        denied = [name for name, is_allowed in allowed.items() if not is_allowed]
    if seen and seen[0] != names[0]:
        first_partition = 0
    page = await _page(turn, request, seen, first_partition, limit)
    refused = (_row(name, None, ErrorCode.topic_authorization_failed, (), NOT_REQUESTED) for name in denied)
    return {**page, "topics": chain(page["topics"], refused)}


async def _all_names(turn: RowTurn, request: Request) -> list[str]:
    names: list[str] = []
    for topic in request.broker.topics:
        await turn.row()
        if sees_topic(request, topic.name):
            names.append(topic.name)
    return sorted(names)


async def _page(
    turn: RowTurn, request: Request, names: Sequence[str], first_partition: int, limit: int
) -> Message:
    rows: list[Message] = []
    next_cursor: Message | None = None
    for name in names:
        await turn.row()
        if limit == 0:
            next_cursor = {"topic_name": name, "partition_index": 0}
            break
        topic = request.broker.topics.by_name(name)
        if topic is None:
            rows.append(_unknown_row(request, name))
        else:
            partitions = list(partition_rows(request, topic, first_partition, limit))
            operations = topic_operations(request, name)
            rows.append(_row(name, topic, ErrorCode.none, partitions, operations))
            limit -= len(partitions)
            end = first_partition + len(partitions)
            if end < len(topic.partitions):
                next_cursor = {"topic_name": name, "partition_index": end}
                break
        first_partition = 0
    return {"topics": rows, "next_cursor": next_cursor}


def _row(
    name: str,
    topic: Topic | None,
    code: ErrorCode,
    partitions: Sequence[Message],
    operations: int,
) -> Message:
    return {
        "error_code": code,
        "name": name,
        "topic_id": None if topic is None else topic.topic_id,
        "is_internal": topic is not None and topic.is_internal,
        "partitions": [
            {**partition, "eligible_leader_replicas": (), "last_known_elr": ()} for partition in partitions
        ],
        "topic_authorized_operations": operations,
    }


def _unknown_row(request: Request, name: str) -> Message:
    code = ErrorCode.unknown_topic_or_partition
    try:
        check_name(name)
    except KafkaError as error:
        code = error.code
    return _row(name, None, code, (), topic_operations(request, name))
