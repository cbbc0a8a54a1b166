"""The resources that have settings (topic, broker, group, and the broker's loggers) as
DescribeConfigs, AlterConfigs and IncrementalAlterConfigs see them.

Only these four types are served: CLIENT_METRICS (16) is refused with INVALID_REQUEST, as is any
other, and BROKER_LOGGER (8) by AlterConfigs.

With an authorizer the operation is needed on the topic or group; brokers, loggers, and the types
that are not served, need it on the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from kbroker.api.authorization import check
from kbroker.api.request import Message, Request
from kbroker.api.turns import RowTurn
from kbroker.broker.broker import Broker
from kbroker.broker.logs.flushes import check_flushes
from kbroker.broker.logs.topics import Topic
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.formats.state import MAX_GROUP_ID_BYTES
from kbroker.security.acls import CLUSTER_NAME, Operation, ResourceType
from kbroker.settings import loggers
from kbroker.settings.altering import Scope, check_resource_name

_KINDS: Final = {Scope.TOPIC.value: ResourceType.TOPIC, Scope.GROUP.value: ResourceType.GROUP}

Decide: TypeAlias = Callable[[Scope, Mapping[str, str], Any], dict[str, str]]
"""(scope, stored settings, the request's resource) -> settings to store; raises KafkaError."""


def check_rights(request: Request, operation: Operation, resource: Any) -> None:
    """Raises KafkaError."""
    kind = _KINDS.get(resource.resource_type, ResourceType.CLUSTER)
    name = CLUSTER_NAME if kind is ResourceType.CLUSTER else resource.resource_name
    check(request, operation, kind, name)


def scope_of(resource_type: int) -> Scope:
    try:
        return Scope(resource_type)
    except ValueError:
        what = (
            f"Unsupported config resource type {resource_type}: kbroker has settings of topics, brokers, "
            "groups and loggers."
        )
        raise KafkaError(ErrorCode.invalid_request, what) from None


def check_loggers_of(name: str, node_id: int) -> None:
    """Raises INVALID_REQUEST unless `name` is this broker's id. Loggers of all brokers ("") cannot
    be named."""
    if not name:
        raise KafkaError(ErrorCode.invalid_request, "Broker id must not be empty")
    check_resource_name(Scope.BROKER, name, node_id)


def find_topic(broker: Broker, name: str) -> Topic:
    """Raises UNKNOWN_TOPIC_OR_PARTITION."""
    topic = broker.topics.by_name(name)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    return topic


async def alter(
    request: Request, decide: Decide, alter_loggers: Callable[[Any], None] | None = None
) -> Message:
    """Answer either altering request. Each resource is altered as a whole or refused; with code 0
    the change is in force and, but for levels of loggers, durable. `alter_loggers`: the change of
    the request's resource, unless the request cannot alter loggers.

    Others have turns between two resources, also where all are refused."""
    resources = request.body.resources
    turn, counts = RowTurn(), Counter[tuple[int, str]]()
    for resource in resources:
        await turn.row()
        counts[resource.resource_type, resource.resource_name] += 1
    rows = []
    for resource in resources:
        await turn.row()
        key = (resource.resource_type, resource.resource_name)
        code, message = ErrorCode.none, None
        try:
            if counts[key] > 1:
                raise KafkaError(ErrorCode.invalid_request, "Each resource must appear at most once.")
            is_logger = resource.resource_type == loggers.RESOURCE_TYPE
            if is_logger and alter_loggers is None:
                raise KafkaError(ErrorCode.invalid_request, "Loggers need IncrementalAlterConfigs.")
            check_rights(request, Operation.ALTER_CONFIGS, resource)
            if is_logger and alter_loggers is not None:
                check_loggers_of(resource.resource_name, request.broker.node_id)
                alter_loggers(resource)
            else:
                await _alter_one(request.broker, resource, decide, validate_only=request.body.validate_only)
        except KafkaError as error:
            code, message = error.code, error.message
        rows.append(
            {"error_code": code, "error_message": message, "resource_type": key[0], "resource_name": key[1]}
        )
    return {"responses": rows}


async def _alter_one(broker: Broker, resource: Any, decide: Decide, *, validate_only: bool) -> None:
    scope, name = scope_of(resource.resource_type), resource.resource_name
    check_resource_name(scope, name, broker.node_id)
    async with broker.configs.altering:
        stored = _stored(broker, scope, name)
        entries = decide(scope, stored, resource)
        if scope is Scope.GROUP:
            broker.configs.check_group(entries)
        elif scope is Scope.TOPIC:
            broker.topics.check_policy(entries)
            check_flushes(entries, stored, broker.options.durability)
        if validate_only or entries == stored:
            return
        try:
            await _save(broker, scope, name, entries)
        except (NoSpace, StoreFailed) as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error


def _stored(broker: Broker, scope: Scope, name: str) -> Mapping[str, str]:
    if scope is Scope.TOPIC:
        return find_topic(broker, name).configs
    if scope is Scope.BROKER:
        return broker.configs.stored_broker(name)
    if len(name.encode()) > MAX_GROUP_ID_BYTES:
        raise KafkaError(
            ErrorCode.invalid_request, f"The group id must not be longer than {MAX_GROUP_ID_BYTES} bytes."
        )
    return broker.configs.stored_group(name)


async def _save(broker: Broker, scope: Scope, name: str, entries: Mapping[str, str]) -> None:
    if scope is Scope.TOPIC:
        await broker.topics.set_configs(find_topic(broker, name), entries)
    elif scope is Scope.BROKER:
        await broker.configs.set_broker(name, entries)
    else:
        await broker.configs.set_group(name, entries)
