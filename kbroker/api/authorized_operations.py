"""The operations that a client may do, one bit each (KIP-430). Several APIs return them on request.

Without an authorizer these are all operations that a kind of resource has.
"""

from __future__ import annotations

from typing import Final

from kbroker.api.authorization import has_on_cluster
from kbroker.api.request import Request
from kbroker.security.acls import CLUSTER_NAME, SUPPORTED, Operation, ResourceType

NOT_REQUESTED: Final = -(1 << 31)


def _all(kind: ResourceType) -> int:
    return sum(1 << operation for operation in SUPPORTED[kind])


_ALL: Final = {kind: _all(kind) for kind in SUPPORTED}


def topic_operations(request: Request, name: str) -> int:
    return _operations(request, ResourceType.TOPIC, name)


def group_operations(request: Request, group_id: str) -> int:
    return _operations(request, ResourceType.GROUP, group_id)


def cluster_operations(request: Request) -> int:
    """None without DESCRIBE on the cluster, as in Kafka."""
    if not has_on_cluster(request, Operation.DESCRIBE):
        return 0
    return _operations(request, ResourceType.CLUSTER, CLUSTER_NAME)


def _operations(request: Request, kind: ResourceType, name: str) -> int:
    rights = request.connection.rights
    return _ALL[kind] if rights is None else rights.operations(kind, name)
