"""DescribeLogDirs (35), v1-5: the data directory, its disk, and the size of each partition's
segments in it.

No topics (null) means all; unknown partitions give no row. The sizes are those of the record
batches. The space that an engine needs beyond them is only in the disk's numbers: total and usable
bytes of the file system, from v4.

With an authorizer it needs DESCRIBE on the cluster (31 without any row; no code before v3).

Not done: several directories, moving replicas (offset lag is 0, no replica is future or cordoned).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import trio

from kbroker.api.authorization import allows_on_cluster
from kbroker.api.request import Message, Request
from kbroker.api.turns import RowTurn
from kbroker.broker.logs.partition import Partition
from kbroker.errors import ErrorCode
from kbroker.security.acls import Operation


class _Measured(NamedTuple):
    """Read from the stores in a thread, since it may touch the disk."""

    sizes: list[tuple[Partition, int]]
    total_bytes: int
    usable_bytes: int


async def handle(request: Request) -> Message:
    if not allows_on_cluster(request, Operation.DESCRIBE):
        return {"error_code": ErrorCode.cluster_authorization_failed, "results": ()}
    directory = request.broker.options.data_dir.absolute()
    partitions = await _partitions(request)
    measured = await trio.to_thread.run_sync(_measure, directory, partitions)
    topics: dict[str, list[Message]] = {}
    turn = RowTurn()
    for partition, size_bytes in measured.sizes:
        await turn.row()
        row = {
            "partition_index": partition.log.partition,
            "partition_size": size_bytes,
            "offset_lag": 0,
            "is_future_key": False,
        }
        topics.setdefault(partition.topic_name, []).append(row)
    result = {
        "error_code": ErrorCode.none,
        "log_dir": str(directory),
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
        "total_bytes": measured.total_bytes,
        "usable_bytes": measured.usable_bytes,
        "is_cordoned": False,
    }
    return {"error_code": ErrorCode.none, "results": [result]}


async def _partitions(request: Request) -> list[Partition]:
    topics = request.broker.topics
    if request.body.topics is None:
        return list(topics.partitions())
    turn = RowTurn()
    asked: dict[str, set[int]] = {}
    for each in request.body.topics:
        await turn.row()
        asked.setdefault(each.topic, set()).update(each.partitions)
    found = []
    for name, indexes in asked.items():
        await turn.row()
        topic = topics.by_name(name)
        found += [] if topic is None else [each for each in topic.partitions if each.log.partition in indexes]
    return found


def _measure(directory: Path, partitions: Sequence[Partition]) -> _Measured:
    sizes = []
    for partition in partitions:
        try:
            sizes.append((partition, sum(segment.size_bytes for segment in partition.segments())))
        except KeyError:
            continue  # Its topic was deleted meanwhile.
    disk = os.statvfs(directory)
    return _Measured(sizes, disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize)
