"""The storage SPIs: what the broker asks of an engine. Read this file first.

Engines stay small and dumb. They keep whole record batches per log, in offset order, and small keys
with small values; they never look inside a batch beyond the header fields handed to them, check no
CRC on the way in, know no Kafka request and no clock (`now_ms` is an argument). Everything else
(stamping offsets, validation, producer state, visibility) is the broker's. All methods are
synchronous; the broker decides which run on its loop and which in its commit thread.

What counts as kept:
    write() returned    the data survives kill -9 of the process
    sync()  returned    everything written before the call began survives a power cut
    NoSpace             nothing of that write() call was kept (a reader will never see a part of
                        it); the store goes on
    StoreFailed         the state of the disk is unknown; every later write() and sync() raises
                        StoreFailed as well

Threads: the broker calls write(), sync() and create/drop/trim/truncate one at a time, never two of
them at once, and always from one thread where `write_in_thread` is true. An engine that says
`write_beside_sync = True` allows one exception: a write() on the broker's loop while a sync() runs
in its commit thread, so that with durability `os` no answer waits for a sync. Reads may come from
other threads at the same time as any of these.

Offsets may have holes: no reader may assume that the batch after the one that ends at n begins at n
+ 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable
from uuid import UUID


class LogId(NamedTuple):
    """One topic partition's log. The topic's id, not its name: a recreated topic is another log."""

    topic_id: UUID
    partition: int


class LogBounds(NamedTuple):
    """`start_offset`: first offset physically present (or where an empty log begins); `end_offset`:
    next to be written."""

    start_offset: int
    end_offset: int


class SegmentInfo(NamedTuple):
    """One segment, the unit of retention. `max_timestamp_ms` is -1 in an empty segment."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class LogSettings:
    """When a log starts a new segment: see Kafka's topic configs segment.bytes and segment.ms."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000


class StampedBatch(NamedTuple):
    """One record batch (format v2, verbatim bytes) with its final base offset already stamped into
    `data`, which may be a slice of a larger buffer: who keeps it in memory copies it."""

    log: LogId
    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    data: bytes | bytearray | memoryview


class LogReader(Protocol):
    """Read-only view of an engine's logs. `open_reader` gives one that is safe beside a live
    broker."""

    may_block: bool
    """True where a cold read may take milliseconds: the broker then reads in a thread first."""

    def logs(self) -> Iterable[LogId]: ...

    def bounds(self, log: LogId) -> LogBounds:
        """Raises KeyError for a log that does not exist (so do the other methods that take a
        log)."""

    def segments(self, log: LogId) -> Sequence[SegmentInfo]:
        """In offset order; the last one is active and may be empty. Never an empty sequence."""

    def read(self, log: LogId, offset: int, *, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        """Whole batches from the first one whose last offset is >= `offset`, up to but without the
        first that begins at or after `end_offset`. At most `max_bytes` bytes in all, except that a
        first batch that is larger comes alone.

        Each memoryview is read-only and holds one or more whole batches back to back; it stays
        valid as long as it is referenced, whatever happens to the log meanwhile. An empty sequence
        means that there is nothing in the range.
        """

    def find_by_timestamp(self, log: LogId, timestamp_ms: int) -> int | None:
        """Base offset of the first batch whose max timestamp is >= `timestamp_ms`; None if there is
        none."""

    def close(self) -> None: ...


class LogStore(LogReader, Protocol):
    """A LogReader that also writes. One process owns a store at a time."""

    write_in_thread: bool
    """True where writes belong to one thread (LMDB): the broker then calls all of this class's
    methods in its commit thread."""

    def create(self, log: LogId, settings: LogSettings) -> None:
        """Make an empty log that begins at offset 0, durable on return; for an existing log only
        its settings change, and cost nothing if they are the same. The broker tells every log's
        settings at its start, so they need not be kept."""

    def drop(self, log: LogId) -> None:
        """Remove the log and its bytes; no error if there is none. Durable on return."""

    def trim(self, log: LogId, new_start: int) -> None:
        """Remove the segments that end at or below `new_start`. Where that is all of them, the
        active one included, an empty segment that begins at the log's end offset is left. Never
        removes an offset >= `new_start`. Durable on return."""

    def truncate(self, log: LogId, new_end: int) -> None:
        """Remove the batches that begin at or after `new_end` (a batch boundary). Durable on
        return."""

    def write(self, batches: Sequence[StampedBatch], *, now_ms: int) -> None:
        """Append batches, those of one log in rising offset order, of any number of logs. See the
        head of this file."""

    def sync(self) -> None: ...


Change: TypeAlias = tuple[bytes, bytes | None]
"""A key with its new value, or with None to remove it."""


class StateReader(Protocol):
    """A small ordered map from bytes to bytes."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys that start with `prefix`, in bytewise order, as of the moment of the call's first
        step."""

    def snapshot(self) -> AbstractContextManager[StateReader]:
        """A view that shows one moment in time until it is closed."""

    def close(self) -> None: ...


class StateStore(StateReader, Protocol):
    write_in_thread: bool

    def write(self, changes: Sequence[Change]) -> None:
        """Apply changes in their order, all or none. See the head of this file."""

    def sync(self) -> None: ...


ON_DISK: Final = b"parked/"
"""Keys that begin with it may be many millions: a store with the verb below keeps them where they
take no memory, whose amount must not rise with their number. All the rest holds for them as for
other keys; one write() of both kinds is kept whole or not at all."""


@runtime_checkable
class KeepsKeysOnDisk(Protocol):
    """The verb of a StateStore or StateReader, and of their snapshots, that keeps the keys of
    ON_DISK out of memory. It is no part of those protocols: an engine without it has no such
    method, and the broker refuses by name what needs it. See `keys_on_disk_of`."""

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `first` up to but without `end`, in bytewise order. ValueError unless both lie
        in ON_DISK (`end` may be the first key behind it); an empty range is no error.

        A call costs what its caller takes, not what there is. So entries are read in bounded
        pieces, while they are taken: each shows a moment after the call's first step, a later piece
        the same moment or a later one. A key that nobody changes meanwhile is given once; one that
        is put, replaced or removed meanwhile may be given as it was or as it is, or be left out
        where it was not there at some moment between. The keys given always rise. Of a snapshot(),
        all of it is the snapshot's moment.

        A store that says `may_block = False` is in memory: the broker then reads its pieces without
        a thread.

        Nothing of the engine is held between two steps. Writing during the scan, and leaving it
        unfinished, are allowed. A caller that takes keys from the front and removes them, again and
        again, should begin behind the last one that it took: some engines have to step over what
        was removed there lately."""


