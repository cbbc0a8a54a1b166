"""CreatePartitions (37), v0-3: adds partitions to existing topics; `count` is the new total.

Unknown topics are 3, the same or a lower count 37, a topic listed twice 42, more partitions than a
request may add 44. An assignment, if given, names this broker once for each new partition (39).
With validate_only nothing changes.

With an authorizer a topic needs ALTER (29, whether or not it exists).

Not done: the request's timeout, quotas.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kbroker.api.authorization import allows_on_topic
from kbroker.api.replica_assignments import check_batch_size, check_replicas
from kbroker.api.request import Message, Request
from kbroker.broker.logs.topics import Topic
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.security.acls import Operation


async def handle(request: Request) -> Message:
    counts = Counter(asked.name for asked in request.body.topics)
    budget = [0]
    rows = []
    for asked in {asked.name: asked for asked in request.body.topics}.values():
        try:
            if counts[asked.name] > 1:
                raise KafkaError(ErrorCode.invalid_request, "Duplicate topic name.")
            if not allows_on_topic(request, Operation.ALTER, asked.name):
                raise KafkaError(ErrorCode.topic_authorization_failed)
            await _grow(request, asked, budget)
            rows.append({"name": asked.name, "error_code": ErrorCode.none, "error_message": None})
        except KafkaError as error:
            rows.append({"name": asked.name, "error_code": error.code, "error_message": error.message})
    return {"results": rows}


async def _grow(request: Request, asked: Any, budget: list[int]) -> None:
    """`budget`: the number of partitions that this request has added so far."""
    broker = request.broker
    async with broker.configs.altering:
        topic = broker.topics.by_name(asked.name)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        added = _check(topic, asked, broker.node_id)
        check_batch_size(budget[0] + added)
        budget[0] += added
        if request.body.validate_only:
            return
        try:
            broker.disk_floor.check_room()
            await broker.topics.grow(topic, asked.count)
        except (NoSpace, StoreFailed) as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error


def _check(topic: Topic, asked: Any, node_id: int) -> int:
    """The number of new partitions."""
    present = len(topic.partitions)
    if asked.count == present:
        raise KafkaError(ErrorCode.invalid_partitions, f"Topic already has {present} partition(s).")
    if asked.count < present:
        what = (
            f"The topic {topic.name} currently has {present} partition(s); {asked.count} would not be "
            "an increase."
        )
        raise KafkaError(ErrorCode.invalid_partitions, what)
    added: int = asked.count - present
    if asked.assignments is not None:
        if len(asked.assignments) != added:
            what = (
                f"Attempted to add {added} additional partition(s), but only {len(asked.assignments)} "
                "assignment(s) were specified."
            )
            raise KafkaError(ErrorCode.invalid_replica_assignment, what)
        for assignment in asked.assignments:
            check_replicas(assignment.broker_ids, node_id)
    return added
