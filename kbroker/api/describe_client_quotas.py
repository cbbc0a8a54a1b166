"""DescribeClientQuotas (48), v0-1: the quotas of the entities that a filter selects, sorted.

A refused filter is refused as a whole: an unknown type of entity is UNSUPPORTED_VERSION (35), any
other fault INVALID_REQUEST (42), with Kafka's messages and without a list of entries. Needs
DESCRIBE_CONFIGS on the cluster (31, as in Kafka without a message).
"""

from __future__ import annotations

from kbroker.api.authorization import allows_on_cluster, refusal
from kbroker.api.request import Message, Request
from kbroker.api.turns import RowTurn
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.acls import Operation, ResourceType
from kbroker.security.quotas import BadQuota, Component, EntityFilter, UnsupportedEntityType


async def handle(request: Request) -> Message:
    if not allows_on_cluster(request, Operation.DESCRIBE_CONFIGS):
        code = refusal(ResourceType.CLUSTER).code
        return {"error_code": code, "error_message": None, "entries": None}
    try:
        wanted = _filter(request)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message, "entries": None}
    turn = RowTurn()
    found = []
    for each in request.broker.quotas.selected(wanted):
        await turn.row()
        if each is not None:
            entity, values = each
            found.append(([(kind, name is not None, name or "") for kind, name in entity], entity, values))
    found.sort()  # No two have the same names.
    return {
        "error_code": ErrorCode.none,
        "error_message": "",
        "entries": (
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                "values": [{"key": key, "value": float(value)} for key, value in sorted(values.items())],
            }
            for _, entity, values in found
        ),
    }


def _filter(request: Request) -> EntityFilter:
    """Raises KafkaError."""
    body = request.body
    components = [Component(each.entity_type, each.match_type, each.match) for each in body.components]
    try:
        return EntityFilter(components, strict=body.strict)
    except UnsupportedEntityType as error:
        raise KafkaError(ErrorCode.unsupported_version, str(error)) from error
    except BadQuota as error:
        raise KafkaError(ErrorCode.invalid_request, str(error)) from error
