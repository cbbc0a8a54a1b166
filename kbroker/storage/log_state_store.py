"""State as records in a log, the way Kafka keeps it in `__share_group_state`: the StateStore of the `segment` engine.

The whole map lives in memory and is rebuilt when the store opens. One write() is one record batch, so it is there whole or not at
all: a torn batch fails its CRC and is cut by the segment log. A change is one record:

    change of                     record key                                               headers    value
    share/… number 0              Kafka's ShareSnapshot key: 00 00, group, topic, partition   -        as stored; null: removed
    share/… number n              Kafka's ShareUpdate key: 00 01, group, topic, partition     n: i64   as stored; null: removed
    any other key                 the key, behind 00 ff if it begins with a zero byte         -        as stored; null: removed

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
from pathlib import Path
from threading import Lock
from uuid import UUID

from kbroker.compression import CorruptPayload
from kbroker.errors import NoSpace, StoreFailed
from kbroker.records import NO_TIMESTAMP, Record, build_batch, crc_is_valid, iter_headers, iter_records
from kbroker.state_records import ShareStateKey
from kbroker.storage import segment_store
from kbroker.storage.spi import Change, LogBounds, LogId, LogReader, LogSettings, LogStore, StampedBatch, StateStoreFactory

LOG = LogId(UUID("7f8f0d4b-6f2c-5a0e-9d3e-5f5f73686172"), 0)
SETTINGS = LogSettings(segment_bytes=8 << 20, segment_ms=1 << 62)
SMALLEST_DEAD_BYTES = 16 << 20
PIECE_BYTES = 256 << 10
LOAD_BYTES = 1 << 20
RECORD_BYTES = 12
"""About what a record takes besides its key and value."""

_SNAPSHOT = b"\0\0"
_UPDATE = b"\0\1"
_ESCAPE = b"\0\xff"
_NUMBER = "n"
_FIRST_NUMBER = bytes(8)
_NAMESPACE = ShareStateKey.namespace
_PARTITION_BYTES = 20  # topic id and partition
_LENGTH = struct.Struct(">H")


def to_record(key: bytes, value: bytes | None) -> Record:
    if not key.startswith(_NAMESPACE):
        return Record(0, NO_TIMESTAMP, _ESCAPE + key if key.startswith(b"\0") else key, value)
    start = len(_NAMESPACE)
    partition, group, number = key[start : start + _PARTITION_BYTES], key[start + _PARTITION_BYTES : -8], key[-8:]
    if len(number) < 8 or len(group) < 2 or _LENGTH.unpack_from(group)[0] != len(group) - 2:
        return Record(0, NO_TIMESTAMP, key, value)  # not a share-partition's
    if number == _FIRST_NUMBER:
        return Record(0, NO_TIMESTAMP, _SNAPSHOT + group + partition, value)
    return Record(0, NO_TIMESTAMP, _UPDATE + group + partition, value, ((_NUMBER, number),))


def from_record(record: Record) -> Change:
    """Raises KeyError or struct.error for a record that `to_record` does not make."""
    key = record.key or b""
    kind = key[:2]
    if kind == _ESCAPE:
        return key[2:], record.value
    if kind not in (_SNAPSHOT, _UPDATE):
        return key, record.value
    number = dict(record.headers)[_NUMBER] or b"" if kind == _UPDATE else _FIRST_NUMBER
    (length,) = _LENGTH.unpack_from(key, 2)
    group, partition = key[2 : 4 + length], key[4 + length :]
    return _NAMESPACE + partition + group + number, record.value


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
            many = len(changes) > 16 + len(self._keys) // 64
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
    """The live map is being written anew: from `start_offset` on, up to but without `next_key` so far."""

    start_offset: int
    next_key: bytes = b""


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
        offset = start_offset
        while offset < self._end_offset:
            changes, next_offset = read_changes(self._log, offset, self._end_offset)
            if not changes:
                raise StoreFailed(f"state log: nothing can be read from offset {offset} on, although it ends at {self._end_offset}")
            self._map.apply(changes)
            offset = next_offset
        self._log_bytes = self._size_of_log()

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
        self._log.sync()
        with self._appending:
            piece_bytes = max(PIECE_BYTES, 4 * self._unsynced_bytes)
            self._unsynced_bytes = 0
            dead_bytes = self._log_bytes - self._map.live_bytes
            if self._rewrite is None and dead_bytes > max(SMALLEST_DEAD_BYTES, self._map.live_bytes):
                self._rewrite = _Rewrite(self._end_offset)
            if self._rewrite is not None:
                try:
                    self._rewrite_piece(self._rewrite, piece_bytes)
                except NoSpace:
                    return

    def _rewrite_piece(self, rewrite: _Rewrite, piece_bytes: int) -> None:
        """All pieces before this one are synced, and whatever was written before the sync that has just ended."""
        piece = self._map.piece(rewrite.next_key, piece_bytes)
        if piece:
            self._append(piece)
            rewrite.next_key = piece[-1][0] + b"\0"
            return
        self._log.trim(LOG, rewrite.start_offset)
        self._log_bytes = self._size_of_log()
        self._rewrite = None
        self._rewrites += 1

    def _append(self, changes: Iterable[Change]) -> None:
        records = [to_record(key, value) for key, value in changes]
        data = build_batch(records, base_offset=self._end_offset)
        last_offset = self._end_offset + len(records) - 1
        self._log.write([StampedBatch(LOG, self._end_offset, last_offset, NO_TIMESTAMP, data)], now_ms=0)
        self._end_offset = last_offset + 1
        self._log_bytes += len(data)
        self._unsynced_bytes += len(data)

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
                changes.extend(map(from_record, iter_records(view, position)))
            except (CorruptPayload, KeyError, struct.error) as error:
                raise StoreFailed(f"state log: the batch at offset {header.base_offset} cannot be read: {error}") from error
            offset = header.last_offset + 1
    return changes, offset if changes else end_offset


def open_store(directory: Path, options: Mapping[str, str], owner_epoch: int) -> LogStateStore:
    return LogStateStore(segment_store.LOG_STORE.open(directory, options, owner_epoch))


def open_reader(directory: Path) -> LogStateReader:
    return LogStateReader(segment_store.LOG_STORE.open_reader(directory))


STATE_STORE = StateStoreFactory(open=open_store, open_reader=open_reader)
