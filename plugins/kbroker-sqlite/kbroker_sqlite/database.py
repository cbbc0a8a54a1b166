"""One SQLite database file: opening, transactions, and SQLite's errors as kbroker's.

WAL mode lets readers and the writer run at the same time. `synchronous=FULL` makes every commit
durable before it returns. Reads and writes use separate connections, so that a commit that waits
for the disk does not block a read.

This module must not know what the tables contain.
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
    """A database that is open for writing. `tables`: SQL that creates missing tables."""

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
        """One transaction. When the block ends, all of it is durable; otherwise none of it is
        stored, and NoSpace or StoreFailed is raised."""
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
        """Raises StoreFailed if an earlier write failed for another reason than a full disk."""
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
                f"{path} does not exist: no broker has stored data here with the sqlite engine"
            )
        try:
            self._connection = _connect(path, read_only=True)
        except sqlite3.Error as error:
            raise OperatorError(f"{path}: cannot open the SQLite database: {error}") from error

    @contextmanager
    def moment(self) -> Iterator[sqlite3.Connection]:
        """A read transaction, which shows the data of one moment. Keep it short, since SQLite
        cannot reuse its WAL meanwhile."""
        with self._lock, _moment(self._connection, self.path):
            yield self._connection

    @contextmanager
    def long_moment(self) -> Iterator[sqlite3.Connection]:
        """The same on a separate connection, for callers that keep it open for long."""
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
            # The transaction shows the moment of its first read.
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
            yield
        finally:
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise StoreFailed(f"{path}: {error}") from error


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Callers begin transactions themselves (isolation_level None), and make sure that one thread
    at a time uses the connection."""
    uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS)
