"""State in RocksDB: a separate database, with unchanged keys in the column family for small keys.

write() writes to the WAL on the broker's loop, sync() syncs it in the commit thread. For the layout
of the directory see rocksdb/log_store.py, for a full disk rocksdb/database.py. This module must not
know what keys mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rocksdict import ColumnFamily, RdictIter, WriteBatch

from kbroker.storage.files import Files, make_directory
from kbroker.storage.keyvalue.key_ranges import LARGEST_PIECE, Entries, scan_in_pieces
from kbroker.storage.rocksdb.database import (
    META,
    Rocksdb,
    RocksdbStatistics,
    entries,
    range_bounds,
    read_piece,
)
from kbroker.storage.rocksdb.snapshot import DATABASE, RocksdbSnapshot, remove_left_over_snapshots
from kbroker.storage.spi import Change, StateReader, StateStore


class _Moment(StateReader):
    """A consistent view of the moment at which its iterator was created. (rocksdict's Snapshot is
    no use: its iterators show later writes.)"""

    keeps_keys_on_disk = True

    def __init__(self, iterator: RdictIter) -> None:
        self._iterator = iterator

    def get(self, key: bytes) -> bytes | None:
        self._iterator.seek(key)
        value: bytes | None = (
            self._iterator.value() if self._iterator.valid() and self._iterator.key() == key else None
        )
        self._iterator.status()
        return value

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        # as a list, because reads during the scan use the same iterator
        yield from list(entries(self._iterator, prefix))

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return scan_in_pieces(lambda *asked: read_piece(self._iterator, *asked), first, end)

    @contextmanager
    def snapshot(self) -> Iterator[_Moment]:
        yield self

    def close(self) -> None:
        """Called by leaving `snapshot()`. Deletes the iterator, since a database cannot be closed
        while it has one, and the caller's variable may outlive the `with` block."""
        del self._iterator


class RocksdbStateReader(StateReader):
    """For use while a broker runs, over its own RocksdbSnapshot. A scan, a snapshot() and a
    repeated get() of a key each make a new one."""

    keeps_keys_on_disk = True

    def __init__(self, directory: Path) -> None:
        self._snapshot = RocksdbSnapshot(directory)
        self._asked: set[bytes] = set()

    def get(self, key: bytes) -> bytes | None:
        if key in self._asked:
            self._refresh()
        self._asked.add(key)
        value: bytes | None = self._snapshot.db.get_column_family(META).get(key)
        return value

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._refresh()
        yield from list(entries(self._snapshot.db.get_column_family(META).iter(), prefix))

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return scan_in_pieces(self._piece, first, end, largest=16 * LARGEST_PIECE)

    def _piece(self, first: bytes, end: bytes, count: int) -> tuple[Entries, bytes | None]:
        self._refresh()
        return read_piece(
            self._snapshot.db.get_column_family(META).iter(range_bounds(first, end)), first, end, count
        )

    @contextmanager
    def snapshot(self) -> Iterator[_Moment]:
        snapshot = RocksdbSnapshot(self._snapshot.directory)
        try:
            moment = _Moment(snapshot.db.get_column_family(META).iter())
            try:
                yield moment
            finally:
                moment.close()
        finally:
            snapshot.close()

    def close(self) -> None:
        self._snapshot.close()

    def _refresh(self) -> None:
        self._asked.clear()
        self._snapshot.renew()


class RocksdbStateStore(StateStore):
    keeps_keys_on_disk = True
    write_in_thread = False
    write_beside_sync = True

    def __init__(self, directory: Path) -> None:
        self._database = Rocksdb(directory, holds_bulk=False)

    def get(self, key: bytes) -> bytes | None:
        with self._database.reading(meta=True) as meta:
            value: bytes | None = meta.get(key)
            return value

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        # read it whole at the first step: an abandoned scan must not hold the database
        with self._database.reading(meta=True) as meta:
            found = list(entries(meta.iter(), prefix))
        yield from found

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return scan_in_pieces(self._piece, first, end)

    def _piece(self, first: bytes, end: bytes, count: int) -> tuple[Entries, bytes | None]:
        with self._database.reading(meta=True) as meta:
            return read_piece(meta.iter(range_bounds(first, end)), first, end, count)

    @contextmanager
    def snapshot(self) -> Iterator[_Moment]:
        with self._database.reading(meta=True) as meta:
            moment = _Moment(meta.iter())
            try:
                yield moment
            finally:
                moment.close()

    def write(self, changes: Sequence[Change]) -> None:
        self._database.check()
        if not changes:
            return

        def fill(batch: WriteBatch, family: ColumnFamily) -> None:
            for key, value in changes:
                if value is None:
                    batch.delete(key, family)
                else:
                    batch.put(key, value, family)

        self._database.write(fill)

    def sync(self) -> None:
        self._database.sync()

    def least_free_bytes(self) -> int:
        return self._database.least_free_bytes()

    def statistics(self) -> RocksdbStatistics:
        return self._database.statistics()

    def close(self) -> None:
        self._database.close()


def open_store(directory: Path, options: Mapping[str, str], owner_epoch: int) -> RocksdbStateStore:
    make_directory(directory / DATABASE, Files())
    remove_left_over_snapshots(directory)
    return RocksdbStateStore(directory / DATABASE)


def open_reader(directory: Path) -> RocksdbStateReader:
    return RocksdbStateReader(directory)
