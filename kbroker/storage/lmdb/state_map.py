"""A map from bytes to bytes in the main database of an LMDB environment, and the position up to
which it contains a state log (segment/state_log.py).

LMDB's keys have at most 511 bytes, while a group's name alone may be longer. Keys of up to SHORT
bytes are stored as they are. Longer keys that begin with the same SHORT bytes share one entry,
which preserves the order of keys:

    key  up to 480 bytes                     value
    key  first 480 bytes, one zero byte      per long key, in order: rest length (4),
                                             rest, value length (4), value
    500 times ff                             position (8)

This module must not know what keys mean.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import lmdb

from kbroker.errors import NoSpace, OperatorError, StoreFailed
from kbroker.storage.keyvalue.key_ranges import Entries, lay_over, without_removals
from kbroker.storage.lmdb.environment import (
    LmdbEnvironment,
    LmdbStatistics,
    Transaction,
    is_full,
    open_environment,
)
from kbroker.storage.spi import Change

MAP_BYTES = 1 << 40
SHORT = 480
CHANGES_AT_ONCE = 512
"""Of a transaction: it keeps in memory a copy of every page that it changes, maybe one for each
change."""

_LENGTH = struct.Struct(">I")
_POSITION = struct.Struct(">q")
_POSITION_KEY = b"\xff" * 500  # longer than any other key, and sorted last
_LongKeys: TypeAlias = dict[bytes, bytes]


class StateMap:
    """The map as one transaction sees it."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def get(self, key: bytes) -> bytes | None:
        if len(key) > SHORT:
            return self._long_keys(key).get(key[SHORT:])
        value = self._transaction.get(key) if key else None
        return None if value is None else bytes(value)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        start = prefix[:SHORT]
        for key, value in self._entries(start):
            if not key.startswith(start):
                return
            for whole, its_value in _whole_keys(key, value):
                if whole.startswith(prefix):
                    yield whole, its_value

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """From `first` up to but without `end`."""
        for key, value in self._entries(first[:SHORT]):
            for whole, its_value in _whole_keys(key, value):
                if whole >= end:
                    return
                if whole >= first:
                    yield whole, its_value

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

    @property
    def position(self) -> int:
        value = self._transaction.get(_POSITION_KEY)
        return 0 if value is None else int(_POSITION.unpack(value)[0])

    def set_position(self, position: int) -> None:
        self._transaction.put(_POSITION_KEY, _POSITION.pack(position))

    def piece(
        self, layers: Sequence[Sequence[Change]], first: bytes, end: bytes, count: int
    ) -> tuple[Entries, bytes | None]:
        """One piece of a range, with the changes of `layers` laid over it; see `lay_over`."""
        found, rest = lay_over([list(islice(self.scan_range(first, end), count)), *layers], count)
        return without_removals(found), rest

    def _entries(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor = self._transaction.cursor()
        if not (cursor.set_range(first) if first else cursor.first()):
            return
        for view, value in cursor:
            key = bytes(view)
            if key == _POSITION_KEY:
                return
            yield key, bytes(value)

    def _long_keys(self, key: bytes) -> _LongKeys:
        value = self._transaction.get(_entry_key(key))
        return {} if value is None else _unpack(bytes(value))


class OnDiskMap:
    """The map, outside of a transaction. Create one with `open_map` or `make_map`."""

    def __init__(self, env: LmdbEnvironment) -> None:
        self._env = env
        self.directory = env.directory

    @property
    def position(self) -> int:
        return self._env.read(lambda transaction: StateMap(transaction).position)

    def get(self, key: bytes) -> bytes | None:
        return self._env.read(lambda transaction: StateMap(transaction).get(key))

    @contextmanager
    def moment(self) -> Iterator[StateMap]:
        """A read transaction. Leave it soon, since it pins old pages of the file."""
        with self._env.long_read() as transaction:
            yield StateMap(transaction)

    def write(self, changes: Iterable[Change], position: int) -> None:
        """Write changes, on disk on return, in several transactions. If NoSpace or StoreFailed is
        raised, some changes may be there, but the position is unchanged: the last transaction sets
        it, and until then readers lay all of the log's changes over the map."""
        rest = iter(changes)
        is_last = False
        while not is_last:
            piece = list(islice(rest, CHANGES_AT_ONCE))
            is_last = len(piece) < CHANGES_AT_ONCE
            with self._env.write() as transaction:
                state = StateMap(transaction)
                for key, value in piece:
                    state.put(key, value)
                if is_last:
                    state.set_position(position)

    def statistics(self) -> LmdbStatistics:
        return self._env.statistics()

    def reusable_bytes(self) -> int:
        """As LmdbEnvironment's."""
        return self._env.reusable_bytes()

    def close(self) -> None:
        self._env.close()


def open_map(directory: Path, *, read_only: bool, map_bytes: int = MAP_BYTES) -> OnDiskMap:
    """Raises OperatorError if it cannot be opened."""
    return OnDiskMap(open_environment(directory, read_only=read_only, map_bytes=map_bytes, max_handles=0))


def make_map(directory: Path) -> OnDiskMap:
    """Create the map while the store runs. Raises NoSpace or StoreFailed; a partly created
    directory does not disturb a later attempt."""
    try:
        return open_map(directory, read_only=False)
    except (OSError, lmdb.Error, OperatorError) as error:
        if is_full(error, directory.parent):
            raise NoSpace(f"{directory}: {error}") from error
        raise StoreFailed(f"{directory}: {error}") from error


def _whole_keys(key: bytes, value: bytes) -> Iterable[tuple[bytes, bytes]]:
    """The keys and values of one entry of the database, in order."""
    if len(key) <= SHORT:
        return ((key, value),)
    return [(key[:SHORT] + rest, long_value) for rest, long_value in sorted(_unpack(value).items())]


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
