"""Incremental fetch sessions (KIP-227): a consumer names its partitions once, then only the
changes.

A session is found by its number and belongs to a principal, but to no connection. The cache is
bounded in sessions and in bytes, as clients determine how many partitions a session has. When it is
full, sessions are evicted: first those whose last request came over a connection that is closed,
then the least recently used. Their clients start over after FETCH_SESSION_ID_NOT_FOUND.

A session that would take too large a part of the cache, or that has a name that no topic can have,
does not begin: its client names all partitions in every request, as with a cache without slots.
"""

from __future__ import annotations

import random
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from kbroker.broker.logs.partition import Partition
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.responses import FetchRow
from kbroker.protocol.topic_names import is_legal
from kbroker.security.principals import Principal
from kbroker.turns import ROWS_A_TURN

TopicKey: TypeAlias = str | int
"""A topic as the client names it: by name up to v12, by UUID.int of its id from v13, which is
cheaper to hash than a UUID."""

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_MAX_EPOCH = (1 << 31) - 1

MAX_BYTES: Final = 128 << 20
"""Of all sessions. That is 250 000 partitions."""
MAX_SESSION_BYTES: Final = MAX_BYTES // 4
_SESSION_BYTES: Final = 2000
_TOPIC_BYTES: Final = 400
_PARTITION_BYTES: Final = 500
"""As measured, rounded up."""


class FetchPartition:
    """A client's request for one partition. In a session, a new request for the same partition
    replaces it and takes over `found` and `known`.

    - `found`: the partition, once looked up; invalid when it is deleted
    - `known`: the high watermark and log start offset that the client last received, None after an
      error
    """

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "found",
        "key",
        "known",
        "last_fetched_epoch",
        "max_bytes",
    )

    def __init__(
        self,
        key: tuple[TopicKey, int],
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int,
        last_fetched_epoch: int,
    ) -> None:
        self.key = key
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.found: Partition | None = None
        self.known: tuple[int, int] | None = None


FetchedRow: TypeAlias = tuple[FetchPartition, FetchRow]
FetchRows: TypeAlias = list[FetchedRow]


class FetchSession:
    """The partitions of one incremental session, in the order in which they are served.

    - `owner`: whose client began it
    - `connection_id`: over which its last request came
    - `topics`: how many of its partitions each topic has
    - `bytes`: what it takes in memory, about"""

    __slots__ = ("by_id", "bytes", "connection_id", "epoch", "owner", "partitions", "session_id", "topics")

    def __init__(self, session_id: int, by_id: bool, owner: Principal, connection_id: int) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.owner = owner
        self.connection_id = connection_id
        self.epoch = 1
        self.partitions: OrderedDict[tuple[TopicKey, int], FetchPartition] = OrderedDict()
        self.topics: dict[TopicKey, int] = {}
        self.bytes = _SESSION_BYTES

    def update(
        self, wanted: Sequence[FetchPartition], forgotten: Sequence[tuple[TopicKey, int]]
    ) -> tuple[list[TopicKey], list[TopicKey]]:
        """A partition that is both wanted and forgotten is forgotten, as in Kafka. Returns the
        topics that are new in the session, and those that have left it."""
        partitions, topics = self.partitions, self.topics
        new: list[TopicKey] = []
        left: list[TopicKey] = []
        for asked in wanted:
            before = partitions.get(asked.key)
            if before is not None:
                asked.found, asked.known = before.found, before.known
            else:
                name = asked.key[0]
                if name in topics:
                    topics[name] += 1
                else:
                    topics[name] = 1
                    new.append(name)
                    self.bytes += _TOPIC_BYTES + sys.getsizeof(name)
                self.bytes += _PARTITION_BYTES
            partitions[asked.key] = asked
        for key in forgotten:
            if partitions.pop(key, None) is not None:
                name = key[0]
                topics[name] -= 1
                self.bytes -= _PARTITION_BYTES
                if not topics[name]:
                    del topics[name]
                    left.append(name)
                    self.bytes -= _TOPIC_BYTES + sys.getsizeof(name)
        return new, left

    def due(self, rows: Sequence[FetchedRow]) -> FetchRows:
        """The rows with news for the client, and only those; remembers what it knows from then on.
        Partitions with records or a diverging epoch move to the end of the session."""
        due: FetchRows = []
        for asked, row in rows:
            known = None if row.error_code else (row.high_watermark, row.log_start_offset)
            has_news = row.records or row.diverging is not None
            if has_news or known is None or known != asked.known:
                due.append((asked, row))
            # Another request may have removed it while this one waited.
            if has_news and asked.key in self.partitions:
                self.partitions.move_to_end(asked.key)
            asked.known = known
        return due


class FetchSessionsStatistics(NamedTuple):
    sessions: int
    partitions: int
    evictions: int
    bytes: int


