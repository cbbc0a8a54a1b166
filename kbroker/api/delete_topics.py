"""DeleteTopics (20), v1-6: by name, from v6 also by id.

What is answered with code 0 is gone for good, also after a crash (its tombstone is durable, see broker/topics.py), and every share
group has forgotten it. Unknown names are 3, unknown ids 100 with a null name; a row with both or neither of the two, or the same
topic twice, is 42. With delete.topic.enable=false every row is 73.

Not done: the request's timeout, quotas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.broker.broker import Broker
from kbroker.broker.connection import Message, Request
from kbroker.broker.topics import Topic
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed

_IDS_FROM = 6


class _Asked(NamedTuple):
    name: str | None
    topic_id: UUID | None


async def handle(request: Request) -> Message:
    asked = _asked(request)
    names = _counts(asked, lambda each: each.name)
    ids = _counts(asked, lambda each: each.topic_id)
    by_id = {topic.name for each in asked if (topic := request.broker.topics.by_id(each.topic_id)) is not None}
    rows = []
    for each in dict.fromkeys(asked):
        try:
            _check(each, names, ids, by_id)
            topic = await delete_topic(request.broker, each.name, each.topic_id)
            rows.append({"name": topic.name, "topic_id": topic.topic_id, "error_code": ErrorCode.none, "error_message": None})
        except KafkaError as error:
            rows.append({"name": each.name, "topic_id": each.topic_id, "error_code": error.code, "error_message": error.message})
    return {"responses": rows}


def _asked(request: Request) -> Sequence[_Asked]:
    if request.version >= _IDS_FROM:
        return [_Asked(topic.name, topic.topic_id) for topic in request.body.topics]
    return [_Asked(name, None) for name in request.body.topic_names]


def _counts(asked: Sequence[_Asked], part: Callable[[_Asked], Hashable | None]) -> Counter[Any]:
    return Counter(part(each) for each in asked if part(each) is not None)


def _check(asked: _Asked, names: Counter[str], ids: Counter[UUID], named_by_id: set[str]) -> None:
    if asked.name is not None and asked.topic_id is not None:
        raise KafkaError(ErrorCode.invalid_request, "You may not specify both topic name and topic id.")
    if asked.name is None and asked.topic_id is None:
        raise KafkaError(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    if asked.name is not None and names[asked.name] > 1:
        raise KafkaError(ErrorCode.invalid_request, "Duplicate topic name.")
    if asked.topic_id is not None and ids[asked.topic_id] > 1:
        raise KafkaError(ErrorCode.invalid_request, "Duplicate topic id.")
    if asked.name in named_by_id:
        raise KafkaError(ErrorCode.invalid_request, "The provided topic name maps to an ID that was already supplied.")


async def delete_topic(broker: Broker, name: str | None, topic_id: UUID | None) -> Topic:
    """Delete one topic and let go of everything that depends on it. Raises KafkaError."""
    if not broker.config["delete.topic.enable"]:
        raise KafkaError(ErrorCode.topic_deletion_disabled)
    async with broker.configs.altering:
        topic = broker.topics.by_name(name) if name is not None else broker.topics.by_id(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition if name is not None else ErrorCode.unknown_topic_id)
        try:
            await broker.topics.delete(topic)
        except (NoSpace, StoreFailed) as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
        finally:
            if broker.topics.by_id(topic.topic_id) is None:
                broker.share_groups.forget_topic(topic.partitions)
                await broker.group_coordinator.topic_deleted(topic.topic_id)
                await broker.share_state.topic_deleted(topic.topic_id)
    return topic
