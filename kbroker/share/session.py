"""Share sessions: which partitions a member fetches from a broker, and the epoch that orders its
requests (KIP-932, after KIP-227).

    ShareFetch 0 (A) -> stored epoch 1     the session exists, with A
    ShareFetch 1 (B) -> stored epoch 2     B is added
    ShareAcknowledge 2 -> stored epoch 3   acknowledging adds no partition
    ShareFetch -1 -> acknowledge, release, close()

A session ends with the connection that created it. It knows no records: each method that ends a
session or drops a partition returns the share-partitions concerned, and the caller releases the
records. Kafka misses some of these: those of a session that epoch 0 replaces, those that a request
forgets, and all sessions of a closed connection but the newest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.persister import TopicPartition
from kbroker.turns import parts

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 0x7FFFFFFF
MAX_PARTITIONS: Final = 500_000
"""Of all sessions together, which take some 250 bytes each."""
_ROW_DUE, _SERVED_IN = attrgetter("row_due"), attrgetter("served_in")


class SessionKey(NamedTuple):
    group_id: str
    member_id: str


@dataclass(slots=True, eq=False)
class SessionPartition:
    """A partition's place in a session. It is hashed by identity: a session may have a thousand,
    and every fetch visits all of them.

    - `row_due`: the next response needs a row for it, with or without records.
    - `served_in`: the number of the last response that had records of it.
    - `memo`: scratch space for the fetcher, kept between fetches.
    """

    partition: TopicPartition
    row_due: bool
    served_in: int = 0
    memo: Any = None


@dataclass(slots=True, eq=False)
class ShareSession:
    """- `epoch`: the one expected next.
    - `held_elsewhere`: partitions outside the session of which the member may still hold records,
      because it forgot them or acknowledged without fetching. Only partitions that pass `may_hold`
      are added; otherwise a client could let the session grow by naming others.
    - `client_id`, `client_host`: of the request that opened the session, for a person who looks for
      the program that holds records."""

    key: SessionKey
    connection_id: Hashable
    may_hold: Callable[[TopicPartition], bool]
    epoch: int = 1
    client_id: str | None = None
    client_host: str | None = None
    _places: dict[TopicPartition, SessionPartition] = field(default_factory=dict)
    _answers: int = 0
    held_elsewhere: set[TopicPartition] = field(default_factory=set)

    @property
    def partitions(self) -> list[TopicPartition]:
        """In session order: a partition that returned records moves to the end."""
        return list(self._places)

    @property
    def to_release(self) -> list[TopicPartition]:
        """Every partition of which the member may hold records: all are released with the
        session."""
        return [*self._places, *self.held_elsewhere]

    def fetch_order(self, epoch: int) -> list[SessionPartition]:
        """The order for the request with this epoch: the partition that has waited longest comes
        first. Equal ones are rotated by the epoch.

        Rotation alone, as in Kafka, can leave partitions out for ever, because acknowledgements
        advance the epoch as well. With six requests from one fetch to the next, six partitions are
        never rotated.
        """
        order = list(self._places.values())
        if len(order) < 2 or epoch < 1:
            return order
        turn = epoch % len(order)
        return sorted(order[turn:] + order[:turn], key=_SERVED_IN)

    @property
    def has_rows_due(self) -> bool:
        """True if a partition may need a row in the next fetch response without records or an
        error."""
        return any(map(_ROW_DUE, self._places.values()))

    def begin_answer(self) -> None:
        """A response is being built. answer_row() follows for each partition that was looked at."""
        self._answers += 1

    def answer_row(self, partition: TopicPartition, *, has_records: bool, has_error: bool) -> bool:
        """True if the fetch response needs a row: records, an error, a newly added partition, or
        the first clean response after an error.

        Call it once per response and partition. Every partition of an epoch 0 request gets its row
        in any case.
        """
        place = self._places.get(partition)
        if place is None:  # It was forgotten meanwhile.
            return has_records or has_error
        due, place.row_due = place.row_due, has_error
        if has_records and len(self._places) > 1:  # A single one is in its place already.
            self._places[partition] = self._places.pop(partition)
            place.served_in = self._answers
        return due or has_records or has_error

    def _add(self, partitions: Iterable[TopicPartition], *, row_due: bool) -> None:
        for partition in partitions:
            if partition not in self._places:
                self._places[partition] = SessionPartition(partition, row_due)
            if self.held_elsewhere:
                self.held_elsewhere.discard(partition)

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            self._places.pop(partition, None)
        self._hold_elsewhere(partitions)

    def _hold_elsewhere(self, partitions: Iterable[TopicPartition]) -> None:
        more = {partition for partition in partitions if partition not in self._places} - self.held_elsewhere
        if more:
            self.held_elsewhere = set(filter(self.may_hold, self.held_elsewhere | more))


class FetchPlan(NamedTuple):
    """What a ShareFetch request may do. `epoch` is the request's.

    - `places`: its partitions, in the order to fetch them.
    - `replaced`: the session that epoch 0 ended; release its records now.
    - `is_final`: no fetching. After the acknowledgements, close() the session and release its
      records.
    - `expected_epoch`: the session's from here on, unless another request uses it.
    - `to_do`: for a long request, the rest of its partitions, in steps between which others may
      have a turn. `places` is known afterwards: the session's fetch_order().
    """

    session: ShareSession
    epoch: int
    places: tuple[SessionPartition, ...] = ()
    replaced: ShareSession | None = None
    is_final: bool = False
    expected_epoch: int = 1
    to_do: Iterator[None] | None = None

    @property
    def is_new(self) -> bool:
        return self.epoch == INITIAL_EPOCH

    @property
    def is_overtaken(self) -> bool:
        """True if another request has used the session since: the response is
        invalid_share_session_epoch. A session that was replaced or ended meanwhile is not the
        client's mistake; its response is an empty one."""
        return not self.is_final and self.session.epoch != self.expected_epoch


