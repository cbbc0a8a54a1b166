"""Open files that a store holds in reserve, for work that must not stop halfway for lack of them:
the removal of segments, and undoing a write. This module must not know about that work.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from kbroker.storage.files import Files

_COUNT = 6
"""Removing a log opens its directory, those of a segment and of its index, and one of a listing."""


class SpareFiles:
    def __init__(self, directory: Path, files: Files) -> None:
        self._directory = directory
        self._files = files
        self._lock = Lock()
        self._fds: list[int] = []

    def take(self) -> None:
        """Complete the reserve. OSErrors pass through."""
        with self._lock:
            while len(self._fds) < _COUNT:
                self._fds.append(self._files.open(self._directory, os.O_RDONLY | os.O_DIRECTORY))

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Inside the block so many files may be opened, unless other threads are faster. If the
        reserve cannot be completed afterwards, the next block completes it."""
        self.close()
        try:
            yield
        finally:
            with suppress(OSError):
                self.take()

    def close(self) -> None:
        with self._lock:
            fds, self._fds = self._fds, []
        for fd in fds:
            self._files.close(fd)
