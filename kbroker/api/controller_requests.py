"""What the requests share that Kafka's brokers hand on to the controller: rights on the cluster,
and a timeout. In kbroker they end at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from kbroker.api.authorization import allows_on_cluster, refusal
from kbroker.api.request import Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.acls import Operation, ResourceType

_NO_TIME: Final = timedelta(0)


def refused(request: Request, operation: Operation) -> KafkaError | None:
    """The error of a request that is refused as a whole: without the operation on the cluster 31,
    and with a timeout of 0 or less 7, as in Kafka, whose controller has no time for it."""
    if not allows_on_cluster(request, operation):
        return refusal(ResourceType.CLUSTER)
    return KafkaError(ErrorCode.request_timed_out) if request.body.timeout <= _NO_TIME else None
