"""One LMDB environment: opened once per process and directory, shared by the store and the readers
of that directory.

LMDB must never be opened twice in one process (its locks are per process), hence the table of open
environments below. Commits are synced: unsynced LMDB came back corrupt from power cuts. No write
map: with one, a full disk kills the process.

Sub-database handles. A handle is opened in a write transaction (py-lmdb gives up those opened in a
read one), so openings, creations and drops exclude each other. Handles stay open, as opening costs
more than reading; before a drop, `forget` waits until no read uses the handle. py-lmdb cannot close
a handle: at `max_handles` the environment is reopened, which closes all.

A read transaction does not know handles that were opened after it began. A read that meets one
restarts.

Waiting for the writer. py-lmdb's `open_db` waits for LMDB's writer lock while it holds the GIL. The
thread that has the lock needs the GIL to end its transaction: a deadlock. So `_writing` is always
taken first; waiting for it releases the GIL.

This module must not know what is stored.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

import lmdb

from kbroker.errors import NoSpace, OperatorError, StoreFailed
from kbroker.storage.files import Files, make_directory
from kbroker.storage.keyvalue.shared_lock import SharedLock

Handle: TypeAlias = lmdb._Database  # py-lmdb names the type only this way
Transaction: TypeAlias = "lmdb.Transaction[memoryview]"
T = TypeVar("T")

DATA = "data.mdb"
LOCK = "lock.mdb"
LOCK_BYTES = 128 << 10
"""More than LMDB needs for MAX_READERS."""
MAX_READERS = 1024
SPARE_TRANSACTIONS = 8
SMALLEST_MAP_BYTES = 1 << 30

NEARLY_FULL_BYTES = 16 << 20

_COPY_TO_STDOUT = "import sys, lmdb; lmdb.open(sys.argv[1], readonly=True).copyfd(1, compact=True)"

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_MAP_REFUSED = {errno.ENOMEM, errno.EINVAL, errno.EFBIG, errno.EOVERFLOW}


class MissingHandle(Exception):
    """`read` opens the sub-database and runs its work again."""

    def __init__(self, name: bytes) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True, slots=True)
class LmdbStatistics:
    """`file_bytes` includes pages that are free for reuse; the file never shrinks."""

    file_bytes: int
    map_bytes: int
    open_handles: int
    readers: int


class LmdbEnvironment:
    """Get one with `open_environment`, give it back with `close`."""

    def __init__(self, directory: Path, *, read_only: bool, map_bytes: int, max_handles: int) -> None:
        self.directory = directory
        self._max_handles = max_handles
        self.read_only = read_only
        self.users = 1
        self._lock = SharedLock()
        self._writing = threading.Lock()
        self._handles: dict[bytes, Handle] = {}
        self._openings = 0
        self._created: dict[bytes, Handle] = {}  # by the write transaction that is open
        self._failed: str | None = None
        self._env, self._map_bytes = _open(directory, read_only, map_bytes, max_handles)

    def read(self, work: Callable[[Transaction], T]) -> T:
        """What `work` gives for a read transaction over one moment. Values are views that die with
        it; `work` may run again."""
        missing_before = b""
        while True:
            openings = self._openings
            try:
                with self._lock, self._env.begin(buffers=True) as transaction:
                    return work(transaction)
            except MissingHandle as missing:
                if missing.name == missing_before:
                    raise StoreFailed(f"{self.directory}: no sub-database {missing.name!r}") from missing
                missing_before = missing.name
                self._open_handle(missing.name)
            except lmdb.Error as error:
                if isinstance(error, lmdb.InvalidParameterError) and openings != self._openings:
                    continue
                raise StoreFailed(f"{self.directory}: {error}") from error

    @contextmanager
    def long_read(self) -> Iterator[Transaction]:
        """A read transaction for a caller that holds it: over the main database only, and not in
        one thread with a close()."""
        try:
            with self._env.begin(buffers=True) as transaction:
                yield transaction
        except lmdb.Error as error:
            raise StoreFailed(f"{self.directory}: {error}") from error

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """A write transaction: on leaving, all of it is on disk, or none of it and NoSpace or
        StoreFailed is raised."""
        self.check()
        with self._writing:
            self._created.clear()
            try:
                with self._env.begin(write=True, buffers=True) as transaction:
                    yield transaction
            except lmdb.Error as error:
                raise self._failure(error) from error
            if self._created:
                self._openings += 1
                self._handles.update(self._created)

    def check(self) -> None:
        """StoreFailed when an earlier write failed for another reason than a full disk."""
        if self._failed is not None:
            raise StoreFailed(self._failed)

    def _failure(self, error: lmdb.Error) -> Exception:
        if is_full(error, self.directory):
            # Nothing refers to the pages of the refused transaction. Only a meta page that could
            # not be written is serious, and LMDB says so by refusing every later transaction.
            try:
                self._env.begin(write=True).abort()
            except lmdb.Error as panic:
                error = panic
            else:
                return NoSpace(f"{self.directory}: {error}")
        self._failed = f"{self.directory}: {error}"
        return StoreFailed(self._failed)

    def handle(self, name: bytes) -> Handle:
        """The open sub-database `name`, for use inside `read`, which opens it and starts again if
        it is not."""
        try:
            return self._handles[name]
        except KeyError:
            raise MissingHandle(name) from None

    def handle_in(self, transaction: Transaction, name: bytes) -> Handle:
        """The sub-database `name`, made if needed, for use inside `write`."""
        found = self._handles.get(name) or self._created.get(name)
        if found is None:
            found = self._created[name] = self._env.open_db(name, txn=transaction)
        return found

    def drop_in(self, transaction: Transaction, name: bytes) -> None:
        """Remove a sub-database that was forgotten before."""
        # a read that began before the forgetting may have opened it again; it does not use it
        self._handles.pop(name, None)
        transaction.drop(self._env.open_db(name, txn=transaction))

    def forget(self, names: Iterable[bytes]) -> None:
        """Before sub-databases are dropped, and after readers can no longer find their names: waits
        for the reads under way."""
        self._env.reader_check()  # what dead readers pin would not be reused
        with self._lock.alone():
            for name in names:
                self._handles.pop(name, None)

    def _open_handle(self, name: bytes) -> None:
        """Waits for the write under way. A sub-database that is gone meanwhile is left to `work`,
        which then looks for it no more."""
        with self._writing:
            if name in self._handles:  # opened by another reader meanwhile, or made by that write
                return
            if len(self._handles) >= self._max_handles - 64:
                self._open_again()
            self._openings += 1
            try:
                self._handles[name] = self._env.open_db(name, create=False)
            except lmdb.NotFoundError:
                return
            except lmdb.Error as error:
                raise StoreFailed(f"{self.directory}: {error}") from error

    def _open_again(self) -> None:
        with self._lock.alone():
            self._env.close()
            self._handles.clear()
            self._env, self._map_bytes = _open(
                self.directory, self.read_only, self._map_bytes, self._max_handles
            )

    def statistics(self) -> LmdbStatistics:
        info = self._env.info()
        page_bytes = self._env.stat()["psize"]
        return LmdbStatistics(
            (info["last_pgno"] + 1) * page_bytes, info["map_size"], len(self._handles), info["num_readers"]
        )

    def close(self) -> None:
        """The last user's call closes the environment. Not while another thread reads."""
        with _table_lock:
            self.users -= 1
            if self.users:
                return
            _open_environments.pop((os.getpid(), self.directory), None)
            with self._lock.alone():
                self._handles.clear()
                self._env.close()


