"""A map in LMDB, overlaid in memory with the newest changes. The state stores of both engines that
use LMDB are made of it, and of a state log (segment/state_log.py):

- lmdb/state_store.py has all keys here,
- segment_state/store.py has the keys of ON_DISK here.

    DIRECTORY/data.mdb, lock.mdb     the map (state_map.py) and its position: the map contains all
                                     changes of the state log below that position

LMDB has to sync every commit. So a change goes to the state log and into an overlay, which is moved
into LMDB when it has grown large enough. The log's owner takes these steps; its lock excludes
writes during the first and the last:

    freeze    the overlay no longer changes, and new changes go to a second one; the position of
              the frozen overlay is the current end of the log
    ...       the log is synced, so that LMDB is never ahead of durable data
    move      the frozen overlay is written to LMDB, its position with the last part
    drop      the frozen overlay is discarded

A crash between two steps does no harm: a change that is in LMDB, and also in an overlay or in the
log after the position, is simply applied twice. A full disk postpones a move; the frozen overlay is
moved later, with its own position. Without a directory, the first move creates it.

LMDB itself is loaded only when there is a map: a segment broker may have none. This module must not
know what keys mean, nor the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from kbroker.errors import NoSpace, StoreFailed
from kbroker.storage.keyvalue.key_ranges import (
    Entries,
    Overlay,
    lay_over,
    part_of,
    scan_in_pieces,
    without_removals,
)
from kbroker.storage.spi import Change, StateReader

if TYPE_CHECKING:
    from kbroker.storage.lmdb.state_map import OnDiskMap, StateMap

_DATA = "data.mdb"
MOST_CHANGES, MOST_BYTES = 4096, 1 << 20
"""An overlay larger than this is moved at the next sync."""
MOST_WAITING_CHANGES, MOST_WAITING_BYTES = 1 << 18, 64 << 20
"""Overlays grow to this size only while the disk is full, or slower than the writer. Writes are
then refused with NoSpace."""


class OverlaidMoment(StateReader):
    """A consistent view of one moment: the map in LMDB (None if there is none yet), and the changes
    laid over it. Leave it soon: its transaction pins old pages of the file."""

    keeps_keys_on_disk = True

    def __init__(self, below: StateMap | None, changes: Mapping[bytes, bytes | None]) -> None:
        self._below = below
        self._changes = changes
        self._in_order: list[Change] | None = None

    def get(self, key: bytes) -> bytes | None:
        if key in self._changes:
            return self._changes[key]
        return None if self._below is None else self._below.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        found = {} if self._below is None else dict(self._below.scan(prefix))
        for key, value in self._changes.items():
            if value is None:
                found.pop(key, None)
            elif key.startswith(prefix):
                found[key] = value
        yield from sorted(found.items())

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return scan_in_pieces(self.piece, first, end)

    def piece(self, first: bytes, end: bytes, count: int) -> tuple[Entries, bytes | None]:
        if self._in_order is None:
            self._in_order = sorted(self._changes.items())
        return piece_over(self._below, [part_of(self._in_order, first, end, count)], first, end, count)

    @contextmanager
    def snapshot(self) -> Iterator[OverlaidMoment]:
        yield self

    def close(self) -> None:
        """Nothing to do: the view ends with its transaction."""


class OverlaidMap:
    """The map in LMDB and its overlays.

    - `lock`: held briefly by callers that change the map together with something else, or that need
      a consistent view of both.
    - `position`: that of LMDB.
    - `moves`: finished since the map was opened.
    """

    def __init__(
        self,
        directory: Path | None,
        *,
        most_changes: int = MOST_CHANGES,
        most_bytes: int = MOST_BYTES,
        below: OnDiskMap | None = None,
    ) -> None:
        """- `directory`: without it, everything stays in the overlay.
        - `most_changes`, `most_bytes`: the overlay `has_grown` if it has more.
        - `below`: the open map of `directory`; without it, it is opened if it exists."""
        self._directory = directory
        self._most_changes, self._most_bytes = most_changes, most_bytes
        self.lock = Lock()
        self.position = 0
        self.moves = 0
        self._failed = ""
        self._new = Overlay()
        self._frozen = Overlay()
        self._moving_to: int | None = None
        if below is None and directory is not None:
            below = open_if_there(directory, read_only=False)
        self._below = below
        if self._below is not None:
            self.position = self._below.position

    @property
    def waiting_bytes(self) -> int:
        """About how many bytes the overlays would take in a log."""
        return self._new.size_bytes + self._frozen.size_bytes

    @property
    def waiting_changes(self) -> int:
        return len(self._new) + len(self._frozen)

    @property
    def file_bytes(self) -> int:
        return 0 if self._below is None else self._below.statistics().file_bytes

    @property
    def has_grown(self) -> bool:
        return len(self._new) > self._most_changes or self._new.size_bytes > self._most_bytes

    def check(self) -> None:
        """Raises StoreFailed if a move has failed other than by a full disk."""
        if self._failed:
            raise StoreFailed(self._failed)

    def check_room(self) -> None:
        """Raises NoSpace if too many changes wait already, beside a frozen overlay."""
        if self._moving_to is not None and (
            self.waiting_changes > MOST_WAITING_CHANGES or self.waiting_bytes > MOST_WAITING_BYTES
        ):
            raise NoSpace(
                f"{self._directory}: {self.waiting_changes} changes wait in memory for space on the disk, "
                f"{MOST_WAITING_CHANGES} "
                f"or {MOST_WAITING_BYTES} bytes are the most: make room on it"
            )

    def apply(self, changes: Sequence[Change]) -> None:
        """Call with `lock` held."""
        self._new.update(changes)

    def get(self, key: bytes) -> bytes | None:
        for overlay in (self._new, self._frozen):  # in this order, as changes move from new to frozen
            if key in overlay.changes:
                return overlay.changes[key]
        return None if self._below is None else self._below.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        # read it whole at the first step: an abandoned scan would pin old pages
        with ExitStack() as stack:
            with self.lock:
                moment = self.moment(stack, prefix)
            found = list(moment.scan(prefix))
        yield from found

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return scan_in_pieces(self._piece, first, end)

    def _piece(self, first: bytes, end: bytes, count: int) -> tuple[Entries, bytes | None]:
        with ExitStack() as stack:
            with self.lock:
                layers = [overlay.piece(first, end, count) for overlay in (self._frozen, self._new)]
                below = self._begin(stack)
            return piece_over(below, layers, first, end, count)

    def moment(self, stack: ExitStack, prefix: bytes = b"") -> OverlaidMoment:
        """A view that ends with `stack`, and that may lack keys without the prefix. Call with
        `lock` held."""
        return OverlaidMoment(self._begin(stack), {**self._frozen.of(prefix), **self._new.of(prefix)})

    def _begin(self, stack: ExitStack) -> StateMap | None:
        """Call with `lock` held, so that each change is either in the overlays or in this
        transaction."""
        return None if self._below is None else stack.enter_context(self._below.moment())

    # Moving

    def freeze(self, position: int) -> None:
        """Freeze the overlay, unless it is empty, or a frozen one has still to be moved. `position`
        is the current end of the log; all changes below it must have been applied."""
        if self._new.changes and self._moving_to is None and self._directory is not None:
            with self.lock:
                self._frozen = self._new
                self._new = Overlay()
                self._moving_to = position

    def move(self) -> bool:
        """Move the frozen overlay, if there is one. The log must be synced up to the position that
        was passed to `freeze`. False if there was none, or if the disk is full: then a later call
        retries. Raises StoreFailed if the disk fails."""
        position = self._moving_to
        if position is None:
            return False
        try:
            if self._below is None:
                self._below = _make(self._directory)
            self._below.write(self._frozen.in_order(), position)
        except NoSpace:
            return False
        except StoreFailed as error:
            self._failed = str(error)
            raise
        with self.lock:
            self._frozen = Overlay()
            self._moving_to = None
            self.position = position
        self.moves += 1
        return True

    def overlaid(self, first: bytes, end: bytes, count: int) -> tuple[list[Change], bytes | None]:
        """A piece of the overlays, removals included: the changes that LMDB may lack."""
        with self.lock:
            return lay_over(
                [overlay.piece(first, end, count) for overlay in (self._frozen, self._new)], count
            )

    def close(self) -> None:
        below, self._below = self._below, None
        if below is not None:
            below.close()


def piece_over(
    below: StateMap | None, layers: Sequence[Sequence[Change]], first: bytes, end: bytes, count: int
) -> tuple[Entries, bytes | None]:
    """One piece of a range of the map, with changes laid over it; see `lay_over`."""
    if below is not None:
        return below.piece(layers, first, end, count)
    found, rest = lay_over(layers, count)
    return without_removals(found), rest


def open_if_there(directory: Path, *, read_only: bool) -> OnDiskMap | None:
    """None if no key was ever moved there. Raises OperatorError if it cannot be opened."""
    if not (directory / _DATA).exists():
        return None
    from kbroker.storage.lmdb.state_map import open_map

    return open_map(directory, read_only=read_only)


def _make(directory: Path | None) -> OnDiskMap:
    from kbroker.storage.lmdb.state_map import make_map

    assert directory is not None, "freeze() does nothing without one"
    return make_map(directory)
