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

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from kbroker.api.authorization import allows_on_topic
from kbroker.api.request import Message, Request
from kbroker.api.turns import RowTurn
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


class _Answered(NamedTuple):
    """A row of the answer, with the partition of the request."""

    asked: Any
    code: ErrorCode
    found: _Found = _Found()


async def handle(request: Request) -> Message:
    """Rows of topics that the client may not describe come last."""
    turn = RowTurn()
    is_valid = getattr(request.body, "isolation_level", _READ_UNCOMMITTED) in _ISOLATION_LEVELS
    answered: dict[str, list[_Answered]] = {}
    refused: list[Any] = []
    unique: dict[tuple[str, int], tuple[Any, int]] = {}
    for topic in request.body.topics:
        await turn.row()
        if not allows_on_topic(request, Operation.DESCRIBE, topic.name):
            refused.append(topic)
            continue
        for row in topic.partitions:
            await turn.row()
            if is_valid:
                key = topic.name, row.partition_index
                unique[key] = row, unique[key][1] + 1 if key in unique else 1
            else:
                rows = answered.setdefault(topic.name, [])
                rows.append(_Answered(row, ErrorCode.unknown_server_error))
    for (name, _), (row, count) in unique.items():
        await turn.row()
        answered.setdefault(name, []).append(await _answered(request, name, row, count))
    for topic in refused:
        rows = answered.setdefault(topic.name, [])
        for row in topic.partitions:
            await turn.row()
            rows.append(_Answered(row, ErrorCode.topic_authorization_failed))
    return {
        "topics": ({"name": name, "partitions": _rows(found)} for name, found in answered.items() if found)
    }


async def _answered(request: Request, name: str, asked: Any, count: int) -> _Answered:
    try:
        if count > 1:
            raise KafkaError(ErrorCode.invalid_request)
        return _Answered(asked, ErrorCode.none, await _find(request, name, asked))
    except KafkaError as error:
        return _Answered(asked, error.code)
    except (NoSpace, StoreFailed):
        return _Answered(asked, ErrorCode.kafka_storage_error)


def _rows(answered: Sequence[_Answered]) -> Iterator[Message]:
    for asked, code, found in answered:
        yield {
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
