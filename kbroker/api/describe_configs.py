"""DescribeConfigs (32), v1-4: the effective settings of topics, brokers and groups, with sources,
synonyms, types and documentation, and the levels of loggers.

For brokers, this broker's id has all settings, and "" (all brokers) has the altered ones. A group
need not exist. No keys, or an empty list, means all; unknown keys give no row. An illegal topic
name is 17, an unknown topic 3.

With an authorizer a resource needs DESCRIBE_CONFIGS, brokers on the cluster (29, 30 or 31, whether
or not it exists).

Not done: CLIENT_METRICS resources (42).
"""

from __future__ import annotations

from typing import Any

from kbroker.api.config_resources import check_loggers_of, check_rights, find_topic, scope_of
from kbroker.api.request import Message, Request
from kbroker.broker.broker import Broker
from kbroker.broker.logs.topics import check_name
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.long_responses import each_once
from kbroker.security.acls import Operation
from kbroker.settings.altering import ConfigRow, Scope, check_resource_name, describe, describe_broker_default
from kbroker.settings.loggers import RESOURCE_TYPE, logger_rows


def handle(request: Request) -> Message:
    return {"results": each_once(request.body.resources, lambda resource: _result(request, resource))}


def _result(request: Request, resource: Any) -> Message:
    code, message, rows = ErrorCode.none, "", []
    try:
        check_rights(request, Operation.DESCRIBE_CONFIGS, resource)
        rows = _describe(request.broker, resource)
    except KafkaError as error:
        code, message = error.code, error.message or ""
    synonyms: bool = request.body.include_synonyms
    documentation: bool = getattr(request.body, "include_documentation", False)
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [_row(row, synonyms=synonyms, documentation=documentation) for row in rows],
    }


def _describe(broker: Broker, resource: Any) -> list[ConfigRow]:
    name = resource.resource_name
    keys = frozenset(resource.configuration_keys or ()) or None
    if resource.resource_type == RESOURCE_TYPE:
        check_loggers_of(name, broker.node_id)
        return logger_rows(keys)
    scope = scope_of(resource.resource_type)
    if scope is Scope.TOPIC:
        check_name(name)
        return describe(scope, find_topic(broker, name).configs, broker.config, keys)
    check_resource_name(scope, name, broker.node_id)
    if scope is Scope.GROUP:
        return describe(scope, broker.configs.stored_group(name), broker.config, keys)
    return describe(scope, {}, broker.config, keys) if name else describe_broker_default(broker.config, keys)


def _row(row: ConfigRow, *, synonyms: bool, documentation: bool) -> Message:
    return {
        "name": row.name,
        "value": row.value,
        "read_only": row.read_only,
        "config_source": row.source.value,
        "is_sensitive": row.is_sensitive,
        "synonyms": [
            {"name": each.name, "value": each.value, "source": each.source.value} for each in row.synonyms
        ]
        if synonyms
        else (),
        "config_type": row.type.value,
        "documentation": row.documentation if documentation else None,
    }
