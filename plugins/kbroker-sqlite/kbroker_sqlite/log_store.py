"""Topic data in SQLite: chunks of record batches by (log, base offset), and a small table of logs and segments.

    table   columns
    meta    key, value                  the entries of kbroker.storage.chunked_log
    chunk   log, base_offset, value     chunks of kbroker.storage.chunks

What to store is decided by those two modules, as for kbroker's own key-value engines; this one turns it into SQL. A commit is on disk
when it returns and waits for it, so the broker calls the writing methods in its commit thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kbroker.storage import chunked_log
from kbroker.storage.chunked_log import LogChange, LogState
from kbroker.storage.chunks import Segment, find_in_chunks, join, read_chunks
from kbroker.storage.spi import LogBounds, LogId, LogSettings, SegmentInfo, StampedBatch
from kbroker_sqlite.database import Database, Reads, SqliteStatistics

T = TypeVar("T")

FILE = "log.sqlite"
_TABLES = """
    CREATE TABLE IF NOT EXISTS meta (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS chunk (log INTEGER, base_offset INTEGER, value BLOB NOT NULL, PRIMARY KEY (log, base_offset));
"""
_META_FROM = "SELECT key, value FROM meta WHERE key >= ? AND key < ? ORDER BY key"
_FLOOR = "SELECT base_offset FROM chunk WHERE log = ? AND base_offset BETWEEN ? AND ? ORDER BY base_offset DESC LIMIT 1"
_CHUNKS = "SELECT base_offset, value FROM chunk WHERE log = ? AND base_offset BETWEEN ? AND ? ORDER BY base_offset"
_LAST = (1 << 63) - 1


class _Chunks:
    """The ChunkSource of one log at one moment."""

    def __init__(self, connection: sqlite3.Connection, log_number: int) -> None:
        self._connection = connection
        self._log_number = log_number

    def chunks(self, segment: Segment, offset: int) -> Iterator[tuple[int, bytes]]:
        last = segment.end_offset - 1 if segment.size_bytes else _LAST  # chunks of the next segment are neighbours
        found = self._connection.execute(_FLOOR, (self._log_number, segment.base_offset, min(offset, last))).fetchone()
        first = segment.base_offset if found is None else found[0]
        yield from self._connection.execute(_CHUNKS, (self._log_number, first, last))


class SqliteLogReader:
    """A LogReader that looks everything up at each call, so that it follows a broker beside it."""

    may_block = True

    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    def logs(self) -> Sequence[LogId]:
        with self._reads.moment() as connection:
            return [chunked_log.parse_log(key, value).log for key, value in _meta(connection, chunked_log.LOG_PREFIX)]

    def bounds(self, log: LogId) -> LogBounds:
        return self._read(log, lambda state, _: state.bounds)

    def segments(self, log: LogId) -> Sequence[SegmentInfo]:
        return self._read(log, lambda state, _: [segment.info() for segment in state.segments])

    def read(self, log: LogId, offset: int, *, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        return self._read(
            log, lambda state, chunks: join(read_chunks(chunks, state.segments, offset, max_bytes=max_bytes, end_offset=end_offset))
        )

    def find_by_timestamp(self, log: LogId, timestamp_ms: int) -> int | None:
        return self._read(log, lambda state, chunks: find_in_chunks(chunks, state.segments, timestamp_ms))

    def close(self) -> None:
        self._reads.close()

    def _read(self, log: LogId, work: Callable[[LogState, _Chunks], T]) -> T:
        with self._reads.moment() as connection:
            state = self._state(log, connection)
            return work(state, _Chunks(connection, state.number))

    def _state(self, log: LogId, connection: sqlite3.Connection) -> LogState:
        key = chunked_log.log_key(log)
        found = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        if found is None:
            raise KeyError(log)
        state = chunked_log.parse_log(key, found[0])
        entries = _meta(connection, chunked_log.segments_prefix(state.number))
        state.segments = [chunked_log.parse_segment(key, value)[1] for key, value in entries]
        chunked_log.with_active(state, _Chunks(connection, state.number))
        return state


def _meta(connection: sqlite3.Connection, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    behind = prefix[:-1] + bytes((prefix[-1] + 1,)) if prefix[-1] < 0xFF else prefix + b"\xff" * 16
    yield from connection.execute(_META_FROM, (prefix, behind))


@dataclass(frozen=True, slots=True)
class SqliteLogStatistics:
    logs: int
    segments: int
    batch_bytes: int
    database: SqliteStatistics


class SqliteLogStore(SqliteLogReader):
    """The LogStore. It keeps the list of logs and segments in memory, the active segments' totals too."""

    write_in_thread = True

    def __init__(self, database: Database) -> None:
        super().__init__(database.reads)
        self._database = database
        with database.reads.moment() as connection:
            logs = list(_meta(connection, chunked_log.LOG_PREFIX))
            self._logs = chunked_log.parse_logs(logs, _meta(connection, chunked_log.SEGMENT_PREFIX))
            for state in self._logs.values():
                chunked_log.with_active(state, _Chunks(connection, state.number))
        self._last_number = max((each.number for state in self._logs.values() for each in state.segments), default=0)
        self._last_log_number = max((state.number for state in self._logs.values()), default=0)

    def logs(self) -> Sequence[LogId]:
        return tuple(self._logs)

    def bounds(self, log: LogId) -> LogBounds:
        return self._logs[log].bounds

    def segments(self, log: LogId) -> Sequence[SegmentInfo]:
        return [segment.info() for segment in self._logs[log].segments]

    def _state(self, log: LogId, connection: sqlite3.Connection) -> LogState:
        return self._logs[log]

    def create(self, log: LogId, settings: LogSettings) -> None:
        state = self._logs.get(log)
        if state is None:
            change = chunked_log.create(log, settings, self._last_log_number + 1, self._new_number)
        else:
            changed = LogState(log, state.number, settings, state.segments)
            change = LogChange(changed, state.segments, [chunked_log.log_entry(changed)])
        self._store([change])
        self._last_log_number = max(self._last_log_number, change.state.number)
        self._logs[log] = change.state

    def drop(self, log: LogId) -> None:
        self._database.check()
        if log in self._logs:
            self._store([chunked_log.drop(self._logs[log])])
            del self._logs[log]

    def trim(self, log: LogId, new_start: int) -> None:
        change = chunked_log.trim(self._logs[log], new_start, self._new_number)
        self._store([change] if change else [])

    def truncate(self, log: LogId, new_end: int) -> None:
        change = self._read(log, lambda state, chunks: chunked_log.truncate(state, new_end, chunks, self._new_number))
        self._store([change] if change else [])

    def write(self, batches: Sequence[StampedBatch], *, now_ms: int) -> None:
        self._store(chunked_log.append_all(self._logs, batches, now_ms, self._new_number))

    def sync(self) -> None:
        """Nothing to do: commits are synced."""
        self._database.check()

    def statistics(self) -> SqliteLogStatistics:
        segments = [segment for state in tuple(self._logs.values()) for segment in state.segments]
        size_bytes = sum(segment.size_bytes for segment in segments)
        return SqliteLogStatistics(len(self._logs), len(segments), size_bytes, self._database.statistics())

    def close(self) -> None:
        self._database.close()

    def _new_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _store(self, changes: Sequence[LogChange]) -> None:
        self._database.check()
        if not changes:
            return
        with self._database.write() as connection:
            for change in changes:
                _put(connection, change)
        for change in changes:
            if change.segments:
                change.apply()


def _put(connection: sqlite3.Connection, change: LogChange) -> None:
    log_number = change.state.number
    for key, value in change.meta:
        if value is None:
            connection.execute("DELETE FROM meta WHERE key = ?", (key,))
        else:
            connection.execute("REPLACE INTO meta VALUES (?, ?)", (key, value))
    for first, behind in chunked_log.removed_ranges(change):
        connection.execute("DELETE FROM chunk WHERE log = ? AND base_offset >= ? AND base_offset < ?", (log_number, first, behind))
    for _, base_offset, value in change.chunks:
        connection.execute("INSERT INTO chunk VALUES (?, ?, ?)", (log_number, base_offset, value))


def open_store(directory: Path, options: Mapping[str, str], owner_epoch: int) -> SqliteLogStore:
    return SqliteLogStore(Database(directory / FILE, _TABLES))


def open_reader(directory: Path) -> SqliteLogReader:
    return SqliteLogReader(Reads(directory / FILE))
