"""sync() called again and again in a thread of its own while a test writes, as the broker does with durability `os`.

For the contract suites and for engines' own tests. It must not know any engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest

from kbroker.storage.spi import LogStore, StateStore, writes_beside_sync

_LEAST_SYNCS = 3


@contextmanager
def syncing(store: LogStore | StateStore) -> Iterator[Event]:
    """Skips the test where the engine forbids a write beside a sync. The event is set after some syncs: write until then, at least.
    What sync() raised is raised again on leaving."""
    if not writes_beside_sync(store):
        pytest.skip("this engine allows no write beside a sync")
    enough, stop = Event(), Event()
    errors: list[BaseException] = []

    def sync_on() -> None:
        syncs = 0
        try:
            while not stop.is_set():
                store.sync()
                syncs += 1
                if syncs == _LEAST_SYNCS:
                    enough.set()
        except BaseException as error:
            errors.append(error)
        finally:
            enough.set()

    thread = Thread(target=sync_on)
    thread.start()
    try:
        yield enough
    finally:
        stop.set()
        thread.join()
    if errors:
        raise errors[0]
