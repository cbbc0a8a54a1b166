"""A process that meets disk faults: it uses stores under the recorder, arms faults, and checks the
results.

    python -m tests.powercut.fault_process KIND ENGINE DIRECTORY FAULTS SCENARIO...

Each scenario has its own store, in a directory with its name. Ends with code 0 and prints, as JSON
by scenario, what the store must hold afterwards: the numbers of the writes that a sync confirmed
("kept"), and those of the refused ones ("refused"). Anything unexpected ends it with a traceback.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kbroker.errors import NoSpace, StoreFailed
from kbroker.testing.log_store_model import LOG, SETTINGS, sized_batch
from tests.powercut.engine_process import open_store
from tests.powercut.recording import CHANGES, Calls, Faults

SIZE_BYTES = 3000
WRITES = Calls.WRITE | Calls.ALLOCATE
"""The calls that a full disk refuses; some inodes are always free."""


class Store:
    """Either kind of store, with numbered writes: batch `n`, or the key of `n`."""

    def __init__(self, kind: str, engine: str, directory: Path) -> None:
        self.kind, self.store, self.name = kind, self._open(kind, engine, directory), directory.name
        self.next_batch = 0
        if kind == "log":
            self.store.create(LOG, SETTINGS)
        self.kept: list[int] = []
        self.refused: list[int] = []
        self.number = 0

    @staticmethod
    def _open(kind: str, engine: str, directory: Path) -> Any:
        return open_store(kind, engine, directory)

    def write(self) -> None:
        """The next write. Its number is used up even if it is refused; offsets continue after the
        last kept one."""
        self.number += 1
        value = b"write %06d" % self.number
        try:
            if self.kind == "log":
                batch = sized_batch(self.next_batch, SIZE_BYTES, timestamp_ms=self.number)
                self.store.write([batch], now_ms=0)
                self.next_batch += 1
            else:
                self.store.write([(value, value + bytes(SIZE_BYTES))])
        except (NoSpace, StoreFailed):
            self.refused.append(self.number)
            raise

    def write_and_sync(self, count: int = 1) -> None:
        for _ in range(count):
            self.write()
        self.store.sync()
        self.kept += range(self.number - count + 1, self.number + 1)

    def seen(self) -> list[int]:
        return numbers_in(self.kind, self.store)


def numbers_in(kind: str, reader: Any) -> list[int]:
    """The numbers of the writes that a store holds, in order."""
    from kbroker.formats.batches import iter_headers

    if kind == "state":
        return [int(key.split()[1]) for key, _ in reader.scan(b"write ")]
    data = b"".join(reader.read(LOG, 0, max_bytes=1 << 40, end_offset=1 << 40))
    return [header.max_timestamp_ms for _, header in iter_headers(data)]


def expect(error: type[Exception], action: Callable[[], None]) -> None:
    try:
        action()
    except error:
        return
    raise AssertionError(f"{error.__name__} was not raised")


def failed_sync(store: Store, faults: Faults) -> None:
    """After one failed sync nothing is confirmed any more, although the disk works again; reads
    still work."""
    store.write_and_sync(3)
    faults.arm(Calls.SYNC, errno.EIO, path=store.name)
    expect(StoreFailed, store.write_and_sync)
    assert faults.fired == 1
    expect(StoreFailed, store.write)
    expect(StoreFailed, store.store.sync)
    assert store.seen()[:3] == store.kept


def failed_write(store: Store, faults: Faults) -> None:
    """An input/output error of a write: that write is not confirmed."""
    store.write_and_sync(3)
    faults.arm(Calls.WRITE, errno.EIO, keep_bytes=100, path=store.name)
    with contextlib.suppress(StoreFailed):
        store.write_and_sync()
    assert faults.fired == 1
    assert store.seen()[:3] == store.kept[:3]


def full_disk(store: Store, faults: Faults) -> None:
    """Writes are refused and reads still work; once there is space, the same store works again."""
    store.write_and_sync(3)
    faults.arm(WRITES, errno.ENOSPC, keep_bytes=50, sticky=True, path=store.name)
    while not store.refused:
        try:
            store.write_and_sync()
        except NoSpace:
            break
        assert store.number < 30_000, "the disk never filled up"
    assert faults.fired
    expect(NoSpace, store.write)
    assert store.seen() == store.kept, "reading on a full disk"
    faults.disarm()
    store.write_and_sync(3)
    assert store.seen() == store.kept


def short_writes(store: Store, faults: Faults) -> None:
    """A write may be shorter than requested, without an error: only whole writes are confirmed."""
    store.write_and_sync(3)
    for keep_bytes in (1, 100, 2999):
        faults.arm(Calls.WRITE, 0, keep_bytes=keep_bytes, path=store.name)
        try:
            store.write_and_sync()
        except StoreFailed:
            break
    assert faults.fired
    assert store.seen()[: len(store.kept)] == store.kept


def read_only(store: Store, faults: Faults) -> None:
    """A file system that suddenly becomes read-only: nothing is confirmed any more, not even when
    it is writable again; reads still work."""
    store.write_and_sync(3)
    faults.arm(CHANGES, errno.EROFS, sticky=True, path=store.name)
    expect(StoreFailed, store.write_and_sync)
    assert faults.fired
    assert store.seen()[:3] == store.kept
    faults.disarm()
    expect(StoreFailed, store.write)
    expect(StoreFailed, store.store.sync)
    assert store.seen()[:3] == store.kept


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (failed_sync, failed_write, full_disk, short_writes, read_only)
}


def main(kind: str, engine: str, directory: str, control: str, *names: str) -> None:
    faults, told = Faults(Path(control), attach=True), {}
    for name in names:
        store = Store(kind, engine, Path(directory, name))
        SCENARIOS[name](store, faults)
        faults.disarm()
        told[name] = {"kept": store.kept, "refused": store.refused}
    print(json.dumps(told), flush=True)
    os._exit(0)  # no clean close: confirmed writes must survive without it


if __name__ == "__main__":
    main(*sys.argv[1:])
