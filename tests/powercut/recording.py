"""The recorder's log: how to start a process under it, read its records, and add marks and faults.

The format is drawn at the head of recorder/log.c. A mark is a record that another process, or the
recorded one, appends among the recorder's own. A mark made after a response follows everything that
was done before that response.

A recorded process is killed within `Recording.between_calls()`, by itself, or by a fault. Any other
kill -9 may come between a change of a file and its record: a replay then lacks the change.
"""

from __future__ import annotations

import enum
import mmap
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
MAGIC = 0x4C52424B
HEADER = struct.Struct("<IHHIIQQqqq")
SKIPPED = ("lock.mdb", "-shm", "/LOCK")
"""Suffixes of names that are ignored: lock files and shared memory, which no engine needs after a
power cut."""
PAUSE_S, PATIENCE_S = 0.0005, 60.0
"""How often, and how long at most, to look whether a call under way has its record."""


class Op(enum.IntEnum):
    OPEN = 1
    WRITE = 2
    TRUNCATE = 3
    SYNC_BEGIN = 4
    SYNC_END = 5
    DIRSYNC_BEGIN = 6
    DIRSYNC_END = 7
    ALLSYNC_BEGIN = 8
    ALLSYNC_END = 9
    RENAME = 10
    UNLINK = 11
    MKDIR = 12
    RMDIR = 13
    LINK = 14
    UNSUPPORTED = 15
    MARK = 16
    FAULT = 17


CREATED = 1
DSYNC = 2


class Entry(NamedTuple):
    """One record of the log. In the records of a sync, `offset` is its number and `result` its
    errno."""

    op: Op
    flags: int
    object: int
    offset: int
    result: int
    at_ns: int
    path: str
    path2: str
    data: bytes


def read_log(path: Path, start: int = 0) -> Iterator[Entry]:
    """All whole records from byte `start` on; a truncated last one is left out."""
    with path.open("rb") as file:
        file.seek(start)
        while len(header := file.read(HEADER.size)) == HEADER.size:
            magic, op, flags, path_length, path2_length, length, number, offset, result, at_ns = (
                HEADER.unpack(header)
            )
            assert magic == MAGIC, f"{path}: not a record before byte {file.tell()}"
            body = file.read(path_length + path2_length + length)
            if len(body) < path_length + path2_length + length:
                return
            name, name2 = body[:path_length], body[path_length : path_length + path2_length]
            data = body[path_length + path2_length :]
            yield Entry(
                Op(op), flags, number, offset, result, at_ns, os.fsdecode(name), os.fsdecode(name2), data
            )