class AcknowledgePlan(NamedTuple):
    """What a ShareAcknowledge request may do; `is_final` as in FetchPlan."""

    session: ShareSession
    epoch: int
    is_final: bool


class ShareSessionsStatistics(NamedTuple):
    """`evictions`: sessions that ended with their connection. `refused`: requests that found the
    table full."""

    sessions: int
    partitions: int
    held_elsewhere: int
    evictions: int
    refused: int


class ShareSessions:
    """All share sessions of the broker, at most `max_sessions` (group.share.max.share.sessions)
    with MAX_PARTITIONS together.
    `may_hold(group_id, partition)`: whether that share-partition exists now, so that members may
    hold records of it."""

    def __init__(
        self, max_sessions: int, may_hold: Callable[[str, TopicPartition], bool] = lambda *_: True
    ) -> None:
        self.max_sessions = max_sessions
        self._may_hold = may_hold
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._by_connection: dict[Hashable, dict[SessionKey, ShareSession]] = {}
        self._groups: Counter[str] = Counter()
        self._partitions = 0
        self._evictions = 0
        self._refused = 0

    def fetch(
        self,
        group_id: str,
        member_id: str,
        epoch: int,
        *,
        connection_id: Hashable,
        add: Sequence[TopicPartition],
        forget: Sequence[TopicPartition],
        has_acks: bool,
        in_steps: bool = False,
    ) -> FetchPlan:
        """Open, use or end a session.

        - `add`: the partitions of Topics.
        - `forget`: those of ForgottenTopicsData; ignored on epochs 0 and -1.
        - `has_acks`: whether any partition carries acknowledgements.
        - `in_steps`: the caller takes the steps of the plan's `to_do`.

        Raises KafkaError, with nothing changed: invalid_request (acknowledgements on epoch 0),
        share_session_not_found, invalid_share_session_epoch, share_session_limit_reached. Return
        that last one only after MaxWaitMs, or clients spin. With `in_steps` a session that exists
        raises it in the step that finds no room.
        """
        if epoch == INITIAL_EPOCH:
            return self._open(SessionKey(group_id, member_id), connection_id, add, has_acks, in_steps)
        if add and epoch != FINAL_EPOCH and not in_steps:
            known = self._sessions.get((group_id, member_id))
            self._check_room(add, () if known is None else known._places)
        session = self._expect(group_id, member_id, epoch)
        if epoch == FINAL_EPOCH:
            return FetchPlan(session, epoch, is_final=True)
        if in_steps:
            to_do = self._in_steps(session, add, forget, row_due=True)
            return FetchPlan(session, epoch, expected_epoch=session.epoch, to_do=to_do)
        if add or forget:
            self._change(session, add, forget, row_due=True)
        return FetchPlan(session, epoch, tuple(session.fetch_order(epoch)), expected_epoch=session.epoch)

    def acknowledge(
        self, group_id: str, member_id: str, epoch: int, *, acknowledged: Iterable[TopicPartition] = ()
    ) -> AcknowledgePlan:
        """Use or end a session by ShareAcknowledge. The partitions `acknowledged` are not added to
        the session.

        Raises KafkaError, with nothing changed: share_session_not_found,
        invalid_share_session_epoch.
        """
        if epoch == INITIAL_EPOCH:
            raise KafkaError(ErrorCode.invalid_share_session_epoch)
        session = self._expect(group_id, member_id, epoch)
        session._hold_elsewhere(acknowledged)
        return AcknowledgePlan(session, epoch, epoch == FINAL_EPOCH)

    def is_current(self, plan: FetchPlan) -> bool:
        """False if the session was used, replaced or ended while the request waited: records
        acquired now would reach no client."""
        session = plan.session
        return session.epoch == plan.expected_epoch and self._sessions.get(session.key) is session

    def close(self, session: ShareSession) -> bool:
        """Remove the session from the table; the caller releases its records. False if it is no
        longer there: its connection has ended, or the member has a newer session, which keeps the
        member's records."""
        if self._sessions.get(session.key) is not session:
            return False
        self._remove(session)
        return True

    def connection_closed(self, connection_id: Hashable) -> list[ShareSession]:
        """Remove every session that this connection created and that has not been replaced, even if
        another connection used it last."""
        closed = list(self._by_connection.get(connection_id, {}).values())
        for session in closed:
            self._remove(session)
        self._evictions += len(closed)
        return closed

    def of_connection(self, connection_id: Hashable) -> list[ShareSession]:
        """The sessions that this connection created, and that have not ended."""
        return list(self._by_connection.get(connection_id, {}).values())

    def get(self, group_id: str, member_id: str) -> ShareSession | None:
        """The member's session. A member that holds records has one, and they are released with
        it."""
        return self._sessions.get((group_id, member_id))

    def has_group(self, group_id: str) -> bool:
        """True if a member of the group has a session."""
        return group_id in self._groups

    def statistics(self) -> ShareSessionsStatistics:
        held_elsewhere = sum(len(session.held_elsewhere) for session in self._sessions.values())
        return ShareSessionsStatistics(
            len(self._sessions), self._partitions, held_elsewhere, self._evictions, self._refused
        )

    def _open(
        self,
        key: SessionKey,
        connection_id: Hashable,
        add: Sequence[TopicPartition],
        has_acks: bool,
        in_steps: bool,
    ) -> FetchPlan:
        if has_acks:
            raise KafkaError(ErrorCode.invalid_request)
        replaced = self._sessions.get(key)
        if replaced is None and len(self._sessions) >= self.max_sessions:
            self._refused += 1
            raise KafkaError(ErrorCode.share_session_limit_reached)
        self._check_room(add, less=0 if replaced is None else len(replaced._places))
        if replaced is not None:
            self._remove(replaced)
        session = ShareSession(key, connection_id, partial(self._may_hold, key.group_id))
        self._sessions[key] = session
        self._groups[key.group_id] += 1
        self._by_connection.setdefault(connection_id, {})[key] = session
        if in_steps:
            to_do = self._in_steps(session, add, (), row_due=False)
            return FetchPlan(session, INITIAL_EPOCH, replaced=replaced, to_do=to_do)
        self._change(session, add, (), row_due=False)
        return FetchPlan(session, INITIAL_EPOCH, tuple(session.fetch_order(INITIAL_EPOCH)), replaced=replaced)

    def _change(
        self,
        session: ShareSession,
        add: Sequence[TopicPartition],
        forget: Sequence[TopicPartition],
        *,
        row_due: bool,
    ) -> None:
        before = len(session._places)
        session._add(add, row_due=row_due)
        if forget:
            session._forget(forget)
        self._partitions += len(session._places) - before

    def _in_steps(
        self,
        session: ShareSession,
        add: Sequence[TopicPartition],
        forget: Sequence[TopicPartition],
        *,
        row_due: bool,
    ) -> Iterator[None]:
        """The session may end between two steps. Raises share_session_limit_reached if others have
        taken the room meanwhile; the session keeps what it has got."""
        for partitions, is_added in ((add, True), (forget, False)):
            for some in parts(partitions):
                if self._sessions.get(session.key) is not session:
                    return
                if is_added:
                    self._check_room(some, session._places)
                self._change(session, some if is_added else (), () if is_added else some, row_due=row_due)
                yield

    def _check_room(
        self, add: Sequence[TopicPartition], known: Collection[TopicPartition] = (), less: int = 0
    ) -> None:
        """`known`: those that the session has. Every fetch names some, to acknowledge them."""
        room = MAX_PARTITIONS - self._partitions + less
        if len(add) > room and (not known or sum(partition not in known for partition in add) > room):
            self._refused += 1
            raise KafkaError(ErrorCode.share_session_limit_reached)

    def _expect(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """The session, with its epoch consumed. The final epoch is not compared and consumes
        nothing."""
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise KafkaError(ErrorCode.share_session_not_found)
        if epoch != FINAL_EPOCH:
            if epoch != session.epoch:
                raise KafkaError(ErrorCode.invalid_share_session_epoch)
            session.epoch = next_epoch(epoch)
        return session

    def _remove(self, session: ShareSession) -> None:
        del self._sessions[session.key]
        self._partitions -= len(session._places)
        self._groups[session.key.group_id] -= 1
        if not self._groups[session.key.group_id]:
            del self._groups[session.key.group_id]
        of_connection = self._by_connection[session.connection_id]
        del of_connection[session.key]
        if not of_connection:
            del self._by_connection[session.connection_id]


def next_epoch(epoch: int) -> int:
    """1 to 2147483647 and then 1 again, never 0."""
    return 1 if epoch >= MAX_EPOCH else epoch + 1
