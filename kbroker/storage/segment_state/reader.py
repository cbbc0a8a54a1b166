"""Reads a state log (segment_state/store.py), whether a broker runs or not. Also the consistent
view of one moment, for the store too.

The keys in memory are rebuilt by following the log. For keys of ON_DISK, a read transaction of LMDB
shows the position up to which LMDB has the log. The changes after it, never many, are read from the
log and laid over. The log may be read later than LMDB: LMDB may already have some of the changes,
and applying them again changes nothing, as long as all up to one end of the log are applied. Only a
trim could remove changes that LMDB lacked in that transaction; the read then starts over. LMDB is
opened only when such keys are read, since its readers must write to lock.mdb.

This module must not know what keys mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.errors import OperatorError, StoreFailed
from kbroker.storage.keyvalue.key_ranges import LARGEST_PIECE, Entries, scan_in_pieces
from kbroker.storage.keyvalue.memory_map import MemoryMap
from kbroker.storage.lmdb.followed_changes import FollowedChanges
from kbroker.storage.lmdb.overlaid_map import OverlaidMoment, open_if_there
from kbroker.storage.segment.state_log import bounds_of, read_changes
from kbroker.storage.spi import ON_DISK, LogReader, StateReader

if TYPE_CHECKING:
    from kbroker.storage.lmdb.state_map import OnDiskMap

_ATTEMPTS = 1000


class Unreadable:
    """Stands in for keys that cannot be read: every read raises the reason."""

    def __init__(self, error: OperatorError) -> None:
        self._error = error

    def get(self, key: bytes) -> bytes | None:
        raise self._error

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        raise self._error

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        raise self._error


class LogStateMoment(StateReader):
    """A consistent view of one moment."""

    keeps_keys_on_disk = True

    def __init__(self, in_memory: MemoryMap, on_disk: OverlaidMoment | Unreadable) -> None:
        self._map = in_memory
        self._on_disk = on_disk

    def get(self, key: bytes) -> bytes | None:
        return self._on_disk.get(key) if key.startswith(ON_DISK) else self._map.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        if prefix.startswith(ON_DISK):
            yield from self._on_disk.scan(prefix)
        elif ON_DISK.startswith(prefix):
            yield from sorted([*self._map.scan(prefix), *self._on_disk.scan(ON_DISK)])
        else:
            yield from self._map.scan(prefix)

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._on_disk.scan_range(first, end)

    @contextmanager
    def snapshot(self) -> Iterator[LogStateMoment]:
        yield self

    def close(self) -> None:
        """Nothing to do: leaving `snapshot()` ends the view."""


class LogStateReader(StateReader):
    """Works while a broker runs: each call reads the new part of the log. Not thread-safe."""

    keeps_keys_on_disk = True

    def __init__(self, log: LogReader, directory: Path | None = None) -> None:
        """`directory`: that of the keys of ON_DISK; it need not exist."""
        self._log = log
        self._map = MemoryMap()
        self._next_offset = -1
        self._directory = directory
        self._below: OnDiskMap | None = None
        self._followed = FollowedChanges(log, ON_DISK)

    def get(self, key: bytes) -> bytes | None:
        if not key.startswith(ON_DISK):
            return self._caught_up().get(key)
        with self._on_disk() as moment:
            return moment.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        if not prefix.startswith(ON_DISK) and not ON_DISK.startswith(prefix):
            yield from self._caught_up().scan(prefix)
            return
        # read it whole at the first step: an abandoned scan would pin old pages
        with self.snapshot() as moment:
            found = list(moment.scan(prefix))
        yield from found

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return scan_in_pieces(self._piece, first, end, largest=16 * LARGEST_PIECE)

    def _piece(self, first: bytes, end: bytes, count: int) -> tuple[Entries, bytes | None]:
        with self._on_disk() as moment:
            return moment.piece(first, end, count)

    @contextmanager
    def snapshot(self) -> Iterator[LogStateMoment]:
        """A reader without write permission for lock.mdb gets an error only if it reads keys of
        ON_DISK."""
        try:
            self._open()
        except OperatorError as error:
            yield LogStateMoment(self._caught_up().copy(), Unreadable(error))
            return
        with self._on_disk() as moment:
            yield LogStateMoment(self._map.copy(), moment)

    @contextmanager
    def _on_disk(self) -> Iterator[OverlaidMoment]:
        """The view of the moment that `_map` shows."""
        for _ in range(_ATTEMPTS):
            with ExitStack() as stack:
                opened = self._open()
                below = None if opened is None else stack.enter_context(opened.moment())
                self._caught_up()
                if self._follow(0 if below is None else below.position, self._next_offset):
                    yield OverlaidMoment(below, self._followed.changes.of(b""))
                    return
        raise StoreFailed(
            f"{self._directory}: the state log was trimmed in each of {_ATTEMPTS} attempts to read it"
        )

    def _follow(self, position: int, end_offset: int) -> bool:
        """Read all changes from `position` on. False if a trim removed some of them first; LMDB has
        them by now."""
        if position > end_offset:
            raise StoreFailed(
                f"{self._directory}: is ahead of the state log beside it: one of them is from an older copy"
            )
        if not self._followed.follow(position, end_offset):
            return False
        if bounds_of(self._log).start_offset <= position:
            return True
        # The log must begin with the first change that LMDB lacked: was it trimmed beyond that?
        opened = self._open()
        return (0 if opened is None else opened.position) == position

    def _open(self) -> OnDiskMap | None:
        if self._below is None and self._directory is not None:
            self._below = open_if_there(self._directory, read_only=True)
        return self._below

    def _caught_up(self) -> MemoryMap:
        while True:
            bounds = bounds_of(self._log)
            if not bounds.start_offset <= self._next_offset <= bounds.end_offset:
                # first call, trimmed beyond the part that was read, or another log
                self._map, self._next_offset = MemoryMap(), bounds.start_offset
            if self._next_offset == bounds.end_offset:
                return self._map
            began_at = self._next_offset
            changes, self._next_offset = read_changes(self._log, began_at, bounds.end_offset)
            if bounds_of(self._log).start_offset > began_at:
                self._next_offset = -1  # trimmed meanwhile: there may be a gap
                continue
            self._map.apply([change for change in changes if not change[0].startswith(ON_DISK)])

    def close(self) -> None:
        self._log.close()
        below, self._below = self._below, None
        if below is not None:
            below.close()
