"""A share consumer (KIP-932) for asyncio and trio.

    async with ShareConsumer("127.0.0.1:9092", group="emails", topics=["emails"]) as consumer:
        async for record in consumer:
            send(record.value)

Three ways to acknowledge:

- IMPLICIT: the next poll accepts all records of the last one. Leaving the consumer releases those.
- EXPLICIT: every record must be acknowledged before the next poll; the acknowledgements are sent by
  `commit`, `commit_soon` or that poll.
- FREE: records are acknowledged in any order, also between polls. Each is sent at once.

Tasks in the background hold the connections, so cancelling a call loses nothing: records that were
received stay for the next poll, and acknowledgements that were made are sent.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from types import TracebackType
from typing import Final, Self, TypeAlias

import anyio
import anyio.lowlevel

from .._shared.settings.definition import INT_MAX
from .._shared.share.reasons import Reason
from ..background import Background, Signal
from ..cluster import Cluster, TopicPartition
from ..errors import (
    ClientClosed,
    IllegalState,
    LockLost,
    NotAuthenticated,
    TimedOut,
    WokenUp,
)
from ..security import PLAINTEXT, Security
from .held import RUN_OUT, HeldRecords
from .membership import Membership
from .placement import Placement
from .records import Decoded, Outcome, Record
from .session import DELIVERED_AGAIN, Answered, ShareSession
from .wire import Limits, Partition

logger = logging.getLogger(__name__)

_CLOSE_S: Final = 10.0
_FETCH_WAIT_MS: Final = 500
_MAX_BYTES: Final = 50 << 20
Callback: TypeAlias = Callable[[Mapping[TopicPartition, frozenset[int]], Exception | None], object]
"""Called with the offsets of acknowledgements that the broker has answered, and its error."""


class Mode(Enum):
    """How records are acknowledged; see the head of this module."""

    IMPLICIT = "implicit"
    EXPLICIT = "explicit"
    FREE = "free"


class Acquire(Enum):
    """BATCH_OPTIMIZED: whole batches of the producer, so perhaps more than `max_poll_records`.
    RECORD_LIMIT: never more (Kafka 4.2 and later)."""

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


class ShareConsumer:
    """Use it with `async with`. Its calls belong to one task: only `wake_up` may be called by
    others, and in the mode FREE `acknowledge`.

    - `bootstrap`: addresses of brokers, such as "127.0.0.1:9092"
    - `topics`: subscribed from the start
    - `max_poll_records`: of one poll, and what a fetch asks for
    - `unreadable`: outcome of records that this client cannot decode though their checksum is
      right. RELEASE: another client may read them, and at the delivery limit they become dead
      letters. REJECT: at once. Records with a wrong checksum are always rejected.
    - `on_acknowledged`: called in poll, commit and close for answered acknowledgements

    Entering raises BrokerUnreachable if no broker can be reached. Later a lost broker is tried
    again for ever, with INFO lines in the log.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        group: str,
        topics: Iterable[str] = (),
        mode: Mode | str = Mode.IMPLICIT,
        acquire: Acquire = Acquire.BATCH_OPTIMIZED,
        max_poll_records: int = 500,
        fetch_wait_ms: int = _FETCH_WAIT_MS,
        fetch_max_bytes: int = _MAX_BYTES,
        client_id: str = "kbroker-client",
        security: Security = PLAINTEXT,
        unreadable: Outcome = Outcome.RELEASE,
        on_acknowledged: Callback | None = None,
    ) -> None:
        if unreadable not in (Outcome.RELEASE, Outcome.REJECT):
            raise ValueError("unreadable must be Outcome.RELEASE or Outcome.REJECT")
        if not group:
            raise ValueError("a share consumer needs the name of a group")
        if max_poll_records < 1 or fetch_wait_ms < 0 or fetch_max_bytes < 1:
            raise ValueError(
                "max_poll_records and fetch_max_bytes must be 1 or more, fetch_wait_ms 0 or more"
            )
        if max(max_poll_records, fetch_wait_ms, fetch_max_bytes) > INT_MAX:
            raise ValueError(f"max_poll_records, fetch_wait_ms and fetch_max_bytes must be at most {INT_MAX}")
        self.group = group
        self.member_id = secrets.token_urlsafe(16)
        self.lock_timeout_s: float | None = None
        """How long records are locked for this member, as the broker said last."""
        self._mode = Mode(mode)
        self._unreadable = unreadable
        self._max_poll_records = max_poll_records
        self._limits = Limits(
            fetch_wait_ms, max_poll_records, max_poll_records, acquire.value, 1, fetch_max_bytes
        )
        self._acquire = acquire
        self._cluster = Cluster(bootstrap, client_id, security)
        self._placement = Placement(self._cluster, group, self._open_session)
        self._sessions = self._placement.sessions
        self._membership = Membership(
            self._cluster, group, self.member_id, self._placement.assign, self._fail, self._fail_for_good
        )
        self._topics = _checked(topics)
        self._callback = on_acknowledged
        self._ready: deque[Record] = deque()
        self._held = HeldRecords()
        self._answers: list[Answered] = []
        self._errors: deque[Exception] = deque()
        self._fatal: Exception | None = None
        self._wanted = 0
        self._fetching: int | None = None
        """The node that has the turn of RECORD_LIMIT, in which one node at a time is asked."""
        self._is_asking = False
        """Whether that node is asked at the moment."""
        self._news = Signal()
        self._is_woken = self._is_polling = False
        self._is_stopping = False
        self._is_closed = False
        self._background = Background()

    # -- life
    # ----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._background.is_open or self._is_closed:
            raise IllegalState("a share consumer can be entered once")
        await self._cluster.refresh(self._topics)
        await self._background.open()
        self._membership.subscribe(self._topics)
        self._background.start(self._membership.run)
        self._background.start(self._placement.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        finally:
            self._background.cancel()
            await self._background.wait()

    async def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Send the acknowledgements that were made, release all other records, and leave the group.
        Waits for the broker at most `timeout_s`, even if it is cancelled."""
        if self._is_closed:
            return
        self._is_closed = True
        self._placement.end()
        try:
            with anyio.move_on_after(timeout_s, shield=True):
                self._hand_over()
                async with anyio.create_task_group() as closing:
                    for session in self._sessions.values():
                        closing.start_soon(session.close)
                await self._membership.end()
        finally:
            with anyio.CancelScope(shield=True):
                await self._background.stop()
                for session in self._sessions.values():
                    await session.abandon()
                await self._membership.close()
                await self._cluster.close()
            self._news.set()
        self._report()

    # -- subscription
    # ----------------------------------------------------------------------------------------------

    @property
    def subscription(self) -> frozenset[str]:
        return self._topics

    def subscribe(self, topics: Iterable[str]) -> None:
        """Replaces the subscription."""
        self._check_open()
        self._topics = _checked(topics)
        self._membership.subscribe(self._topics)

    def unsubscribe(self) -> None:
        """The member leaves the group, and may subscribe again."""
        self.subscribe(())

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions from which the member gets records, as far as their topics are known."""
        return self._placement.partitions

    # -- records
    # ----------------------------------------------------------------------------------------------

    async def poll(self, timeout_s: float | None = None, max_records: int | None = None) -> list[Record]:
        """Records, as soon as there are any; none after `timeout_s` (None: wait for ever, 0: do not
        wait). At most `max_records`, or `max_poll_records`.

        Raises WokenUp, IllegalState, NotAuthenticated and KafkaError. After a cancellation nothing
        is lost.
        """
        most = self._max_poll_records if max_records is None else min(max_records, self._max_poll_records)
        if most < 1:
            raise ValueError("max_records must be 1 or more")
        return await self._next(most, most, timeout_s)

    async def _next(self, most: int, wanted: int, timeout_s: float | None) -> list[Record]:
        """At most `most` records; a fetch asks for `wanted`."""
        self._check_open()
        if self._is_polling:
            raise IllegalState("another task is polling this consumer")
        self._before_poll()
        self._is_polling = True
        # It stays, if the poll ends without records, until one fetch has ended: polls that do not
        # wait would never see one otherwise.
        self._wanted = wanted
        records: list[Record] = []
        try:
            with anyio.move_on_after(timeout_s):
                records = await self._wait_for_records(most)
            records = records or self._taken(most)
        finally:
            self._is_polling = False
            if records:
                self._wanted = 0
            else:
                self._placement.wake()
        return records

    async def _wait_for_records(self, most: int) -> list[Record]:
        """Lets other tasks run in any case. No await comes after records are taken: a cancellation
        there would lose them."""
        if self._ready:
            await anyio.lowlevel.checkpoint()
        while True:
            self._raise_errors()
            self._report()
            if records := self._taken(most):
                return records
            self._news.clear()
            self._placement.wake()
            await self._news.wait()

    def _taken(self, most: int) -> list[Record]:
        """From what has been received. Records whose session was lost are delivered again."""
        records: list[Record] = []
        while self._ready and len(records) < most:
            record = self._ready.popleft()
            if self._held.deliver(record):
                records.append(record)
        return records

    def __aiter__(self) -> Self:
        """Records one by one, for ever. In the mode IMPLICIT a record is accepted when the next one
        is asked for; leaving the loop releases the last one, unless `commit` accepts it."""
        return self

    async def __anext__(self) -> Record:
        (record,) = await self._next(1, self._max_poll_records, None)
        return record

    def wake_up(self) -> None:
        """The poll that waits, or the next one, raises WokenUp. For other tasks of this loop."""
        self._is_woken = True
        self._news.set()

    def stop_fetching(self) -> None:
        """Ask for no more records, for ever: polls return those that are on their way only. For a
        worker that finishes its jobs before it closes the consumer."""
        self._is_stopping = True

    # -- acknowledgements
    # ----------------------------------------------------------------------------------------------

    def acknowledge(
        self,
        record: Record,
        outcome: Outcome = Outcome.ACCEPT,
        *,
        reason: Reason | None = None,
    ) -> None:
        """In the mode FREE it is sent at once, otherwise by the next commit or poll. A RENEW leaves
        the record to be acknowledged. `reason`: of a REJECT, for the dead letter of a kbroker;
        longer texts are cut to 8 KiB together.

        Raises IllegalState in the mode IMPLICIT, and for a record that is not to be acknowledged.
        """
        self._check_open()
        if self._mode is Mode.IMPLICIT:
            raise IllegalState(
                'this consumer accepts records implicitly: give mode="explicit" to acknowledge'
            )
        outcome = Outcome(outcome)
        if reason is not None and outcome is not Outcome.REJECT:
            raise ValueError("only a REJECT has a reason")
        self._held.acknowledge(record, outcome, reason)
        if self._mode is Mode.FREE:
            self._hand_over()

    async def commit(self, timeout_s: float | None = 30.0) -> dict[TopicPartition, Exception | None]:
        """Send all acknowledgements and wait for the broker's answers; in the mode IMPLICIT those
        of the last poll. Returns for each partition None, when the broker has stored them durably,
        or the error: LockLost or KafkaError.

        Raises TimedOut; the acknowledgements are still sent.
        """
        self._check_open()
        if self._mode is Mode.IMPLICIT:
            self._held.accept_all()
        before = len(self._answers)
        self._hand_over()
        waiting = [(session, session.queued) for session in self._sessions.values()]
        with anyio.move_on_after(timeout_s) as scope:
            while any(session.done < queued for session, queued in waiting):
                self._news.clear()
                self._placement.wake()
                await self._news.wait()
                if self._fatal is not None:
                    raise self._fatal
        answers = self._answers[before:]
        self._report()
        if scope.cancelled_caught:
            raise TimedOut(f"the broker has not answered the acknowledgements within {timeout_s:g} s")
        found: dict[TopicPartition, Exception | None] = {}
        for partition, _, error in answers:
            name = self._name_of(partition)
            found[name] = found.get(name) or error
        return found

    def commit_soon(self) -> None:
        """Send all acknowledgements without waiting. Their outcomes go to `on_acknowledged`."""
        self._check_open()
        if self._mode is Mode.IMPLICIT:
            self._held.accept_all()
        self._hand_over()
        self._placement.wake()

    def _before_poll(self) -> None:
        self._report()
        if self._mode is Mode.IMPLICIT:
            self._held.accept_all()
        elif self._mode is Mode.EXPLICIT:
            self._held.drop_lost()
            if left := len(self._held.delivered):
                raise IllegalState(
                    f"{left} records of the last poll are not acknowledged yet: call "
                    "acknowledge(record, ...) for each"
                )
        self._hand_over()
        self._raise_errors()

    def _hand_over(self) -> None:
        """Give the acknowledgements to the sessions that hold their records."""
        acknowledged = self._held.take_acknowledgements()
        by_lease = {session.lease: session for session in self._sessions.values()} if acknowledged else {}
        for each in acknowledged:
            session = by_lease.get(each.lease)
            if session is None:
                is_known = each.lease is RUN_OUT
                lost = LockLost(DELIVERED_AGAIN if is_known else "the session that held the record was lost")
                self._answers.append(Answered(each.partition, {each.offset: each.type}, lost))
            else:
                session.acknowledge(each)
                session.wake()

    def _report(self) -> None:
        """Call the callback for what has been answered. If it raises, the rest is for the next
        time."""
        answers, self._answers = self._answers, []
        if self._callback is not None:
            for number, (partition, types, error) in enumerate(answers, 1):
                try:
                    self._callback({self._name_of(partition): frozenset(types)}, error)
                except BaseException:
                    self._answers[:0] = answers[number:]
                    raise

    def _name_of(self, partition: Partition) -> TopicPartition:
        topic = self._cluster.topic_of(partition[0])
        return TopicPartition(topic.name if topic is not None else str(partition[0]), partition[1])

    # -- of the tasks in the background
    # ----------------------------------------------------------------------------------------------

    def limits(self, session: ShareSession) -> Limits | None:
        if not self._wanted or self._ready or self._is_closed or self._is_stopping:
            return None
        if self._acquire is Acquire.RECORD_LIMIT:
            holder = None if self._fetching is None else self._sessions[self._fetching]
            # Its partitions may have gone to another node before it was asked.
            if holder not in (None, session) and (self._is_asking or holder.partitions):
                return None
            self._fetching, self._is_asking = session.node, True
        return self._limits._replace(max_records=self._wanted)

    def fetched(self, session: ShareSession) -> None:
        if not self._is_polling:
            self._wanted = 0
        if self._fetching == session.node:
            self._is_asking = False
            others = sorted(
                node for node, each in self._sessions.items() if each.partitions and each is not session
            )
            self._fetching = next((node for node in others if node > session.node), next(iter(others), None))
            self._placement.wake()

    def received(self, session: ShareSession, decoded: Decoded) -> None:
        self._held.received(decoded.records)
        self._ready += decoded.records
        self._news.set()

    def locks_last(self, lock_timeout_s: float) -> None:
        self.lock_timeout_s = lock_timeout_s or self.lock_timeout_s

    def answered(self, session: ShareSession, answers: Iterable[Answered]) -> None:
        self._answers += answers
        self._news.set()

    def failed(self, error: Exception) -> None:
        if isinstance(error, NotAuthenticated):
            self._fail_for_good(error)  # The session has ended.
        else:
            self._fail(error)

    async def look_again(self, partitions: Iterable[Partition]) -> None:
        await self._placement.look_again(partitions)

    def _fail(self, error: Exception) -> None:
        """One error of a kind waits for the next poll."""
        if not any(str(error) == str(known) for known in self._errors):
            self._errors.append(error)
        self._news.set()

    def _fail_for_good(self, error: Exception) -> None:
        self._fatal = error
        self._news.set()

    def _raise_errors(self) -> None:
        if self._is_closed:
            raise ClientClosed("the share consumer has been closed")
        if self._is_woken:
            self._is_woken = False
            raise WokenUp("woken up")
        if self._errors:
            raise self._errors.popleft()
        if self._fatal is not None:
            raise self._fatal

    def _open_session(self, node: int) -> ShareSession:
        session = ShareSession(node, self._cluster, self.group, self.member_id, self, self._unreadable)
        self._background.start(session.run)
        self._background.start(session.watch)
        return session

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the share consumer has been closed")
        if not self._background.is_open:
            raise IllegalState("use a share consumer with `async with`")


def _checked(topics: Iterable[str]) -> frozenset[str]:
    if isinstance(topics, str):
        raise ValueError(f"topics is a list of names, not a name: [{topics!r}]")
    return frozenset(topics)
