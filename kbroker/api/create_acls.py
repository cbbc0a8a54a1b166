"""CreateAcls (30), v1-3: adds ACLs. Code 0 is durable, even with durability `os`, and in force: the
next request of every client is decided with it.

A row for each, in the order of the request; a refused one does not affect the others. An entry that
exists is no error. As in Kafka, unknown types of principals, operations that the resource does not
have and hosts that are no address are accepted; they match nothing. An empty host, and a range of
addresses that is none, are 42. Needs ALTER on the cluster (31 in every row). Without an authorizer
that uses ACLs every row is SECURITY_DISABLED.
"""

from __future__ import annotations

from typing import Any

from kbroker.api.acl_rows import check_known, check_usable, no_store
from kbroker.api.authorization import check_cluster
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.security.acls import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from kbroker.security.principals import parse_principal

_PATTERNS = (PatternType.LITERAL, PatternType.PREFIXED)


async def handle(request: Request) -> Message:
    creations = request.body.creations
    try:
        check_usable(request)
        check_cluster(request, Operation.ALTER)
    except KafkaError as error:
        return {"results": [_row(error)] * len(creations)}
    acls: list[Acl] = []
    rows: list[Message] = []
    for each in creations:
        try:
            acls.append(_acl(each))
        except KafkaError as error:
            rows.append(_row(error))
        else:
            rows.append(_row(None))
    try:
        await request.broker.acls.create(acls)
    except (NoSpace, StoreFailed) as error:
        rows = [_row(no_store(error)) if not row["error_code"] else row for row in rows]
    return {"results": rows}


def _row(error: KafkaError | None) -> Message:
    if error is None:
        return {"error_code": ErrorCode.none, "error_message": ""}
    return {"error_code": error.code, "error_message": error.message}


def _acl(row: Any) -> Acl:
    """Raises INVALID_REQUEST."""
    check_known(row.resource_type, row.resource_pattern_type, row.operation, row.permission_type)
    kind, name = ResourceType(row.resource_type), row.resource_name
    pattern, operation = PatternType(row.resource_pattern_type), Operation(row.operation)
    permission = Permission(row.permission_type)
    acl = Acl(kind, pattern, name, row.principal, row.host, operation, permission)
    wrong = None
    if kind is ResourceType.CLUSTER and name != CLUSTER_NAME:
        wrong = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not name:
        wrong = "Invalid empty resource name"
    elif kind is ResourceType.ANY:
        wrong = f"Invalid resourceType {kind.name}"
    elif pattern not in _PATTERNS:
        wrong = f"Invalid patternType {pattern.name}"
    elif operation is Operation.ANY:
        wrong = f"Invalid operation {operation.name}"
    elif permission is Permission.ANY:
        wrong = f"Invalid permissionType {permission.name}"
    else:
        try:
            parse_principal(row.principal)
            acl.check_host()
        except ValueError as error:
            wrong = str(error)
    if wrong is not None:
        raise KafkaError(ErrorCode.invalid_request, wrong)
    return acl
