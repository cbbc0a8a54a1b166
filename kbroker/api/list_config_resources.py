"""ListConfigResources (74), v0-1: the resources that have settings. v0 lists client metrics only,
and there are none.

In v1 topics, this broker and its loggers are always listed, and groups if they have settings of
their own. An empty list of types means all; an unknown type is UNSUPPORTED_VERSION, as in Kafka.

With an authorizer it needs DESCRIBE_CONFIGS on the cluster (31).

Not done: CLIENT_METRICS resources; there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kbroker.api.authorization import allows_on_cluster
from kbroker.api.request import Message, Request
from kbroker.broker.broker import Broker
from kbroker.errors import ErrorCode
from kbroker.security.acls import Operation
from kbroker.settings.altering import Scope
from kbroker.settings.loggers import RESOURCE_TYPE

_CLIENT_METRICS = 16
_TYPES_FROM = 1
_NAMES: dict[int, Callable[[Broker], Iterable[str]]] = {
    Scope.TOPIC.value: lambda broker: sorted([topic.name for topic in broker.topics]),
    Scope.BROKER.value: lambda broker: (str(broker.node_id),),
    RESOURCE_TYPE: lambda broker: (str(broker.node_id),),
    _CLIENT_METRICS: lambda _: (),
    Scope.GROUP.value: lambda broker: broker.configs.groups_with_configs(),
}


def handle(request: Request) -> Message:
    if not allows_on_cluster(request, Operation.DESCRIBE_CONFIGS):
        return {"error_code": ErrorCode.cluster_authorization_failed, "config_resources": ()}
    types = (
        (request.body.resource_types or tuple(_NAMES))
        if request.version >= _TYPES_FROM
        else (_CLIENT_METRICS,)
    )
    if not _NAMES.keys() >= set(types):
        return {"error_code": ErrorCode.unsupported_version, "config_resources": ()}
    rows = (
        {"resource_name": name, "resource_type": kind}
        for kind in dict.fromkeys(types)
        for name in _NAMES[kind](request.broker)
    )
    return {"error_code": ErrorCode.none, "config_resources": rows}
