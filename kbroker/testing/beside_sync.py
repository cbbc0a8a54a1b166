"""Calls sync() repeatedly in a second thread while a test writes, as the broker does with
durability `os`.

For the contract suites and for the tests of engines. This module must not know any engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Thread

import pytest

from kbroker.storage.spi import LogStore, StateStore

_LEAST_SYNCS = 3
_MOST_WRITES = 200


class Syncs:
    """Counts the syncs that have ended, and the writes since the last one."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._ended = self._writes = 0
        self._over = False

    def more(self) -> bool:
        """Call this before each write. Returns True until a few syncs have ended. After many writes
        without a sync it waits for one, since on a slow disk the writer would otherwise fill
        thousands of unsynced segments."""
        with self._changed:
            self._writes += 1
            self._changed.wait_for(lambda: self._over or self._writes <= _MOST_WRITES)
            return not self._over and self._ended < _LEAST_SYNCS

    def sync_ended(self) -> None:
        with self._changed:
            self._ended += 1
            self._writes = 0
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()


@contextmanager
def syncing(store: LogStore | StateStore) -> Iterator[Syncs]:
    """Skips the test if the engine does not allow write() during sync(). An error of sync() is
    raised on leaving the block."""
    if store.write_in_thread or not store.write_beside_sync:
        pytest.skip("this engine allows no write during a sync")
    syncs = Syncs()
    stop = False
    errors: list[BaseException] = []

    def sync_on() -> None:
        try:
            while not stop:
                store.sync()
                syncs.sync_ended()
        except BaseException as error:
            errors.append(error)
        finally:
            syncs.end()

    thread = Thread(target=sync_on)
    thread.start()
    try:
        yield syncs
    finally:
        stop = True
        thread.join()
    if errors:
        raise errors[0]
