"""Fetch (1), v4-18, with incremental sessions (KIP-227) from v7 and topic ids (KIP-516) from v13.

- Records: whole batches straight from the store, up to the high watermark. The first batch of an
  answer is sent even if it exceeds every limit.
- Waiting: up to MaxWaitMs for MinBytes, unless a log has an error.
- Isolation: read_committed ends at the last stable offset, and names the aborted transactions
  between the records (KIP-98). An unknown level is -1 for the whole request, unless no partition of
  it exists.
- Divergence (KIP-595): a client that sends the epoch of its last fetch gets the offset at which
  that epoch ended, if it is past it. Consumers do not send it.

With an authorizer a topic needs READ: without it its rows are 29, without watermarks, and whether
or not it exists (an unknown id is 100). Rights are looked at once for a request, also for the
topics of its session; a request that waits is answered by those that it had.

A request of many rows gives way to others after each ROWS_A_TURN of them, in every pass over them.

Not done: fetching from followers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

from kbroker.api.request import Raw, Request
from kbroker.api.turns import in_turns, pause
from kbroker.broker.commits.deadlines import now_ms
from kbroker.broker.commits.waiting import Waiter
from kbroker.broker.logs.fetch_sessions import (
    INITIAL_EPOCH,
    FetchedRow,
    FetchPartition,
    FetchRows,
    FetchSession,
    TopicKey,
)
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.topics import Topic
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import Buffer
from kbroker.protocol.messages import milliseconds
from kbroker.protocol.responses import FETCH_TOPIC_IDS, FetchRow, fetch_response, fetch_row, pack_fetch
from kbroker.security.acls import Operation, ResourceType
from kbroker.security.rights import Rights
from kbroker.turns import ROWS_A_TURN, parts

_SESSIONS_FROM = 7
_LEADER_EPOCH_FROM = 9
_LAST_FETCHED_EPOCH_FROM = 12
_READ_COMMITTED = 1
_ISOLATION_LEVELS = (0, _READ_COMMITTED)


async def handle(request: Request) -> Raw:
    try:
        session, wanted = await _wanted(request)
    except KafkaError as error:
        return Raw(fetch_response(request.version, error.code, 0, ()), (error.code,))
    metering = request.connection.metering
    room_bytes = None if metering is None else metering.room_bytes(now_ms())
    if room_bytes == 0:
        return _without_records(request, session)
    rights = request.connection.rights
    fetch = _Fetch(request, wanted, () if rights is None else await _denied(request, rights, wanted))
    if room_bytes is not None:
        fetch.limit_to(room_bytes)
    if request.body.isolation_level not in _ISOLATION_LEVELS and await fetch.finds_any():
        return await _refused(request, ErrorCode.unknown_server_error)
    if not await fetch.look(is_last=False) and (wait_ms := milliseconds(request.body.max_wait)) > 0:
        await request.connection.wait_for(fetch, wait_ms, request.broker.metrics.fetch)
    rows = fetch.rows
    if metering is not None:
        metering.fetched(_size(rows), now_ms())
    return await _answer(request, session, fetch)


async def _answer(request: Request, session: FetchSession | None, fetch: _Fetch) -> Raw:
    rows = fetch.rows
    errors: list[int] = []
    topics: _Topics = []
    for part in (rows,) if len(rows) <= ROWS_A_TURN else parts(rows):
        if part is not rows:
            await pause()
        fetch.count(part, errors)
        due = part if session is None else session.due(part)
        _add_by_topic(part if session is None or request.body.session_epoch <= 0 else due, topics)
    session_id = 0 if session is None else session.session_id
    buffers: list[Buffer] = []
    for _ in pack_fetch(request.version, 0, session_id, topics, buffers):
        await pause()
    return Raw(buffers, errors)


async def _denied(request: Request, rights: Rights, wanted: Sequence[FetchPartition]) -> Collection[TopicKey]:
    """The topics that the client may not read. Unknown ids are not among them."""
    denied: set[TopicKey] = set()
    topics = request.broker.topics
    last: TopicKey | None = None
    for count, asked in enumerate(wanted, 1):
        if not count % ROWS_A_TURN:
            await pause()
        key = asked.key[0]
        if key == last:
            continue
        last = key
        if isinstance(key, str):
            name = key
        elif asked.found is not None:
            name = asked.found.topic_name
        elif (topic := topics.by_id_number(key)) is not None:
            name = topic.name
        else:
            continue
        if not rights.allows(Operation.READ, ResourceType.TOPIC, name):
            denied.add(key)
    return denied


def _size(rows: FetchRows) -> int:
    """The bytes of all records."""
    return sum(len(view) for _, row in rows for view in row.records)


def _without_records(request: Request, session: FetchSession | None) -> Raw:
    """The answer to a client that must wait: no rows at all. As in Kafka a session continues, and a
    new one does not begin."""
    session_id = 0
    if session is not None:
        if request.body.session_epoch > 0:
            session_id = session.session_id
        else:
            request.broker.fetch_sessions.forget(session)
    return Raw(fetch_response(request.version, 0, session_id, ()), ())


async def _refused(request: Request, code: ErrorCode) -> Raw:
    """Refuse the whole request. Before version 13 every row has the error, too."""
    body = request.body
    topics: _Topics = []
    count = 0
    for topic in () if request.version >= FETCH_TOPIC_IDS else body.topics:
        rows: list[FetchRow] = []
        topics.append((topic.topic, rows))
        for row in topic.partitions:
            rows.append(FetchRow(row.partition, code, aborted=()))
            count += 1
            if not count % ROWS_A_TURN:
                await pause()
    session_id = body.session_id if request.version >= _SESSIONS_FROM else 0
    buffers: list[Buffer] = []
    await in_turns(pack_fetch(request.version, code, session_id, topics, buffers))
    return Raw(buffers, (code,))


async def _wanted(request: Request) -> tuple[FetchSession | None, Sequence[FetchPartition]]:
    """A partition that is listed twice gets one row, in its first place, by its last listing."""
    body, version = request.body, request.version
    by_id = version >= FETCH_TOPIC_IDS
    wanted: dict[tuple[TopicKey, int], FetchPartition] = {}
    count = 0
    for topic in body.topics:
        name: TopicKey = (topic.topic_id.int if topic.topic_id else 0) if by_id else topic.topic
        for row in topic.partitions:
            count += 1
            if not count % ROWS_A_TURN:
                await pause()
            epoch = row.current_leader_epoch if version >= _LEADER_EPOCH_FROM else -1
            if epoch < 0:
                epoch = -1  # Any negative number means that the client does not know it.
            last_epoch = row.last_fetched_epoch if version >= _LAST_FETCHED_EPOCH_FROM else -1
            key = (name, row.partition)
            wanted[key] = FetchPartition(key, row.fetch_offset, row.partition_max_bytes, epoch, last_epoch)
    asked = list(wanted.values())
    if version < _SESSIONS_FROM:
        return None, asked
    forgotten: list[tuple[TopicKey, int]] = []
    for topic in body.forgotten_topics_data:
        name = (topic.topic_id.int if topic.topic_id else 0) if by_id else topic.topic
        for index in topic.partitions:
            count += 1
            if not count % ROWS_A_TURN:
                await pause()
            forgotten.append((name, index))
    sessions, connection = request.broker.fetch_sessions, request.connection
    is_long = count > ROWS_A_TURN
    session = sessions.fetch(
        body.session_id, body.session_epoch, by_id, () if is_long else asked, () if is_long else forgotten,
        connection.principal, connection.id,
    )  # fmt: skip
    if session is None:
        return None, asked
    if is_long:
        await in_turns(sessions.update(session, asked, forgotten))
        if not sessions.has(session):
            if body.session_epoch == INITIAL_EPOCH:
                return None, asked
            raise KafkaError(ErrorCode.fetch_session_id_not_found)  # The client starts over.
    return session, list(session.partitions.values())


_Topics: TypeAlias = list[tuple[TopicKey, list[FetchRow]]]


def _add_by_topic(rows: Sequence[FetchedRow], topics: _Topics) -> None:
    """Adjacent rows of one topic become one topic of the answer."""
    last, same_topic = topics[-1] if topics else (None, [])
    for asked, row in rows:
        if asked.key[0] != last:
            last = asked.key[0]
            same_topic = []
            topics.append((last, same_topic))
        same_topic.append(row)


class _Fetch:
    """One request, as a Search (kbroker/broker/connection.py)."""

    def __init__(
        self, request: Request, wanted: Sequence[FetchPartition], denied: Collection[TopicKey]
    ) -> None:
        self._request = request
        self._wanted = wanted
        self._denied = denied
        body = request.body
        self._max_bytes: int = min(body.max_bytes, request.broker.config["fetch.max.bytes"])
        self._is_committed: bool = body.isolation_level == _READ_COMMITTED
        self._min_bytes: int = min(body.min_bytes, self._max_bytes)
        self.rows: FetchRows = []
        self.has_paused = False
        """Whether a look had to wait, so that rows of before may be outdated."""

    def limit_to(self, most_bytes: int) -> None:
        """Return no more, apart from the first batch."""
        self._max_bytes = min(self._max_bytes, most_bytes)
        self._min_bytes = min(self._min_bytes, most_bytes)

    async def finds_any(self) -> bool:
        for count, asked in enumerate(self._wanted, 1):
            if not count % ROWS_A_TURN:
                await pause()
            if asked.key[0] not in self._denied and self._find(asked) is not None:
                return True
        return False

    async def look(self, *, is_last: bool) -> bool:
        """Read the partitions. Rows for missing and denied ones come last and do not cut the wait
        short."""
        rows: FetchRows = []
        missing: FetchRows = []
        total_bytes = 0
        left_bytes = self._max_bytes
        is_urgent = False
        denied = self._denied
        count = 0
        for asked in self._wanted:
            count += 1
            if not count % ROWS_A_TURN:
                self.has_paused = True
                await pause()
            if denied and asked.key[0] in denied:
                row = FetchRow(asked.key[1], ErrorCode.topic_authorization_failed, aborted=())
                missing.append((asked, row))
                continue
            partition = asked.found
            if partition is None or partition.deleted:
                partition = self._find(asked)
                if partition is None:
                    missing.append((asked, self._missing(asked)))
                    continue
            limit_bytes = left_bytes if left_bytes < asked.max_bytes else asked.max_bytes
            try:
                row = await self._read(partition, asked, limit_bytes, is_first=not total_bytes)
            except KafkaError as error:
                row = FetchRow(asked.key[1], error.code)
            read_bytes = sum(map(len, row.records)) if row.records else 0
            if row.records and total_bytes and read_bytes > limit_bytes:
                # Only the first batch of the whole answer may be larger than the limits.
                row, read_bytes = row._replace(records=(), aborted=None), 0
            total_bytes += read_bytes
            # A limit below zero applies to the first row only.
            left_bytes = left_bytes - read_bytes if left_bytes > read_bytes else 0
            rows.append((asked, row))
            if row.error_code or row.diverging is not None:
                is_urgent = True
        self.rows = rows + missing
        return total_bytes >= self._min_bytes or is_urgent or not rows or self._request.broker.closing

    def watch(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self._watched = [asked.found for asked in self._wanted if asked.found is not None]
        for partition in self._watched:
            partition.waiters.add(waiter)

    def unwatch(self) -> None:
        for partition in self._watched:
            partition.waiters.discard(self._waiter)

    def count(self, rows: Sequence[FetchedRow], errors: list[int]) -> None:
        """Count the fetched bytes in the metrics. Adds the error codes of the rows to `errors`."""
        for asked, row in rows:
            if row.error_code:
                errors.append(row.error_code)
            topic = self._topic(asked) if asked.found is None else asked.found
            if topic is not None:
                topic.metrics.fetched(row.error_code, sum(map(len, row.records)) if row.records else 0)

    async def _read(
        self, partition: Partition, asked: FetchPartition, limit_bytes: int, *, is_first: bool
    ) -> FetchRow:
        """`is_first`: no records come before it in the answer, so the first batch is sent whatever
        the limits are."""
        _, index = asked.key
        if asked.current_leader_epoch not in (-1, partition.leader_epoch):
            partition.epochs.check(asked.current_leader_epoch)
        stable_offset = partition.high_watermark
        if partition.has_transactions:
            if partition.must_load_transactions:
                self.has_paused = True
                await partition.load_producers()
            stable_offset = partition.last_stable_offset
        if asked.last_fetched_epoch >= 0 and (diverging := self._divergence(partition, asked)) is not None:
            return FetchRow(
                index,
                0,
                partition.high_watermark,
                stable_offset,
                partition.log_start_offset,
                diverging=diverging,
            )
        offset = asked.fetch_offset
        end_offset = stable_offset if self._is_committed else partition.high_watermark
        partition.check_readable(offset)
        records: Sequence[memoryview] = ()
        if offset < end_offset:
            if limit_bytes < 0:
                raise KafkaError(ErrorCode.unknown_server_error)
            if limit_bytes or is_first:
                found = partition.read_if_warm(offset, limit_bytes, end_offset)
                if found is None:
                    self.has_paused = True
                    found = await partition.read(offset, max_bytes=limit_bytes, end_offset=end_offset)
                    if self._is_committed:
                        # If the log start has passed a marker, its transaction is forgotten.
                        partition.check_readable(offset)
                records = found
        return fetch_row(
            (
                index,
                0,
                partition.high_watermark,
                stable_offset,
                partition.log_start_offset,
                records,
                partition.aborted_in(offset, records) if self._is_committed else None,
                None,
            )
        )

    @staticmethod
    def _divergence(partition: Partition, asked: FetchPartition) -> tuple[int, int] | None:
        """The offset at which the epoch of the last fetch ended, if the client is past it. Raises
        OFFSET_OUT_OF_RANGE for an epoch that never existed."""
        epoch, end_offset = partition.epochs.end_of(
            asked.last_fetched_epoch, partition.log_start_offset, partition.high_watermark
        )
        if epoch < 0 or asked.fetch_offset < partition.log_start_offset:
            raise KafkaError(ErrorCode.offset_out_of_range)
        return (
            (epoch, end_offset)
            if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset
            else None
        )

    def _topic(self, asked: FetchPartition) -> Topic | None:
        name, _ = asked.key
        topics = self._request.broker.topics
        return topics.by_name(name) if isinstance(name, str) else topics.by_id_number(name)

    def _find(self, asked: FetchPartition) -> Partition | None:
        """The partition under its topic's present name or id, noted in `asked`."""
        _, index = asked.key
        topic = self._topic(asked)
        asked.found = (
            topic.partitions[index] if topic is not None and 0 <= index < len(topic.partitions) else None
        )
        return asked.found

    def _missing(self, asked: FetchPartition) -> FetchRow:
        name, index = asked.key
        is_by_name = isinstance(name, str) or self._topic(asked) is not None
        return FetchRow(
            index,
            ErrorCode.unknown_topic_or_partition if is_by_name else ErrorCode.unknown_topic_id,
            aborted=(),
        )
