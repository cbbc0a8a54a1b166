"""One broker's share session: its connection, its partitions, and what is to be acknowledged.

One task runs it. It sends one request at a time: a ShareFetch while records are wanted, with the
acknowledgements that are there, otherwise a ShareAcknowledge. When the connection is lost the
broker releases all records of the session, and a new session begins: acknowledgements of records of
the old one fail here, without being sent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

import anyio

from .._shared.client.answers import lacking
from .._shared.errors import ErrorCode, KafkaError
from .._shared.protocol.reject_reasons import FEATURE
from .._shared.share.reasons import Reason
from ..background import Signal
from ..cluster import Backoff, Cluster
from ..connection import API_KEYS, Connection, read_answer
from ..errors import BrokerUnreachable, LockLost, NotAuthenticated
from .records import GAP, NO_ID, Acquired, Decoded, Lease, Outcome, Record, decode
from .wire import (
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    AckBatch,
    Limits,
    Partition,
    ack_batches,
    share_acknowledge,
    share_fetch,
)

logger = logging.getLogger(__name__)

DELIVERED_AGAIN: Final = "the lock of the record has run out, and it has been delivered again"
WATCH_S: Final = 2.0
"""How often a session looks for a request that is not answered."""
_FINAL_EPOCH: Final = -1
_DECODED_ON_THE_LOOP_BYTES: Final = 64 << 10
"""Batches above that are decoded in a thread: a MB of small records takes 10 ms and more."""
_SESSION_LOST: Final = (
    ErrorCode.share_session_not_found,
    ErrorCode.invalid_share_session_epoch,
    ErrorCode.share_session_limit_reached,
)
_STALE: Final = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
    ErrorCode.leader_not_available,
    ErrorCode.kafka_storage_error,
    ErrorCode.offset_not_available,
    ErrorCode.replica_not_available,
)


class Acknowledgement(NamedTuple):
    """`reason`: of a REJECT; `lease` of the record's session."""

    partition: Partition
    offset: int
    type: int
    lease: Lease
    reason: Reason | None = None


class Answered(NamedTuple):
    """The broker's answer to acknowledgements of one partition. `error`: None if it has them."""

    partition: Partition
    types: Mapping[int, int]
    error: Exception | None


class Inbox(Protocol):
    """What a session needs of its consumer."""

    def limits(self, session: ShareSession) -> Limits | None:
        """Of a fetch now; None: no records are wanted of it."""

    def received(self, session: ShareSession, decoded: Decoded) -> None: ...

    def locks_last(self, lock_timeout_s: float) -> None:
        """Those that begin now."""

    def fetched(self, session: ShareSession) -> None:
        """A fetch has ended, with or without records."""

    def answered(self, session: ShareSession, answers: Iterable[Answered]) -> None: ...

    def failed(self, error: Exception) -> None:
        """A person must mend it."""

    async def look_again(self, partitions: Iterable[Partition]) -> None:
        """The metadata of these partitions are out of date. Raises BrokerUnreachable."""


