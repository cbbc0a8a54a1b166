"""A lock that many readers hold together and one changer holds alone: for engines whose handles
must not vanish under a read.

Reads hold it for as long as they touch an engine's handle, well under a millisecond; the changer
(dropping a segment, opening a database again) takes it only to swap what readers will find next,
never while it waits for a disk. It must not know engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class SharedLock:
    """`with lock:` to read, `with lock.alone():` to change. Neither may be nested in the other;
    reads may nest in reads."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._readers = 0
        self._alone = False

    def __enter__(self) -> None:
        with self._changed:
            while self._alone:
                self._changed.wait()
            self._readers += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._readers -= 1
            if not self._readers:
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            while not self._take():
                self._changed.wait()
        try:
            yield
        finally:
            self._give_back()

    @contextmanager
    def alone_if_free(self) -> Iterator[bool]:
        """Without waiting: False, and nothing is held, while somebody reads."""
        with self._changed:
            taken = self._take()
        try:
            yield taken
        finally:
            if taken:
                self._give_back()

    def _take(self) -> bool:
        if self._alone or self._readers:
            return False
        self._alone = True
        return True

    def _give_back(self) -> None:
        with self._changed:
            self._alone = False
            self._changed.notify_all()
