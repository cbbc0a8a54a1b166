"""One RocksDB database: opening, writing, syncing, and recovery from a full disk.

Options: raw mode, WAL on, no compression (batches are already compressed), no BlobDB (its reads are
3-5 times slower). A write goes to the WAL without a sync, which survives kill -9. `sync` is
`flush_wal(True)`, which releases the GIL while it waits (a synced `write` would not). Buffers and
cache are small, since bytes are read from the page cache anyway.

When the object of a column family is deleted, it writes its memtable to a table file, and holds the
GIL until that is on disk. So META's object lives as long as the database, and is closed with it
(which releases the GIL).

A full disk: after its first "No space left" RocksDB refuses every write, even when there is space
again. So the database is closed and reopened before the next write, once there is room for that
(opening turns the WAL into a table file). Reads continue meanwhile, from a read-only database if
the writable one could not be opened.

This module must not know what is stored.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TypeAlias

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    ColumnFamily,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from kbroker.errors import NoFiles, NoSpace, OperatorError, StoreFailed
from kbroker.storage.files import NO_FILES, Files
from kbroker.storage.keyvalue.key_ranges import Entries, piece_of
from kbroker.storage.keyvalue.shared_lock import SharedLock

META = "meta"
"""The column family for small keys; the default one holds the bulk."""

WRITE_BUFFER_BYTES = 16 << 20
META_BUFFER_BYTES = 4 << 20
ARENA_BLOCK_BYTES = 4 << 20
"""For memtables. The C library maps a block of this size separately and unmaps it with its memtable
(server/run.py). Smaller blocks would stay with the process: 15 MB after a burst of writes."""
BLOCK_CACHE_BYTES = 2 << 20
MAX_WAL_BYTES = 24 << 20
"""The WAL stays until the last of its column families is in a table file. Little more than both
buffers: what is in table files already takes its space twice until then."""
MOST_OPEN_TABLES = 512
LEAST_OPEN_TABLES = 20
"""RocksDB takes no smaller number."""
ROOM_TO_REOPEN_BYTES = 32 << 20
_SHORT_ROOMS = 4
"""Below so many times what the store needs, the disk has little."""
STALL_SECONDS = 0.002
MAX_STALLS = 30_000

Fill: TypeAlias = Callable[[WriteBatch, ColumnFamily], None]

_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
_NO_FILES = ("Too many open files",)
_AT_SYNC = ("While fsync", "While fdatasync")
_STALLED = "Write stall"


@dataclass(frozen=True, slots=True)
class RocksdbStatistics:
    """Bytes as RocksDB counts them. `full`: a write failed for lack of space or of open files, and
    the database was not reopened yet."""

    table_bytes: int
    memtable_bytes: int
    block_cache_bytes: int
    running_compactions: int
    full: bool


class _Reading:
    """A context manager by hand: a generator takes half as long as a point read."""

    __slots__ = ("_database", "_is_meta")

    def __init__(self, database: Rocksdb, is_meta: bool) -> None:
        self._database, self._is_meta = database, is_meta

    def __enter__(self) -> Rdict:
        return self._database.begin_read(meta=self._is_meta)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._database.end_read()
        if kind is Exception:  # rocksdict raises plain Exception for everything
            raise StoreFailed(f"{self._database.directory}: {error}") from error


class Rocksdb:
    """A database open for writing. The caller serialises all methods but `reading`; a write may run
    during a sync."""

    def __init__(self, directory: Path, *, holds_bulk: bool = True) -> None:
        """`holds_bulk`: the default column family is used."""
        self.directory = directory
        self._buffer_bytes = META_BUFFER_BYTES + holds_bulk * WRITE_BUFFER_BYTES
        self._files = Files()
        self._pause = Event()  # never set
        self._lock = SharedLock()
        self._failed: str | None = None
        self._full = False
        self._directory_fd = -1
        self._can_syncfs = self._files.can_syncfs()  # Opens files, so not when it is needed.
        self._db: Rdict | None = None
        self._meta: Rdict | None = None
        try:
            self._open_rdict(AccessType.read_write())
            self._directory_fd = self._files.open(directory, os.O_RDONLY)
        except Exception as error:  # rocksdict raises plain Exception for everything
            self.close()
            if _says_full(error):
                raise self._refusal(error) from error
            raise OperatorError(
                f"{directory}: cannot open the RocksDB database: {' '.join(str(error).split())}"
            ) from error

    def reading(self, *, meta: bool = False) -> _Reading:
        """The database, or its column family META, for a short read. Iterators and snapshots must
        be deleted before leaving. Raises StoreFailed for damaged blocks."""
        return _Reading(self, meta)

    def begin_read(self, *, meta: bool) -> Rdict:
        """Until `end_read`: for `reading`."""
        self._lock.__enter__()
        opened = self._meta if meta else self._db
        if opened is None:
            self._lock.__exit__()
            raise StoreFailed(f"{self.directory}: closed, or it could not be reopened after a full disk")
        return opened

    def end_read(self) -> None:
        self._lock.__exit__()

    def check(self) -> None:
        if self._failed is not None:
            raise StoreFailed(self._failed)

    def write(self, fill: Fill) -> None:
        """Write one atomic WriteBatch; `fill` gets META's handle. On return all of it survives kill
        -9; after an error none of it is kept."""
        self.check()
        if self._full:
            self._open_again()
        for _ in range(MAX_STALLS):
            if self._write(fill):
                return
            # RocksDB's own wait for the flush of memtables holds the GIL, and on a full disk it may
            # never end.
            self._pause.wait(STALL_SECONDS)
        raise self._fail(f"writes are held up for more than {MAX_STALLS * STALL_SECONDS:.0f} s")

    def _write(self, fill: Fill) -> bool:
        """False if RocksDB requires the writer to wait."""
        assert self._db is not None
        batch = WriteBatch(raw_mode=True)
        fill(batch, self._db.get_column_family_handle(META))
        try:
            self._db.write(batch, _no_waiting)
        except Exception as error:
            if _STALLED in str(error):
                return False
            raise self._failure(error) from error
        return True

    def sync(self) -> None:
        self.check()
        with self._lock:  # a concurrent write must not reopen the database meanwhile
            if self._full or not self._flush_wal():
                self._sync_wal_files()

    def _flush_wal(self) -> bool:
        """False if the disk is full."""
        assert self._db is not None
        try:
            self._db.flush_wal(True)
        except Exception as error:
            if not _says_full(error) or any(mark in str(error) for mark in _AT_SYNC):
                raise self._fail(str(error)) from error
            self._full = True
            return False
        return True

    def _sync_wal_files(self) -> None:
        """Sync the WAL files, which RocksDB no longer does after a full disk: earlier writes must
        still become durable. Without open files, sync the whole file system."""
        try:
            try:
                self._sync_each_wal_file()
            except OSError as error:
                if error.errno not in NO_FILES or not self._can_syncfs:
                    raise
                self._files.syncfs(self._directory_fd)
        except OSError as error:
            raise self._fail(str(error)) from error

    def _sync_each_wal_file(self) -> None:
        for name, _, _ in wal_and_current(self.directory):
            try:
                descriptor = self._files.open(self.directory / name, os.O_RDONLY)
            # its content is now in a table file, which RocksDB synced before it removed this
            # file
            except FileNotFoundError:
                continue
            try:
                self._files.fdatasync(descriptor)
            finally:
                self._files.close(descriptor)

    def _failure(self, error: Exception) -> Exception:
        if _says_full(error):
            self._full = True
            return self._refusal(error)
        return self._fail(str(error))

    def _refusal(self, error: Exception) -> NoSpace:
        text = str(error)
        if any(mark in text for mark in _NO_FILES):
            return NoFiles(f"{self.directory}: {text}; {NoFiles.remedy}")
        return NoSpace(f"{self.directory}: {text}")

    def _fail(self, text: str) -> StoreFailed:
        self._failed = f"{self.directory}: {text}"
        return StoreFailed(self._failed)

    def _open_again(self) -> None:
        """Reopen the database. Raises NoSpace while that is impossible."""
        free_bytes, room_bytes = self._room()
        if free_bytes < room_bytes:
            raise NoSpace(
                f"{self.directory}: {free_bytes} bytes are free, {room_bytes} are needed to continue"
            )
        with self._lock.alone_if_free() as alone:
            if not alone:
                raise NoSpace(f"{self.directory}: there is space again; it is in use at the moment")
            self._close_rdict()
            try:
                self._open_rdict(AccessType.read_write())
            except Exception as error:
                # fails if even its text log cannot be created: reads then wait for space, too
                # (`reading`)
                with suppress(Exception):
                    self._open_rdict(AccessType.read_only(False))
                raise self._refusal(error) from error
            self._full = False

    def _room(self) -> tuple[int, int]:
        """(free bytes, bytes that are needed to open the database). Raises NoSpace."""
        file_system = os.statvfs(self.directory)
        try:
            wal_bytes = sum(size_bytes for _, size_bytes, _ in wal_and_current(self.directory))
        except OSError as error:
            raise self._refusal(error) from error
        room_bytes = wal_bytes + _to_reopen(file_system.f_blocks * file_system.f_frsize)
        return file_system.f_bavail * file_system.f_frsize, room_bytes

    def least_free_bytes(self) -> int:
        """What opening needs when the memtables are full, and so does a compaction. With less, a
        single refused write would stop the store until someone else frees space."""
        disk = os.statvfs(self.directory)
        return self._buffer_bytes + _to_reopen(disk.f_blocks * disk.f_frsize)

    def reclaim(self, first: bytes, behind: bytes) -> None:
        """Free the space of a removed range of keys now, if the disk has little. RocksDB does that
        with a later compaction otherwise, which may not come while nothing is written. Without
        room even for that, the next write opens the database again."""
        with suppress(NoSpace):
            if self._full or self._room()[0] >= _SHORT_ROOMS * self.least_free_bytes():
                return
        assert self._db is not None
        assert self._meta is not None
        try:
            with self._lock:
                self._db.flush()
                self._meta.flush()
                self._db.compact_range(first, behind)
        except Exception as error:
            if not _says_full(error):
                raise self._fail(str(error)) from error
            self._full = True

    def _open_rdict(self, access: AccessType) -> None:
        self._db = open_rdict(self.directory, access)
        self._meta = self._db.get_column_family(META)

    def _close_rdict(self) -> None:
        if self._db is None or self._meta is None:
            return
        db, meta, self._db, self._meta = self._db, self._meta, None, None
        try:
            try:
                meta.close()
            finally:
                db.close()
        except Exception as error:
            # Closing flushes memtables. During or after a full disk it reports that it could not,
            # and closes anyway: nothing is lost, because the WAL has everything.
            if not self._full and self._failed is None and not _says_full(error):
                raise self._fail(str(error)) from error

    def statistics(self) -> RocksdbStatistics:
        with self.reading() as db:
            table, memtable, cache, compactions = (
                db.property_int_value(f"rocksdb.{name}") or 0
                for name in (
                    "total-sst-files-size",
                    "cur-size-all-mem-tables",
                    "block-cache-usage",
                    "num-running-compactions",
                )
            )
            return RocksdbStatistics(table, memtable, cache, compactions, self._full)

    def close(self) -> None:
        with self._lock.alone():
            self._close_rdict()
            if self._directory_fd >= 0:
                self._files.close(self._directory_fd)
                self._directory_fd = -1


def _to_reopen(disk_bytes: int) -> int:
    """Without the WAL."""
    return min(ROOM_TO_REOPEN_BYTES, disk_bytes // 8)


def _says_full(error: Exception) -> bool:
    """Or that the process may open no more files: RocksDB needs the same care then."""
    return any(mark in str(error) for mark in _FULL + _NO_FILES)


def open_rdict(directory: Path, access: AccessType) -> Rdict:
    return Rdict(
        str(directory),
        _options(WRITE_BUFFER_BYTES),
        column_families={"default": _options(WRITE_BUFFER_BYTES), META: _options(META_BUFFER_BYTES)},
        access_type=access,
    )


def _options(write_buffer_bytes: int) -> Options:
    tables = BlockBasedOptions()
    tables.set_block_cache(_block_cache)
    tables.set_block_size(16 * 1024)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(tables)
    options.set_compression_type(DBCompressionType.none())
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_write_buffer_number(3)
    options.set_arena_block_size(ARENA_BLOCK_BYTES)
    options.set_max_total_wal_size(MAX_WAL_BYTES)
    options.set_max_open_files(most_open_tables())
    options.set_max_background_jobs(2)
    options.set_bytes_per_sync(1 << 20)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_skip_stats_update_on_db_open(True)
    options.set_paranoid_checks(True)
    return options


def most_open_tables() -> int:
    """An eighth of the files that the process may open: a broker may have two databases, and half
    of all files belongs to connections."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_OPEN_TABLES
    return max(LEAST_OPEN_TABLES, min(MOST_OPEN_TABLES, files // 8))


_no_waiting = WriteOptions()
_no_waiting.no_slowdown = True
_block_cache = Cache(BLOCK_CACHE_BYTES)  # one for all databases of the process


def entries(iterator: RdictIter, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys that start with `prefix`, in order."""
    iterator.seek(prefix)
    while iterator.valid():
        key = iterator.key()
        if not key.startswith(prefix):
            return
        yield key, iterator.value()
        iterator.next()
    iterator.status()


def range_bounds(first: bytes, end: bytes) -> ReadOptions:
    """Options for an iterator that skips no removed keys outside of the range."""
    options = ReadOptions()
    options.set_iterate_lower_bound(first)
    options.set_iterate_upper_bound(end)
    return options


def read_piece(iterator: RdictIter, first: bytes, end: bytes, count: int) -> tuple[Entries, bytes | None]:
    """A piece of a range; see key_ranges.py."""
    found: Entries = []
    iterator.seek(first)
    while len(found) < count and iterator.valid():
        key: bytes = iterator.key()
        if key >= end:
            break
        found.append((key, iterator.value()))
        iterator.next()
    iterator.status()
    return piece_of(found, count)


def wal_and_current(directory: Path) -> Sequence[tuple[str, int, int]]:
    """Name, size and inode of the files that define the database's content. They change with every
    write."""
    found = []
    with os.scandir(directory) as listing:
        for entry in listing:
            if entry.name.endswith(".log") or entry.name == "CURRENT":
                with suppress(FileNotFoundError):  # removed meanwhile, its content is now in a table
                    status = entry.stat()
                    found.append((entry.name, status.st_size, status.st_ino))
    return sorted(found)