class FetchSessions:
    """`max_sessions`: max.incremental.fetch.session.cache.slots."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._by_connection: dict[int, dict[int, FetchSession]] = {}
        self._left: dict[int, FetchSession] = {}
        """Those whose connection has closed, in that order."""
        self._by_topic: dict[TopicKey, dict[int, FetchSession]] = {}
        self._bytes = 0
        self._evictions = 0

    def statistics(self) -> FetchSessionsStatistics:
        return FetchSessionsStatistics(
            len(self._sessions),
            sum(len(session.partitions) for session in self._sessions.values()),
            self._evictions,
            self._bytes,
        )

    def topic_deleted(self, name: str, topic_id: UUID, partitions: int) -> None:
        """Release the deleted partitions: sessions of clients that have disappeared stay until they
        are evicted."""
        for key in (name, topic_id.int):
            for session in self._by_topic.get(key, {}).values():
                for number in range(partitions):
                    asked = session.partitions.get((key, number))
                    if asked is not None and asked.found is not None and asked.found.deleted:
                        asked.found = None

    def connection_closed(self, connection_id: int) -> None:
        """The sessions that it used last are evicted before all others."""
        self._left.update(self._by_connection.pop(connection_id, {}))

    def fetch(
        self,
        session_id: int,
        epoch: int,
        by_id: bool,
        wanted: Sequence[FetchPartition],
        forgotten: Sequence[tuple[TopicKey, int]],
        owner: Principal,
        connection_id: int,
    ) -> FetchSession | None:
        """The session of this request; None for a fetch without one. A session of another principal
        is not found: answers name its topics, and its number can be guessed.

        A long request leaves `wanted` and `forgotten` empty, and continues with `update`.

        Raises FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or
        FETCH_SESSION_TOPIC_ID_ERROR."""
        session = self._sessions.get(session_id)
        if session is not None and session.owner != owner:
            session = None
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None:
                self.forget(session)
            return self._open(by_id, wanted, owner, connection_id) if epoch == INITIAL_EPOCH else None
        if session is None:
            raise KafkaError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.invalid_fetch_session_epoch)
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.fetch_session_topic_id_error)
        session.epoch = 1 if session.epoch == _MAX_EPOCH else session.epoch + 1
        self._sessions.move_to_end(session_id)
        if session.connection_id != connection_id or session_id in self._left:
            self._detach(session)
            self._attach(session, connection_id)
        if (wanted or forgotten) and not self._update(session, wanted, forgotten):
            raise KafkaError(ErrorCode.fetch_session_id_not_found)  # The client starts over.
        return session

    def has(self, session: FetchSession) -> bool:
        return self._sessions.get(session.session_id) is session

    def update(
        self,
        session: FetchSession,
        wanted: Sequence[FetchPartition],
        forgotten: Sequence[tuple[TopicKey, int]],
    ) -> Iterator[None]:
        """What a long request names. Yields where others should get a turn. Ends the session if it
        must not be kept; meanwhile it may be evicted."""
        if len(wanted) * _PARTITION_BYTES > MAX_SESSION_BYTES:
            self.forget(session)
        for at in range(0, len(wanted) + len(forgotten), ROWS_A_TURN):
            if not self.has(session):
                return
            begin, end = (max(each - len(wanted), 0) for each in (at, at + ROWS_A_TURN))
            self._update(session, wanted[at : at + ROWS_A_TURN], forgotten[begin:end])
            yield

    def forget(self, session: FetchSession) -> None:
        """End a session of which the client will not learn."""
        if self._sessions.pop(session.session_id, None) is None:
            return
        self._detach(session)
        self._unlist(session, session.topics)
        self._bytes -= session.bytes

    def _open(
        self, by_id: bool, wanted: Sequence[FetchPartition], owner: Principal, connection_id: int
    ) -> FetchSession | None:
        if self._max_sessions <= 0:
            return None
        if len(self._sessions) >= self._max_sessions:
            self._evict()
        session_id = random.randint(1, _MAX_EPOCH)
        while session_id in self._sessions:
            session_id = random.randint(1, _MAX_EPOCH)
        session = FetchSession(session_id, by_id, owner, connection_id)
        self._sessions[session_id] = session
        self._bytes += session.bytes
        self._attach(session, connection_id)
        return session if self._update(session, wanted, ()) else None

    def _update(
        self,
        session: FetchSession,
        wanted: Sequence[FetchPartition],
        forgotten: Sequence[tuple[TopicKey, int]],
    ) -> bool:
        """False: it must not be kept, and has ended."""
        before = session.bytes
        new, left = session.update(wanted, forgotten)
        if not (new or left) and session.bytes == before:
            return True  # Mostly a consumer only names its next offsets, which changes no list.
        self._bytes += session.bytes - before
        for key in new:
            self._by_topic.setdefault(key, {})[session.session_id] = session
        self._unlist(session, left)
        if session.bytes > MAX_SESSION_BYTES or not all(isinstance(key, int) or is_legal(key) for key in new):
            self.forget(session)
            return False
        while self._bytes > MAX_BYTES:
            self._evict()
        return True

    def _evict(self) -> None:
        """One that the client of this request does not use: that is the last in both."""
        self.forget(next(iter((self._left or self._sessions).values())))
        self._evictions += 1

    def _attach(self, session: FetchSession, connection_id: int) -> None:
        session.connection_id = connection_id
        self._by_connection.setdefault(connection_id, {})[session.session_id] = session

    def _detach(self, session: FetchSession) -> None:
        self._left.pop(session.session_id, None)
        own = self._by_connection.get(session.connection_id)
        if own is not None:
            own.pop(session.session_id, None)
            if not own:
                del self._by_connection[session.connection_id]

    def _unlist(self, session: FetchSession, topics: Iterable[TopicKey]) -> None:
        for key in topics:
            listed = self._by_topic.get(key)
            if listed is not None:
                listed.pop(session.session_id, None)
                if not listed:
                    del self._by_topic[key]
