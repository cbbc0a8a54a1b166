"""DescribeAcls (29), v1-3: the ACLs that a filter selects, grouped by resource pattern.

Needs DESCRIBE on the cluster (31). Without an authorizer that uses ACLs it is SECURITY_DISABLED.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from kbroker.api.acl_rows import check_usable, entry_row, filter_of
from kbroker.api.authorization import check_cluster
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.acls import Acl, Operation


async def handle(request: Request) -> Message:
    try:
        check_usable(request)
        check_cluster(request, Operation.DESCRIBE)
        wanted = filter_of(request.body)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message, "resources": ()}
    resources = _rows(await request.broker.acls.matching(wanted))
    return {"error_code": ErrorCode.none, "error_message": None, "resources": resources}


def _rows(found: Iterable[Acl]) -> Iterator[Message]:
    for (kind, pattern, name), acls in groupby(found, key=lambda acl: acl[:3]):
        yield {
            "resource_type": int(kind),
            "resource_name": name,
            "pattern_type": int(pattern),
            "acls": map(entry_row, acls),
        }
