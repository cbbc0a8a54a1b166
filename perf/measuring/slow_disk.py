"""Starts kbroker like launch.py, on a simulated slow disk: 5 ms for every sync, and for every first
read.

    KBROKER_SLOW_DISK_MS=5 KBROKER_SLOW_DISK_REPORT=pauses.json \\
        python perf/measuring/slow_disk.py start --data-dir ...

The pause precedes the real operation, in the same thread, with the GIL released, as in a real wait
for the kernel.

- Segment engine: operations of kbroker.storage.files are patched. Every sync pauses, and so does
  the first read of every 64 KiB of a file that existed when the broker became ready (as with an
  empty page cache and without read-ahead).
- LMDB and RocksDB do not use these operations, so their stores are patched: sync(), and the first
  read() at each offset that existed at the start, once for each 64 KiB returned. Their own
  housekeeping is not slowed.

No start is slowed. The report has the number of pauses by operation, on the broker's loop and in
other threads, and the stacks of those on the loop, each of which delays every client.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAUSE_MS = "KBROKER_SLOW_DISK_MS"
REPORT = "KBROKER_SLOW_DISK_REPORT"
_STACK_DEPTH = 12
_STEP_BYTES = 1 << 16  # as Files.load reads
_SYNCS = ("fdatasync", "fsync_dir", "syncfs")


class Pauses:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {"loop": Counter(), "threads": Counter()}
        self._stacks: dict[str, Counter[str]] = {}
        self._is_ready = False
        self._cold: dict[int, set[int]] = {}

    def begin(self, data_dir: Path) -> None:
        """The broker is ready: the files in `data_dir` are cold from now on."""
        self._cold = {path.stat().st_ino: set() for path in data_dir.rglob("*") if path.is_file()}
        self._is_ready = True

    def is_cached(self, path: Path, start: int, end: int) -> bool:
        """Whether each 64 KiB step of the range has been read."""
        read = self._cold.get(path.stat().st_ino)
        return read is None or read.issuperset(range(start // _STEP_BYTES, (end - 1) // _STEP_BYTES + 1))

    def is_cold(self, fd: int, position: int) -> bool:
        """True for the first read of each 64 KiB step of a file."""
        read = self._cold.get(os.fstat(fd).st_ino)
        step = position // _STEP_BYTES
        if read is None or step in read:
            return False
        read.add(step)
        return True

    def pause(self, operation: str) -> None:
        if not self._is_ready:
            return
        on_loop = threading.current_thread() is threading.main_thread()
        with self._lock:
            self._counts["loop" if on_loop else "threads"][operation] += 1
            if on_loop:
                frames = traceback.extract_stack(limit=_STACK_DEPTH)[:-2]
                self._stacks.setdefault(operation, Counter())[
                    " < ".join(f"{_short(f.filename)}:{f.name}" for f in reversed(frames))
                ] += 1
        time.sleep(self._seconds)

    def report(self) -> dict[str, Any]:
        return {
            **self._counts,
            "stacks": {operation: dict(stacks.most_common(5)) for operation, stacks in self._stacks.items()},
        }


def slow_down(pauses: Pauses) -> None:
    from kbroker import plugins
    from kbroker.storage import files

    def paused(name: str) -> Callable[..., Any]:
        original = getattr(files.Files, name)

        @functools.wraps(original)
        def call(self: files.Files, *arguments: Any) -> Any:  # noqa: ANN401 - whatever the operation takes and gives
            pauses.pause(name)
            return original(self, *arguments)

        return call

    for name in _SYNCS:
        setattr(files.Files, name, paused(name))
    preadv = files.Files.preadv

    def is_resident(fd: int, position: int, size: int) -> bool:
        if not pauses.is_cold(fd, position):
            return True
        pauses.pause("load")
        return False

    def is_cached(self: files.Files, path: Path, start: int, end: int) -> bool:
        return pauses.is_cached(path, start, end)

    def slow_preadv(self: files.Files, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        if pauses.is_cold(fd, position):
            pauses.pause("preadv")
        return preadv(self, fd, buffer, position)

    files._is_resident = is_resident
    files.Files.is_cached = is_cached  # type: ignore[method-assign]
    files.Files.preadv = slow_preadv  # type: ignore[method-assign]
    load = plugins.load

    def load_and_slow(group: str, name: str) -> Any:  # noqa: ANN401 - as `load`
        found = load(group, name)
        if name not in ("segment", "memory") and group in (plugins.LOG_STORE, plugins.STATE_STORE):
            return _slow_factory(found, pauses)
        return found

    plugins.load = load_and_slow


def begin_when_ready(pauses: Pauses) -> None:
    from kbroker.broker.options import ReadyInfo, StartOptions
    from kbroker.cli import start

    ready_line = start.ready_line

    def begin(options: StartOptions, ready: ReadyInfo) -> str:
        pauses.begin(options.data_dir)
        return ready_line(options, ready)

    start.ready_line = begin


def _slow_factory(factory: Any, pauses: Pauses) -> Any:  # noqa: ANN401 - a LogStoreFactory or a StateStoreFactory
    opened = factory.open

    def open_slow(*arguments: Any) -> Any:  # noqa: ANN401
        store = opened(*arguments)
        kind = type(store)
        sync = kind.sync

        def slow_sync(self: Any) -> None:  # noqa: ANN401
            pauses.pause("sync")
            sync(self)

        kind.sync = slow_sync
        if hasattr(kind, "logs"):
            _slow_reads(store, pauses)
        return store

    return type(factory)(open_slow, factory.open_reader)


def _slow_reads(store: Any, pauses: Pauses) -> None:  # noqa: ANN401 - a LogStore
    """Each offset that existed at the start is cold until its first read."""
    kind = type(store)
    read = kind.read
    cold = {log: [0, store.bounds(log).end_offset] for log in store.logs()}

    def slow_read(self: Any, log: Any, offset: int, *, max_bytes: int, end_offset: int) -> Any:  # noqa: ANN401
        views = read(self, log, offset, max_bytes=max_bytes, end_offset=end_offset)
        reached = cold.get(log)
        if reached is not None and reached[0] <= offset < reached[1]:
            reached[0] = offset + 1
            for _ in range(0, sum(map(len, views)), _STEP_BYTES):
                pauses.pause("read")
        return views

    kind.read = slow_read


def _short(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".py")


def main() -> int:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # as in launch.py
    from kbroker.cli import run

    pauses = Pauses(float(os.environ.get(PAUSE_MS, "5")) / 1000)
    slow_down(pauses)
    begin_when_ready(pauses)
    try:
        return run()
    finally:
        if target := os.environ.get(REPORT):
            Path(target).write_text(json.dumps(pauses.report(), indent=1))


if __name__ == "__main__":
    sys.exit(main())
