"""State in SQLite: one table of keys and values. BLOB keys compare bytewise, as the StateStore SPI
requires.

A commit waits until it is durable, so the broker calls write() in its commit thread. This module
must not know what keys mean.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from kbroker.storage.keyvalue.key_ranges import Entries, piece_of, prefix_end, scan_in_pieces
from kbroker.storage.spi import Change, StateReader, StateStore
from kbroker_sqlite.database import Database, Reads, SqliteStatistics

FILE = "state.sqlite"
_TABLES = "CREATE TABLE IF NOT EXISTS state (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;"
_GET = "SELECT value FROM state WHERE key = ?"
_SCAN = "SELECT key, value FROM state WHERE key >= ? AND substr(key, 1, ?) = ? ORDER BY key"
_SCAN_TO = "SELECT key, value FROM state WHERE key >= ? AND key < ? ORDER BY key"
_PIECE = _SCAN_TO + " LIMIT ?"


class _Moment(StateReader):
    """The state at one moment, in a read transaction that the caller holds open."""

    keeps_keys_on_disk = True

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def get(self, key: bytes) -> bytes | None:
        found = self._connection.execute(_GET, (key,)).fetchone()
        return None if found is None else found[0]

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from _entries(self._connection, prefix)

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return scan_in_pieces(lambda *asked: _piece(self._connection, *asked), first, end)

    @contextmanager
    def snapshot(self) -> Iterator[_Moment]:
        yield self

    def close(self) -> None:
        """Nothing to do: the end of the `snapshot()` block closes it."""


def _entries(connection: sqlite3.Connection, prefix: bytes) -> Entries:
    end = prefix_end(prefix)
    if end is not None:
        return connection.execute(_SCAN_TO, (prefix, end)).fetchall()
    # A prefix of ff bytes has no end key.
    return connection.execute(_SCAN, (prefix, len(prefix), prefix)).fetchall()


def _piece(
    connection: sqlite3.Connection, first: bytes, end: bytes, count: int
) -> tuple[Entries, bytes | None]:
    return piece_of(connection.execute(_PIECE, (first, end, count)).fetchall(), count)


class SqliteStateReader(StateReader):
    """A StateReader, in the broker's process or another one."""

    keeps_keys_on_disk = True

    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    def get(self, key: bytes) -> bytes | None:
        with self._reads.moment() as connection:
            return _Moment(connection).get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._reads.moment() as connection:  # Read whole, because a caller may leave a scan unfinished.
            found = _entries(connection, prefix)
        yield from found

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return scan_in_pieces(self._piece, first, end)

    def _piece(self, first: bytes, end: bytes, count: int) -> tuple[Entries, bytes | None]:
        with self._reads.moment() as connection:
            return _piece(connection, first, end, count)

    @contextmanager
    def snapshot(self) -> Iterator[_Moment]:
        with self._reads.long_moment() as connection:
            yield _Moment(connection)

    def close(self) -> None:
        self._reads.close()


class SqliteStateStore(SqliteStateReader, StateStore):
    """One synced transaction per write()."""

    def __init__(self, database: Database) -> None:
        super().__init__(database.reads)
        self._database = database

    def write(self, changes: Sequence[Change]) -> None:
        self._database.check()
        if not changes:
            return
        with self._database.write() as connection:
            for key, value in changes:
                if value is None:
                    connection.execute("DELETE FROM state WHERE key = ?", (key,))
                else:
                    connection.execute("REPLACE INTO state VALUES (?, ?)", (key, value))

    def sync(self) -> None:
        """Commits are synced already, so this only raises an earlier failure."""
        self._database.check()

    def statistics(self) -> SqliteStatistics:
        return self._database.statistics()

    def close(self) -> None:
        self._database.close()


def open_store(directory: Path, options: Mapping[str, str], owner_epoch: int) -> SqliteStateStore:
    return SqliteStateStore(Database(directory / FILE, _TABLES))


def open_reader(directory: Path) -> SqliteStateReader:
    return SqliteStateReader(Reads(directory / FILE))
