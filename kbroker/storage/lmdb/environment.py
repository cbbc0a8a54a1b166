"""One LMDB environment: opened once per process and directory, shared by the store and the readers
of that directory.

LMDB must never be opened twice in one process, because its locks are per process; hence the table
of open environments below. Commits are synced: without that, power cuts left corrupt files. There
is no write map, because with one a full disk kills the process.

Sub-database handles: a handle is opened in a write transaction (py-lmdb discards those opened in a
read transaction), so openings, creations and drops exclude each other. Handles stay open, since
opening costs more than reading. Before a drop, `forget` waits until no read uses the handle.
py-lmdb cannot close a single handle: at `max_handles` the environment is reopened, which closes
all.

A read transaction cannot use handles that were opened after it began. A read that needs one
restarts.

Waiting for the writer: py-lmdb's `open_db` waits for LMDB's writer lock while it holds the GIL. The
thread that holds the lock needs the GIL to end its transaction, which would be a deadlock. So
`_writing` is always acquired first; waiting for it releases the GIL.

This module must not know what is stored.
"""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

import lmdb

from kbroker.errors import NoSpace, OperatorError, StoreFailed
from kbroker.storage.files import Files, make_directory
from kbroker.storage.keyvalue.shared_lock import SharedLock

Handle: TypeAlias = lmdb._Database  # py-lmdb has no public name for the type
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

_PAGES = struct.Struct("=8x3Q16x")
"""LMDB's MDB_db: branch, leaf and overflow pages, between fields that are not needed here."""
_SPARE_HANDLES = 64
"""For sub-databases that write transactions create."""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_MAP_REFUSED = {errno.ENOMEM, errno.EINVAL, errno.EFBIG, errno.EOVERFLOW}


class MissingHandle(Exception):
    """`read` then opens the first of these sub-databases, which is needed, and repeats its work.
    Each time that this happens again, it opens twice as many of the following ones with it."""

    def __init__(self, names: Sequence[bytes]) -> None:
        super().__init__(names[0])
        self.names = names


@dataclass(frozen=True, slots=True)
class LmdbStatistics:
    """`file_bytes` includes pages that are free for reuse; the file never shrinks."""

    file_bytes: int
    map_bytes: int
    open_handles: int
    readers: int


class LmdbEnvironment:
    """Obtain one from `open_environment`, and release it with `close`."""

    def __init__(self, directory: Path, *, read_only: bool, map_bytes: int, max_handles: int) -> None:
        self.directory = directory
        self._max_handles = max_handles
        self.read_only = read_only
        self.users = 1
        self._lock = SharedLock()
        self._writing = threading.Lock()
        self._handles: dict[bytes, Handle] = {}
        self._openings = 0
        self._created: dict[bytes, Handle] = {}  # by the current write transaction
        self._failed: str | None = None
        self._env, self._map_bytes = _open(directory, read_only, map_bytes, max_handles)

    def read(self, work: Callable[[Transaction], T]) -> T:
        """The result of `work` in a read transaction. Values in it are views, valid until it ends.
        `work` may run more than once."""
        missing_before, most = b"", 1
        while True:
            openings = self._openings
            try:
                with self._lock, self._env.begin(buffers=True) as transaction:
                    return work(transaction)
            except MissingHandle as missing:
                needed = missing.names[0]
                if needed == missing_before:
                    raise StoreFailed(f"{self.directory}: no sub-database {needed!r}") from missing
                missing_before = needed
                self._open_handles(missing.names[:most])
                most *= 2
            except lmdb.Error as error:
                if isinstance(error, lmdb.InvalidParameterError) and openings != self._openings:
                    continue
                raise StoreFailed(f"{self.directory}: {error}") from error

    @contextmanager
    def long_read(self) -> Iterator[Transaction]:
        """A read transaction that the caller keeps open. Only for the main database; the thread
        must not call close() meanwhile."""
        try:
            with self._env.begin(buffers=True) as transaction:
                yield transaction
        except lmdb.Error as error:
            raise StoreFailed(f"{self.directory}: {error}") from error

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """A write transaction. On leaving, either all of it is on disk, or NoSpace or StoreFailed
        is raised and none of it is kept."""
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
        """Raises StoreFailed if an earlier write failed other than by a full disk."""
        if self._failed is not None:
            raise StoreFailed(self._failed)

    def _failure(self, error: lmdb.Error) -> Exception:
        if is_full(error, self.directory):
            # Nothing refers to the pages of the failed transaction. Only a failed write of a meta
            # page is serious, and then LMDB refuses every later transaction.
            try:
                self._env.begin(write=True).abort()
            except lmdb.Error as panic:
                error = panic
            else:
                return NoSpace(f"{self.directory}: {error}")
        self._failed = f"{self.directory}: {error}"
        return StoreFailed(self._failed)

    def handle(self, name: bytes) -> Handle:
        """The open sub-database `name`, for use inside `read`. If it is not open, `read` opens it
        and starts over."""
        try:
            return self._handles[name]
        except KeyError:
            raise MissingHandle((name,)) from None

    def handle_in(self, transaction: Transaction, name: bytes) -> Handle:
        """The sub-database `name`, created if needed, for use inside `write`."""
        found = self._handles.get(name) or self._created.get(name)
        if found is None:
            found = self._created[name] = self._env.open_db(name, txn=transaction)
        return found

    def drop_in(self, transaction: Transaction, name: bytes) -> None:
        """Remove a sub-database, after `forget`."""
        # a read that began before `forget` may have reopened it, but does not use it
        self._handles.pop(name, None)
        transaction.drop(self._env.open_db(name, txn=transaction))

    def forget(self, names: Iterable[bytes]) -> None:
        """Wait for current reads, before sub-databases are dropped. New readers must no longer find
        their names."""
        self._env.reader_check()  # pages pinned by dead readers would not be reused
        with self._lock.alone():
            for name in names:
                self._handles.pop(name, None)

    def _open_handles(self, names: Sequence[bytes]) -> None:
        """Open handles, after the current write, as many as there is room for; at least the first.
        Sub-databases that were dropped meanwhile are left out: `work` will no longer look for
        them."""
        with self._writing:
            if names[0] not in self._handles and self._room() <= 0:
                self._open_again()
            for name in names[: max(1, self._room())]:
                if name not in self._handles:  # opened by another reader, or created by that write
                    self._open_handle(name)

    def _room(self) -> int:
        return self._max_handles - _SPARE_HANDLES - len(self._handles)

    def _open_handle(self, name: bytes) -> None:
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

    def reusable_bytes(self) -> int:
        """The pages of the file that no database has."""

        def work(transaction: Transaction) -> int:
            main, file_pages = self._env.stat(), self._env.info()["last_pgno"] + 1
            used = main["branch_pages"] + main["leaf_pages"] + main["overflow_pages"]
            if self._max_handles:  # The values of the unnamed database describe the named ones.
                used += sum(sum(_PAGES.unpack(value)) for _, value in transaction.cursor())
            return max(0, file_pages - used) * main["psize"]

        return self.read(work)

    def close(self) -> None:
        """The last user's call closes the environment. No other thread may be reading."""
        with _table_lock:
            self.users -= 1
            if self.users:
                return
            _open_environments.pop((os.getpid(), self.directory), None)
            with self._lock.alone():
                self._handles.clear()
                self._env.close()


