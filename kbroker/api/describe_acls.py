"""DescribeAcls (29), v1-3: the ACLs that a filter selects, grouped by resource pattern.

Needs DESCRIBE on the cluster (31). Without an authorizer that uses ACLs it is SECURITY_DISABLED.
"""

from __future__ import annotations

from itertools import groupby

from kbroker.api.acl_rows import check_usable, entry_row, filter_of
from kbroker.api.authorization import check_cluster
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.acls import Operation


def handle(request: Request) -> Message:
    try:
        check_usable(request)
        check_cluster(request, Operation.DESCRIBE)
        wanted = filter_of(request.body)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message, "resources": ()}
    resources = [
        {
            "resource_type": int(kind),
            "resource_name": name,
            "pattern_type": int(pattern),
            "acls": [entry_row(acl) for acl in acls],
        }
        for (kind, pattern, name), acls in groupby(
            request.broker.acls.matching(wanted), key=lambda acl: acl[:3]
        )
    ]
    return {"error_code": ErrorCode.none, "error_message": None, "resources": resources}
