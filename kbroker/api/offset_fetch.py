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
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias
from uuid import UUID

from kbroker.api.authorization import check_group, sees_topic
from kbroker.api.offset_topics import TopicRow, find_topic, permitted
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.group_records import AnyGroupOffset
from kbroker.groups.offsets.committed import OffsetsByTopic
from kbroker.protocol.long_responses import each_once, key_of
from kbroker.security.acls import Operation

_GROUPS_FROM = 8
_IDS_FROM = 10
_GROUP_ERROR_FROM = 2
RowOf: TypeAlias = Callable[[UUID, int], Message]
"""Makes the row of a partition, given by its topic's id and its number."""
_NO_OFFSET = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}


def handle(request: Request) -> Message:
    body = request.body
    if request.version >= _GROUPS_FROM:
        return {
            "groups": each_once(
                body.groups,
                lambda group: {"group_id": group.group_id, **_group(request, group)},
                lambda group: key_of(group, group.topics),
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
    row_of = _rows_of(request, wanted.group_id)
    if wanted.topics is None:
        return {"topics": _all(request, offsets, row_of), "error_code": ErrorCode.none}
    rights = request.connection.rights

    def answered(each: Any) -> Message:
        row = find_topic(topics, each, each.partition_indexes)
        if rights is not None:
            (row,) = permitted((row,), rights, Operation.DESCRIBE)
        return _topic(row, row_of)

    return {"topics": each_once(wanted.topics, answered), "error_code": ErrorCode.none}


def _rows_of(request: Request, group_id: str) -> RowOf:
    """A function that makes the row of a partition, from what holds at that moment. A transaction
    may be committed between two rows of a long answer: an offset that was read before must not
    become a stable one by that."""
    offsets = request.broker.consumer_group_service.groups.offsets
    must_be_stable = getattr(request.body, "require_stable", False)

    def row_of(topic_id: UUID, index: int) -> Message:
        if must_be_stable and offsets.pending and offsets.pending.has(group_id, (topic_id, index)):
            return _partition(index, None, ErrorCode.unstable_offset_commit)
        return _partition(index, offsets.of(group_id).get(topic_id, {}).get(index))

    return row_of


def _topic(row: TopicRow, row_of: RowOf) -> Message:
    if row.topic is None:
        has_error = "topic_id" in row.key or row.refused is not None
        code = row.unknown_code if has_error else ErrorCode.none
        return {**row.key, "partitions": (_partition(index, None, code) for index in row.rows)}
    return {**row.key, "partitions": each_once(row.rows, partial(row_of, row.topic.topic_id))}


def _all(request: Request, offsets: OffsetsByTopic, row_of: RowOf) -> Iterator[Message | None]:
    """None for a topic that the client may not see."""
    for topic_id, found in sorted(offsets.items(), key=itemgetter(0)):
        topic = request.broker.topics.by_id(topic_id)
        if topic is not None and sees_topic(request, topic.name):
            key = {"topic_id": topic_id} if request.version >= _IDS_FROM else {"name": topic.name}
            yield {**key, "partitions": map(partial(row_of, topic_id), sorted(found))}
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
