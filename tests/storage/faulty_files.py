"""A file system that fails on command: full disks, broken disks, short writes and crashes, selected
by operation and count.

    files = FaultyFiles()
    store = SegmentLogStore(directory, files=files)
    files.fail("fdatasync", errno.EIO)              # the next one
    files.fail("mkdir", errno.ENOSPC, after=2)      # the third from now
    files.shorten("pwritev", 100)                   # the next writes only 100 bytes: no error
    files.fill(after_bytes=10_000)                  # a disk with room for that many more bytes
    files.crash(after=7)                            # kill -9 at the eighth operation from now

All other calls reach the real files. This module must not know what the files contain.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbroker.storage.files import Buffer, Files


class Crashed(BaseException):
    """Stands for the death of the process: code under test must not catch it."""


@dataclass(slots=True)
class _Fault:
    operation: str
    remaining: int
    number: int
    times: float

    def strikes(self) -> bool:
        self.remaining -= 1
        if self.remaining >= 0:
            return False
        self.times -= 1
        return self.times >= 0


class FaultyFiles(Files):
    """`counts`: the number of calls by operation; `failed`: how many of them were made to fail."""

    can_allocate = True
    """False: allocate() does nothing, as on file systems that cannot reserve space."""
    has_syncfs = True

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failed = 0
        self._faults: list[_Fault] = []
        self._short: list[int] = []
        self._room: int | None = None
        self._ends: Counter[int] = Counter()
        self._before_crash = float("inf")

    def fail(self, operation: str, number: int = errno.EIO, *, after: int = 0, times: float = 1) -> None:
        """Let `operation` succeed `after` more times, then raise OSError(number) `times` times
        (float('inf'): always)."""
        assert callable(getattr(Files, operation)), operation
        self._faults.append(_Fault(operation, after, number, times))

    def shorten(self, operation: str, size: int) -> None:
        assert operation == "pwritev", "only writes can be short"
        self._short.append(size)

    def fill(self, after_bytes: int = 0) -> None:
        """Give the disk room for `after_bytes` more bytes. Creating files and directories takes no
        room, but fails when none is left."""
        self._room = after_bytes

    def crash(self, *, after: int) -> None:
        """Let `after` more operations succeed, then raise Crashed from every operation. If the
        first of these is a write, half of it reaches the file."""
        self._before_crash = after

    def heal(self) -> None:
        """Remove all faults, and give the disk room."""
        self._before_crash = float("inf")
        self._faults.clear()
        self._short.clear()
        self._room = None

    def _enter(self, operation: str, path: Path | None = None) -> None:
        self.counts[operation] += 1
        self._before_crash -= 1
        if self._before_crash < 0:
            raise Crashed(operation)
        for fault in self._faults:
            if fault.operation == operation and fault.strikes():
                self._raise(fault.number, path)

    def _raise(self, number: int, path: Path | None = None) -> None:
        self.failed += 1
        raise OSError(number, os.strerror(number), None if path is None else str(path))

    def _take(self, size: int) -> int:
        """How many of `size` bytes fit; raises ENOSPC if none do."""
        if self._room is None or not size:
            return size
        if not self._room:
            self._raise(errno.ENOSPC)
        taken = min(size, self._room)
        self._room -= taken
        return taken

    def _take_behind(self, fd: int, position: int, size: int) -> int:
        """How many bytes of a write fit. Bytes that overwrite earlier ones take no room."""
        inode = os.fstat(fd).st_ino
        overwritten = min(size, max(0, self._ends[inode] - position))
        size = overwritten + self._take(size - overwritten)
        self._ends[inode] = max(self._ends[inode], position + size)
        return size

    def _need_room(self) -> None:
        if self._room == 0:
            self._raise(errno.ENOSPC)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        size = sum(map(len, buffers))
        if self._before_crash == 0:
            super().pwritev(fd, [b"".join(buffers)[: size // 2]], position)
        self._enter("pwritev")
        if self._short:
            size = min(size, self._short.pop(0))
        if not self.can_allocate:
            size = self._take_behind(fd, position, size)
        data = b"".join(buffers)[:size]
        return super().pwritev(fd, [data], position)

    def allocate(self, fd: int, position: int, size: int) -> None:
        self._enter("allocate")
        if not self.can_allocate:
            return
        if self._room is not None and self._room < size:
            self._raise(errno.ENOSPC)
        self._take(size)
        super().allocate(fd, position, size)

    def can_syncfs(self) -> bool:
        return self.has_syncfs and super().can_syncfs()


def _counted(name: str) -> Callable[..., Any]:
    original = getattr(Files, name)

    def call(self: FaultyFiles, *arguments: Any, **named: Any) -> Any:
        path = arguments[0] if isinstance(arguments[0], Path) else None
        self._enter(name, path)
        if path is not None and name in ("mkdir", "write", "write_atomically", "save_rows"):
            self._need_room()
        return original(self, *arguments, **named)

    call.__name__ = name
    return call


for _name in (
    "open", "stat", "listdir", "preadv", "ftruncate", "fdatasync", "fsync_dir", "syncfs", "rename",
    "unlink", "mkdir", "remove_tree", "has_data_behind", "data_end", "map", "read", "write",
    "write_atomically", "load", "save_rows",
):  # fmt: skip
    setattr(FaultyFiles, _name, _counted(_name))
