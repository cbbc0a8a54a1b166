"""Topic data in RocksDB: chunks under (log, offset). A write() is one WriteBatch, a removal is a
range deletion.

    column family   key                                        value
    default         log number (4) base offset (8), unsigned   chunk
    "meta"          chunked_log's "L" and "S" entries

write() puts the batch into the WAL without a sync, and runs on the broker's loop; sync() belongs to
its commit thread. A removal takes effect with its WriteBatch; compaction frees the bytes later.

    directory/db         the database
    directory/readers    snapshots made by readers (rocksdb/snapshot.py)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rocksdict import ColumnFamily, Rdict, WriteBatch

from kbroker.storage.files import Files, make_directory
from kbroker.storage.keyvalue import chunked_log
from kbroker.storage.keyvalue.chunked_log import LogChange, LogState
from kbroker.storage.keyvalue.chunked_store import ChunkedLogReader, ChunkedLogStore, ChunkedStatistics
from kbroker.storage.keyvalue.chunks import ChunkedSegment, ChunkSource
from kbroker.storage.rocksdb.database import META, Rocksdb, RocksdbStatistics, entries
from kbroker.storage.rocksdb.snapshot import DATABASE, RocksdbSnapshot, remove_left_over_snapshots
from kbroker.storage.spi import LogBounds, LogId, SegmentInfo

T = TypeVar("T")

_KEY = struct.Struct(">IQ")


class _Chunks:
    """The ChunkSource of one log."""

    def __init__(self, db: Rdict, log_number: int) -> None:
        self._db = db
        self._log_number = log_number

    def chunks(self, segment: ChunkedSegment, offset: int) -> Iterator[tuple[int, bytes]]:
        is_known = segment.end_offset > segment.base_offset
        if is_known:  # the next key may be a chunk of the next segment
            offset = min(offset, segment.end_offset - 1)
        iterator = self._db.iter()
        iterator.seek_for_prev(_KEY.pack(self._log_number, max(0, offset)))
        if not iterator.valid():
            # Raises if a block cannot be read. The next seek would clear the error, and find a
            # chunk other than the one before.
            iterator.status()
        if not iterator.valid() or self._base_offset(iterator.key()) < segment.base_offset:
            iterator.seek(_KEY.pack(self._log_number, segment.base_offset))
        while iterator.valid():
            base_offset = self._base_offset(iterator.key())
            if base_offset < 0 or (is_known and base_offset >= segment.end_offset):
                return
            yield base_offset, iterator.value()
            iterator.next()
        iterator.status()

    def _base_offset(self, key: bytes) -> int:
        """-1 for a key of another log."""
        log_number, base_offset = _KEY.unpack(key)
        return base_offset if log_number == self._log_number else -1


def _load(db: Rdict, meta: Rdict) -> dict[LogId, LogState]:
    iterator = meta.iter()
    logs = chunked_log.parse_logs(
        list(entries(iterator, chunked_log.LOG_PREFIX)), list(entries(iterator, chunked_log.SEGMENT_PREFIX))
    )
    for state in logs.values():
        chunked_log.with_active(state, _Chunks(db, state.number))
    return logs


class RocksdbLogReader(ChunkedLogReader):
    """A LogReader over its own snapshot. It makes a new snapshot when the caller wants fresh data:
    when it lists the logs, or requests a log's bounds or segments again, or after a read."""

    def __init__(self, directory: Path) -> None:
        self._snapshot = RocksdbSnapshot(directory)
        self._asked: dict[LogId, int] = {}
        self._logs = self._load()

    def _load(self) -> dict[LogId, LogState]:
        return _load(self._snapshot.db, self._snapshot.db.get_column_family(META))

    def _read(self, log: LogId, work: Callable[[LogState, ChunkSource], T]) -> T:
        state = self._logs[log]
        return work(state, _Chunks(self._snapshot.db, state.number))

    def logs(self) -> Sequence[LogId]:
        self._refresh()
        return tuple(self._logs)

    def bounds(self, log: LogId) -> LogBounds:
        self._ask(log, 0)
        return super().bounds(log)

    def segments(self, log: LogId) -> Sequence[SegmentInfo]:
        self._ask(log, 1)
        return super().segments(log)

    def read(self, log: LogId, offset: int, *, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        self._asked[log] = 2
        return super().read(log, offset, max_bytes=max_bytes, end_offset=end_offset)

    def _ask(self, log: LogId, step: int) -> None:
        """Callers proceed from bounds to segments to reading: a caller that repeats a step, or
        steps back, wants fresh data."""
        if self._asked.get(log, -1) >= step:
            self._refresh()
        self._asked[log] = step

    def _refresh(self) -> None:
        self._asked.clear()
        if self._snapshot.renew():
            self._logs = self._load()

    def close(self) -> None:
        self._snapshot.close()


@dataclass(frozen=True, slots=True)
class RocksdbLogStatistics(ChunkedStatistics):
    database: RocksdbStatistics


class RocksdbLogStore(ChunkedLogStore):
    """The LogStore: write batches for what ChunkedLogStore decides."""

    write_in_thread = False
    write_beside_sync = True
    replaces = True

    def __init__(self, directory: Path) -> None:
        self._database = Rocksdb(directory)
        with self._database.reading() as db, self._database.reading(meta=True) as meta:
            super().__init__(_load(db, meta))

    def sync(self) -> None:
        self._database.sync()

    def least_free_bytes(self) -> int:
        return self._database.least_free_bytes()

    def statistics(self) -> RocksdbLogStatistics:
        return RocksdbLogStatistics(*self._totals(), self._database.statistics())

    def close(self) -> None:
        self._database.close()

    def _check(self) -> None:
        self._database.check()

    def _read(self, log: LogId, work: Callable[[LogState, ChunkSource], T]) -> T:
        with self._database.reading() as db:
            state = self._logs[log]
            return work(state, _Chunks(db, state.number))

    def _commit(self, changes: Sequence[LogChange], *, durable: bool) -> None:
        def fill(batch: WriteBatch, meta: ColumnFamily) -> None:
            for change in changes:
                _put(batch, meta, change)

        self._database.write(fill)
        if durable:
            self._database.sync()
        for change in changes:
            if change.dropped:
                for first, behind in chunked_log.removed_ranges(change):
                    number = change.state.number
                    self._database.reclaim(_KEY.pack(number, first), _KEY.pack(number, behind))


def _put(batch: WriteBatch, meta: ColumnFamily, change: LogChange) -> None:
    log_number = change.state.number
    for key, value in change.meta:
        if value is None:
            batch.delete(key, meta)
        else:
            batch.put(key, value, meta)
    for first, behind in chunked_log.removed_ranges(change):
        batch.delete_range(_KEY.pack(log_number, first), _KEY.pack(log_number, behind))
    for _, base_offset, value in change.chunks:
        batch.put(_KEY.pack(log_number, base_offset), value)


def open_store(directory: Path, options: Mapping[str, str], owner_epoch: int) -> RocksdbLogStore:
    make_directory(directory / DATABASE, Files())
    remove_left_over_snapshots(directory)
    return RocksdbLogStore(directory / DATABASE)


def open_reader(directory: Path) -> RocksdbLogReader:
    return RocksdbLogReader(directory)
