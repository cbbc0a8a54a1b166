"""The LogStore of a key-value engine, except for the database: the list of logs and segments in
memory, and the order of steps.

`chunked_log` decides each change, the engine commits it, and only then do readers see it. An engine
implements `_commit`, which commits changes, `_read`, which reads chunks, `_check`, and `logs`,
`sync` and `close` of the SPI. If it removes chunks up to `cut_end` of a change, and not all to the
end of the segment, it may set `replaces`. This module must not know any engine.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kbroker.storage.keyvalue import chunked_log
from kbroker.storage.keyvalue.chunked_log import LogChange, LogState
from kbroker.storage.keyvalue.chunks import ChunkSource, find_in_chunks, join, read_chunks
from kbroker.storage.keyvalue.replacement import ChunkedReplacement
from kbroker.storage.spi import (
    LogBounds,
    LogId,
    LogReader,
    LogSettings,
    LogStore,
    Replacement,
    SegmentInfo,
    StampedBatch,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChunkedStatistics:
    """`batch_bytes`: size of the record batches, without the overhead of the database."""

    logs: int
    segments: int
    batch_bytes: int


class ChunkedLogReader(LogReader):
    """A LogReader, except for `logs` and `close`."""

    @abstractmethod
    def _read(self, log: LogId, work: Callable[[LogState, ChunkSource], T]) -> T:
        """The result of `work` for a log and its chunks, both as of one moment. `work` may be
        called more than once. Raises KeyError if there is no such log."""

    def bounds(self, log: LogId) -> LogBounds:
        return self._read(log, lambda state, _: state.bounds)

    def segments(self, log: LogId) -> Sequence[SegmentInfo]:
        return self._read(log, lambda state, _: [segment.info() for segment in state.segments])

    def read(self, log: LogId, offset: int, *, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        return self._read(
            log,
            lambda state, chunks: join(
                read_chunks(chunks, state.segments, offset, max_bytes=max_bytes, end_offset=end_offset)
            ),
        )

    def find_by_timestamp(self, log: LogId, timestamp_ms: int) -> int | None:
        return self._read(log, lambda state, chunks: find_in_chunks(chunks, state.segments, timestamp_ms))


class ChunkedLogStore(ChunkedLogReader, LogStore):
    """A LogStore, except for `sync` and `close`. Readers in other threads see a change whole or not
    at all."""

    def __init__(self, logs: dict[LogId, LogState], garbage: Iterable[int] = ()) -> None:
        """`logs`: as stored, including the totals of active segments. `garbage`: numbers of
        segments that must still be freed."""
        self._logs = logs
        numbers = [segment.number for state in logs.values() for segment in state.segments]
        self._last_number = max((*numbers, *garbage), default=0)
        self._last_log_number = max((state.number for state in logs.values()), default=0)

    @abstractmethod
    def _check(self) -> None:
        """Raises StoreFailed if the store failed earlier."""

    @abstractmethod
    def _commit(self, changes: Sequence[LogChange], *, durable: bool) -> None:
        """Store all of the changes or none. With `durable` they are on disk on return, otherwise
        after the next sync()."""

    def logs(self) -> Sequence[LogId]:
        return tuple(self._logs)

    def bounds(self, log: LogId) -> LogBounds:
        return self._logs[log].bounds

    def segments(self, log: LogId) -> Sequence[SegmentInfo]:
        return [segment.info() for segment in self._logs[log].segments]

    def tail_offset(self, log: LogId) -> int:
        return self._logs[log].segments[-1].base_offset

    def create(self, log: LogId, settings: LogSettings) -> None:
        self._check()
        state = self._logs.get(log)
        if state is None:
            change = chunked_log.create(log, settings, self._last_log_number + 1, self._new_number)
        elif state.settings == settings:
            return
        else:
            changed = LogState(log, state.number, settings, state.segments)
            change = LogChange(changed, state.segments, [chunked_log.log_entry(changed)])
        self._store([change])
        self._last_log_number = max(self._last_log_number, change.state.number)
        self._logs[log] = change.state

    def drop(self, log: LogId) -> None:
        self._check()
        state = self._logs.get(log)
        if state is not None:
            self._store([chunked_log.drop(state)])

    def trim(self, log: LogId, new_start: int) -> None:
        self._check()
        change = chunked_log.trim(self._logs[log], new_start, self._new_number)
        self._store([change] if change else ())

    def truncate(self, log: LogId, new_end: int) -> None:
        self._check()
        change = self._read(
            log, lambda state, chunks: chunked_log.truncate(state, new_end, chunks, self._new_number)
        )
        self._store([change] if change else ())

    def write(self, batches: Sequence[StampedBatch], *, now_ms: int) -> None:
        self._check()
        self._store(chunked_log.append_all(self._logs, batches, now_ms, self._new_number), durable=False)

    def replacing(self, log: LogId, base_offset: int) -> Replacement:
        self._check()
        return ChunkedReplacement(self, log, base_offset)

    # For ChunkedReplacement

    def log_state(self, log: LogId) -> LogState:
        return self._logs[log]

    def read_chunks(self, log: LogId, work: Callable[[LogState, ChunkSource], T]) -> T:
        self._check()
        return self._read(log, work)

    def commit(self, change: LogChange) -> None:
        self._store([change], durable=False)

    def _totals(self) -> tuple[int, int, int]:
        """The fields of ChunkedStatistics."""
        segments = [segment for state in tuple(self._logs.values()) for segment in state.segments]
        return (len(self._logs), len(segments), sum(segment.size_bytes for segment in segments))

    def _new_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _store(self, changes: Sequence[LogChange], *, durable: bool = True) -> None:
        """Commit the changes and make them visible. On return, readers no longer find dropped logs
        and segments."""
        if not changes:
            return
        self._commit(changes, durable=durable)
        for change in changes:
            if not change.segments:
                del self._logs[change.state.log]
            change.apply()
