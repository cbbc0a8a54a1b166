"""ListOffsets (2), v1-11: the offset at a time, or at a place that a negative timestamp names.

    -1  latest: the high watermark, or with read_committed the last stable offset
    -2  earliest: the log start
    -3  the record with the greatest timestamp (from v7)
    -4  earliest local: the log start (from v8)
    -5  latest tiered (from v9): none, so offset -1 without an error
    -6  earliest pending upload (from v11): likewise

Any other negative timestamp is UNSUPPORTED_VERSION. By time: the first visible record that is not
older, or -1/-1. A partition that is listed twice gets one row with 42. With read_committed, a
record at or above the last stable offset is not found (-1/-1). An unknown isolation level is -1 in
every row.

With an authorizer a topic needs DESCRIBE: without it every row is 29, whether or not it exists.

Not done: the timeout of v10, since nothing is fetched from elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from kbroker.api.authorization import allows_on_topic
from kbroker.api.request import Message, Request
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.time_lookup import record_at_time, record_with_max_timestamp
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.security.acls import Operation

_NONE: Final = -1
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = (
    -1,
    -2,
    -3,
    -4,
    -5,
    -6,
)
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_ISOLATION_LEVELS = (_READ_UNCOMMITTED, _READ_COMMITTED)


class _Found(NamedTuple):
    offset: int = _NONE
    timestamp_ms: int = _NONE
    leader_epoch: int = _NONE


def _is_committed(request: Request) -> bool:
    return getattr(request.body, "isolation_level", _READ_UNCOMMITTED) == _READ_COMMITTED


async def _latest(request: Request, partition: Partition) -> _Found:
    if _is_committed(request):
        return _Found(partition.last_stable_offset, leader_epoch=partition.leader_epoch)
    return _Found(partition.high_watermark, leader_epoch=partition.leader_epoch)


async def _earliest(request: Request, partition: Partition) -> _Found:
    offset = partition.log_start_offset
    return _Found(offset, leader_epoch=partition.epochs.of_offset(offset))


async def _max_timestamp(request: Request, partition: Partition) -> _Found:
    return _record(partition, await record_with_max_timestamp(partition, request.broker.log_commits))


async def _tiered(request: Request, partition: Partition) -> _Found:
    return _Found()


_PLACES: Final[dict[int, tuple[int, Callable[[Request, Partition], Awaitable[_Found]]]]] = {
    LATEST: (1, _latest),
    EARLIEST: (1, _earliest),
    MAX_TIMESTAMP: (7, _max_timestamp),
    EARLIEST_LOCAL: (8, _earliest),
    LATEST_TIERED: (9, _tiered),
    EARLIEST_PENDING_UPLOAD: (11, _tiered),
}
"""Negative timestamp -> the first version that has it, and how the offset is found."""


async def handle(request: Request) -> Message:
    body = request.body
    topics = [(topic, allows_on_topic(request, Operation.DESCRIBE, topic.name)) for topic in body.topics]
    rows = [(topic.name, row) for topic, is_allowed in topics if is_allowed for row in topic.partitions]
    refused = [
        (topic.name, _answer(row, ErrorCode.topic_authorization_failed, _Found()))
        for topic, is_allowed in topics
        if not is_allowed
        for row in topic.partitions
    ]
    if getattr(body, "isolation_level", _READ_UNCOMMITTED) not in _ISOLATION_LEVELS:
        answers = [(name, _answer(row, ErrorCode.unknown_server_error, _Found())) for name, row in rows]
        return {"topics": _by_topic([*answers, *refused])}
    counts = Counter((name, row.partition_index) for name, row in rows)
    unique = {(name, row.partition_index): row for name, row in rows}
    return {
        "topics": _by_topic(
            [
                (name, await _row(request, name, row, counts[name, index]))
                for (name, index), row in unique.items()
            ]
            + refused
        )
    }


def _by_topic(rows: Sequence[tuple[str, Message]]) -> list[Message]:
    topics: dict[str, list[Message]] = {}
    for name, row in rows:
        topics.setdefault(name, []).append(row)
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]


async def _row(request: Request, name: str, asked: Any, count: int) -> Message:
    code, found = ErrorCode.none, _Found()
    try:
        if count > 1:
            raise KafkaError(ErrorCode.invalid_request)
        found = await _find(request, name, asked)
    except KafkaError as error:
        code = error.code
    except (NoSpace, StoreFailed):
        code = ErrorCode.kafka_storage_error
    return _answer(asked, code, found)


def _answer(asked: Any, code: ErrorCode, found: _Found) -> Message:
    return {
        "partition_index": asked.partition_index,
        "error_code": code,
        "timestamp": found.timestamp_ms,
        "offset": found.offset,
        "leader_epoch": found.leader_epoch,
    }


async def _find(request: Request, name: str, asked: Any) -> _Found:
    first_version, find = _PLACES.get(asked.timestamp, (0, None))
    if asked.timestamp < 0 and (find is None or request.version < first_version):
        raise KafkaError(ErrorCode.unsupported_version)
    topic = request.broker.topics.by_name(name)
    if topic is None or not 0 <= asked.partition_index < len(topic.partitions):
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    partition = topic.partitions[asked.partition_index]
    partition.epochs.check(getattr(asked, "current_leader_epoch", -1))
    if _is_committed(request) and partition.must_load_transactions:
        await partition.load_producers()
    found = (
        _record(partition, await record_at_time(partition, asked.timestamp))
        if find is None
        else await find(request, partition)
    )
    is_hidden = _is_committed(request) and found.timestamp_ms >= 0
    return _Found() if is_hidden and found.offset >= partition.last_stable_offset else found


def _record(partition: Partition, found: tuple[int, int] | None) -> _Found:
    return _Found() if found is None else _Found(*found, partition.epochs.of_offset(found[0]))
