"""State in LMDB: an environment of its own whose main database is the map.

LMDB's keys end at 511 bytes, while a group's name alone may be longer. Keys up to SHORT bytes are stored as they are; longer ones share an
entry with all keys that begin with the same SHORT bytes, so that the order of keys is kept:

    key  up to 480 bytes                     value
    key  first 480 bytes, one zero byte      per long key, in order: rest length (4) rest, value length (4) value

Commits are synced; sync() has nothing to do. This module must not know what keys mean.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from kbroker.storage.lmdb_environment import LmdbEnvironment, LmdbStatistics, Transaction, open_environment
from kbroker.storage.spi import Change

SHORT = 480
MAP_BYTES = 1 << 40

_LENGTH = struct.Struct(">I")
_LongKeys: TypeAlias = dict[bytes, bytes]


class _View:
    """The map inside one transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def get(self, key: bytes) -> bytes | None:
        if len(key) > SHORT:
            return self._long_keys(key).get(key[SHORT:])
        value = self._transaction.get(key) if key else None
        return None if value is None else bytes(value)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._entries(prefix[:SHORT]):
            if len(key) <= SHORT:
                if key.startswith(prefix):
                    yield key, value
                continue
            for rest, long_value in sorted(_unpack(value).items()):
                whole = key[:SHORT] + rest
                if whole.startswith(prefix):
                    yield whole, long_value

    def put(self, key: bytes, value: bytes | None) -> None:
        if len(key) > SHORT:
            long_keys = self._long_keys(key)
            if value is None:
                long_keys.pop(key[SHORT:], None)
            else:
                long_keys[key[SHORT:]] = value
            key, value = _entry_key(key), _pack(long_keys) if long_keys else None
        if value is None:
            self._transaction.delete(key)
        else:
            self._transaction.put(key, value)

    def _entries(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor = self._transaction.cursor()
        if not (cursor.set_range(prefix) if prefix else cursor.first()):
            return
        for view, value in cursor:
            key = bytes(view)
            if not key.startswith(prefix):
                return
            yield key, bytes(value)

    def _long_keys(self, key: bytes) -> _LongKeys:
        value = self._transaction.get(_entry_key(key))
        return {} if value is None else _unpack(bytes(value))


def _entry_key(key: bytes) -> bytes:
    return key[:SHORT] + b"\0"


def _pack(long_keys: _LongKeys) -> bytes:
    return b"".join(_LENGTH.pack(len(part)) + part for item in sorted(long_keys.items()) for part in item)


def _unpack(value: bytes) -> _LongKeys:
    parts: list[bytes] = []
    position = 0
    while position < len(value):
        (length,) = _LENGTH.unpack_from(value, position)
        position += _LENGTH.size + length
        parts.append(value[position - length : position])
    return dict(zip(parts[::2], parts[1::2], strict=True))


class LmdbStateReader:
    """A StateReader beside a broker in another process, or in this one."""

    def __init__(self, env: LmdbEnvironment) -> None:
        self._env = env
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        return self._env.read(lambda transaction: _View(transaction).get(key))

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        # Read whole at the first step: a scan that is left unfinished would pin the pages of its moment.
        yield from self._env.read(lambda transaction: list(_View(transaction).scan(prefix)))

    @contextmanager
    def snapshot(self) -> Iterator[LmdbStateSnapshot]:
        with self._env.long_read() as transaction:
            yield LmdbStateSnapshot(transaction)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._env.close()


class LmdbStateSnapshot(_View):
    """One moment, shown by a read transaction: close it soon, it pins the file's old pages."""

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from list(super().scan(prefix))

    @contextmanager
    def snapshot(self) -> Iterator[LmdbStateSnapshot]:
        yield self

    def close(self) -> None:
        """Closed by leaving `snapshot()`."""


class LmdbStateStore(LmdbStateReader):
    """The StateStore: one synced transaction per write()."""

    write_in_thread = True

    def write(self, changes: Sequence[Change]) -> None:
        self._env.check()
        if not changes:
            return
        with self._env.write() as transaction:
            view = _View(transaction)
            for key, value in changes:
                assert key, "LMDB has no empty key"
                view.put(key, value)

    def sync(self) -> None:
        """Nothing to do: commits are synced."""
        self._env.check()

    def statistics(self) -> LmdbStatistics:
        return self._env.statistics()


def open_store(directory: Path, options: Mapping[str, str], owner_epoch: int) -> LmdbStateStore:
    """Option `map_size`: the most the file can grow to, in bytes (default 1 TiB; the file holds only what is stored)."""
    map_bytes = int(options.get("map_size", MAP_BYTES))
    return LmdbStateStore(open_environment(directory, read_only=False, map_bytes=map_bytes, max_handles=0))


def open_reader(directory: Path) -> LmdbStateReader:
    return LmdbStateReader(open_environment(directory, read_only=True, map_bytes=MAP_BYTES, max_handles=0))
