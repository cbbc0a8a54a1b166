"""DeleteTopics (20), v1-6: deletes topics by name, from v6 also by id.

A deletion with code 0 is durable, as its tombstone is (broker/logs/topics.py), and every share
group has forgotten the topic. Unknown names are 3, unknown ids 100 with a null name. A row with
both a name and an id, or neither, is 42. So is a topic that is listed twice: it gets one row and is
not deleted. With delete.topic.enable=false every row is 73 (before v3: 42).

With an authorizer, DELETE on the cluster or on the topic is needed (29). A name without DESCRIBE is
29, too, whether or not the topic exists; with DESCRIBE a missing one is 3. A refused id has no
name, unless the client has DESCRIBE.

Not done: the request's timeout, quotas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from kbroker.api.authorization import allows_on_topic, has_on_cluster, refusal, sees_topic
from kbroker.api.request import Message, Request
from kbroker.broker.broker import Broker
from kbroker.broker.logs.topics import Topic
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.formats.parked_records import parked_topic_prefix
from kbroker.security.acls import Operation, ResourceType

_IDS_FROM = 6
_DISABLED_FROM = 3


class _Asked(NamedTuple):
    name: str | None
    topic_id: UUID | None


async def handle(request: Request) -> Message:
    broker, asked = request.broker, _asked(request)
    if not broker.config["delete.topic.enable"]:
        code = (
            ErrorCode.topic_deletion_disabled
            if request.version >= _DISABLED_FROM
            else ErrorCode.invalid_request
        )
        return {"responses": [_refused(each, KafkaError(code)) for each in asked]}
    rows: list[Message] = []
    well_formed: Counter[_Asked] = Counter()
    for each in asked:
        if each.name is not None and each.topic_id is not None:
            rows.append(_refused(each, _invalid("You may not specify both topic name and topic id.")))
        elif each.name is None and each.topic_id is None:
            rows.append(_refused(each, _invalid("Neither topic name nor id were specified.")))
        else:
            well_formed[each] += 1
    for each, count in well_formed.items():
        if count > 1:
            rows.append(
                _refused(each, _invalid(f"Duplicate topic {'name' if each.topic_id is None else 'id'}."))
            )
    # a set, but in the order of the request
    wanted = {each: None for each, count in well_formed.items() if count == 1}
    for each in [] if has_on_cluster(request, Operation.DELETE) else list(wanted):
        if (refused := _denied(request, each)) is not None:
            rows.append(_refused(refused, refusal(ResourceType.TOPIC)))
            del wanted[each], well_formed[each]
    for by_id in [each for each in well_formed if each.topic_id is not None]:
        topic = broker.topics.by_id(by_id.topic_id)
        if topic is not None and (by_name := _Asked(topic.name, None)) in wanted:
            rows.append(
                _refused(topic, _invalid("The provided topic name maps to an ID that was already supplied."))
            )
            del wanted[by_name]
            wanted.pop(by_id, None)
    return {"responses": rows + [await _delete(broker, each) for each in wanted]}


def _denied(request: Request, asked: _Asked) -> _Asked | None:
    """The row of a topic that the client may not delete. Unknown ids, and missing names that the
    client may describe, are not refused here."""
    name, topics = asked.name, request.broker.topics
    topic = topics.by_id(asked.topic_id) if name is None else topics.by_name(name)
    if name is None:
        if topic is None:
            return None
        name = topic.name
    sees = sees_topic(request, name)
    if topic is None and sees:
        return None
    if allows_on_topic(request, Operation.DELETE, name) and (sees or asked.name is None):
        return None
    return asked if asked.name is not None or not sees else _Asked(name, asked.topic_id)


def _asked(request: Request) -> Sequence[_Asked]:
    if request.version >= _IDS_FROM:
        return [_Asked(topic.name, topic.topic_id) for topic in request.body.topics]
    return [_Asked(name, None) for name in request.body.topic_names]


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, message)


def _refused(which: _Asked | Topic, error: KafkaError) -> Message:
    return {
        "name": which.name,
        "topic_id": which.topic_id,
        "error_code": error.code,
        "error_message": error.message,
    }


async def _delete(broker: Broker, asked: _Asked) -> Message:
    try:
        topic = await _delete_topic(broker, asked)
    except KafkaError as error:
        return _refused(asked, error)
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "error_code": ErrorCode.none,
        "error_message": None,
    }


async def _delete_topic(broker: Broker, asked: _Asked) -> Topic:
    """Delete one topic and everything that depends on it. Raises KafkaError."""
    async with broker.configs.altering:
        topic = (
            broker.topics.by_name(asked.name)
            if asked.name is not None
            else broker.topics.by_id(asked.topic_id)
        )
        if topic is None:
            if asked.name is None:
                raise KafkaError(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition."
            )
        try:
            await broker.topics.delete(topic)
        except (NoSpace, StoreFailed) as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
        finally:
            if broker.topics.by_id(topic.topic_id) is None:
                broker.share_partitions.forget_topic(topic.partitions)
                broker.fetch_sessions.topic_deleted(topic.name, topic.topic_id, len(topic.partitions))
                await broker.share_group_service.topic_deleted(topic.topic_id)
                await broker.consumer_group_service.topic_deleted(topic.topic_id)
                await broker.share_state.topic_deleted(topic.topic_id)
                broker.parked_cleaner.look_at(parked_topic_prefix(topic.topic_id))
    return topic
