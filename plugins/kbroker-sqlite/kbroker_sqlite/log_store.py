"""Topic data in SQLite: chunks of record batches by (log, base offset), and a small table of logs
and segments.

    table   columns
    meta    key, value                  the entries of kbroker.storage.keyvalue.chunked_log
    chunk   log, base_offset, value     chunks of kbroker.storage.keyvalue.chunks

Those two modules and `chunked_store` decide what to store and in which order, as for kbroker's own
key-value engines; this module executes it as SQL. A commit waits until it is durable, so the broker
calls the writing methods in its commit thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kbroker.storage.keyvalue import chunked_log
from kbroker.storage.keyvalue.chunked_log import LogChange, LogState
from kbroker.storage.keyvalue.chunked_store import ChunkedLogReader, ChunkedLogStore, ChunkedStatistics
from kbroker.storage.keyvalue.chunks import ChunkedSegment, ChunkSource
from kbroker.storage.spi import LogId
from kbroker_sqlite.database import Database, Reads, SqliteStatistics

T = TypeVar("T")

FILE = "log.sqlite"
_TABLES = """
    CREATE TABLE IF NOT EXISTS meta (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS chunk (
        log INTEGER, base_offset INTEGER, value BLOB NOT NULL, PRIMARY KEY (log, base_offset)
    );
"""
_META_FROM = "SELECT key, value FROM meta WHERE key >= ? AND key < ? ORDER BY key"
_FLOOR = (
    "SELECT base_offset FROM chunk WHERE log = ? AND base_offset BETWEEN ? AND ? ORDER BY base_offset "
    "DESC LIMIT 1"
)
_CHUNKS = (
    "SELECT base_offset, value FROM chunk WHERE log = ? AND base_offset BETWEEN ? AND ? ORDER BY base_offset"
)
_LAST = (1 << 63) - 1


class _Chunks:
    """The ChunkSource of one log at one moment."""

    def __init__(self, connection: sqlite3.Connection, log_number: int) -> None:
        self._connection = connection
        self._log_number = log_number

    def chunks(self, segment: ChunkedSegment, offset: int) -> Iterator[tuple[int, bytes]]:
        # The chunks of the next segment follow in the table.
        last = segment.end_offset - 1 if segment.end_offset > segment.base_offset else _LAST
        found = self._connection.execute(
            _FLOOR, (self._log_number, segment.base_offset, min(offset, last))
        ).fetchone()
        first = segment.base_offset if found is None else found[0]
        yield from self._connection.execute(_CHUNKS, (self._log_number, first, last))


class SqliteLogReader(ChunkedLogReader):
    """A LogReader that caches nothing, so that it follows a running broker."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    def logs(self) -> Sequence[LogId]:
        with self._reads.moment() as connection:
            return [
                chunked_log.parse_log(key, value).log
                for key, value in _meta(connection, chunked_log.LOG_PREFIX)
            ]

    def close(self) -> None:
        self._reads.close()

    def _read(self, log: LogId, work: Callable[[LogState, ChunkSource], T]) -> T:
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
class SqliteLogStatistics(ChunkedStatistics):
    database: SqliteStatistics


class SqliteLogStore(ChunkedLogStore, SqliteLogReader):
    """The LogStore: executes the changes that ChunkedLogStore decides, each call in a
    transaction."""

    replaces = True

    def __init__(self, database: Database) -> None:
        SqliteLogReader.__init__(self, database.reads)
        self._database = database
        with database.reads.moment() as connection:
            logs = list(_meta(connection, chunked_log.LOG_PREFIX))
            states = chunked_log.parse_logs(logs, _meta(connection, chunked_log.SEGMENT_PREFIX))
            for state in states.values():
                chunked_log.with_active(state, _Chunks(connection, state.number))
        ChunkedLogStore.__init__(self, states)

    def sync(self) -> None:
        """Commits are synced already, so this only raises an earlier failure."""
        self._check()

    def reusable_bytes(self) -> int:
        return self._database.statistics().free_bytes

    def statistics(self) -> SqliteLogStatistics:
        return SqliteLogStatistics(*self._totals(), self._database.statistics())

    def close(self) -> None:
        self._database.close()

    def _check(self) -> None:
        self._database.check()

    def _commit(self, changes: Sequence[LogChange], *, durable: bool) -> None:
        with self._database.write() as connection:
            for change in changes:
                _put(connection, change)

    def _state(self, log: LogId, connection: sqlite3.Connection) -> LogState:
        return self._logs[log]


def _put(connection: sqlite3.Connection, change: LogChange) -> None:
    log_number = change.state.number
    for key, value in change.meta:
        if value is None:
            connection.execute("DELETE FROM meta WHERE key = ?", (key,))
        else:
            connection.execute("REPLACE INTO meta VALUES (?, ?)", (key, value))
    for first, behind in chunked_log.removed_ranges(change):
        connection.execute(
            "DELETE FROM chunk WHERE log = ? AND base_offset >= ? AND base_offset < ?",
            (log_number, first, behind),
        )
    for _, base_offset, value in change.chunks:
        connection.execute("INSERT INTO chunk VALUES (?, ?, ?)", (log_number, base_offset, value))


def open_store(directory: Path, options: Mapping[str, str], owner_epoch: int) -> SqliteLogStore:
    return SqliteLogStore(Database(directory / FILE, _TABLES))


def open_reader(directory: Path) -> SqliteLogReader:
    return SqliteLogReader(Reads(directory / FILE))