class ShareSession:
    """`queued` and `done` count acknowledgements; those up to `done` have been answered.
    `unreadable`: the outcome of records that this client cannot decode."""

    def __init__(
        self,
        node: int,
        cluster: Cluster,
        group: str,
        member_id: str,
        inbox: Inbox,
        unreadable: Outcome = Outcome.RELEASE,
    ) -> None:
        self.node = node
        self.lease = Lease()
        self.partitions: frozenset[Partition] = frozenset()
        self.queued = self.done = 0
        self._cluster = cluster
        self._group = group
        self._member_id = member_id
        self._inbox = inbox
        self._unreadable = unreadable
        self._connection: Connection | None = None
        self._epoch = 0
        self._joined: frozenset[Partition] = frozenset()
        self._pending: list[Acknowledgement] = []
        self._wake = Signal()
        self._threads = anyio.CapacityLimiter(1)  # The program may use all of anyio's own for long.
        self._is_closing = False
        self._ended = anyio.Event()

    def assign(self, partitions: frozenset[Partition]) -> None:
        if partitions != self.partitions:
            self.partitions = partitions
            self._wake.set()

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Queue it; it is sent with the next request. Its outcome goes to the inbox."""
        self._pending.append(acknowledgement)
        self.queued += 1

    def wake(self) -> None:
        """Look again whether there is something to send."""
        self._wake.set()

    # -- the task
    # ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `close`, or an error that a person must mend."""
        try:
            await self._run()
        finally:
            self._ended.set()

    async def watch(self) -> None:
        """Beside `run`: gives up requests that are not answered."""
        while not self._ended.is_set():
            await anyio.sleep(WATCH_S)
            if self._connection is not None:
                await self._connection.close_if_late()

    async def _run(self) -> None:
        backoff = Backoff()
        is_away = False
        while not self._is_closing:
            limits = self._inbox.limits(self) if self.partitions else None
            if limits is None and not self._pending:
                await self._wake.wait()
                self._wake.clear()
                continue
            try:
                await self._turn(limits)
            except NotAuthenticated as error:
                self._lose(error)
                self._inbox.failed(error)
                return
            except KafkaError as error:
                self._inbox.failed(error)
                await backoff.pause()
            except BrokerUnreachable as error:
                if not self._is_closing and not is_away:
                    logger.info("share group %s: %s; trying until it is back", self._group, error)
                is_away = True
                self._lose(error)
                await backoff.pause()
                await self._refresh(self.partitions)
            else:
                if is_away:
                    logger.info("share group %s: connected again", self._group)
                is_away = False
                backoff.reset()
            finally:
                if limits is not None:
                    self._inbox.fetched(self)

    async def _turn(self, limits: Limits | None) -> None:
        self._drop_lost()
        renewals = [each for each in self._pending if each.type == Outcome.RENEW]
        if self._epoch and self._pending and (limits is None or renewals or self._has_reasons()):
            await self._acknowledge()
        elif limits is not None:
            await self._fetch(limits)

    def _has_reasons(self) -> bool:
        return any(each.reason is not None for each in self._pending)

    def _drop_lost(self) -> None:
        """Answer acknowledgements of records that another session held."""
        lost = [each for each in self._pending if each.lease is not self.lease]
        if lost:
            self._pending = [each for each in self._pending if each.lease is self.lease]
            self._answer(lost, LockLost("the session that held the record was lost"))

    def _answer(self, sent: Sequence[Acknowledgement], error: Exception | None) -> None:
        self.done += len(sent)
        self._inbox.answered(self, [Answered(key, types, error) for key, types in _types(sent).items()])

    def _lose(self, error: Exception) -> None:
        """The broker has released, or will release, all records of the session."""
        self.lease.is_open = False
        self.lease = Lease()
        self._epoch, self._joined = 0, frozenset()
        lost, self._pending = self._pending, []
        if lost:
            self._answer(lost, LockLost(f"the session that held the record was lost: {error}"))

    async def _refresh(self, partitions: Iterable[Partition]) -> None:
        try:
            await self._inbox.look_again(partitions)
        except BrokerUnreachable as error:
            logger.debug("share group %s: %s", self._group, error)

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed:
            self._connection = await self._cluster.connect_to(self.node)
        return self._connection

    # -- requests
    # ----------------------------------------------------------------------------------------------

    async def _fetch(self, limits: Limits) -> None:
        connection = await self._connected()
        version = connection.served.version(SHARE_FETCH)
        if limits.acquire_mode and version < 2:
            raise KafkaError(
                ErrorCode.unsupported_version, "record_limit needs a broker of Kafka 4.2 or later"
            )
        sent, self._pending = self._pending, []
        assigned = self.partitions
        rows: dict[Partition, list[AckBatch]] = {each: [] for each in assigned - self._joined}
        types = _types(sent)
        rows.update({key: ack_batches(each) for key, each in types.items()})
        forgotten = (self._joined | rows.keys()) - assigned
        body = share_fetch(version, self._group, self._member_id, self._epoch, limits, rows, forgotten)
        answer = await self._call(connection, SHARE_FETCH, version, body, sent, limits.wait_ms / 1000)
        if answer is None:
            return
        self._joined = assigned
        self._inbox.locks_last(answer.acquisition_lock_timeout.total_seconds())
        self._answer_rows(sent, types, answer, "acknowledge_error_code", "acknowledge_error_message")
        stale = []
        for topic in answer.responses:
            topic_id = topic.topic_id or NO_ID
            for row in topic.partitions:
                if row.error_code in _STALE:
                    stale.append((topic_id, row.partition_index))
                elif row.error_code is not ErrorCode.none:
                    self._inbox.failed(KafkaError(row.error_code, row.error_message))
                elif row.acquired_records:
                    await self._receive(topic_id, row)
        if stale:
            await self._refresh(stale)
            await anyio.sleep(0.1)  # A leader may take a moment to be one.

    async def _receive(self, topic_id: UUID, row: Any) -> None:
        partition, data = (topic_id, row.partition_index), row.records or b""
        lease = self.lease
        topic = self._cluster.topic_of(topic_id)
        acquired = [
            Acquired(each.first_offset, each.last_offset, each.delivery_count)
            for each in row.acquired_records
        ]
        name = topic.name if topic is not None else str(topic_id)
        if len(data) <= _DECODED_ON_THE_LOOP_BYTES:
            decoded = decode(name, row.partition_index, data, acquired, lease, topic_id)
        else:
            decoded = await anyio.to_thread.run_sync(
                decode, name, row.partition_index, data, acquired, lease, topic_id, limiter=self._threads
            )
        for odd, what, given in (
            (decoded.damaged, "are damaged", Outcome.REJECT),
            (decoded.unreadable, "cannot be decoded by this client", self._unreadable),
        ):
            for first, last in odd:
                logger.warning(
                    "%s-%d: records %d to %d %s (%s)",
                    name, row.partition_index, first, last, what, given.name,
                )  # fmt: skip
        for outcome, runs in (
            (GAP, decoded.gaps),
            (Outcome.REJECT, decoded.damaged),
            (self._unreadable, decoded.unreadable),
        ):
            for first, last in runs:
                for offset in range(first, last + 1):
                    self.acknowledge(Acknowledgement(partition, offset, outcome, lease))
        self._drop_late(partition, decoded.records)
        self._inbox.received(self, decoded)

    def _drop_late(self, partition: Partition, records: Sequence[Record]) -> None:
        """Answer the acknowledgements of earlier deliveries of these records, whose locks have run
        out: the broker would take them for acknowledgements of these."""
        if not self._pending:
            return
        offsets = {record.offset for record in records}
        late: list[Acknowledgement] = []
        kept: list[Acknowledgement] = []
        for each in self._pending:
            (late if each.partition == partition and each.offset in offsets else kept).append(each)
        self._pending = kept
        if late:
            self._answer(late, LockLost(DELIVERED_AGAIN))

    async def _acknowledge(self, epoch: int | None = None) -> None:
        connection = await self._connected()
        version = connection.served.version(SHARE_ACKNOWLEDGE)
        sent, self._pending = self._pending, []
        renews = any(each.type == Outcome.RENEW for each in sent)
        if renews and version < 2:
            refused = [each for each in sent if each.type == Outcome.RENEW]
            sent = [each for each in sent if each.type != Outcome.RENEW]
            needs = "a lock can be renewed by brokers of Kafka 4.2 or later only"
            self._answer(refused, KafkaError(ErrorCode.unsupported_version, needs))
            if not sent:
                return
            renews = False
        reasons = {(*each.partition, each.offset): each.reason for each in sent if each.reason is not None}
        if FEATURE not in connection.served.features:
            reasons = {}
        types = _types(sent)
        rows = {key: ack_batches(each) for key, each in types.items()}
        body = share_acknowledge(
            version, self._group, self._member_id, self._epoch if epoch is None else epoch, rows,
            renews=renews, reasons=reasons,
        )  # fmt: skip
        answer = await self._call(connection, SHARE_ACKNOWLEDGE, version, body, sent)
        if answer is not None:
            if version >= 2:
                self._inbox.locks_last(answer.acquisition_lock_timeout.total_seconds())
            self._answer_rows(sent, types, answer, "error_code", "error_message")

    async def _call(
        self,
        connection: Connection,
        api: str,
        version: int,
        body: bytes,
        sent: list[Acknowledgement],
        wait_s: float = 0.0,
    ) -> Any:
        """The answer; None if it is an error, and `sent` has been answered. Raises
        BrokerUnreachable, and KafkaError for an error that is not the session's."""
        try:
            raw = await connection.call_raw(api, version, (body,), wait_s, is_watched=True)
            answer = read_answer(API_KEYS[api], version, raw)
        except BaseException:
            self._pending = sent + self._pending  # `_lose` answers them.
            raise
        if answer.error_code is ErrorCode.none:
            self._epoch = self._epoch + 1 if self._epoch < 0x7FFFFFFF else 1
            return answer
        why = lacking(answer.error_code, "read", self._group) or answer.error_message
        error = KafkaError(answer.error_code, why)
        if sent:
            self._answer(sent, error)
        if answer.error_code in _SESSION_LOST:
            self._lose(error)
            return None
        # Kafka counts some of these in the epoch and some not: begin again.
        self._lose(error)
        raise error

    def _answer_rows(
        self,
        sent: list[Acknowledgement],
        types: Mapping[Partition, Mapping[int, int]],
        answer: Any,
        code: str,
        message: str,
    ) -> None:
        if not sent:
            return
        errors: dict[Partition, Exception | None] = {}
        for topic in answer.responses:
            topic_id = topic.topic_id or NO_ID
            for row in topic.partitions:
                error = None
                if error_code := getattr(row, code):
                    error = _refusal(ErrorCode(error_code), getattr(row, message))
                errors[topic_id, row.partition_index] = error
        self.done += len(sent)
        self._inbox.answered(
            self,
            [
                Answered(key, each, errors[key] if key in errors else _unanswered())
                for key, each in types.items()
            ],
        )

    # -- the end
    # ----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Send what is pending and end the session: the broker releases the other records. Waits
        for the request that is under way: without its answer the session could not be closed in
        order."""
        self._is_closing = True
        self._wake.set()
        try:
            await self._ended.wait()
            if self._epoch and self._connection is not None and not self._connection.is_closed:
                await self._acknowledge(_FINAL_EPOCH)
        except (BrokerUnreachable, KafkaError) as error:
            logger.info("share group %s: a session could not be closed: %s", self._group, error)

    async def abandon(self) -> None:
        """After `close`, or instead of it."""
        self._lose(LockLost("the consumer has been closed"))
        if self._connection is not None:
            await self._connection.close()


def _types(acknowledgements: Iterable[Acknowledgement]) -> dict[Partition, dict[int, int]]:
    """Types by offset, for each partition; of one offset the last."""
    found: dict[Partition, dict[int, int]] = {}
    for each in acknowledgements:
        found.setdefault(each.partition, {})[each.offset] = each.type
    return found


def _unanswered() -> Exception:
    return KafkaError(ErrorCode.invalid_record_state, "the broker did not answer for this partition")


def _refusal(code: ErrorCode, message: str | None) -> Exception:
    if code is ErrorCode.invalid_record_state:
        return LockLost(message or "the record's lock has run out")
    return KafkaError(code, message)


__all__ = ["DELIVERED_AGAIN", "Acknowledgement", "Answered", "Inbox", "Record", "ShareSession"]
