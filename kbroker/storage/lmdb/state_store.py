"""State in LMDB: a separate environment whose main database is the map, and a redo log in front of
it.

    directory/data.mdb, lock.mdb     the map (lmdb/state_map.py), and the position up to which it
                                     contains the redo log
    directory/redo                   one log of the segment engine: the changes after that position,
                                     in the format of segment_state/store.py

LMDB has to sync every commit (without that, power cuts left corrupt files), and each share
acknowledgement would wait for it. So write() appends to the redo log and keeps the changes in
memory. sync() syncs the redo log. Now and then it also moves the changes into LMDB, the last of
them together with the position, and trims them from the log. A full disk postpones that.

A snapshot is a read transaction with later changes laid over it. A change may be in both: applying
it again does no harm, as long as all later changes are applied too. This module must not know what
keys mean.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import TypeAlias, TypeVar

from kbroker.errors import NoSpace, OperatorError, StoreFailed
from kbroker.formats.batches import NO_TIMESTAMP, build_timeless_batch
from kbroker.storage.keyvalue.key_ranges import LARGEST_PIECE, Entries, Overlay, part_of, scan_in_pieces
from kbroker.storage.lmdb.environment import LmdbEnvironment, LmdbStatistics, Transaction, open_environment
from kbroker.storage.lmdb.state_map import StateMap, piece_over, put_all
from kbroker.storage.segment import log_store as segment_store
from kbroker.storage.segment.state_log import LOG, bounds_of, read_changes, reserved_bytes
from kbroker.storage.segment.state_log_records import to_record
from kbroker.storage.spi import (
    ON_DISK,
    Change,
    LogReader,
    LogSettings,
    LogStore,
    StampedBatch,
    StateReader,
    StateStore,
)

MAP_BYTES = 1 << 40
REDO = "redo"
REDO_SETTINGS = LogSettings(segment_bytes=1 << 20, segment_ms=1 << 62)
MOST_REDO_BYTES = 1 << 20
MOVE_BYTES = 4 << 20
"""Pages that LMDB may add to its file while a move replaces others."""
_ATTEMPTS = 100

_Changes: TypeAlias = dict[bytes, bytes | None]
T = TypeVar("T")


class LmdbStateMoment(StateReader):
    """A consistent view of one moment. Close it soon: its transaction pins old pages of the
    file."""

    keeps_keys_on_disk = True

    def __init__(self, transaction: Transaction, changes: _Changes) -> None:
        self._map = StateMap(transaction)
        self._changes = changes
        self._in_order: list[Change] | None = None

    def get(self, key: bytes) -> bytes | None:
        return self._changes[key] if key in self._changes else self._map.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        found: _Changes = dict(self._map.scan(prefix))
        found.update(item for item in self._changes.items() if item[0].startswith(prefix))
        yield from sorted((key, value) for key, value in found.items() if value is not None)

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return scan_in_pieces(self._piece, first, end)

    def _piece(self, first: bytes, end: bytes, count: int) -> tuple[Entries, bytes | None]:
        if self._in_order is None:
            self._in_order = sorted(
                change for change in self._changes.items() if change[0].startswith(ON_DISK)
            )
        return piece_over(self._map, [part_of(self._in_order, first, end, count)], first, end, count)

    @contextmanager
    def snapshot(self) -> Iterator[LmdbStateMoment]:
        yield self

    def close(self) -> None:
        """Nothing to do: leaving `snapshot()` ends the view."""


class _Moments(StateReader):
    """Shared by reader and store: every read uses a consistent view of one moment."""

    keeps_keys_on_disk = True
    _largest_piece = LARGEST_PIECE

    def __init__(self, env: LmdbEnvironment) -> None:
        self._env = env

    @abstractmethod
    def _changes_over(self, transaction: Transaction, prefix: bytes) -> _Changes | None:
        """Changes of keys that start with `prefix`, and of other keys if that costs nothing. None
        if the transaction is too old for the changes at hand."""

    @abstractmethod
    def _layers_over(
        self, transaction: Transaction, first: bytes, end: bytes, count: int
    ) -> Sequence[Sequence[Change]] | None:
        """The first `count` changes of a range in each layer; None as above."""

    def get(self, key: bytes) -> bytes | None:
        with self._moment(key) as moment:
            return moment.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        # read it whole at the first step: an abandoned scan would pin old pages
        with self._moment(prefix) as moment:
            found = list(moment.scan(prefix))
        yield from found

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return scan_in_pieces(self._piece, first, end, largest=self._largest_piece)

    def _piece(self, first: bytes, end: bytes, count: int) -> tuple[Entries, bytes | None]:
        with self._over(lambda transaction: self._layers_over(transaction, first, end, count)) as (
            transaction,
            layers,
        ):
            return piece_over(StateMap(transaction), layers, first, end, count)

    def snapshot(self) -> AbstractContextManager[LmdbStateMoment]:
        return self._moment(b"")

    @contextmanager
    def _moment(self, prefix: bytes) -> Iterator[LmdbStateMoment]:
        """A view that may lack keys that do not start with `prefix`."""
        with self._over(lambda transaction: self._changes_over(transaction, prefix)) as (
            transaction,
            changes,
        ):
            yield LmdbStateMoment(transaction, changes)

    @contextmanager
    def _over(self, changes_over: Callable[[Transaction], T | None]) -> Iterator[tuple[Transaction, T]]:
        """A transaction, and the changes over it."""
        for _ in range(_ATTEMPTS):
            with self._env.long_read() as transaction:
                changes = changes_over(transaction)
                if changes is not None:
                    yield transaction, changes
                    return
        raise StoreFailed(
            f"{self._env.directory}: the redo log does not continue where the map ends: one of them is from "
            "an older copy"
        )


class LmdbStateReader(_Moments):
    """A StateReader, for use while a broker runs in this or another process."""

    _largest_piece = 16 * LARGEST_PIECE  # each piece rereads the redo log

    def __init__(self, env: LmdbEnvironment, log: LogReader) -> None:
        super().__init__(env)
        self._log = log
        self._reading = Lock()
        self._closed = False

    def _changes_over(self, transaction: Transaction, prefix: bytes) -> _Changes | None:
        position = StateMap(transaction).position
        with self._reading:
            changes = _read(self._log, position)
            return changes if bounds_of(self._log).start_offset <= position else None

    def _layers_over(
        self, transaction: Transaction, first: bytes, end: bytes, count: int
    ) -> Sequence[Sequence[Change]] | None:
        changes = self._changes_over(transaction, ON_DISK)
        return None if changes is None else [part_of(sorted(changes.items()), first, end, count)]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._log.close()
            self._env.close()


class LmdbStateStore(_Moments, StateStore):
    """write() belongs on the broker's loop, sync() in its commit thread. They may overlap: `_lock`
    is held while the redo log and the changes in memory differ."""

    write_in_thread = False
    write_beside_sync = True

    def __init__(self, env: LmdbEnvironment, log: LogStore, most_redo_bytes: int) -> None:
        super().__init__(env)
        self._log = log
        self._lock = Lock()
        self._closed = False
        self._new = Overlay()
        self._moving = Overlay()
        """Changes that are being moved into LMDB."""
        self._redo_bytes = 0
        self._most_redo_bytes = most_redo_bytes
        log.create(LOG, REDO_SETTINGS)
        with env.long_read() as transaction:
            self._position = StateMap(transaction).position
        start_offset, end_offset = log.bounds(LOG)
        if start_offset > self._position:
            raise OperatorError(
                f"{env.directory}: the redo log begins at {start_offset}, after the map's end at "
                f"{self._position}: "
                "one of them is from an older copy; restore both from one backup"
            )
        self._new.update(_read(log, self._position).items())
        # a power cut may have taken a part of the log that the map already contains
        self._end_offset = max(end_offset, self._position)
        if self._new.changes:
            self._move()

    def get(self, key: bytes) -> bytes | None:
        for gathered in (self._new, self._moving):  # in this order, as changes move from new to moving
            if key in gathered.changes:
                return gathered.changes[key]
        return super().get(key)

    def _changes_over(self, transaction: Transaction, prefix: bytes) -> _Changes | None:
        with self._lock:
            if StateMap(transaction).position < self._position:
                return None
            return {**self._moving.of(prefix), **self._new.of(prefix)}

    def _layers_over(
        self, transaction: Transaction, first: bytes, end: bytes, count: int
    ) -> Sequence[Sequence[Change]] | None:
        with self._lock:
            if StateMap(transaction).position < self._position:
                return None
            return [self._moving.piece(first, end, count), self._new.piece(first, end, count)]

    def write(self, changes: Sequence[Change]) -> None:
        self._env.check()
        if not changes:
            return
        assert all(key for key, _ in changes), "LMDB has no empty key"
        with self._lock:
            data = build_timeless_batch(
                (to_record(key, value) for key, value in changes), base_offset=self._end_offset
            )
            last_offset = self._end_offset + len(changes) - 1
            self._log.write([StampedBatch(LOG, self._end_offset, last_offset, NO_TIMESTAMP, data)], now_ms=0)
            self._end_offset = last_offset + 1
            self._redo_bytes += len(data)
            self._new.update(changes)

    def sync(self) -> None:
        self._env.check()
        self._log.sync()
        if self._redo_bytes > self._most_redo_bytes:
            self._move()

    def _move(self) -> None:
        """Move the gathered changes into LMDB, and trim the redo log. A full disk postpones it."""
        with self._lock:
            self._moving, self._new, self._redo_bytes = self._new, Overlay(), 0
            position = self._end_offset
        try:
            put_all(self._env, self._moving.in_order(), position)
        except NoSpace:
            with self._lock:
                self._moving.update(self._new.changes.items())
                self._new, self._moving = self._moving, Overlay()
            return
        with self._lock, suppress(NoSpace):
            self._position, self._moving = position, Overlay()
            is_beside = position < self._end_offset and self._log.trim_beside_write
            if not is_beside:
                self._log.trim(LOG, position)
        if is_beside:  # Not under the lock: writes need not wait for the removal of files.
            with suppress(NoSpace):
                self._log.trim(LOG, position)

    def least_free_bytes(self) -> int:
        """What the redo log may still grow by beside the one that is being moved, and what LMDB's
        file may grow by for the pages that a move replaces."""
        taken = sum(segment.size_bytes for segment in self._log.segments(LOG)) + reserved_bytes(self._log)
        growth_bytes = max(0, MOVE_BYTES - self._env.reusable_bytes())
        return max(0, 3 * self._most_redo_bytes - taken) + growth_bytes

    def statistics(self) -> LmdbStatistics:
        return self._env.statistics()

    def close(self) -> None:
        """Also moves all changes into LMDB, unless the disk is full."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._new.changes:
                self._log.sync()
                self._move()
        finally:
            self._log.close()
            self._env.close()


