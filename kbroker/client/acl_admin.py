"""Requests about ACL entries. Plain functions over a Connection, as in admin.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kbroker.client.answers import reason
from kbroker.client.rpc import Connection
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType


def describe(connection: Connection, chosen: AclFilter) -> list[Acl]:
    """The entries that the filter selects, sorted. Raises KafkaError."""
    answer = connection.call("describe_acls", **_filter_fields(chosen))
    _check(answer.error_code, answer.error_message, "describe")
    return sorted(
        Acl(
            _named(ResourceType, resource.resource_type),
            _named(PatternType, resource.pattern_type),
            resource.resource_name,
            row.principal,
            row.host,
            _named(Operation, row.operation),
            _named(Permission, row.permission_type),
        )
        for resource in answer.resources
        for row in resource.acls
    )


def create(connection: Connection, acls: Sequence[Acl]) -> list[KafkaError | None]:
    """Add entries; one that exists is left as it is. One result for each; the added ones are
    durable on return. Raises KafkaError if the broker has no authorizer."""
    rows = [
        {
            "resource_type": acl.kind.value,
            "resource_name": acl.name,
            "resource_pattern_type": acl.pattern.value,
            "principal": acl.principal,
            "host": acl.host,
            "operation": acl.operation.value,
            "permission_type": acl.permission.value,
        }
        for acl in acls
    ]
    answer = connection.call("create_acls", creations=rows)
    return [_refusal(row.error_code, row.error_message) for row in answer.results]


def delete(connection: Connection, acls: Sequence[Acl]) -> list[KafkaError | None]:
    """Remove exactly these entries. One result for each; None also if it is gone already. Raises
    KafkaError if the broker has no authorizer."""
    answer = connection.call("delete_acls", filters=[_filter_fields(AclFilter(*acl)) for acl in acls])
    return [_refusal(row.error_code, row.error_message) for row in answer.filter_results]


def _filter_fields(chosen: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": chosen.kind.value,
        "resource_name_filter": chosen.name,
        "pattern_type_filter": chosen.pattern.value,
        "principal_filter": chosen.principal,
        "host_filter": chosen.host,
        "operation": chosen.operation.value,
        "permission_type": chosen.permission.value,
    }


def _refusal(code: ErrorCode, message: str | None) -> KafkaError | None:
    """Raises KafkaError if the broker has no authorizer."""
    if code is ErrorCode.security_disabled:
        _check(code, message, "alter")
    return None if code is ErrorCode.none else KafkaError(code, reason(code, message, needs="alter"))


def _check(code: ErrorCode, message: str | None, needs: str) -> None:
    if code is ErrorCode.security_disabled:
        raise KafkaError(
            code, "the broker has no authorizer, so every client may do everything: set authorizer.class.name"
        )
    if code is not ErrorCode.none:
        raise KafkaError(code, reason(code, message, needs=needs))


def _named(kind: Any, number: int) -> Any:  # noqa: ANN401 (a member of that enumeration)
    """UNKNOWN for a number of a later version."""
    try:
        return kind(number)
    except ValueError:
        return kind.UNKNOWN
