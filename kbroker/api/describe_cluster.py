"""DescribeCluster (60), v0-2: one broker, which is its own controller.

Endpoint type 2 (controllers) is MISMATCHED_ENDPOINT_TYPE, any other UNSUPPORTED_ENDPOINT_TYPE.

Every client may send it. The operations on the cluster are none for a client without DESCRIBE.
"""

from __future__ import annotations

from kbroker.api.authorized_operations import NOT_REQUESTED, cluster_operations
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode

_BROKERS, _CONTROLLERS = 1, 2


def handle(request: Request) -> Message:
    broker = request.broker
    endpoint_type: int = getattr(request.body, "endpoint_type", _BROKERS)
    code, message = ErrorCode.none, None
    if endpoint_type == _CONTROLLERS:
        code, message = (
            ErrorCode.mismatched_endpoint_type,
            "The request was sent to an endpoint of the wrong type.",
        )
    elif endpoint_type != _BROKERS:
        code, message = ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {endpoint_type}"
    good = code is ErrorCode.none
    with_operations: bool = request.body.include_cluster_authorized_operations
    host, port = request.advertised
    row = {
        "broker_id": broker.node_id,
        "host": host,
        "port": port,
        "rack": None,
        "is_fenced": False,
    }
    return {
        "error_code": code,
        "error_message": message,
        "endpoint_type": endpoint_type if good else _BROKERS,
        "cluster_id": broker.cluster_id if good else "",
        "controller_id": broker.node_id if good else -1,
        "brokers": (row,) if good else (),
        "cluster_authorized_operations": cluster_operations(request)
        if good and with_operations
        else NOT_REQUESTED,
    }
