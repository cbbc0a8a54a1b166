"""Incremental fetch sessions (KIP-227): a consumer names its partitions once and then only what changes.

A session belongs to nobody in particular; it is found by its number. When the cache is full the session that was used longest
ago goes, and its owner starts again after FETCH_SESSION_ID_NOT_FOUND.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias
from uuid import UUID

from kbroker.errors import ErrorCode, KafkaError

TopicKey: TypeAlias = str | UUID
"""A topic as the client names it: by name to v12, by id from v13."""

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_MAX_EPOCH = (1 << 31) - 1


class FetchPartition(NamedTuple):
    """What a client asks of one partition."""

    topic: TopicKey
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1


class _Sent(NamedTuple):
    """What the client was told last about a partition: a row with the same content and no records is left out."""

    high_watermark: int
    log_start_offset: int
    error_code: int


class FetchSession:
    """The partitions of one incremental session, in the order in which they are served."""

    __slots__ = ("_sent", "by_id", "epoch", "partitions", "session_id")

    def __init__(self, session_id: int, by_id: bool) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.epoch = 1
        self.partitions: OrderedDict[tuple[TopicKey, int], FetchPartition] = OrderedDict()
        self._sent: dict[tuple[TopicKey, int], _Sent] = {}

    def update(self, wanted: list[FetchPartition], forgotten: list[tuple[TopicKey, int]]) -> None:
        """What is both wanted and forgotten is forgotten, as in Kafka."""
        for partition in wanted:
            self.partitions[(partition.topic, partition.partition)] = partition
        for key in forgotten:
            self.partitions.pop(key, None)
            self._sent.pop(key, None)

    def row_is_due(self, key: tuple[TopicKey, int], high_watermark: int, log_start_offset: int, error_code: int, has_records: bool) -> bool:
        """Whether the answer needs this row; notes what the client knows from now on. A row with records moves to the end."""
        sent = _Sent(high_watermark, log_start_offset, error_code)
        due = has_records or error_code != 0 or self._sent.get(key) != sent
        if error_code:
            self._sent.pop(key, None)
        else:
            self._sent[key] = sent
        if has_records:
            self.partitions.move_to_end(key)
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
        return FetchSessionsStatistics(len(self._sessions), sum(len(s.partitions) for s in self._sessions.values()), self._evictions)

    def fetch(
        self, session_id: int, epoch: int, by_id: bool, wanted: list[FetchPartition], forgotten: list[tuple[TopicKey, int]]
    ) -> FetchSession | None:
        """The session of this request, None for a fetch without one. Raises FETCH_SESSION_ID_NOT_FOUND,
        INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(session_id, None)
            return self._open(by_id, wanted) if epoch == INITIAL_EPOCH else None
        session = self._sessions.get(session_id)
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

    def _open(self, by_id: bool, wanted: list[FetchPartition]) -> FetchSession | None:
        if self._max_sessions <= 0:
            return None
        if len(self._sessions) >= self._max_sessions:
            self._sessions.popitem(last=False)
            self._evictions += 1
        session_id = random.randint(1, _MAX_EPOCH)
        while session_id in self._sessions:
            session_id = random.randint(1, _MAX_EPOCH)
        session = FetchSession(session_id, by_id)
        session.update(wanted, [])
        self._sessions[session_id] = session
        return session