def is_full(error: Exception, directory: Path) -> bool:
    """Whether LMDB, or the making of its files, failed for want of space."""
    code = getattr(error, "errno", None) or getattr(error, "code", 0)
    if isinstance(error, lmdb.DiskError | lmdb.MapFullError) or code in _FULL:
        return True
    # LMDB calls it an I/O error when the disk is full after a part of a page run. Believing that
    # too often is harmless: what was committed before is synced, and this transaction was not
    # committed.
    status = os.statvfs(directory)
    return code == errno.EIO and status.f_bavail * status.f_frsize < NEARLY_FULL_BYTES


_table_lock = threading.Lock()
_open_environments: dict[tuple[int, Path], LmdbEnvironment] = {}


def open_environment(
    directory: Path, *, read_only: bool, map_bytes: int, max_handles: int
) -> LmdbEnvironment:
    """The environment of `directory`, made if it is not read-only. OperatorError when it cannot be
    opened."""
    files = Files()
    if not read_only:
        make_directory(directory, files)
    directory = directory.resolve()
    key = (os.getpid(), directory)
    with _table_lock:
        found = _open_environments.get(key)
        if found is None:
            if not read_only:
                _create(directory, files)
            found = LmdbEnvironment(
                directory, read_only=read_only, map_bytes=map_bytes, max_handles=max_handles
            )
            _open_environments[key] = found
        elif found.read_only and not read_only:
            raise OperatorError(
                f"{directory} is already open in this process, read-only: close that reader first"
            )
        else:
            found.users += 1
        return found


