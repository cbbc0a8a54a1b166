"""Parts of DescribeAcls, CreateAcls and DeleteAcls: their numbers, filters and rows."""

from __future__ import annotations

from typing import Any

from kbroker.api.request import CloseConnection, Message, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType

_NUMBERS = (ResourceType, PatternType, Operation, Permission)


def check_known(*numbers: int) -> None:
    """A type, a pattern, an operation and a permission. As Kafka does, end the connection of a
    client that sends UNKNOWN (0); so does a number that does not exist."""
    for kind, number in zip(_NUMBERS, numbers, strict=True):
        if number == 0 or number not in {int(each) for each in kind}:
            raise CloseConnection(f"{kind.__name__} {number} of an ACL is unknown", "unknown part of an ACL")


def filter_of(row: Any) -> AclFilter:
    """Ends the connection of a client that sends an unknown number."""
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
