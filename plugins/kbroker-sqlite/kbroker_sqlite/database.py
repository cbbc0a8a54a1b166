"""One SQLite database file: opening, transactions, and what SQLite's errors mean to kbroker.

WAL mode lets readers and the writer go on beside each other; `synchronous=FULL` puts every commit
on the disk before it returns. The writer has a connection of its own, as has reading: a commit that
waits for the disk must not hold up a read.

This module must not know what is stored.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from kbroker.errors import NoSpace, OperatorError, StoreFailed
from kbroker.storage.files import Files, make_directory

PAGE_BYTES = 16 * 1024
BUSY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class SqliteStatistics:
    """`file_bytes` includes pages that are free for reuse."""

    file_bytes: int
    free_bytes: int


class Database:
    """Open for writing. The tables are made if they are not there."""

    def __init__(self, path: Path, tables: str) -> None:
        files = Files()
        make_directory(path.parent, files)
        self.path = path
        self._failed: str | None = None
        try:
            self._writer = _connect(path, read_only=False)
            self._writer.execute(f"PRAGMA page_size={PAGE_BYTES}")
            self._writer.execute("PRAGMA journal_mode=WAL")
            self._writer.execute("PRAGMA synchronous=FULL")
            self._writer.executescript(tables)
        except sqlite3.Error as error:
            raise OperatorError(f"{path}: cannot open the SQLite database: {error}") from error
        files.fsync_dir(path.parent)
        self.reads = Reads(path)

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is on disk on leaving, or none of it and NoSpace or
        StoreFailed is raised."""
        self.check()
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            yield self._writer
            self._writer.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._failure(error) from error
        except BaseException:
            self._writer.execute("ROLLBACK")
            raise

    def check(self) -> None:
        """StoreFailed when an earlier write failed for another reason than a full disk."""
        if self._failed is not None:
            raise StoreFailed(self._failed)

    def _failure(self, error: sqlite3.Error) -> Exception:
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except sqlite3.Error as second:
            error = second
        else:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                return NoSpace(f"{self.path}: {error}")
        self._failed = f"{self.path}: {error}"
        return StoreFailed(self._failed)

    def statistics(self) -> SqliteStatistics:
        with self.reads.moment() as connection:
            (pages,), (free,) = (
                connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count")
            )
            return SqliteStatistics(pages * PAGE_BYTES, free * PAGE_BYTES)

    def close(self) -> None:
        self.reads.close()
        self._writer.close()


class Reads:
    """A read-only connection, used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        if not path.exists():
            raise OperatorError(
                f"{path} is not there: no broker has stored anything here with the sqlite engine"
            )
        try:
            self._connection = _connect(path, read_only=True)
        except sqlite3.Error as error:
            raise OperatorError(f"{path}: cannot open the SQLite database: {error}") from error

    @contextmanager
    def moment(self) -> Iterator[sqlite3.Connection]:
        """A read transaction: everything it shows is of one moment. Short: it keeps SQLite from
        reusing its WAL."""
        with self._lock, _moment(self._connection, self.path):
            yield self._connection

    @contextmanager
    def long_moment(self) -> Iterator[sqlite3.Connection]:
        """The same on a connection of its own, for a caller that keeps it."""
        connection = _connect(self.path, read_only=True)
        try:
            with _moment(connection, self.path):
                yield connection
        finally:
            connection.close()

    def close(self) -> None:
        with self._lock:
            self._connection.close()


@contextmanager
def _moment(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    try:
        connection.execute("BEGIN")
        try:
            # the moment is that of the first read
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
            yield
        finally:
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise StoreFailed(f"{path}: {error}") from error


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Transactions are begun by hand (isolation_level None), and the threads take turns by
    themselves."""
    uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS)
