"""Incremental fetch sessions (KIP-227): a consumer names its partitions once, then only the
changes.

A session is found by its number and belongs to a principal, but to no connection. When the cache is
full, the least recently used session is evicted; its client starts over after
FETCH_SESSION_ID_NOT_FOUND.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

from kbroker.broker.logs.partition import Partition
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.responses import FetchRow
from kbroker.security.principals import Principal

TopicKey: TypeAlias = str | int
"""A topic as the client names it: by name up to v12, by UUID.int of its id from v13, which is
cheaper to hash than a UUID."""

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_MAX_EPOCH = (1 << 31) - 1


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


FetchRows: TypeAlias = list[tuple[FetchPartition, FetchRow]]


class FetchSession:
    """The partitions of one incremental session, in the order in which they are served. `owner`:
    whose client began it."""

    __slots__ = ("by_id", "epoch", "owner", "partitions", "session_id")

    def __init__(self, session_id: int, by_id: bool, owner: Principal) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.owner = owner
        self.epoch = 1
        self.partitions: OrderedDict[tuple[TopicKey, int], FetchPartition] = OrderedDict()

    def update(self, wanted: list[FetchPartition], forgotten: list[tuple[TopicKey, int]]) -> None:
        """A partition that is both wanted and forgotten is forgotten, as in Kafka."""
        partitions = self.partitions
        for asked in wanted:
            before = partitions.get(asked.key)
            if before is not None:
                asked.found, asked.known = before.found, before.known
            partitions[asked.key] = asked
        for key in forgotten:
            partitions.pop(key, None)

    def due(self, rows: FetchRows) -> FetchRows:
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


@dataclass(frozen=True, slots=True)
class FetchSessionsStatistics:
    sessions: int
    partitions: int
    evictions: int


class FetchSessions:
    """`max_sessions`: max.incremental.fetch.session.cache.slots."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._evictions = 0

    def statistics(self) -> FetchSessionsStatistics:
        return FetchSessionsStatistics(
            len(self._sessions), sum(len(s.partitions) for s in self._sessions.values()), self._evictions
        )

    def topic_deleted(self) -> None:
        """Release the deleted partitions: sessions of clients that have disappeared stay until they
        are evicted."""
        for session in self._sessions.values():
            for asked in session.partitions.values():
                if asked.found is not None and asked.found.deleted:
                    asked.found = None

    def fetch(
        self,
        session_id: int,
        epoch: int,
        by_id: bool,
        wanted: list[FetchPartition],
        forgotten: list[tuple[TopicKey, int]],
        owner: Principal,
    ) -> FetchSession | None:
        """The session of this request; None for a fetch without one. A session of another principal
        is not found: answers name its topics, and its number can be guessed.

        Raises FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or
        FETCH_SESSION_TOPIC_ID_ERROR."""
        session = self._sessions.get(session_id)
        if session is not None and session.owner != owner:
            session = None
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None:
                del self._sessions[session_id]
            return self._open(by_id, wanted, owner) if epoch == INITIAL_EPOCH else None
        if session is None:
            raise KafkaError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.invalid_fetch_session_epoch)
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.fetch_session_topic_id_error)
        session.epoch = 1 if session.epoch == _MAX_EPOCH else session.epoch + 1
        session.update(wanted, forgotten)
        self._sessions.move_to_end(session_id)
        return session

    def forget(self, session: FetchSession) -> None:
        """End a session of which the client will not learn."""
        self._sessions.pop(session.session_id, None)

    def _open(self, by_id: bool, wanted: list[FetchPartition], owner: Principal) -> FetchSession | None:
        if self._max_sessions <= 0:
            return None
        if len(self._sessions) >= self._max_sessions:
            self._sessions.popitem(last=False)
            self._evictions += 1
        session_id = random.randint(1, _MAX_EPOCH)
        while session_id in self._sessions:
            session_id = random.randint(1, _MAX_EPOCH)
        session = FetchSession(session_id, by_id, owner)
        session.update(wanted, [])
        self._sessions[session_id] = session
        return session
