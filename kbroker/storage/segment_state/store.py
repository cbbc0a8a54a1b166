"""The StateStore of the `segment` engine: state as records in a log, like Kafka's
`__share_group_state`.

    DIRECTORY/<log>/     one log of the segment engine: every change
    DIRECTORY/parked/    keys of ON_DISK (spi.py), once there are any: lmdb/overlaid_map.py

Except for the keys of ON_DISK, the map lives in memory and is rebuilt when the store opens. One
write() is one record batch, so it is kept whole or not at all (segment/state_log.py).

The log is kept short by rewriting live entries. When dead bytes outweigh live ones, every sync()
appends a piece of the map, key by key, as ordinary batches of the current values. When the last
piece is synced, everything before the first one is dead and is trimmed. A crash at any point leaves
a log that gives the same map, whichever segment it begins with: it contains the last record of each
live key, and of a removed key either a value followed by its removal, or neither.

Changes of keys of ON_DISK wait in an overlay. When it has grown large enough, sync() moves it into
LMDB, after the sync of the log: LMDB is never ahead of the log. LMDB stores the position up to
which it has the log. Changes below that are dead bytes. The others are live and are rewritten with
the rest; so are removals, since LMDB may have the keys that they remove. When the store opens, it
lays the changes after the position over LMDB.

The store of the LMDB engine (lmdb/state_store.py) moves all keys into LMDB. It is no substitute: an
acknowledgement in one of 1 000 share-partitions then writes 1.8 times the bytes, or with a longer
redo log, a start takes twice as long (docs/decisions/0026-two-state-stores.md).

This module must not know what values mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kbroker.errors import NoSpace, OperatorError, StoreFailed
from kbroker.storage.keyvalue.key_ranges import LARGEST_PIECE, ON_DISK_END
from kbroker.storage.keyvalue.memory_map import loaded
from kbroker.storage.lmdb import overlaid_map
from kbroker.storage.lmdb.overlaid_map import OverlaidMap
from kbroker.storage.segment.log_store import SegmentLogStore
from kbroker.storage.segment.reader import SegmentLogReader
from kbroker.storage.segment.state_log import StateLog, read_changes
from kbroker.storage.segment_state.reader import LogStateMoment, LogStateReader
from kbroker.storage.spi import (
    ON_DISK,
    Change,
    LogSettings,
    LogStore,
    StateStore,
    StateStoreFactory,
)

DIRECTORY = "parked"
SETTINGS = LogSettings(segment_bytes=8 << 20, segment_ms=1 << 62)
SMALLEST_DEAD_BYTES = 16 << 20
PIECE_BYTES = 256 << 10
_LEAST_BESIDE_BYTES = 4 << 20
"""For the keys of ON_DISK that move to LMDB, and the reserved end of the log's segment."""
_NAMESPACE_BYTES = len(ON_DISK)


class LogStateStatistics(NamedTuple):
    """Numbers of a store.

    - `log_bytes`: size of the log, of which `live_bytes` are live.
    - `rewrites`, `moves`: finished since the store was opened.
    - `keys`: those in memory.
    - `waiting_changes`: will be moved to LMDB, whose file has `on_disk_bytes` and never shrinks.
    """

    keys: int
    live_bytes: int
    log_bytes: int
    rewrites: int
    waiting_changes: int
    moves: int
    on_disk_bytes: int


@dataclass(slots=True)
class _Rewrite:
    """A rewrite of the live entries.

    - `start_offset`: where the rewrite begins in the log.
    - `next_key`: the map in memory is rewritten up to here.
    - `next_on_disk`: the same for the overlays, which come second.
    - `end_offset`: the log's end when no key was left to rewrite.
    """

    start_offset: int
    next_key: bytes = b""
    next_on_disk: bytes | None = ON_DISK
    end_offset: int | None = None