class Recording:
    """One recorded directory with its log, over all lives of the recorded process. `environment()`
    is for that process and its children."""

    _CONTROL = struct.Struct("<IIQq")
    _STOP, _BUSY = slice(0, 4), slice(4, 8)
    """struct control in recorder/recorder.h."""

    def __init__(
        self, directory: Path, log: Path, *, skip: tuple[str, ...] = SKIPPED, faults: Faults | None = None
    ) -> None:
        self.directory, self.log = directory.resolve(), log
        self._skip = skip
        self._fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.faults = faults
        self._control_path = log.with_suffix(".control")
        self._control_path.write_bytes(bytes(self._CONTROL.size))
        with self._control_path.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), self._CONTROL.size)

    def environment(self) -> dict[str, str]:
        faults = {"KBROKER_RECORD_FAULTS": str(self.faults.path)} if self.faults else {}
        return {
            "LD_PRELOAD": str(recorder_library()),
            "KBROKER_RECORD_DIR": str(self.directory),
            "KBROKER_RECORD_LOG": str(self.log),
            "KBROKER_RECORD_CONTROL": str(self._control_path),
            "KBROKER_RECORD_SKIP": ":".join(self._skip),
            **faults,
        }

    @contextmanager
    def between_calls(self) -> Iterator[None]:
        """Hold the recorded process where the log has all changes of its files. The body kills it
        and waits for its end.

        Raises AssertionError, after the body, if a call was under way for too long."""
        self._control[self._STOP] = struct.pack("<I", 1)
        try:
            is_held = self._waits()
            yield
        finally:
            self._control[self._STOP] = bytes(4)
        assert is_held, f"a recorded call was under way for {PATIENCE_S} s"

    def _waits(self) -> bool:
        """Whether no call is under way any more. It sleeps first: the system call orders the write
        of one word before the reading of the other, as the recorder does (recorder/sections.c)."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            time.sleep(PAUSE_S)
            if self._control[self._BUSY] == bytes(4):
                return True
            if time.monotonic() > deadline:
                return False

    def mark(self, data: bytes) -> None:
        """Append a mark; may be called by any process, and by several at a time."""
        write_mark(self._fd, data)

    def entries(self) -> Iterator[Entry]:
        return read_log(self.log)

    def close(self) -> None:
        self._control.close()
        os.close(self._fd)


def write_mark(fd: int, data: bytes) -> None:
    """`fd`: the log, opened with O_APPEND."""
    record = HEADER.pack(MAGIC, Op.MARK, 0, 0, 0, len(data), 0, 0, 0, time.monotonic_ns()) + data
    written = os.write(fd, record)
    assert written == len(record), "the recorder's log is not on a full disk"


def recorder_library() -> Path:
    """The preloaded library, built by make if necessary."""
    done = subprocess.run(["make", "-s", "-C", str(HERE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the recorder cannot be built:\n{done.stdout}{done.stderr}"
    return HERE / "recorder.so"


class Calls(enum.IntFlag):
    """Which calls a fault breaks."""

    WRITE = 1
    SYNC = 2
    OPEN = 4
    TRUNCATE = 8
    RENAME = 16
    UNLINK = 32
    ALLOCATE = 64
    MKDIR = 128


CHANGES = (
    Calls.OPEN
    | Calls.WRITE
    | Calls.ALLOCATE
    | Calls.SYNC
    | Calls.TRUNCATE
    | Calls.RENAME
    | Calls.UNLINK
    | Calls.MKDIR
)
"""All calls that change files: those that a read-only file system refuses, as ext4 does after an
error of its own."""


class Faults:
    """The control file of the recorder's faults: the recorded process meets each fault that is
    armed."""

    _FAULT = struct.Struct("<IIiIqqq256s")

    def __init__(self, path: Path, *, attach: bool = False) -> None:
        """`attach`: the file exists already, and the recorder has mapped it."""
        self.path = path
        if not attach:
            path.write_bytes(bytes(self._FAULT.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), self._FAULT.size)
        self._armed_for = 0

    def arm(
        self,
        calls: Calls,
        error: int,
        *,
        path: str = "",
        skip: int = 0,
        keep_bytes: int = 0,
        sticky: bool = False,
    ) -> None:
        """Break the next call of these kinds on a file whose path contains `path`, after `skip`
        that pass.

        - `error`: the errno it fails with; 0 makes a write short
        - `keep_bytes`: what a broken write has written before it ends
        - `sticky`: also break all further ones, until `disarm`
        """
        self.disarm()
        packed = self._FAULT.pack(0, calls, error, sticky, skip, keep_bytes, 0, path.encode())
        self._map[4:] = packed[4:]
        self._map[:4] = struct.pack("<I", 1)

    def arm_kill(self, number: int) -> None:
        """kill -9 of the recorded process before its n-th changing call from now on, 1 being the
        next one."""
        self._armed_for = number - 1
        self.arm(CHANGES, -signal.SIGKILL, skip=number - 1)

    @property
    def passed(self) -> int:
        """How many calls have passed since `arm_kill`."""
        return self._armed_for - int(self._FAULT.unpack(self._map[:])[4])

    def disarm(self) -> None:
        self._map[:4] = bytes(4)

    @property
    def fired(self) -> int:
        """How many calls were broken since `arm`."""
        return int(self._FAULT.unpack(self._map[:])[6])