def keys_on_disk_of(reader: StateReader) -> KeepsKeysOnDisk | None:
    """The reader, store or snapshot as one that has the verb; None if it has not. Stores that
    delegate to others are understood."""
    return cast(KeepsKeysOnDisk, reader) if hasattr(reader, "scan_range") else None


def writes_beside_sync(store: LogStore | StateStore) -> bool:
    """Whether write() may run while sync() does. `write_beside_sync` is no part of the protocols,
    so that an engine which says nothing is one that forbids it; where `write_in_thread` is true
    both have the same thread, and it has no effect."""
    return not store.write_in_thread and bool(getattr(store, "write_beside_sync", False))


def trims_beside_write(store: LogStore) -> bool:
    """Whether trim() may run while write() does, on the same log too, as long as `new_start` is
    below its end offset. Like `write_beside_sync`, `trim_beside_write` is no part of the protocol:
    state stores that keep a log ask for it."""
    return bool(getattr(store, "trim_beside_write", False))


def tail_offset_of(reader: LogReader) -> Callable[[LogId], int]:
    """Gives the base offset of a log's active segment. An engine may have `tail_offset`, which is
    no part of the protocols, where it takes less than listing all segments: this is asked before
    every read."""
    found: Callable[[LogId], int] | None = getattr(reader, "tail_offset", None)
    return found or (lambda log: reader.segments(log)[-1].base_offset)


@dataclass(frozen=True, slots=True)
class LogStoreFactory:
    """What an entry point of the group `kbroker.log_store` names."""

    open: Callable[[Path, Mapping[str, str], int], LogStore]
    """(directory, options, owner_epoch): the directory exists or is created; recovery is complete
    on return."""
    open_reader: Callable[[Path], LogReader]
    """(directory): beside a live broker or without one; takes no lock that could disturb the
    broker; changes nothing."""


@dataclass(frozen=True, slots=True)
class StateStoreFactory:
    """What an entry point of the group `kbroker.state_store` names."""

    open: Callable[[Path, Mapping[str, str], int], StateStore]
    open_reader: Callable[[Path], StateReader]