def _create(directory: Path, files: Files) -> None:
    """An environment under its name only once it is on disk: LMDB does not sync the first two pages
    of a new file, nor its name, and refuses for good a file in which a power cut left zeros
    instead."""
    if (directory / DATA).exists():
        return
    temporary = directory / "data.tmp"
    files.remove_tree(temporary)
    files.mkdir(temporary)
    env = lmdb.open(str(temporary), map_size=SMALLEST_MAP_BYTES, lock=False)
    env.sync(True)
    env.close()
    _allocate_lock_file(directory / LOCK, files)
    files.rename(temporary / DATA, directory / DATA)
    files.fsync_dir(directory)
    files.remove_tree(temporary)


def _allocate_lock_file(path: Path, files: Files) -> None:
    """LMDB writes to this file through a mapping, and makes it as a hole: on a full disk that is a
    SIGBUS."""
    fd = files.open(path, os.O_RDWR | os.O_CREAT)
    try:
        files.allocate(fd, 0, LOCK_BYTES)
    finally:
        files.close(fd)


def _open(directory: Path, read_only: bool, map_bytes: int, max_handles: int) -> tuple[lmdb.Environment, int]:
    """Smaller maps are tried where the system refuses a large one; the file grows with its content,
    whatever the map's size."""
    while True:
        try:
            env = lmdb.open(
                str(directory), map_size=map_bytes, max_dbs=max_handles, max_readers=MAX_READERS,
                max_spare_txns=SPARE_TRANSACTIONS,
                readonly=read_only, create=not read_only, sync=True, metasync=True, writemap=False, lock=True,
            )  # fmt: skip
        except (lmdb.Error, OSError) as error:
            if getattr(error, "code", 0) in _MAP_REFUSED and map_bytes > SMALLEST_MAP_BYTES:
                map_bytes //= 2
                continue
            if isinstance(error, lmdb.ReadonlyError) or getattr(error, "code", 0) in {
                errno.EACCES,
                errno.EROFS,
            }:
                raise OperatorError(
                    f"{directory}: reading needs permission to write lock.mdb there: use the broker's user"
                ) from error
            raise OperatorError(
                f"{directory}: cannot open the LMDB environment: {_reason(directory / DATA, error)}"
            ) from error
        env.reader_check()  # slots of readers that were killed pin old pages
        try:
            _check_length(env, directory)
        except OperatorError:
            env.close()
            raise
        return env, map_bytes


def _reason(data: Path, error: Exception) -> str:
    """LMDB's own words for a file that is not there, or has nothing in it, are those of a system
    call."""
    if not data.exists():
        return f"{DATA} is missing: restore a backup"
    return str(error) if data.stat().st_size else f"{DATA} is empty: restore a backup"


def _check_length(env: lmdb.Environment, directory: Path) -> None:
    """OperatorError for a file that was cut, or copied in part. LMDB maps its file without a look
    at its length, and a page in use beyond the end is a SIGBUS.

    The last pages may also be missing in good order, where one commit allocated and freed them. So
    where the file is too short, all pages in use are read once, in a process that may die of it.
    Not filled with zeros: LMDB ends the process for some of those."""
    needed_bytes = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    # after `info`: a broker in another process may go on writing
    size_bytes = (directory / DATA).stat().st_size
    if size_bytes < needed_bytes and not _can_be_read_whole(directory):
        raise OperatorError(
            f"{directory / DATA} has {size_bytes} bytes and needs {needed_bytes}: its end is missing, as "
            "after a copy that "
            "was not finished; copy it again or restore a backup"
        )


def _can_be_read_whole(directory: Path) -> bool:
    """Copying walks all pages that are in use and those that tell which are free."""
    command = [sys.executable, "-c", _COPY_TO_STDOUT, str(directory)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        while child.stdout.read(1 << 20):
            pass
    return child.returncode == 0
