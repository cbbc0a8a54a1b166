"""DeleteAcls (31), v1-3: removes the ACLs that filters select, and returns them in a row for each
filter. Code 0 is durable, even with durability `os`, and in force.

A request that selects more than 10 000 removes nothing, and is 44 in every row. Needs ALTER on the
cluster (31 in every row). Without an authorizer that uses ACLs every row is SECURITY_DISABLED. As
in Kafka, a filter with an unknown number ends the connection.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.api.acl_rows import check_usable, entry_row, filter_of, no_store
from kbroker.api.authorization import check_cluster
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.security.acls import Acl, Operation

MAX_REMOVED = 10_000


async def handle(request: Request) -> Message:
    filters = [filter_of(each) for each in request.body.filters]
    try:
        check_usable(request)
        check_cluster(request, Operation.ALTER)
        try:
            removed = await request.broker.acls.delete(filters, MAX_REMOVED)
        except (NoSpace, StoreFailed) as error:
            raise no_store(error) from error
        if removed is None:
            what = "Unable to perform excessively large batch operation."
            raise KafkaError(ErrorCode.policy_violation, what)
    except KafkaError as error:
        row = {"error_code": error.code, "error_message": error.message, "matching_acls": ()}
        return {"filter_results": [row] * len(filters)}
    return {"filter_results": [_row(acls) for acls in removed]}


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
