"""State as records in a log, the way Kafka keeps it in `__share_group_state`: the StateStore of the `segment` engine.

The whole map lives in memory and is rebuilt when the store opens. One write() is one record batch, so it is there whole or not at
all: a torn batch fails its CRC and is cut by the segment log. A change is one record (state_log_records.py).

The log is kept short by writing the live map anew: when dead bytes outweigh live ones, every sync() appends a piece of the map
behind its own work, key by key, as ordinary batches of values that are already so. When the last piece is synced, everything
before the first one is dead and is trimmed. A crash at any point leaves a log that gives the same map: from whichever segment it
begins, each live key's last record is in it, and a removed key has its removal behind its value or has neither.

This module must not know what values mean.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from threading import Lock
from uuid import UUID

from kbroker.compression import CorruptPayload
from kbroker.errors import NoSpace, StoreFailed
from kbroker.records import NO_TIMESTAMP, build_timeless_batch, crc_is_valid, iter_headers
from kbroker.storage import segment_store
from kbroker.storage.spi import Change, LogBounds, LogId, LogReader, LogSettings, LogStore, StampedBatch, StateStoreFactory
from kbroker.storage.state_log_records import batch_changes, to_record

LOG = LogId(UUID("7f8f0d4b-6f2c-5a0e-9d3e-5f5f73686172"), 0)
SETTINGS = LogSettings(segment_bytes=8 << 20, segment_ms=1 << 62)
SMALLEST_DEAD_BYTES = 16 << 20
PIECE_BYTES = 256 << 10
LOAD_BYTES = 1 << 20
RECORD_BYTES = 12
"""About what a record takes besides its key and value."""


class _Map:
    """An ordered map in memory. Changes of one `apply` are seen together."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._lock = Lock()
        self.live_bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def apply(self, changes: Sequence[Change]) -> None:
        with self._lock:
            many = len(changes) > 16 and len(changes) > 16 + len(self._keys) // 64
            for key, value in changes:
                old = self._values.get(key)
                if old is not None:
                    self.live_bytes -= len(key) + len(old) + RECORD_BYTES
                if value is not None:
                    self._values[key] = bytes(value)
                    self.live_bytes += len(key) + len(value) + RECORD_BYTES
                    if old is None and not many:
                        insort(self._keys, key)
                elif old is not None:
                    del self._values[key]
                    if not many:
                        del self._keys[bisect_left(self._keys, key)]
            if many:
                self._keys = sorted(self._values)

    def load(self, changes: Iterable[Change]) -> None:
        """As apply(), on an empty map that nobody else has yet."""
        found = dict(changes)
        self._values = {key: value for key, value in found.items() if value is not None}
        self._keys = sorted(self._values)
        self.live_bytes = sum(len(key) + len(value) + RECORD_BYTES for key, value in self._values.items())

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._lock:
            found: list[tuple[bytes, bytes]] = []
            for number in range(bisect_left(self._keys, prefix), len(self._keys)):
                key = self._keys[number]
                if not key.startswith(prefix):
                    break
                found.append((key, self._values[key]))
        yield from found

    def piece(self, first_key: bytes, size_bytes: int) -> list[Change]:
        """Entries from `first_key` on, at least one if there is one, until they take `size_bytes`."""
        found: list[Change] = []
        for number in range(bisect_left(self._keys, first_key), len(self._keys)):
            key = self._keys[number]
            found.append((key, self._values[key]))
            size_bytes -= len(key) + len(self._values[key]) + RECORD_BYTES
            if size_bytes <= 0:
                break
        return found

    def copy(self) -> _Map:
        copied = _Map()
        with self._lock:
            copied._values, copied._keys = dict(self._values), list(self._keys)
        return copied

    @contextmanager
    def snapshot(self) -> Iterator[_Map]:
        yield self.copy()

    def close(self) -> None:
        """A copy in memory holds nothing."""


