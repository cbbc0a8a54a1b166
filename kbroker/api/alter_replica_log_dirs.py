"""AlterReplicaLogDirs (34), v1-2 (KIP-113): into which directory replicas are to move. There is one
directory, so nothing ever moves.

A partition is done if the path is exactly that of DescribeLogDirs. Another path is 57, whether or
not the partition exists, and an unknown partition 3. Of a partition that is named several times,
the last path applies.

With an authorizer it needs ALTER on the cluster (31, for each time that a partition is named).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kbroker.api.authorization import allows_on_cluster
from kbroker.api.request import Message, Request
from kbroker.api.transactions import find_partition
from kbroker.api.turns import RowTurn
from kbroker.errors import ErrorCode
from kbroker.security.acls import Operation


async def handle(request: Request) -> Message:
    if not allows_on_cluster(request, Operation.ALTER):
        return {"results": (_refused(topic) for each in request.body.dirs for topic in each.topics)}
    turn = RowTurn()
    paths: dict[str, dict[int, str]] = {}
    for each in request.body.dirs:
        for topic in each.topics:
            await turn.row()
            of_topic = paths.setdefault(topic.name, {})
            for index in topic.partitions:
                await turn.row()
                of_topic[index] = each.path
    own = str(request.broker.options.data_dir.absolute())
    return {
        "results": (
            {"topic_name": name, "partitions": _partitions(request, name, of_topic, own)}
            for name, of_topic in paths.items()
            if of_topic
        )
    }


def _refused(topic: Any) -> Message:
    code = ErrorCode.cluster_authorization_failed
    rows = ({"partition_index": index, "error_code": code} for index in topic.partitions)
    return {"topic_name": topic.name, "partitions": rows}


def _partitions(request: Request, name: str, paths: dict[int, str], own: str) -> Iterator[Message]:
    for index, path in paths.items():
        code = ErrorCode.none
        if path != own:
            code = ErrorCode.log_dir_not_found
        elif find_partition(request.broker, name, index) is None:
            code = ErrorCode.unknown_topic_or_partition
        yield {"partition_index": index, "error_code": code}
