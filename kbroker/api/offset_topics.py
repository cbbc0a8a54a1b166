"""The topics of OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete, in the order of the
request: by name or, in the newest versions, by id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from kbroker.api.request import Message
from kbroker.broker.logs.topics import Topic, Topics
from kbroker.errors import ErrorCode
from kbroker.groups.offsets.messages import Commit, OffsetErrors
from kbroker.groups.outcome import OffsetOf
from kbroker.security.acls import Operation, ResourceType
from kbroker.security.rights import Rights

NO_ID = UUID(int=0)


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic of a request.

    - `key`: its name or id, as in the request; the answer repeats it
    - `topic`: None if there is no such topic
    - `rows`: the request's partitions
    - `refused`: the code of all rows, if the client may not use the topic; `topic` is None then
    """

    key: Message
    topic: Topic | None
    rows: Iterable[Any]
    refused: ErrorCode | None = None

    def has(self, index: int) -> bool:
        return self.topic is not None and 0 <= index < len(self.topic.partitions)

    def known(self) -> Iterator[Any]:
        return (row for row in self.rows if self.has(row.partition_index))

    def partition(self, index: int) -> OffsetOf:
        assert self.topic is not None
        return self.topic.topic_id, index

    @property
    def unknown_code(self) -> ErrorCode:
        """The code for a partition that does not exist, or that the client may not use."""
        if self.refused is not None:
            return self.refused
        unknown_id = self.topic is None and "topic_id" in self.key
        return ErrorCode.unknown_topic_id if unknown_id else ErrorCode.unknown_topic_or_partition


def refused(rows: Iterable[TopicRow], code: ErrorCode) -> list[TopicRow]:
    """Refuse all partitions, whether or not they exist."""
    return [replace(row, topic=None, refused=code) for row in rows]


def permitted(rows: Iterable[TopicRow], rights: Rights, operation: Operation) -> list[TopicRow]:
    """The rows, with those refused whose topics the client may not use. Unknown ids stay
    unknown."""
    return [row if _allows(rights, operation, row) else _denied(row) for row in rows]


def _allows(rights: Rights, operation: Operation, row: TopicRow) -> bool:
    name = row.key.get("name") if row.topic is None else row.topic.name
    return name is None or rights.allows(operation, ResourceType.TOPIC, name)


def _denied(row: TopicRow) -> TopicRow:
    return replace(row, topic=None, refused=ErrorCode.topic_authorization_failed)


def commits_of(rows: Iterable[TopicRow]) -> dict[OffsetOf, Commit]:
    """The offsets of a request that commits, for the partitions that exist."""
    return {row.partition(each.partition_index): _commit(each) for row in rows for each in row.known()}


def _commit(row: Any) -> Commit:
    return Commit(row.committed_offset, getattr(row, "committed_leader_epoch", -1), row.committed_metadata)


def with_codes(row: TopicRow, errors: OffsetErrors) -> Message:
    """The topic's part of an answer that has a code for each partition."""
    return {**row.key, "partitions": list(_partitions(row, errors))}


def _partitions(row: TopicRow, errors: OffsetErrors) -> Iterator[Message]:
    for each in row.rows:
        index = each.partition_index
        code = errors.code(row.partition(index)) if row.has(index) else row.unknown_code
        yield {"partition_index": index, "error_code": code}


def find_topic(topics: Topics, row: Any, partitions: Iterable[Any] = ()) -> TopicRow:
    """`row` names a topic the way its version does."""
    if hasattr(row, "name"):
        return TopicRow({"name": row.name}, topics.by_name(row.name), partitions)
    topic_id = row.topic_id or NO_ID
    return TopicRow({"topic_id": topic_id}, topics.by_id(topic_id), partitions)
