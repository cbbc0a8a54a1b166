"""Parts of DescribeAcls, CreateAcls and DeleteAcls: their numbers, filters and rows."""

from __future__ import annotations

from typing import Any

from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType

_NUMBERS = (ResourceType, PatternType, Operation, Permission)
_NOUNS = {
    ResourceType: "resourceType",
    PatternType: "patternType",
    Operation: "operation",
    Permission: "permissionType",
}


def check_known(*numbers: int) -> None:
    """A type, a pattern, an operation and a permission. Raises INVALID_REQUEST for UNKNOWN (0), and
    for a number that does not exist. Kafka ends the connection because of the first."""
    for kind, number in zip(_NUMBERS, numbers, strict=True):
        if number == 0 or number not in {int(each) for each in kind}:
            raise KafkaError(ErrorCode.invalid_request, f"Unknown {_NOUNS[kind]} {number}")


def filter_of(row: Any) -> AclFilter:
    """Raises INVALID_REQUEST."""
    numbers = row.resource_type_filter, row.pattern_type_filter, row.operation, row.permission_type
    check_known(*numbers)
    return AclFilter(
        ResourceType(row.resource_type_filter),
        PatternType(row.pattern_type_filter),
        row.resource_name_filter,
        row.principal_filter,
        row.host_filter,
        Operation(row.operation),
        Permission(row.permission_type),
    )


def check_usable(request: Request) -> None:
    """Raises SECURITY_DISABLED."""
    if not request.broker.acls.is_on:
        raise KafkaError(ErrorCode.security_disabled, "No Authorizer is configured on the broker")


def no_store(error: Exception) -> KafkaError:
    return KafkaError(ErrorCode.kafka_storage_error, str(error))


def entry_row(acl: Acl) -> Message:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permission_type": int(acl.permission),
    }
