"""ListPartitionReassignments (46), v0 (KIP-455): none, whatever the client names. There is one
broker, so no replica ever moves.

With an authorizer it needs DESCRIBE on the cluster. A refusal (31) repeats the named partitions,
without replicas.

Not done: the request's timeout.
"""

from __future__ import annotations

from typing import Any

from kbroker.api.authorization import allows_on_cluster, refusal
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode
from kbroker.security.acls import Operation, ResourceType


def handle(request: Request) -> Message:
    if allows_on_cluster(request, Operation.DESCRIBE):
        return {"error_code": ErrorCode.none, "error_message": None, "topics": ()}
    error = refusal(ResourceType.CLUSTER)
    topics = (_repeated(topic) for topic in request.body.topics or ())
    return {"error_code": error.code, "error_message": error.message, "topics": topics}


def _repeated(topic: Any) -> Message:
    rows = ({"partition_index": index} for index in topic.partition_indexes)
    return {"name": topic.name, "partitions": rows}
