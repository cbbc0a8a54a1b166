"""The LMDB environment below an overlay (overlaid_map.py): a map (lmdb/state_map.py), and the
position up to which it contains the log.

This is a separate module so that a broker without such a directory does not load LMDB. It must not
know what keys mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import lmdb

from kbroker.errors import NoSpace, OperatorError, StoreFailed
from kbroker.storage.keyvalue.key_ranges import Entries
from kbroker.storage.lmdb.environment import LmdbEnvironment, Transaction, is_full, open_environment
from kbroker.storage.lmdb.state_map import StateMap, piece_over, put_all
from kbroker.storage.spi import Change

MAP_BYTES = 1 << 40


class OnDiskMoment:
    """The contents as one read transaction sees them."""

    def __init__(self, transaction: Transaction) -> None:
        self._map = StateMap(transaction)

    @property
    def position(self) -> int:
        return self._map.position

    def get(self, key: bytes) -> bytes | None:
        return self._map.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._map.scan(prefix)

    def piece(
        self, layers: Sequence[Sequence[Change]], first: bytes, end: bytes, count: int
    ) -> tuple[Entries, bytes | None]:
        """One piece with the changes of `layers` laid over it; see `lay_over`."""
        return piece_over(self._map, layers, first, end, count)


class OnDiskMap:
    """Create one with `open_map` or `make_map`."""

    def __init__(self, env: LmdbEnvironment) -> None:
        self._env = env

    @property
    def position(self) -> int:
        return self._env.read(lambda transaction: StateMap(transaction).position)

    @property
    def file_bytes(self) -> int:
        return self._env.statistics().file_bytes

    def get(self, key: bytes) -> bytes | None:
        return self._env.read(lambda transaction: StateMap(transaction).get(key))

    @contextmanager
    def moment(self) -> Iterator[OnDiskMoment]:
        """A read transaction. Leave it soon, since it pins old pages of the file."""
        with self._env.long_read() as transaction:
            yield OnDiskMoment(transaction)

    def write(self, changes: Iterable[Change], position: int) -> None:
        """Write changes, on disk on return. If NoSpace or StoreFailed is raised, some changes may
        be there, but the position is unchanged."""
        put_all(self._env, changes, position)

    def close(self) -> None:
        self._env.close()


def open_map(directory: Path, *, read_only: bool) -> OnDiskMap:
    """Raises OperatorError if it cannot be opened."""
    return OnDiskMap(open_environment(directory, read_only=read_only, map_bytes=MAP_BYTES, max_handles=0))


def make_map(directory: Path) -> OnDiskMap:
    """Create the map while the store runs. Raises NoSpace or StoreFailed; a partly created
    directory does not disturb a later attempt."""
    try:
        return open_map(directory, read_only=False)
    except (OSError, lmdb.Error, OperatorError) as error:
        if is_full(error, directory.parent):
            raise NoSpace(f"{directory}: {error}") from error
        raise StoreFailed(f"{directory}: {error}") from error