def is_full(error: Exception, directory: Path) -> bool:
    """Whether LMDB, or the creation of its files, failed for lack of space."""
    code = getattr(error, "errno", None) or getattr(error, "code", 0)
    if isinstance(error, lmdb.DiskError | lmdb.MapFullError) or code in _FULL:
        return True
    # LMDB reports an I/O error if the disk fills in the middle of a run of pages. Mistaking another
    # error for that is harmless: earlier commits are synced, and this transaction was not
    # committed.
    status = os.statvfs(directory)
    return code == errno.EIO and status.f_bavail * status.f_frsize < NEARLY_FULL_BYTES


_table_lock = threading.Lock()
_open_environments: dict[tuple[int, Path], LmdbEnvironment] = {}


def open_environment(
    directory: Path, *, read_only: bool, map_bytes: int, max_handles: int
) -> LmdbEnvironment:
    """The environment of `directory`, created if needed unless `read_only`. Raises OperatorError if
    it cannot be opened, NoSpace if it cannot be created for lack of space."""
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
    """Create an environment, and rename it into place once it is on disk. LMDB syncs neither the
    first two pages of a new file nor its name, and it never opens a file in which a power cut left
    zeros instead."""
    if (directory / DATA).exists():
        return
    temporary = directory / "data.tmp"
    files.remove_tree(temporary)
    files.mkdir(temporary)
    try:
        env = lmdb.open(str(temporary), map_size=SMALLEST_MAP_BYTES, lock=False)
        env.sync(True)
        env.close()
    except lmdb.Error as error:
        what = f"{directory}: cannot create the LMDB environment: {error}"
        raise (NoSpace if is_full(error, directory) else OperatorError)(what) from error
    _allocate_lock_file(directory / LOCK, files)
    files.rename(temporary / DATA, directory / DATA)
    files.fsync_dir(directory)
    files.remove_tree(temporary)


def _allocate_lock_file(path: Path, files: Files) -> None:
    """Allocate lock.mdb. LMDB would create it as a hole and write to it through a mapping: on a
    full disk that is a SIGBUS."""
    fd = files.open(path, os.O_RDWR | os.O_CREAT)
    try:
        files.allocate(fd, 0, LOCK_BYTES)
    finally:
        files.close(fd)


def _open(directory: Path, read_only: bool, map_bytes: int, max_handles: int) -> tuple[lmdb.Environment, int]:
    """Open the environment, with a smaller map if the system refuses a large one. The file grows
    with its content, whatever the size of the map."""
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
        env.reader_check()  # slots of killed readers pin old pages
        try:
            _check_length(env, directory)
        except OperatorError:
            env.close()
            raise
        return env, map_bytes


def _reason(data: Path, error: Exception) -> str:
    """LMDB's error, or a better one for a missing or empty file, where LMDB only quotes a system
    call."""
    if not data.exists():
        return f"{DATA} is missing: restore a backup"
    return str(error) if data.stat().st_size else f"{DATA} is empty: restore a backup"


def _check_length(env: lmdb.Environment, directory: Path) -> None:
    """Raises OperatorError if the file was cut, or copied in part. LMDB maps its file without
    checking its length, and a used page beyond the end is a SIGBUS.

    The last pages may also be missing legitimately, if one commit allocated and freed them. So if
    the file is too short, all used pages are read once, in a process that may crash. Filling the
    file with zeros is no option: for some zero pages LMDB aborts the process."""
    needed_bytes = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    # after `info`, since a broker in another process may still be writing
    size_bytes = (directory / DATA).stat().st_size
    if size_bytes < needed_bytes and not _can_be_read_whole(directory):
        raise OperatorError(
            f"{directory / DATA} has {size_bytes} bytes and needs {needed_bytes}: its end is missing, as "
            "after a copy that "
            "was not finished; copy it again or restore a backup"
        )


def _can_be_read_whole(directory: Path) -> bool:
    """Copying reads all used pages and the list of free ones."""
    command = [sys.executable, "-c", _COPY_TO_STDOUT, str(directory)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        while child.stdout.read(1 << 20):
            pass
    return child.returncode == 0
