"""DeleteAcls (31), v1-3: removes the ACLs that filters select, and returns them in a row for each
filter. Code 0 is durable, even with durability `os`, and in force.

A request that selects more than 10 000 removes nothing, and is 44 in every row. Needs ALTER on the
cluster (31 in every row). Without an authorizer that uses ACLs every row is SECURITY_DISABLED.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kbroker.api.acl_rows import check_usable, entry_row, filter_of, no_store
from kbroker.api.authorization import check_cluster
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.security.acls import Acl, AclFilter, Operation

MAX_REMOVED = 10_000


async def handle(request: Request) -> Message:
    asked = request.body.filters
    try:
        check_usable(request)
        check_cluster(request, Operation.ALTER)
        rows = await _rows(request, [_parsed(each) for each in asked])
    except KafkaError as error:
        rows = [_refused(error)] * len(asked)
    return {"filter_results": rows}


def _parsed(row: Any) -> AclFilter | KafkaError:
    try:
        return filter_of(row)
    except KafkaError as error:
        return error


async def _rows(request: Request, filters: Sequence[AclFilter | KafkaError]) -> list[Message]:
    """Raises KafkaError, with nothing removed."""
    good = [each for each in filters if isinstance(each, AclFilter)]
    try:
        found = await request.broker.acls.delete(good, MAX_REMOVED)
    except (NoSpace, StoreFailed) as error:
        raise no_store(error) from error
    if found is None:
        what = "Unable to perform excessively large batch operation."
        raise KafkaError(ErrorCode.policy_violation, what)
    removed = iter(found)
    return [_refused(each) if isinstance(each, KafkaError) else _row(next(removed)) for each in filters]


def _refused(error: KafkaError) -> Message:
    return {"error_code": error.code, "error_message": error.message, "matching_acls": ()}


def _row(acls: Iterable[Acl]) -> Message:
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "matching_acls": [
            {
                "error_code": ErrorCode.none,
                "error_message": None,
                "resource_type": int(acl.kind),
                "resource_name": acl.name,
                "pattern_type": int(acl.pattern),
                **entry_row(acl),
            }
            for acl in acls
        ],
    }