class LogStateReader:
    """A StateReader beside a broker: reads on in the log whenever it is asked."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._map = _Map()
        self._next_offset = -1

    def get(self, key: bytes) -> bytes | None:
        return self._caught_up().get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from self._caught_up().scan(prefix)

    @contextmanager
    def snapshot(self) -> Iterator[_Map]:
        yield self._caught_up().copy()

    def close(self) -> None:
        self._log.close()

    def _caught_up(self) -> _Map:
        while True:
            bounds = self._bounds()
            if not bounds.start_offset <= self._next_offset <= bounds.end_offset:
                self._map, self._next_offset = _Map(), bounds.start_offset  # new, trimmed beyond what was read, or another log
            if self._next_offset == bounds.end_offset:
                return self._map
            began_at = self._next_offset
            changes, self._next_offset = read_changes(self._log, began_at, bounds.end_offset)
            if self._bounds().start_offset > began_at:
                self._next_offset = -1  # trimmed meanwhile: there may be a gap
                continue
            self._map.apply(changes)

    def _bounds(self) -> LogBounds:
        try:
            return self._log.bounds(LOG)
        except KeyError:
            return LogBounds(0, 0)  # a store that was never written


@dataclass(frozen=True, slots=True)
class LogStateStatistics:
    """`log_bytes` holds `live_bytes` and what is dead; `rewrites` counts finished rewritings since the store was opened."""

    keys: int
    live_bytes: int
    log_bytes: int
    rewrites: int


@dataclass(slots=True)
class _Rewrite:
    """The live map is being written anew: from `start_offset` on, up to but without `next_key` so far. `end_offset`: where the log
    ended when no key was left to write."""

    start_offset: int
    next_key: bytes = b""
    end_offset: int | None = None


class LogStateStore:
    """The StateStore. write() belongs on the broker's loop, sync() in its commit thread. They may meet: `_appending` is held for as long
    as the log and the map differ, and while entries of the map are written anew."""

    write_in_thread = False
    write_beside_sync = True

    def __init__(self, log: LogStore) -> None:
        self._log = log
        self._map = _Map()
        self._appending = Lock()
        self._rewrite: _Rewrite | None = None
        self._rewrites = 0
        self._unsynced_bytes = 0
        self._log.create(LOG, SETTINGS)
        start_offset, self._end_offset = self._log.bounds(LOG)
        self._map.load(self._stored(start_offset))
        self._log_bytes = self._size_of_log()

    def _stored(self, offset: int) -> Iterator[Change]:
        while offset < self._end_offset:
            changes, next_offset = read_changes(self._log, offset, self._end_offset)
            if not changes:
                raise StoreFailed(f"state log: nothing can be read from offset {offset} on, although it ends at {self._end_offset}")
            yield from changes
            offset = next_offset

    def get(self, key: bytes) -> bytes | None:
        return self._map.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._map.scan(prefix)

    @contextmanager
    def snapshot(self) -> Iterator[_Map]:
        yield self._map.copy()

    def write(self, changes: Sequence[Change]) -> None:
        if changes:
            with self._appending:
                self._append(changes)
                self._map.apply(changes)

    def sync(self) -> None:
        """Also writes a piece of the live map anew, when it is time; a full disk postpones that."""
        synced_offset = self._end_offset
        self._log.sync()
        with self._appending:
            piece_bytes = max(PIECE_BYTES, 4 * self._unsynced_bytes)
            self._unsynced_bytes = 0
            dead_bytes = self._log_bytes - self._map.live_bytes
            if self._rewrite is None and dead_bytes > max(SMALLEST_DEAD_BYTES, self._map.live_bytes):
                self._rewrite = _Rewrite(self._end_offset)
            if self._rewrite is not None:
                try:
                    self._rewrite_piece(self._rewrite, piece_bytes, synced_offset)
                except NoSpace:
                    return

    def _rewrite_piece(self, rewrite: _Rewrite, piece_bytes: int, synced_offset: int) -> None:
        """Below `synced_offset` all is synced. A write beside that sync may have removed the keys that were left to write: their
        values go with the trim, so that the removal, and what was written with it, has to be synced before."""
        if rewrite.end_offset is None:
            piece = self._map.piece(rewrite.next_key, piece_bytes)
            if piece:
                self._append(piece)
                rewrite.next_key = piece[-1][0] + b"\0"
                return
            rewrite.end_offset = self._end_offset
        if synced_offset < rewrite.end_offset:
            return
        self._log.trim(LOG, rewrite.start_offset)
        self._log_bytes = self._size_of_log()
        self._rewrite = None
        self._rewrites += 1

    def _append(self, changes: Sequence[Change]) -> None:
        data = build_timeless_batch(starmap(to_record, changes), base_offset=self._end_offset)
        last_offset = self._end_offset + len(changes) - 1
        self._log.write([StampedBatch(LOG, self._end_offset, last_offset, NO_TIMESTAMP, data)], now_ms=0)
        self._end_offset = last_offset + 1
        size = len(data)
        self._log_bytes += size
        self._unsynced_bytes += size

    def _size_of_log(self) -> int:
        return sum(segment.size_bytes for segment in self._log.segments(LOG))

    def statistics(self) -> LogStateStatistics:
        return LogStateStatistics(len(self._map), self._map.live_bytes, self._log_bytes, self._rewrites)

    def close(self) -> None:
        self._log.close()


def read_changes(log: LogReader, offset: int, end_offset: int) -> tuple[list[Change], int]:
    """Changes of some batches from `offset` on, and the offset to go on at."""
    changes: list[Change] = []
    for view in log.read(LOG, offset, max_bytes=LOAD_BYTES, end_offset=end_offset):
        for position, header in iter_headers(view):
            if header.last_offset < offset or not crc_is_valid(view, position, header):  # The CRC of zeros is right.
                raise StoreFailed(f"state log: the batch at offset {offset} is damaged")
            try:
                changes += batch_changes(view, position, header)
            except (CorruptPayload, KeyError, struct.error) as error:
                raise StoreFailed(f"state log: the batch at offset {header.base_offset} cannot be read: {error}") from error
            offset = header.last_offset + 1
    return changes, offset if changes else end_offset


def open_store(directory: Path, options: Mapping[str, str], owner_epoch: int) -> LogStateStore:
    return LogStateStore(segment_store.LOG_STORE.open(directory, options, owner_epoch))


def open_reader(directory: Path) -> LogStateReader:
    return LogStateReader(segment_store.LOG_STORE.open_reader(directory))


STATE_STORE = StateStoreFactory(open=open_store, open_reader=open_reader)
