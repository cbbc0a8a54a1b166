"""OffsetFetch (9), v1-10: the committed offsets of one group (up to v7) or several (from v8);
topics by id from v10 (KIP-848).

Without a list of topics (from v2), the answer has all of the group's offsets. If the group, the
topic or the offset does not exist, the offset is -1 without an error; an unknown topic id is 100.
From v9 a member may send its epoch: for a consumer group, an epoch other than the member's is
refused.

With `require_stable` (from v7, KIP-447) an offset that an open transaction may replace is
UNSTABLE_OFFSET_COMMIT, and clients ask again.

With an authorizer a group needs DESCRIBE (30 for the group). Topics without DESCRIBE are left out
of all offsets of a group; named ones are 29, whether or not they exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any
from uuid import UUID

from kbroker.api.authorization import check_group, sees_topic
from kbroker.api.offset_topics import TopicRow, find_topic, permitted
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.group_records import AnyGroupOffset
from kbroker.groups.offsets.committed import OffsetsByTopic
from kbroker.protocol.long_responses import each_once
from kbroker.security.acls import Operation

_GROUPS_FROM = 8
_IDS_FROM = 10
_GROUP_ERROR_FROM = 2
_NO_OFFSET = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}


def handle(request: Request) -> Message:
    body = request.body
    if request.version >= _GROUPS_FROM:
        return {
            "groups": each_once(
                body.groups, lambda group: {"group_id": group.group_id, **_group(request, group)}
            )
        }
    return _group(request, body)


def _group(request: Request, wanted: Any) -> Message:
    """One group's answer: its topics and its error."""
    try:
        check_group(request, Operation.DESCRIBE, wanted.group_id)
        offsets = request.broker.consumer_group_service.groups.fetch_offsets(
            wanted.group_id, getattr(wanted, "member_id", None), getattr(wanted, "member_epoch", -1)
        )
    except KafkaError as error:
        rows = _failed(wanted.topics or (), error.code) if request.version < _GROUP_ERROR_FROM else ()
        return {"topics": rows, "error_code": error.code}
    topics = request.broker.topics
    is_unstable = _unstable(request, wanted.group_id)
    if wanted.topics is None:
        return {"topics": _all(request, offsets, is_unstable), "error_code": ErrorCode.none}
    rights = request.connection.rights

    def answered(each: Any) -> Message:
        row = find_topic(topics, each, each.partition_indexes)
        if rights is not None:
            (row,) = permitted((row,), rights, Operation.DESCRIBE)
        return _topic(row, offsets, is_unstable)

    return {"topics": each_once(wanted.topics, answered), "error_code": ErrorCode.none}


def _unstable(request: Request, group_id: str) -> Callable[[UUID, int], bool]:
    """Whether an offset must not be answered yet."""
    pending = request.broker.consumer_group_service.groups.offsets.pending
    if not pending or not getattr(request.body, "require_stable", False):
        return lambda _, __: False
    return lambda topic_id, index: pending.has(group_id, (topic_id, index))


def _topic(row: TopicRow, offsets: OffsetsByTopic, is_unstable: Callable[[UUID, int], bool]) -> Message:
    if row.topic is None:
        has_error = "topic_id" in row.key or row.refused is not None
        code = row.unknown_code if has_error else ErrorCode.none
        return {**row.key, "partitions": (_partition(index, None, code) for index in row.rows)}
    topic_id = row.topic.topic_id
    found = offsets.get(topic_id, {})
    return {
        **row.key,
        "partitions": each_once(
            row.rows,
            lambda index: (
                _partition(index, None, ErrorCode.unstable_offset_commit)
                if is_unstable(topic_id, index)
                else _partition(index, found.get(index))
            ),
        ),
    }


def _all(
    request: Request, offsets: OffsetsByTopic, is_unstable: Callable[[UUID, int], bool]
) -> Iterator[Message | None]:
    """None for a topic that the client may not see."""
    for topic_id, found in sorted(offsets.items(), key=itemgetter(0)):
        topic = request.broker.topics.by_id(topic_id)
        if topic is not None and sees_topic(request, topic.name):
            key = {"topic_id": topic_id} if request.version >= _IDS_FROM else {"name": topic.name}
            yield {
                **key,
                "partitions": (
                    _partition(index, None, ErrorCode.unstable_offset_commit)
                    if is_unstable(topic_id, index)
                    else _partition(index, offset)
                    for index, offset in sorted(found.items())
                ),
            }
        else:
            yield None


def _partition(index: int, offset: AnyGroupOffset | None, code: ErrorCode = ErrorCode.none) -> Message:
    if offset is None:
        return {"partition_index": index, **_NO_OFFSET, "error_code": code}
    return {
        "partition_index": index,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": code,
    }


def _failed(topics: Any, code: ErrorCode) -> Iterator[Message]:
    """Error rows for all partitions, since version 1 has no error code for the group."""
    for topic in topics:
        yield {
            "name": topic.name,
            "partitions": (_partition(index, None, code) for index in topic.partition_indexes),
        }