class LogStateStore(StateStore):
    """write() belongs on the broker's loop, sync() in its commit thread. They may run at the same
    time: `_log.appending` is held while the log and the maps differ, and while entries are
    rewritten."""

    keeps_keys_on_disk = True
    write_in_thread = False
    write_beside_sync = True

    def __init__(self, log: LogStore, on_disk: OverlaidMap | None = None) -> None:
        self._log = StateLog(log, SETTINGS)
        self._on_disk = on_disk or OverlaidMap(None)
        self._rewrite: _Rewrite | None = None
        self._rewrites = 0
        self._unsynced_bytes = 0
        if self._on_disk.position > self._log.end_offset:
            raise OperatorError(
                f"the state log ends at {self._log.end_offset}, and what lies beside it in "
                f"{DIRECTORY}/ is of "
                f"{self._on_disk.position}: one of them is from an older copy; restore both from one backup"
            )
        self._map = loaded(self._stored(self._log.start_offset, self._log.end_offset))
        self._log_bytes = self._log.size_bytes()

    def _stored(self, offset: int, end_offset: int) -> Iterator[Change]:
        """Yields the changes of keys in memory. Applies the others, and moves them in between: the
        whole log is synced by now, since recovery syncs what it reads."""
        position = self._on_disk.position
        while offset < end_offset:
            is_new = offset >= position
            changes, next_offset = read_changes(self._log.reader, offset, end_offset if is_new else position)
            if not changes:
                raise StoreFailed(
                    f"state log: nothing can be read from offset {offset} on, although it ends at "
                    f"{end_offset}"
                )
            yield from (change for change in changes if change[0][:_NAMESPACE_BYTES] != ON_DISK)
            offset = next_offset
            if is_new:
                self._on_disk.apply([change for change in changes if change[0][:_NAMESPACE_BYTES] == ON_DISK])
                if self._on_disk.has_grown:
                    self._on_disk.freeze(offset)
                    self._on_disk.move()

    def get(self, key: bytes) -> bytes | None:
        return self._on_disk.get(key) if key[:_NAMESPACE_BYTES] == ON_DISK else self._map.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        if prefix[:_NAMESPACE_BYTES] == ON_DISK:
            return self._on_disk.scan(prefix)
        return self._scan_both(prefix) if ON_DISK.startswith(prefix) else self._map.scan(prefix)

    def _scan_both(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self.snapshot() as moment:
            found = list(moment.scan(prefix))
        yield from found

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._on_disk.scan_range(first, end)

    @contextmanager
    def snapshot(self) -> Iterator[LogStateMoment]:
        with ExitStack() as stack:
            with self._on_disk.lock:
                moment = LogStateMoment(self._map.copy(), self._on_disk.moment(stack))
            yield moment

    def write(self, changes: Sequence[Change]) -> None:
        if not changes:
            return
        self._on_disk.check()
        on_disk = [change for change in changes if change[0][:_NAMESPACE_BYTES] == ON_DISK]
        if on_disk:
            self._on_disk.check_room()
        with self._log.appending:
            self._append(changes)
            if not on_disk:
                self._map.apply(changes)
                return
            with self._on_disk.lock:  # so that a snapshot in another thread sees both or none
                self._map.apply([change for change in changes if change[0][:_NAMESPACE_BYTES] != ON_DISK])
                self._on_disk.apply(on_disk)

    def sync(self) -> None:
        """Also moves the overlay to LMDB and rewrites a piece of the live entries, if they are due.
        A full disk postpones both."""
        self._on_disk.check()
        with self._log.appending:
            synced_offset = self._log.end_offset
            if self._on_disk.has_grown:
                self._on_disk.freeze(synced_offset)
        self._log.sync()
        self._on_disk.move()
        with self._log.appending:
            piece_bytes = max(PIECE_BYTES, 4 * self._unsynced_bytes)
            self._unsynced_bytes = 0
            live_bytes = self._map.live_bytes + self._on_disk.waiting_bytes
            if self._rewrite is None and self._log_bytes - live_bytes > max(SMALLEST_DEAD_BYTES, live_bytes):
                self._rewrite = _Rewrite(self._log.end_offset)
            rewrite = self._rewrite
            try:
                if rewrite is None or not self._rewrite_piece(rewrite, piece_bytes, synced_offset):
                    return
            except NoSpace:
                return
        if self._log.trim(rewrite.start_offset):
            with self._log.appending:
                self._log_bytes = self._log.size_bytes()
                self._rewrite = None
                self._rewrites += 1

    def _rewrite_piece(self, rewrite: _Rewrite, piece_bytes: int, synced_offset: int) -> bool:
        """True if everything is rewritten and synced, that is, lies below `synced_offset`.

        A write during that sync may have removed the last keys to rewrite. The trim then removes
        their values, so their removal, and everything written with it, must be synced first."""
        if rewrite.end_offset is None:
            piece = self._map.piece(rewrite.next_key, piece_bytes)
            if piece:
                self._append(piece)
                rewrite.next_key = piece[-1][0] + b"\0"
                return False
            if self._rewrite_overlaid(rewrite):
                return False
            rewrite.end_offset = self._log.end_offset
        return synced_offset >= rewrite.end_offset

    def _rewrite_overlaid(self, rewrite: _Rewrite) -> bool:
        """False if everything that the trim removes is in LMDB or has been rewritten."""
        if rewrite.next_on_disk is None or self._on_disk.position >= rewrite.start_offset:
            return False
        piece, next_on_disk = self._on_disk.overlaid(rewrite.next_on_disk, ON_DISK_END, LARGEST_PIECE)
        if piece:
            self._append(piece)
        rewrite.next_on_disk = next_on_disk
        return bool(piece)

    def _append(self, changes: Sequence[Change]) -> None:
        size = self._log.append(changes)
        self._log_bytes += size
        self._unsynced_bytes += size

    def least_free_bytes(self) -> int:
        """What the log grows by before it is rewritten, the live entries that are written again,
        and what moves to LMDB. The space that the log has reserved for it is taken already."""
        live_bytes = self._map.live_bytes + self._on_disk.waiting_bytes
        until_rewrite = max(SMALLEST_DEAD_BYTES, live_bytes) - (self._log_bytes - live_bytes)
        growth_bytes = max(0, until_rewrite) + live_bytes + _LEAST_BESIDE_BYTES
        return max(0, growth_bytes - self._log.reserved_bytes())

    def statistics(self) -> LogStateStatistics:
        on_disk = self._on_disk
        return LogStateStatistics(
            keys=len(self._map),
            live_bytes=self._map.live_bytes + on_disk.waiting_bytes,
            log_bytes=self._log_bytes,
            rewrites=self._rewrites,
            waiting_changes=on_disk.waiting_changes,
            moves=on_disk.moves,
            on_disk_bytes=on_disk.file_bytes,
        )

    def close(self) -> None:
        try:
            self._log.close()
        finally:
            self._on_disk.close()


def open_store(directory: Path, options: Mapping[str, str], owner_epoch: int) -> LogStateStore:
    """Options: those of the segment engine, and `overlay_changes` (4 096) and `overlay_bytes` (1
    MiB): how many changes of keys of ON_DISK gather in memory before they are moved to LMDB."""
    own = {"overlay_changes": overlaid_map.MOST_CHANGES, "overlay_bytes": overlaid_map.MOST_BYTES}
    for name in own.keys() & options.keys():
        if not options[name].isdigit():
            raise OperatorError(
                f"option {name} of the segment engine's state must be a number, not {options[name]!r}"
            )
        own[name] = int(options[name])
    others = {name: value for name, value in options.items() if name not in own}
    log = SegmentLogStore(directory, others, foreign=DIRECTORY)
    on_disk: OverlaidMap | None = None
    try:
        on_disk = OverlaidMap(
            directory / DIRECTORY,
            most_changes=own["overlay_changes"],
            most_bytes=own["overlay_bytes"],
        )
        return LogStateStore(log, on_disk)
    except BaseException:
        log.close()
        if on_disk is not None:
            on_disk.close()
        raise


def open_reader(directory: Path) -> LogStateReader:
    return LogStateReader(SegmentLogReader(directory), directory / DIRECTORY)


STATE_STORE = StateStoreFactory(open=open_store, open_reader=open_reader)
