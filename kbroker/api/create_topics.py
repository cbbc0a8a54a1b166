"""CreateTopics (19), v2-7: creates topics with partitions and configs. An assignment is accepted if
it names this broker only.

Each topic is created or refused on its own, with Kafka's codes and in Kafka's order of checks:
name, existence, configs, replication, partitions. A topic with code 0 is durable and already shown
by Metadata. Partitions -1 means num.partitions. With validate_only nothing changes and the answer
has a random topic id, as in Kafka.

With an authorizer, CREATE on the cluster or on the topic is needed (29, whether or not it exists).
The answer has the settings only with DESCRIBE_CONFIGS on the topic.

A name whose settings are refused is not created automatically for a while (auto_creation.py); nor
is one that has settings, and is refused for its number of replicas.

Not done: the request's timeout (an answer takes as long as the disk does), quotas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from kbroker.api.authorization import allows_on_topic, has, has_on_cluster
from kbroker.api.replica_assignments import REPLICATION_FACTOR, check_batch_size, check_replicas
from kbroker.api.request import Message, Request
from kbroker.broker.logs.flushes import check_flushes
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.security.acls import Operation, ResourceType
from kbroker.settings.altering import Scope, checked_topic_configs, describe

_DEFAULT = -1


class _NewTopic(NamedTuple):
    """A topic that has passed all checks."""

    name: str
    partitions: int
    configs: Mapping[str, str]


async def handle(request: Request) -> Message:
    body = request.body
    counts = Counter(topic.name for topic in body.topics)
    topics = {topic.name: topic for topic in body.topics}
    default: int = request.broker.config["num.partitions"]
    may_create_all = has_on_cluster(request, Operation.CREATE)
    denied = {
        name
        for name in topics
        if counts[name] == 1 and not may_create_all and not allows_on_topic(request, Operation.CREATE, name)
    }
    wanted = sum(
        max(_wanted_partitions(topic, default), 0) for name, topic in topics.items() if name not in denied
    )
    rows = []
    for name, topic in topics.items():
        try:
            if counts[name] > 1:
                raise KafkaError(ErrorCode.invalid_request, "Duplicate topic name.")
            if name in denied:
                raise KafkaError(ErrorCode.topic_authorization_failed, "Authorization failed.")
            check_batch_size(wanted)
            new = _check(request, topic)
            topic_id = uuid4() if body.validate_only else await _create(request, new)
            rows.append(_row(request, new, topic_id))
        except KafkaError as error:
            if not body.validate_only and _loses_settings(topic, error.code):
                request.broker.missing_topics.creation.refused(name, error.message or "")
            rows.append(_error_row(name, error))
    return {"topics": rows}


def _loses_settings(topic: Any, code: ErrorCode) -> bool:
    """Whether the topic would lack settings that the client wants, if it were created
    automatically."""
    return code is ErrorCode.invalid_config or (
        code is ErrorCode.invalid_replication_factor and bool(topic.configs)
    )


def _wanted_partitions(topic: Any, default: int) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return default if topic.num_partitions == _DEFAULT else int(topic.num_partitions)


def _check(request: Request, topic: Any) -> _NewTopic:
    broker = request.broker
    broker.topics.check_creatable(topic.name)
    configs = checked_topic_configs([(config.name, config.value) for config in topic.configs], broker.config)
    broker.topics.check_policy(configs)
    check_flushes(configs, {}, broker.options.durability)
    if topic.replication_factor == 0 or topic.replication_factor < _DEFAULT:
        what = "Replication factor must be larger than 0, or -1 to use the default value."
        raise KafkaError(ErrorCode.invalid_replication_factor, what)
    if topic.assignments:
        _check_assignments(topic, broker.node_id)
    else:
        _check_counts(topic)
    return _NewTopic(topic.name, _wanted_partitions(topic, broker.config["num.partitions"]), configs)


def _check_counts(topic: Any) -> None:
    if topic.num_partitions == 0 or topic.num_partitions < _DEFAULT:
        raise KafkaError(
            ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
        )
    if topic.replication_factor > REPLICATION_FACTOR:
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {topic.replication_factor} time(s): The target replication "
            "factor of "
            f"{topic.replication_factor} cannot be reached because only 1 broker(s) are registered.",
        )


def _check_assignments(topic: Any, node_id: int) -> None:
    manual = "A manual partition assignment was specified, but"
    if topic.replication_factor != _DEFAULT:
        raise KafkaError(ErrorCode.invalid_request, f"{manual} replication factor was not set to -1.")
    if topic.num_partitions != _DEFAULT:
        raise KafkaError(ErrorCode.invalid_request, f"{manual} numPartitions was not set to -1.")
    indexes = [assignment.partition_index for assignment in topic.assignments]
    for index, count in Counter(indexes).items():
        if count > 1:
            what = f"Found multiple manual partition assignments for partition {index}"
            raise KafkaError(ErrorCode.invalid_replica_assignment, what)
    for assignment in topic.assignments:
        check_replicas(assignment.broker_ids, node_id)
    if sorted(indexes) != list(range(len(indexes))):
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            "partitions should be a consecutive 0-based integer sequence",
        )


async def _create(request: Request, new: _NewTopic) -> UUID:
    try:
        request.broker.disk_floor.check_room()
        topic = await request.broker.topics.create(new.name, new.partitions, new.configs)
    except (NoSpace, StoreFailed) as error:
        raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
    request.broker.missing_topics.creation.succeeded(new.name)
    return topic.topic_id


def _row(request: Request, new: _NewTopic, topic_id: UUID) -> Message:
    if not has(request, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, new.name):
        return {
            **_error_row(new.name, KafkaError(ErrorCode.none)),
            "topic_id": topic_id,
            "topic_config_error_code": ErrorCode.topic_authorization_failed.value,
        }
    return {
        "name": new.name,
        "topic_id": topic_id,
        "error_code": ErrorCode.none,
        "error_message": None,
        "topic_config_error_code": ErrorCode.none.value,
        "num_partitions": new.partitions,
        "replication_factor": REPLICATION_FACTOR,
        "configs": [
            {
                "name": row.name,
                "value": row.value,
                "read_only": row.read_only,
                "config_source": row.source.value,
                "is_sensitive": row.is_sensitive,
            }
            for row in describe(Scope.TOPIC, new.configs, request.broker.config)
        ],
    }


def _error_row(name: str, error: KafkaError) -> Message:
    return {
        "name": name,
        "topic_id": None,
        "error_code": error.code,
        "error_message": error.message,
        "topic_config_error_code": ErrorCode.none.value,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": (),
    }