def _read(log: LogReader, position: int) -> _Changes:
    """All changes from `position` on."""
    found: _Changes = {}
    end_offset = bounds_of(log).end_offset
    while position < end_offset:
        changes, position = read_changes(log, position, end_offset)
        found.update(changes)
    return found


def open_store(directory: Path, options: Mapping[str, str], owner_epoch: int) -> LmdbStateStore:
    """Options:

    - `map_size`: the maximum size of the file in bytes (default 1 TiB; the file is only as large as
      its content).
    - `redo_bytes`: how much may gather in memory and in the redo log before it is moved into LMDB
      (default 1 MiB).
    """
    map_bytes = int(options.get("map_size", MAP_BYTES))
    env = open_environment(directory, read_only=False, map_bytes=map_bytes, max_handles=0)
    try:
        log = segment_store.LOG_STORE.open(directory / REDO, {}, owner_epoch)
        try:
            return LmdbStateStore(env, log, int(options.get("redo_bytes", MOST_REDO_BYTES)))
        except BaseException:
            log.close()
            raise
    except BaseException:
        env.close()
        raise


def open_reader(directory: Path) -> LmdbStateReader:
    env = open_environment(directory, read_only=True, map_bytes=MAP_BYTES, max_handles=0)
    return LmdbStateReader(env, segment_store.LOG_STORE.open_reader(directory / REDO))
