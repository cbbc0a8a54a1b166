"""The segment engine and the data directory reach the file system only through this module, so that
tests can inject faults.

Most methods are system calls, under their own names. Some do more: a sync uses the call that the
platform really honours (F_FULLFSYNC on macOS). `write_atomically` replaces a file so that a crash
leaves the old one or the new one. `allocate` reserves disk space, so that a full disk shows before
anything is written. OSErrors pass through. This module must not know what the files mean.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import struct
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias, cast

Buffer: TypeAlias = bytes | bytearray | memoryview

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
NO_FILES = frozenset({errno.EMFILE, errno.ENFILE})
REFUSALS = NO_SPACE | NO_FILES
"""Of an operation that failed only for lack of something: it may be repeated later."""
MAX_BUFFERS = 1024
"""IOV_MAX of Linux and macOS: the most buffers that one pwritev accepts."""

_LOAD_STEP_BYTES = 1 << 16
_INT64_BYTES = 8
_SHAPE = struct.Struct("<2Q")
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_FIRST_KERNEL_WITH_SYNCFS_ERRORS = (5, 8)
_MAP_FIXED = 0x10
"""Of mmap(2): Python has no name for it. Linux and macOS have the same value."""
_MAP_NORESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""A segment may be larger than the memory."""


class Files:
    """The real file system. The other implementation is FaultyFiles in the tests."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def stat(self, path: Path) -> os.stat_result:
        return os.stat(path)

    def listdir(self, path: Path) -> list[str]:
        return os.listdir(path)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        return os.pwritev(fd, buffers, position)

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        return os.preadv(fd, [buffer], position)

    def has_data_behind(self, fd: int, position: int) -> bool:
        """False only if everything from `position` on is zeros: a hole, or space that was allocated
        and never written."""
        try:
            os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            return error.errno != errno.ENXIO
        return True

    def data_end(self, fd: int, position: int) -> int:
        """Where the next hole begins. A hint: some file systems turn written zeros into holes."""
        try:
            return os.lseek(fd, position, os.SEEK_HOLE)
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.EINVAL):
                raise
            return self.size(fd)

    def ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def is_ours_alone(self, fd: int) -> bool:
        """Whether nobody else has the file open or mapped, in any process. False also where the
        system cannot tell: only Linux has leases, and not on every file system.

        For files without a name: to open one that is leased sends this process a SIGIO."""
        if not hasattr(fcntl, "F_SETLEASE"):
            return False
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            return False
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True

    def allocate(self, fd: int, position: int, size: int) -> None:
        """Allocate disk space for the range. On file systems that overwrite in place, a write into
        it then cannot fail for lack of space."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, position, size)

    def fdatasync(self, fd: int) -> None:
        """Sync the file's data and size. The GIL is released meanwhile."""
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(fd)

    def fsync_dir(self, path: Path) -> None:
        """Sync the entries of the directory: files created, renamed or unlinked in it."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.fdatasync(fd) if sys.platform == "darwin" else os.fsync(fd)
        finally:
            os.close(fd)

    def can_syncfs(self) -> bool:
        """Whether `syncfs` exists and reports write errors."""
        return _syncfs() is not None

    def syncfs(self, fd: int) -> None:
        """Sync the whole file system that `fd` is on. Reports write errors of any of its files
        since `fd` was opened."""
        call = _syncfs()
        assert call is not None, "call can_syncfs() first"
        call(fd)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def mkdir(self, path: Path) -> None:
        os.mkdir(path)

    def chmod(self, path: Path, mode: int) -> None:
        os.chmod(path, mode)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with its contents; no error if it does not exist."""
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            if path.exists():
                raise

    def map(self, fd: int, size: int) -> memoryview:
        """Map the first `size` bytes, read-only, of a file that has as many. They are unmapped when
        the last view is gone.

        Python's mapping of a file keeps a file descriptor of its own. Views may wait in the answers
        to clients, and would then use up the open files of the process. So the file is mapped over
        memory that Python has mapped without a file."""
        room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | _MAP_NORESERVE)
        _map_over(room, fd, size)
        return memoryview(room).toreadonly()

    def read(self, path: Path) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write(self, path: Path, content: bytes) -> None:
        """Write a new small file. Not durable."""
        fd = self.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self.write_all(fd, [content], 0)
        finally:
            self.close(fd)

    def write_all(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        """Call pwritev until everything is written."""
        rest = [memoryview(buffer) for buffer in buffers if len(buffer)]
        while rest:
            written = self.pwritev(fd, rest[:MAX_BUFFERS], position)
            position += written
            rest = after(rest, written)

    def write_atomically(self, path: Path, parts: Sequence[Buffer]) -> None:
        """Replace the file. On return its content is on disk; its name follows with the next
        `fsync_dir` of the parent."""
        temporary = path.with_name(path.name + ".tmp")
        fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self.write_all(fd, parts, 0)
            self.fdatasync(fd)
        finally:
            self.close(fd)
        self.rename(temporary, path)

    def load(self, path: Path, start: int, end: int) -> None:
        """Bring the missing parts of a range into the page cache, in the calling thread and without
        the GIL.

        Loads nothing beyond the range: the kernel's readahead would fetch as much as 8 MiB more,
        which in an active segment are zeros."""
        fd = self.open(path, os.O_RDONLY)
        try:
            # Must come first: checking whether a page is resident reads it, with readahead.
            _advise(fd, 0, 0, "RANDOM")
            steps = [
                (position, min(_LOAD_STEP_BYTES, end - position))
                for position in range(start, end, _LOAD_STEP_BYTES)
            ]
            missing = [step for step in steps if not _is_resident(fd, *step)]
            if missing:
                _advise(fd, missing[0][0], end - missing[0][0], "WILLNEED")
                for position, size in missing:
                    os.preadv(fd, [bytearray(size)], position)
        finally:
            self.close(fd)

    def is_cached(self, path: Path, start: int, end: int) -> bool:
        """Whether the page cache has the whole range; false where the system does not tell. If not,
        the kernel begins to read the missing pages, and nothing else."""
        fd = self.open(path, os.O_RDONLY)
        try:
            _advise(fd, 0, 0, "RANDOM")
            return _is_resident(fd, start, end - start)
        finally:
            self.close(fd)

    def save_rows(self, directory: Path, rows: Sequence[Buffer]) -> None:
        """Write a new mmap-ninja array of int64, one row per buffer. On return it is on disk,
        except for the directory's own name.

        Zeros are written first. On a full disk that fails with ENOSPC, while writing through a
        mapping of a hole would be a SIGBUS."""
        import mmap_ninja.numpy  # imports numpy, so only once a segment is full
        import numpy

        (size,) = {memoryview(row).nbytes for row in rows}
        shape = _SHAPE.pack(len(rows), size // _INT64_BYTES)
        contents = {
            "data": bytes(len(rows) * size),
            "shape": shape,
            "dtype": b"int64",
            "order": b"C",
            "type": b"numpy",
        }
        self.mkdir(directory)
        for name, content in contents.items():
            fd = self.open(directory / f"{name}.ninja", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                self.write_all(fd, [content], 0)
            finally:
                self.close(fd)
        array = mmap_ninja.numpy.open_existing(directory, mode="r+")
        for stored, row in zip(array, rows, strict=True):
            stored[:] = numpy.frombuffer(row, dtype=numpy.int64)
        del array, stored
        for name in contents:
            fd = self.open(directory / f"{name}.ninja", os.O_RDWR)
            try:
                self.fdatasync(fd)
            finally:
                self.close(fd)
        self.fsync_dir(directory)


def after(buffers: Sequence[memoryview], count: int) -> list[memoryview]:
    """`buffers` without their first `count` bytes."""
    for number, buffer in enumerate(buffers):
        if count < len(buffer):
            return [buffer[count:], *buffers[number + 1 :]]
        count -= len(buffer)
    return []


def _advise(fd: int, start: int, size: int, advice: str) -> None:
    """RANDOM: no readahead. WILLNEED: start reading this whole range, and nothing else."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, start, size, getattr(os, f"POSIX_FADV_{advice}"))


def _is_resident(fd: int, position: int, size: int) -> bool:
    if not _NOWAIT:
        return False
    try:
        return os.preadv(fd, [bytearray(size)], position, _NOWAIT) == size
    except OSError:  # EAGAIN: it would block; EOPNOTSUPP: unknown
        return False


def _map_over(room: mmap.mmap, fd: int, size: int) -> None:
    """Map the beginning of a file in place of the memory of `room`."""
    import ctypes

    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    if _mmap()(start, size, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, fd, 0) != start:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def _mmap() -> Callable[..., int]:
    """mmap(2) through ctypes."""
    import ctypes

    function = ctypes.CDLL(None, use_errno=True).mmap
    function.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    function.restype = ctypes.c_void_p
    return cast("Callable[..., int]", function)


@cache
def _syncfs() -> Callable[[int], None] | None:
    """syncfs(2) through ctypes, if the kernel reports errors from it (Linux 5.8). Older kernels
    report success even when data was lost."""
    if sys.platform != "linux":
        return None
    major, minor = os.uname().release.split(".")[:2]
    if (int(major), int("".join(filter(str.isdigit, minor)) or 0)) < _FIRST_KERNEL_WITH_SYNCFS_ERRORS:
        return None
    import ctypes

    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except AttributeError:
        return None

    def call(fd: int) -> None:
        if function(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    return call


def make_directory(directory: Path, files: Files) -> None:
    """Create the directory and its parents. On return their names are durable as well."""
    if directory.is_dir():
        return
    make_directory(directory.parent, files)
    files.mkdir(directory)
    files.fsync_dir(directory.parent)
