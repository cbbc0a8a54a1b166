"""State in LMDB: a separate environment whose main database is the map, and a redo log in front of
it.

    directory/data.mdb, lock.mdb     the map, and the position up to which it contains the redo log:
                                     overlaid_map.py
    directory/redo                   one log of the segment engine: the changes after that position
                                     (segment/state_log.py)

LMDB has to sync every commit (without that, power cuts left corrupt files), and each share
acknowledgement would wait for it. So write() appends to the redo log and keeps the changes in
memory. sync() syncs the redo log. When it has grown by 1 MiB, sync() also moves the changes into
LMDB, and trims the log. A full disk postpones that.

The segment engine's state store (segment_state/store.py) keeps most keys in memory and in its log.
docs/decisions/0026-two-state-stores.md says why they are two. This module must not know what keys
mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import TypeVar

from kbroker.errors import OperatorError, StoreFailed
from kbroker.storage.keyvalue.key_ranges import LARGEST_PIECE, Entries, Overlay, scan_in_pieces
from kbroker.storage.lmdb.environment import LmdbStatistics
from kbroker.storage.lmdb.followed_changes import FollowedChanges
from kbroker.storage.lmdb.overlaid_map import OverlaidMap, OverlaidMoment
from kbroker.storage.lmdb.state_map import MAP_BYTES, OnDiskMap, StateMap, open_map
from kbroker.storage.segment import log_store as segment_store
from kbroker.storage.segment.state_log import StateLog, bounds_of, read_changes
from kbroker.storage.spi import Change, LogReader, LogSettings, LogStore, StateReader, StateStore

REDO = "redo"
REDO_SETTINGS = LogSettings(segment_bytes=1 << 20, segment_ms=1 << 62)
MOST_REDO_BYTES = 1 << 20
MOVE_BYTES = 4 << 20
"""Pages that LMDB may add to its file while a move replaces others."""
_ATTEMPTS = 100

T = TypeVar("T")


class LmdbStateReader(StateReader):
    """A StateReader, for use while a broker runs in this or another process. Every read uses a
    consistent view of one moment, and reads the new part of the redo log."""

    keeps_keys_on_disk = True

    def __init__(self, on_disk: OnDiskMap, log: LogReader) -> None:
        self._on_disk = on_disk
        self._log = log
        self._followed = FollowedChanges(log)
        self._reading = Lock()
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        with self._moment(key) as moment:
            return moment.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        # read it whole at the first step: an abandoned scan would pin old pages
        with self._moment(prefix) as moment:
            found = list(moment.scan(prefix))
        yield from found

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return scan_in_pieces(self._piece, first, end, largest=16 * LARGEST_PIECE)

    def _piece(self, first: bytes, end: bytes, count: int) -> tuple[Entries, bytes | None]:
        with self._over(lambda changes: changes.piece(first, end, count)) as (below, layer):
            return below.piece([layer], first, end, count)

    @contextmanager
    def snapshot(self) -> Iterator[OverlaidMoment]:
        with self._moment(b"") as moment:
            yield moment

    @contextmanager
    def _moment(self, prefix: bytes) -> Iterator[OverlaidMoment]:
        """A view that may lack keys that do not start with `prefix`."""
        with self._over(lambda changes: changes.of(prefix)) as (below, changes):
            yield OverlaidMoment(below, changes)

    @contextmanager
    def _over(self, take: Callable[[Overlay], T]) -> Iterator[tuple[StateMap, T]]:
        """The map in one transaction, and what `take` returns of all changes over it."""
        for _ in range(_ATTEMPTS):
            with self._on_disk.moment() as below:
                with self._reading:
                    found = take(self._followed.changes) if self._follow(below.position) else None
                if found is not None:
                    yield below, found
                    return
        raise StoreFailed(
            f"{self._on_disk.directory}: the redo log does not continue where the map ends: one of them is "
            "from an older copy"
        )

    def _follow(self, position: int) -> bool:
        """False if the redo log was trimmed beyond the position."""
        end_offset = max(position, bounds_of(self._log).end_offset)
        return self._followed.follow(position, end_offset) and bounds_of(self._log).start_offset <= position

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._log.close()
            self._on_disk.close()


class LmdbStateStore(StateStore):
    """write() belongs on the broker's loop, sync() in its commit thread. They may overlap:
    `_log.appending` is held while the redo log and the changes in memory differ."""

    keeps_keys_on_disk = True
    write_in_thread = False
    write_beside_sync = True

    def __init__(self, on_disk: OnDiskMap, log: LogStore, most_redo_bytes: int) -> None:
        self._on_disk = on_disk
        self._map = OverlaidMap(on_disk.directory, below=on_disk)
        self._log = StateLog(log, REDO_SETTINGS)
        self._most_redo_bytes = most_redo_bytes
        self._redo_bytes = 0
        """Written since the changes were last moved, or could not be."""
        self._closed = False
        position = self._map.position
        if self._log.start_offset > position:
            raise OperatorError(
                f"{on_disk.directory}: the redo log begins at {self._log.start_offset}, after the map's end "
                f"at {position}: one of them is from an older copy; restore both from one backup"
            )
        # in earlier versions a power cut may have taken a part of the log that the map contains
        self._log.end_offset = max(self._log.end_offset, position)
        while position < self._log.end_offset:
            changes, position = read_changes(log, position, self._log.end_offset)
            self._map.apply(changes)
        self._move_all()

    def get(self, key: bytes) -> bytes | None:
        return self._map.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._map.scan(prefix)

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._map.scan_range(first, end)

    @contextmanager
    def snapshot(self) -> Iterator[OverlaidMoment]:
        with ExitStack() as stack:
            with self._map.lock:
                moment = self._map.moment(stack)
            yield moment

    def write(self, changes: Sequence[Change]) -> None:
        self._map.check()
        if not changes:
            return
        assert all(map(itemgetter(0), changes)), "LMDB has no empty key"
        self._map.check_room()
        with self._log.appending:
            self._redo_bytes += self._log.append(changes)
            with self._map.lock:
                self._map.apply(changes)

    def sync(self) -> None:
        self._map.check()
        is_due = self._redo_bytes > self._most_redo_bytes
        if is_due:
            self._freeze()
        self._log.sync()
        if is_due:
            self._move()

    def _freeze(self) -> None:
        with self._log.appending:
            self._redo_bytes = 0
            self._map.freeze(self._log.end_offset)

    def _move(self) -> bool:
        """Move the frozen changes into LMDB, and trim the redo log. False if a full disk postpones
        it."""
        return self._map.move() and self._log.trim(self._map.position)

    def _move_all(self) -> None:
        """Unless the disk is full."""
        is_moved = True
        while is_moved and self._map.waiting_changes:
            self._freeze()
            self._log.sync()
            is_moved = self._move()

    def least_free_bytes(self) -> int:
        """What the redo log may still grow by beside the one that is being moved, and what LMDB's
        file may grow by for the pages that a move replaces."""
        taken = self._log.size_bytes() + self._log.reserved_bytes()
        growth_bytes = max(0, MOVE_BYTES - self._on_disk.reusable_bytes())
        return max(0, 3 * self._most_redo_bytes - taken) + growth_bytes

    def statistics(self) -> LmdbStatistics:
        return self._on_disk.statistics()

    def close(self) -> None:
        """Also moves all changes into LMDB, unless the disk is full."""
        if self._closed:
            return
        self._closed = True
        try:
            self._move_all()
        finally:
            self._log.close()
            self._map.close()


def open_store(directory: Path, options: Mapping[str, str], owner_epoch: int) -> LmdbStateStore:
    """Options:

    - `map_size`: the maximum size of the file in bytes (default 1 TiB; the file is only as large as
      its content).
    - `redo_bytes`: how much may gather in memory and in the redo log before it is moved into LMDB
      (default 1 MiB).
    """
    map_bytes = int(options.get("map_size", MAP_BYTES))
    on_disk = open_map(directory, read_only=False, map_bytes=map_bytes)
    try:
        log = segment_store.LOG_STORE.open(directory / REDO, {}, owner_epoch)
        try:
            return LmdbStateStore(on_disk, log, int(options.get("redo_bytes", MOST_REDO_BYTES)))
        except BaseException:
            log.close()
            raise
    except BaseException:
        on_disk.close()
        raise


def open_reader(directory: Path) -> LmdbStateReader:
    on_disk = open_map(directory, read_only=True)
    return LmdbStateReader(on_disk, segment_store.LOG_STORE.open_reader(directory / REDO))
