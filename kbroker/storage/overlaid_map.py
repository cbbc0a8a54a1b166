"""A map in LMDB with the newest changes over it in memory: where log_state_store.py has the keys of ON_DISK.

    DIRECTORY/data.mdb, lock.mdb     the map (lmdb_state_map.py), and the position: all changes of the state log below it are in it

LMDB must sync every commit, so a change goes to the state log and into an overlay, which is moved into LMDB when it has grown. That goes
in steps, for the log's owner, whose lock keeps writes away from the first and the last:

    freeze    the overlay stands still, and a new one lies over it; the position will be the log's end of this moment
    ...       the log is synced, so that LMDB is never ahead of what is safe
    move      the frozen overlay goes into LMDB, the position with the last of it
    drop      it is forgotten

Each is harmless alone: a change that is in LMDB and in an overlay, or in the log behind the position, is laid over once more. A full
disk postpones a move; the frozen overlay is moved later, to its own position. The directory is made by the first move.

This module must not know what keys mean, nor the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from threading import Lock

import lmdb

from kbroker.errors import NoSpace, OperatorError, StoreFailed
from kbroker.storage.key_ranges import Entries, Overlay, lay_over, part_of, scan_in_pieces, without_removals
from kbroker.storage.lmdb_environment import DATA, LmdbEnvironment, Transaction, is_full, open_environment
from kbroker.storage.lmdb_state_map import StateMap, piece_over
from kbroker.storage.spi import Change

DIRECTORY = "parked"
MAP_BYTES = 1 << 40
MOST_CHANGES, MOST_BYTES = 4096, 1 << 20
"""More than that in the overlay is moved at the next sync."""
MOST_WAITING_CHANGES, MOST_WAITING_BYTES = 1 << 18, 64 << 20
"""More than that waits only while the disk is full, or slower than the writer: then there is no space for more."""
MOVED_AT_ONCE = 4096
"""Changes in one transaction, which has a copy of every page that it changes in memory."""


class OverlaidMoment:
    """One moment of the map: a read transaction, None where there is no map yet, and the changes that are laid over it."""

    def __init__(self, transaction: Transaction | None, changes: Mapping[bytes, bytes | None]) -> None:
        self._transaction = transaction
        self._changes = changes
        self._in_order: list[Change] | None = None

    def get(self, key: bytes) -> bytes | None:
        if key in self._changes:
            return self._changes[key]
        return None if self._transaction is None else StateMap(self._transaction).get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        found: dict[bytes, bytes | None] = {}
        if self._transaction is not None:
            found.update(StateMap(self._transaction).scan(prefix))
        found.update(change for change in self._changes.items() if change[0].startswith(prefix))
        yield from without_removals(sorted(found.items()))

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return scan_in_pieces(self.piece, first, end)

    def piece(self, first: bytes, end: bytes, count: int) -> tuple[Entries, bytes | None]:
        if self._in_order is None:
            self._in_order = sorted(self._changes.items())
        return _piece(self._transaction, [part_of(self._in_order, first, end, count)], first, end, count)


class OverlaidMap:
    """`lock` is held, for a short while, by a caller that changes it together with something else, and by one that needs a moment of
    both. `position` is that of LMDB. `failed` says why, once a move has failed for another reason than a full disk."""

    def __init__(self, directory: Path | None, *, most_changes: int = MOST_CHANGES, most_bytes: int = MOST_BYTES) -> None:
        """Without a directory everything stays in the overlay."""
        self._directory = directory
        self._most_changes, self._most_bytes = most_changes, most_bytes
        self.lock = Lock()
        self.position = 0
        self.failed = ""
        self.moves = 0
        self._new = Overlay()
        self._frozen = Overlay()
        self._moving_to: int | None = None
        self._env: LmdbEnvironment | None = None
        if directory is not None and (directory / DATA).exists():
            self._env = open_environment(directory, read_only=False, map_bytes=MAP_BYTES, max_handles=0)
            self.position = self._env.read(lambda transaction: StateMap(transaction).position)

    @property
    def waiting_bytes(self) -> int:
        """About what the overlays take in a log."""
        return self._new.size_bytes + self._frozen.size_bytes

    @property
    def waiting_changes(self) -> int:
        return len(self._new) + len(self._frozen)

    @property
    def file_bytes(self) -> int:
        return 0 if self._env is None else self._env.statistics().file_bytes

    def check_room(self) -> None:
        """NoSpace when too much waits already."""
        if self._directory is not None and (self.waiting_changes > MOST_WAITING_CHANGES or self.waiting_bytes > MOST_WAITING_BYTES):
            raise NoSpace(
                f"{self._directory}: {self.waiting_changes} changes wait in memory for space on the disk, {MOST_WAITING_CHANGES} "
                f"or {MOST_WAITING_BYTES} bytes are the most: make room on it"
            )

    def apply(self, changes: Sequence[Change]) -> None:
        """With `lock` held."""
        self._new.update(changes)

    def get(self, key: bytes) -> bytes | None:
        for overlay in (self._new, self._frozen):  # in this order: that is the way they go
            if key in overlay.changes:
                return overlay.changes[key]
        env = self._env
        return None if env is None else env.read(lambda transaction: StateMap(transaction).get(key))

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with ExitStack() as stack:
            with self.lock:
                moment = self.moment(stack)
            found = list(moment.scan(prefix))
        yield from found

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return scan_in_pieces(self._piece, first, end)

    def _piece(self, first: bytes, end: bytes, count: int) -> tuple[Entries, bytes | None]:
        with ExitStack() as stack:
            with self.lock:
                layers = [overlay.piece(first, end, count) for overlay in (self._frozen, self._new)]
                transaction = self._begin(stack)
            return _piece(transaction, layers, first, end, count)

    def moment(self, stack: ExitStack) -> OverlaidMoment:
        """It ends with `stack`. With `lock` held."""
        return OverlaidMoment(self._begin(stack), {**self._frozen.changes, **self._new.changes})

    def _begin(self, stack: ExitStack) -> Transaction | None:
        """Behind the overlays, or with `lock` held: what is dropped from them meanwhile is in the transaction."""
        return None if self._env is None else stack.enter_context(self._env.long_read())

    # Moving

    def freeze(self, position: int) -> None:
        """If it is time. Below `position`, the end of the log now, all changes have been applied."""
        grown = len(self._new) > self._most_changes or self._new.size_bytes > self._most_bytes
        if grown and self._moving_to is None and self._directory is not None:
            with self.lock:
                self._frozen = self._new
                self._new = Overlay()
                self._moving_to = position

    def move(self) -> None:
        """What is frozen, if anything is. The log must be synced up to the position that `freeze` was given. On a full disk: later.
        StoreFailed when the disk fails."""
        position = self._moving_to
        if position is None:
            return
        try:
            self._move(self._env or self._make(), position)
        except NoSpace:
            return
        except StoreFailed as error:
            self.failed = str(error)
            raise
        with self.lock:
            self._frozen = Overlay()
            self._moving_to = None
            self.position = position
        self.moves += 1

    def _move(self, env: LmdbEnvironment, position: int) -> None:
        """The position goes with the last piece: until then the log's changes are laid over again, whichever of them are here."""
        changes = self._frozen.in_order()
        is_last = False
        while not is_last:
            piece = list(islice(changes, MOVED_AT_ONCE))
            is_last = len(piece) < MOVED_AT_ONCE
            with env.write() as transaction:
                state = StateMap(transaction)
                for key, value in piece:
                    state.put(key, value)
                if is_last:
                    state.set_position(position)

    def _make(self) -> LmdbEnvironment:
        assert self._directory is not None
        try:
            self._env = open_environment(self._directory, read_only=False, map_bytes=MAP_BYTES, max_handles=0)
        except (OSError, lmdb.Error, OperatorError) as error:
            if is_full(error, self._directory.parent):
                raise NoSpace(f"{self._directory}: {error}") from error
            raise StoreFailed(f"{self._directory}: {error}") from error
        return self._env

    def overlaid(self, first: bytes, end: bytes, count: int) -> tuple[list[Change], bytes | None]:
        """A piece of the overlays, removals as well: what LMDB may not have."""
        with self.lock:
            return lay_over([overlay.piece(first, end, count) for overlay in (self._frozen, self._new)], count)

    def close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()


def _piece(
    transaction: Transaction | None, layers: Sequence[Sequence[Change]], first: bytes, end: bytes, count: int
) -> tuple[Entries, bytes | None]:
    if transaction is not None:
        return piece_over(StateMap(transaction), layers, first, end, count)
    found, rest = lay_over(layers, count)
    return without_removals(found), rest
