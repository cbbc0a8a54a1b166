"""A reader that opens a sub-database while another thread is in a write transaction. It runs as a
separate process: the two may deadlock with the GIL held, which no code in that process survives.

    python -m tests.storage.lmdb.opening DIRECTORY

DIRECTORY holds an environment with the sub-database "s1". Prints the value that the reader read.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
from pathlib import Path
from typing import Any, cast

from kbroker.storage.lmdb.environment import open_environment

GIVE_UP_S = 60


class WatchedLock:
    """A lock that reports when a thread has to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_waited_for = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.is_waited_for.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def main(directory: Path) -> None:
    faulthandler.dump_traceback_later(GIVE_UP_S, exit=True)  # its own thread needs no GIL
    env = open_environment(directory, read_only=False, map_bytes=1 << 30, max_handles=128)
    lock = WatchedLock()
    env._writing = cast(Any, lock)
    has_begun = threading.Event()

    def write() -> None:
        with env.write() as transaction:
            has_begun.set()
            lock.is_waited_for.wait()
            transaction.put(b"key", b"written", db=env.handle_in(transaction, b"s2"))

    writer = threading.Thread(target=write)
    writer.start()
    has_begun.wait()
    for name in (b"s1", b"s2"):
        print(env.read(lambda transaction, name=name: bytes(transaction.get(b"key", db=env.handle(name)))))  # type: ignore[misc]
    writer.join()
    env.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
