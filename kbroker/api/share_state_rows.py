"""The rows of RPCs 83-87 (KIP-932), which have the same shape: partitions under topic ids, with one
result each, and no error code for the whole answer.

A partition that is listed twice is requested twice and gets one row, with the last outcome. An
empty group id gets no rows. Both are as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar
from uuid import UUID

from kbroker.api.authorization import refusal
from kbroker.api.request import Message
from kbroker.errors import ErrorCode
from kbroker.security.acls import ResourceType
from kbroker.share.persister import Result, TopicPartition

NO_TOPIC_ID = UUID(int=0)
Q = TypeVar("Q")
R = TypeVar("R", bound=Result)


def asked(body: Any, make: Callable[[TopicPartition, Any], Q]) -> list[Q]:
    """`make(partition, row)` for every partition row of a request."""
    return list(each_asked(body, make))


def each_asked(body: Any, make: Callable[[TopicPartition, Any], Q]) -> Iterator[Q]:
    for topic in body.topics:
        topic_id = topic.topic_id or NO_TOPIC_ID
        for row in topic.partitions:
            yield make(TopicPartition(topic_id, row.partition), row)


def refused(body: Any, make: Callable[[TopicPartition, ErrorCode, str | None], R]) -> list[R]:
    """The results for a client that may not use these RPCs."""
    error = refusal(ResourceType.CLUSTER)
    return asked(body, lambda partition, _: make(partition, error.code, error.message))


def answer(results: Iterable[R], more: Callable[[R], Message] = lambda _: {}) -> Message:
    """`more(result)` returns the fields that this API has besides the error."""
    topics: dict[UUID, dict[int, R]] = {}
    add(results, topics)
    return answer_of(topics, more)


def add(results: Iterable[R], topics: dict[UUID, dict[int, R]]) -> None:
    """To `topics`: by topic id and partition."""
    for result in results:
        topic_id, index = result.partition
        topics.setdefault(topic_id, {})[index] = result


def answer_of(topics: Mapping[UUID, Mapping[int, R]], more: Callable[[R], Message]) -> Message:
    def row(result: R) -> Message:
        error = {"error_code": result.code, "error_message": result.message}
        return {"partition": result.partition.partition, **error, **more(result)}

    return {
        "results": (
            {"topic_id": topic_id, "partitions": map(row, rows.values())} for topic_id, rows in topics.items()
        )
    }
