"""DescribeQuorum (55), v0-2 (KIP-595, KIP-836, KIP-853): the quorum of the metadata, of which this
broker is the leader and the only voter.

kbroker has no log of metadata: its offsets and its leader epoch are the number of starts. The
node's listener is the one that the request came in on. The request must name partition 0 of
`__cluster_metadata` and nothing else; otherwise every row is 3, and there are no nodes.

With an authorizer it needs DESCRIBE on the cluster (31 without rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kbroker.api.authorization import allows_on_cluster, refusal
from kbroker.api.request import Message, Request
from kbroker.broker.broker import Broker
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode
from kbroker.security.acls import Operation, ResourceType

_METADATA: Final = "__cluster_metadata"
_PLAIN: Final = "PLAINTEXT"
_UNKNOWN: Final = {
    "error_code": ErrorCode.unknown_topic_or_partition,
    "error_message": "This server does not host this topic-partition.",
    "leader_id": 0,
    "leader_epoch": 0,
    "high_watermark": 0,
    "current_voters": (),
    "observers": (),
}


def handle(request: Request) -> Message:
    code, message = ErrorCode.none, None
    topics: list[Message] = []
    nodes: list[Message] = []
    if not allows_on_cluster(request, Operation.DESCRIBE):
        error = refusal(ResourceType.CLUSTER)
        code, message = error.code, error.message
    elif _is_of_metadata(request.body.topics):
        topics.append({"topic_name": _METADATA, "partitions": [_quorum(request)]})
        nodes.append(_node(request))
    else:
        topics += map(_unknown, request.body.topics)
    return {"error_code": code, "error_message": message, "topics": topics, "nodes": nodes}


def _is_of_metadata(topics: Sequence[Any]) -> bool:
    return len(topics) == 1 and (
        (topics[0].topic_name, [row.partition_index for row in topics[0].partitions]) == (_METADATA, [0])
    )


def _starts(broker: Broker) -> int:
    return broker.generation + 1


def _quorum(request: Request) -> Message:
    broker, now_ms = request.broker, wall_clock_ms()
    voter = {
        "replica_id": broker.node_id,
        "replica_directory_id": None,
        "log_end_offset": _starts(broker),
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }
    return {
        "partition_index": 0,
        "error_code": ErrorCode.none,
        "error_message": None,
        "leader_id": broker.node_id,
        "leader_epoch": _starts(broker),
        "high_watermark": _starts(broker),
        "current_voters": [voter],
        "observers": (),
    }


def _node(request: Request) -> Message:
    listener = request.connection.listener
    host, port = request.advertised
    name = _PLAIN if listener is None else listener.name
    return {"node_id": request.broker.node_id, "listeners": [{"name": name, "host": host, "port": port}]}


def _unknown(topic: Any) -> Message:
    rows = [{"partition_index": row.partition_index, **_UNKNOWN} for row in topic.partitions]
    return {"topic_name": topic.topic_name, "partitions": rows}
