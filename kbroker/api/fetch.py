"""Fetch (1), v4-18, with incremental sessions (KIP-227) from v7 and topic ids (KIP-516) from v13.

Whole batches straight from the store, up to the high watermark; a first batch that is larger than every limit is sent all the
same. Waits up to MaxWaitMs for MinBytes, but not beside an error of a log. There are no transactions, so both isolation levels read
the same; an unknown one is -1 for the whole request, unless there is nothing to read. Who tells the epoch fetched last hears where it
ended if that was before (KIP-595; consumers do not). Not done: fetching from followers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import trio

from kbroker.broker.connection import Raw, Request
from kbroker.broker.fetch_sessions import FetchPartition, FetchSession, TopicKey
from kbroker.broker.partition import Partition
from kbroker.broker.topics import Topic
from kbroker.broker.waiting import Waiter
from kbroker.errors import ErrorCode, KafkaError
from kbroker.metrics import TopicMetrics
from kbroker.protocol.hot import FETCH_TOPIC_IDS, FetchRow, fetch_response
from kbroker.protocol.messages import milliseconds

_NO_TOPIC_ID = UUID(int=0)
_SESSIONS_FROM = 7
_READ_COMMITTED = 1
_ISOLATION_LEVELS = (0, _READ_COMMITTED)


async def handle(request: Request) -> Raw:
    try:
        session, wanted = _wanted(request)
    except KafkaError as error:
        return Raw(fetch_response(request.version, error.code, 0, ()), (error.code,))
    fetch = _Fetch(request, wanted)
    if request.body.isolation_level not in _ISOLATION_LEVELS and fetch.finds_any():
        return _refused(request, ErrorCode.unknown_server_error)
    rows = await fetch.run()
    errors = fetch.count(rows)
    if session is not None and request.body.session_epoch > 0:
        rows = [(key, row) for key, row in rows if _is_due(session, key, row)]
    elif session is not None:
        for key, row in rows:
            _is_due(session, key, row)
    session_id = 0 if session is None else session.session_id
    return Raw(fetch_response(request.version, 0, session_id, _by_topic(rows)), errors)


def _refused(request: Request, code: ErrorCode) -> Raw:
    """The whole request: before version 13 the error is in a row for everything that it names, too."""
    body = request.body
    topics = [] if request.version >= FETCH_TOPIC_IDS else body.topics
    rows = [(topic.topic, [FetchRow(row.partition, code, none_aborted=True) for row in topic.partitions]) for topic in topics]
    session_id = body.session_id if request.version >= _SESSIONS_FROM else 0
    return Raw(fetch_response(request.version, code, session_id, rows), (code,))


def _is_due(session: FetchSession, key: tuple[TopicKey, int], row: FetchRow) -> bool:
    has_news = bool(row.records) or row.diverging is not None
    return session.row_is_due(key, row.high_watermark, row.log_start_offset, row.error_code, has_news)


def _wanted(request: Request) -> tuple[FetchSession | None, Sequence[FetchPartition]]:
    body = request.body
    by_id = request.version >= FETCH_TOPIC_IDS
    wanted = [_fetch_partition(_topic_key(topic, by_id), row) for topic in body.topics for row in topic.partitions]
    if request.version < _SESSIONS_FROM:
        return None, _unique(wanted)
    forgotten = [(_topic_key(topic, by_id), index) for topic in body.forgotten_topics_data for index in topic.partitions]
    session = request.broker.fetch_sessions.fetch(body.session_id, body.session_epoch, by_id, wanted, forgotten)
    return session, _unique(wanted) if session is None else list(session.partitions.values())


def _unique(wanted: Sequence[FetchPartition]) -> Sequence[FetchPartition]:
    """Listed twice, a partition counts once, in its first place and as it was last listed."""
    return wanted if len(wanted) == 1 else list({(each.topic, each.partition): each for each in wanted}.values())


def _topic_key(topic: Any, by_id: bool) -> TopicKey:
    return (topic.topic_id or _NO_TOPIC_ID) if by_id else topic.topic


def _fetch_partition(topic: TopicKey, row: Any) -> FetchPartition:
    epoch = getattr(row, "current_leader_epoch", -1)
    if epoch < 0:
        epoch = -1  # Any negative number says nothing, here.
    return FetchPartition(topic, row.partition, row.fetch_offset, row.partition_max_bytes, epoch, getattr(row, "last_fetched_epoch", -1))


def _by_topic(rows: list[tuple[tuple[TopicKey, int], FetchRow]]) -> list[tuple[TopicKey, list[FetchRow]]]:
    """Rows of one topic that stand together are answered together."""
    topics: list[tuple[TopicKey, list[FetchRow]]] = []
    for (topic, _), row in rows:
        if not topics or topics[-1][0] != topic:
            topics.append((topic, []))
        topics[-1][1].append(row)
    return topics


class _Fetch:
    """One request: reads, and waits for more while that is worth it."""

    def __init__(self, request: Request, wanted: Sequence[FetchPartition]) -> None:
        self._request = request
        self._wanted = wanted
        body = request.body
        self._max_bytes = min(body.max_bytes, request.broker.config["fetch.max.bytes"])
        self._none_aborted: bool = body.isolation_level == _READ_COMMITTED
        self._min_bytes = min(body.min_bytes, self._max_bytes)
        self._until = trio.current_time() + max(0, milliseconds(body.max_wait)) / 1000
        self._found = [self._find(each) for each in wanted]
        """Looked for once for each reading: to hash and compare topic ids is a good part of a fetch."""
        self._counted: list[TopicMetrics | None] = []
        """Of the topics of the rows that were read last."""

    async def run(self) -> list[tuple[tuple[TopicKey, int], FetchRow]]:
        waits, has_waited = self._request.broker.metrics.fetch, False
        waiter = Waiter()
        watched = self._watch(waiter)
        try:
            while True:
                waiter.rearm()  # Before reading: what arrives while a read is in its thread must wake this one.
                rows, total_bytes, is_urgent = await self._read_all()
                expired = trio.current_time() >= self._until
                if total_bytes >= self._min_bytes or is_urgent or expired or not watched or self._request.broker.closing:
                    if expired and has_waited and total_bytes < self._min_bytes:
                        waits.expired += 1
                    return rows
                has_waited = True
                with waits:
                    await self._request.connection.park(waiter, self._until)
                self._found = [self._find(each) for each in self._wanted]
        finally:
            for partition in watched:
                partition.waiters.discard(waiter)

    def finds_any(self) -> bool:
        return any(isinstance(found, Partition) for found in self._found)

    def _watch(self, waiter: Waiter) -> list[Partition]:
        watched = [found for found in self._found if isinstance(found, Partition)]
        for partition in watched:
            partition.waiters.add(waiter)
        return watched

    def count(self, rows: Sequence[tuple[tuple[TopicKey, int], FetchRow]]) -> Sequence[int]:
        """Count what was fetched; the error codes of the rows."""
        for metrics, (_, row) in zip(self._counted, rows, strict=True):
            if metrics is not None:
                metrics.fetched(row.error_code, sum(map(len, row.records)))
        return [row.error_code for _, row in rows if row.error_code]

    async def _read_all(self) -> tuple[list[tuple[tuple[TopicKey, int], FetchRow]], int, bool]:
        """The rows, their bytes, and whether one must not wait; what there is not comes last, and nobody waits less for it."""
        rows: list[tuple[tuple[TopicKey, int], FetchRow]] = []
        missing: list[tuple[tuple[TopicKey, int], FetchRow]] = []
        counted: list[TopicMetrics | None] = []
        uncounted: list[TopicMetrics | None] = []
        total_bytes = 0
        left_bytes = self._max_bytes
        is_urgent = False
        for wanted, partition in zip(self._wanted, self._found, strict=True):
            key = (wanted.topic, wanted.partition)
            if not isinstance(partition, Partition):
                missing.append((key, FetchRow(wanted.partition, partition, none_aborted=True)))
                topic = self._topic(wanted)
                uncounted.append(None if topic is None else topic.metrics)
                continue
            try:
                row = await self._read(partition, wanted, min(left_bytes, wanted.max_bytes), is_first=not total_bytes)
            except KafkaError as error:
                row = FetchRow(wanted.partition, error.code)
            if row.error_code or row.diverging is not None:
                is_urgent = True
            rows.append((key, row))
            counted.append(partition.metrics)
            read_bytes = sum(map(len, row.records))
            total_bytes += read_bytes
            left_bytes = max(0, left_bytes - read_bytes)
        self._counted = counted + uncounted
        return rows + missing, total_bytes, is_urgent

    async def _read(self, partition: Partition, wanted: FetchPartition, limit_bytes: int, *, is_first: bool) -> FetchRow:
        """Only the first batch of the whole answer may be larger than the limits."""
        partition.check_leader_epoch(wanted.current_leader_epoch)
        if wanted.last_fetched_epoch >= 0 and (diverging := self._divergence(partition, wanted)) is not None:
            return FetchRow(wanted.partition, 0, partition.high_watermark, partition.log_start_offset, diverging=diverging)
        partition.check_readable(wanted.fetch_offset)
        none_aborted = self._none_aborted
        records: Sequence[memoryview] = ()
        end_offset = partition.high_watermark
        if wanted.fetch_offset < end_offset:
            if limit_bytes < 0:
                raise KafkaError(ErrorCode.unknown_server_error)
            if limit_bytes or is_first:
                records = await partition.read(wanted.fetch_offset, max_bytes=limit_bytes, end_offset=end_offset)
            if not is_first and sum(map(len, records)) > limit_bytes:
                records, none_aborted = (), False
        return FetchRow(wanted.partition, 0, partition.high_watermark, partition.log_start_offset, records, none_aborted)

    @staticmethod
    def _divergence(partition: Partition, wanted: FetchPartition) -> tuple[int, int] | None:
        """Where the epoch fetched last ended, if the client has gone beyond. Raises OFFSET_OUT_OF_RANGE for an epoch that never was."""
        epoch, end_offset = partition.epoch_end(wanted.last_fetched_epoch)
        if epoch < 0 or wanted.fetch_offset < partition.log_start_offset:
            raise KafkaError(ErrorCode.offset_out_of_range)
        return (epoch, end_offset) if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset else None

    def _topic(self, wanted: FetchPartition) -> Topic | None:
        topics = self._request.broker.topics
        return topics.by_id(wanted.topic) if isinstance(wanted.topic, UUID) else topics.by_name(wanted.topic)

    def _find(self, wanted: FetchPartition) -> Partition | ErrorCode:
        topic = self._topic(wanted)
        if topic is None:
            return ErrorCode.unknown_topic_id if isinstance(wanted.topic, UUID) else ErrorCode.unknown_topic_or_partition
        if not 0 <= wanted.partition < len(topic.partitions):
            return ErrorCode.unknown_topic_or_partition
        return topic.partitions[wanted.partition]
