"""The topics of OffsetCommit, OffsetFetch and OffsetDelete, in the order of the request: by name
or, in the newest versions, by id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kbroker.api.request import Message
from kbroker.broker.logs.topics import Topic, Topics
from kbroker.errors import ErrorCode
from kbroker.groups.outcome import OffsetOf

NO_ID = UUID(int=0)


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic of a request.

    - `key`: its name or id, as in the request; the answer repeats it
    - `topic`: None if there is no such topic
    - `rows`: the request's partitions
    """

    key: Message
    topic: Topic | None
    rows: Iterable[Any]

    def has(self, index: int) -> bool:
        return self.topic is not None and 0 <= index < len(self.topic.partitions)

    def known(self) -> Iterator[Any]:
        return (row for row in self.rows if self.has(row.partition_index))

    def partition(self, index: int) -> OffsetOf:
        assert self.topic is not None
        return self.topic.topic_id, index

    @property
    def unknown_code(self) -> ErrorCode:
        """The code for a partition that does not exist."""
        unknown_id = self.topic is None and "topic_id" in self.key
        return ErrorCode.unknown_topic_id if unknown_id else ErrorCode.unknown_topic_or_partition


def find_topic(topics: Topics, row: Any, partitions: Iterable[Any] = ()) -> TopicRow:
    """`row` names a topic the way its version does."""
    if hasattr(row, "name"):
        return TopicRow({"name": row.name}, topics.by_name(row.name), partitions)
    topic_id = row.topic_id or NO_ID
    return TopicRow({"topic_id": topic_id}, topics.by_id(topic_id), partitions)
