"""The storage SPIs: what the broker requires of an engine. Read this file first.

Derive from `LogStore`, `LogReader`, `StateStore` and `StateReader`. Abstract methods are required.
Everything else has a safe or simple default; override it where the engine can do better.

Engines stay small and dumb. They keep whole record batches per log, in offset order, and small keys
with small values. They never look inside a batch beyond the header fields handed to them, check no
CRC of what they write, and know neither Kafka requests nor a clock (`now_ms` is an argument).
Everything else (stamping offsets, validation, producer state, visibility) is the broker's job. All
methods are synchronous; the broker decides which run on its loop and which in its commit thread.

The guarantees:
    write() returned    the data survives kill -9 of the process
    sync()  returned    everything written before the call began survives a power cut
    NoSpace             nothing of that write() call was kept, and no reader will ever see a part of
                        it; the store stays usable. NoFiles, its subclass, is for lack of open files
    StoreFailed         the state of the disk is unknown; every later write() and sync() raises
                        StoreFailed as well

Threads: the broker never runs two of write(), sync(), create(), drop(), trim() and truncate() at
once, and calls them all in one thread where `write_in_thread` is true. `write_beside_sync` and
`trim_beside_write` permit exceptions. Reads may come from other threads at any time.

Offsets may have holes: no reader may assume that the batch after the one that ends at n begins at
n + 1. In a log whose segments were replaced, a segment may also begin or end with a hole, or hold
nothing at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from kbroker.plugins import adapted, opening

LEAST_FREE_BYTES: Final = 8 << 20
"""The default of least_free_bytes()."""


class LogId(NamedTuple):
    """Names the log of a topic partition, by the topic's id: a topic that is recreated under the
    same name has another log."""

    topic_id: UUID
    partition: int


class LogBounds(NamedTuple):
    """`start_offset`: the first offset physically present (or where an empty log begins).
    `end_offset`: the offset that will be written next."""

    start_offset: int
    end_offset: int


class SegmentInfo(NamedTuple):
    """One segment, the unit of retention. `max_timestamp_ms` is -1 in a segment without batches."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class LogSettings:
    """When a log rolls to a new segment: Kafka's topic configs segment.bytes and segment.ms. The
    age of a segment is the time of the next batch less that of its first one (if that is -1, the
    broker's clock less the time of the first write)."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000


class StampedBatch(NamedTuple):
    """One record batch (format v2, verbatim bytes) with its final base offset already stamped into
    `data`, which may be a slice of a larger buffer: an engine that keeps it in memory copies it."""

    log: LogId
    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    data: bytes | bytearray | memoryview


class LogReader(ABC):
    """Read-only view of an engine's logs. `open_reader` returns one that is safe beside a live
    broker. Methods that take a log raise KeyError for one that does not exist."""

    may_block: bool = True
    """Whether a cold read may take milliseconds: the broker then reads in a thread first."""

    @abstractmethod
    def logs(self) -> Iterable[LogId]: ...

    @abstractmethod
    def bounds(self, log: LogId) -> LogBounds: ...

    @abstractmethod
    def segments(self, log: LogId) -> Sequence[SegmentInfo]:
        """In offset order; the last one is active and may be empty. Never an empty sequence."""

    @abstractmethod
    def read(self, log: LogId, offset: int, *, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        """Whole batches from the first one whose last offset is >= `offset`, up to the first that
        begins at or after `end_offset`, which is left out. At most `max_bytes` bytes in all; a
        larger first batch is returned alone.

        Each memoryview is read-only and holds one or more whole batches back to back. It stays
        valid as long as it is referenced, whatever happens to the log meanwhile. An empty sequence
        means that there is nothing in the range.
        """

    def is_cached(self, log: LogId, offset: int, *, max_bytes: int, end_offset: int) -> bool:
        """Whether `read` with the same arguments, called at once, will not wait for the disk; false
        where that is not certain. The broker calls this on its loop. If it is false, the broker
        reads older segments, and batches of an earlier life, in a thread. Override it if the engine
        can tell quickly. Raises no error but KeyError."""
        return not self.may_block

    @abstractmethod
    def find_by_timestamp(self, log: LogId, timestamp_ms: int) -> int | None:
        """Base offset of the first batch whose max timestamp is >= `timestamp_ms`; None if there is
        none."""

    @abstractmethod
    def close(self) -> None: ...

    def tail_offset(self, log: LogId) -> int:
        """Base offset of the active segment. The broker calls this before every read. Override it
        if that costs less than listing all segments."""
        return self.segments(log)[-1].base_offset

    def statistics(self) -> object:
        """A dataclass or named tuple whose numbers become metrics, or None."""
        return None


class Replacement(ABC):
    """New contents for one sealed segment, with which the broker compacts a log. The segment keeps
    its base and end offset.

    The broker calls add() for the segment's whole range, then prepare() and finish(). It ends with
    abandon() in any case, and has one replacement of a segment at a time. Readers see old or new
    contents, and so does a restart after a crash.

    An engine may also apply each add() at once, as a whole. The segment then has new contents up to
    an offset and old ones from there, even after abandon() or a crash. In that state its
    `max_timestamp_ms` may be that of the old contents.

    Errors are those of write(). After NoSpace the old contents are there. If the segment has been
    removed or cut meanwhile, nothing is replaced, which is no error.
    """

    add_beside_write: bool = False
    """Whether add(), prepare() and abandon() may run in any thread, one at a time, while the store
    does anything else. Otherwise they run where trim() does, like finish()."""

    @abstractmethod
    def add(self, end: int, batches: Sequence[StampedBatch]) -> None:
        """The new contents from where the last add() ended up to `end`, a batch boundary of the old
        contents. The batches rise and lie in that range, and none is newer than the newest old one
        there. There may be none.

        The caller bounds their size, and that of the range, to a few MiB or one batch. ValueError
        if they do not fit; nothing is then taken."""

    def pieces(
        self, end: int, batches: Sequence[StampedBatch]
    ) -> Sequence[tuple[int, Sequence[StampedBatch]]]:
        """The arguments of several calls of add() that together do what one with these would do.
        Each of them holds up the writes of others for less. May be called in any thread."""
        return [(end, batches)]

    @abstractmethod
    def prepare(self) -> None:
        """Bring the added batches to disk, which may take long. ValueError if a part was not
        added."""

    @abstractmethod
    def finish(self) -> None:
        """The segment has the new contents, durable on return. Quick, and after prepare()."""

    @abstractmethod
    def abandon(self) -> None:
        """Remove an unfinished replacement. No error if there is nothing, or if it was called
        before. The next start removes files that could not be removed."""


class AddedRange:
    """For engines: checks that the pieces of a Replacement cover the segment, in order. `position`
    is where the next add() begins."""

    def __init__(self, base_offset: int, end: int) -> None:
        self.position = base_offset
        self.end = end

    def add(self, end: int, batches: Sequence[StampedBatch]) -> None:
        """ValueError unless the batches rise and lie between `position` and `end`."""
        self.check(end, batches)
        self.position = end

    def check(self, end: int, batches: Sequence[StampedBatch]) -> None:
        if not self.position <= end <= self.end:
            raise ValueError(f"{end} is not between {self.position} and {self.end}")
        least_offset = self.position
        for batch in batches:
            if not least_offset <= batch.base_offset <= batch.last_offset < end:
                raise ValueError(f"a batch at {batch.base_offset} is not between {least_offset} and {end}")
            least_offset = batch.last_offset + 1

    def check_complete(self) -> None:
        """ValueError if something was not added."""
        if self.position != self.end:
            raise ValueError(f"the new contents end at {self.position}, not at {self.end}")


class LogStore(LogReader):
    """A LogReader that also writes. One process owns a store at a time."""

    write_in_thread: bool = True
    """Whether writes belong to one thread: the broker then calls all methods of this class in its
    commit thread."""

    write_beside_sync: bool = False
    """Whether write() may run on the broker's loop while sync() runs in its commit thread. With
    durability `os` no response then waits for a sync. No effect where `write_in_thread` is true."""

    trim_beside_write: bool = False
    """Whether trim() may run while write() does, on the same log too, as long as `new_start` is
    below its end offset. For state stores that keep a log of their own."""

    replaces: bool = False
    """Whether the engine has replacing(). Without it the broker refuses to compact topics."""

    def reusable_bytes(self) -> int:
        """How much the engine can store before its files grow: in files that do not shrink, the
        part that removed records have left. Quick, and callable from any thread at any time."""
        return 0

    def least_free_bytes(self) -> int:
        """How much must be free on the disk so that the engine can still remove records and free
        their space, and take the small writes in between. The broker refuses producers before less
        than this is left for both stores (broker/logs/disk_floor.py). Quick, and callable from any
        thread at any time."""
        return LEAST_FREE_BYTES

    @abstractmethod
    def create(self, log: LogId, settings: LogSettings) -> None:
        """Create an empty log that begins at offset 0, durable on return. If the log exists, only
        its settings change; with the same settings the call should cost nothing. The broker passes
        the settings of every log when it starts, so they need not be stored."""

    @abstractmethod
    def drop(self, log: LogId) -> None:
        """Remove the log and its bytes; no error if it does not exist. Durable on return."""

    @abstractmethod
    def trim(self, log: LogId, new_start: int) -> None:
        """Remove the segments that end at or below `new_start`, never an offset >= `new_start`. If
        all segments end there, an empty one remains that begins at the log's end offset. Durable on
        return."""

    @abstractmethod
    def truncate(self, log: LogId, new_end: int) -> None:
        """Remove the batches that begin at or after `new_end` (a batch boundary). Durable on
        return."""

    @abstractmethod
    def write(self, batches: Sequence[StampedBatch], *, now_ms: int) -> None:
        """Append batches of any number of logs, those of one log in rising offset order. See the
        head of this file."""

    def write_waits(self, batches: Sequence[StampedBatch]) -> bool:
        """Whether write() of these would wait for the disk or for a sync. The broker asks before
        each write() on its loop, and makes such a one in its commit thread. Must be quick."""
        return False

    @abstractmethod
    def sync(self) -> None: ...

    def replacing(self, log: LogId, base_offset: int) -> Replacement:
        """Begin to replace the contents of the segment that begins at `base_offset`. Runs where
        trim() does. KeyError if there is no such log; ValueError if there is no such segment, or
        for the active one."""
        raise NotImplementedError


Change: TypeAlias = tuple[bytes, bytes | None]
"""A key with its new value, or with None to remove it."""

ON_DISK: Final = b"parked/"
"""Prefix of keys that may number many millions. In a store with `keeps_keys_on_disk`, they take no
memory, or only an amount that does not grow with their number. Otherwise they are like all other
keys: one write() of both kinds is kept whole or not at all."""


class StateReader(ABC):
    """A small ordered map from bytes to bytes."""

    may_block: bool = True
    """False if everything is in memory: the broker then calls `scan_range` on its loop."""

    keeps_keys_on_disk: bool = False
    """Whether this reader and its snapshots have `scan_range`. Without it the broker refuses the
    settings that park records, with an error that names them."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None: ...

    @abstractmethod
    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys that start with `prefix`, in bytewise order, as of the moment of the first step."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[StateReader]:
        """A consistent view of one moment, valid until it is closed."""

    @abstractmethod
    def close(self) -> None: ...

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `first` up to but without `end`, in bytewise order. ValueError unless both lie
        in ON_DISK (`end` may be the first key after it); an empty range is no error.

        - Cost: in proportion to the entries taken, not to the entries stored. So entries are read
          in bounded pieces, while the caller iterates. keyvalue/key_ranges.py has shared code for
          that.
        - Consistency: each piece shows one moment, at or after the first step and not before that
          of the previous piece. A key that does not change during the scan is returned once. A key
          that is put, replaced or removed during the scan may be returned with its old or new
          value, or be left out if it was absent at some moment. Keys always rise. In a snapshot,
          all pieces show the snapshot's moment.
        - Locks: the scan holds no lock or transaction of the engine between two steps. The caller
          may write during the scan, and may abandon it.

        A caller that repeatedly takes and removes keys from the front should begin after the last
        one that it took: some engines have to step over recent removals.
        """
        raise NotImplementedError

    def statistics(self) -> object:
        """A dataclass or named tuple whose numbers become metrics, or None."""
        return None


class StateStore(StateReader):
    """A StateReader that also writes. One process owns a store at a time."""

    write_in_thread: bool = True
    write_beside_sync: bool = False
    """Both as in LogStore."""

    def least_free_bytes(self) -> int:
        """As in LogStore: what must be free on the disk so that the store can take acknowledgements
        and removals without end, with all that it writes to keep itself small. What the store has
        taken of it meanwhile does not count any more: else its growth would use up the room that
        the broker leaves to dead letters."""
        return LEAST_FREE_BYTES

    @abstractmethod
    def write(self, changes: Sequence[Change]) -> None:
        """Apply changes in their order, all or none. See the head of this file."""

    @abstractmethod
    def sync(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LogStoreFactory:
    """The object that an entry point of the group `kbroker.log_store` names."""

    open: Callable[[Path, Mapping[str, str], int], LogStore]
    """(directory, options, owner_epoch): the directory exists or is created; recovery is complete
    on return."""
    open_reader: Callable[[Path], LogReader]
    """(directory): opens for reading, whether a broker runs on the directory or not. Takes no lock
    that could disturb the broker, and changes nothing."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "open", opening(self.open, lambda found: adapted(LogStore, found)))
        reader = opening(self.open_reader, lambda found: adapted(LogReader, found))
        object.__setattr__(self, "open_reader", reader)


@dataclass(frozen=True, slots=True)
class StateStoreFactory:
    """The object that an entry point of the group `kbroker.state_store` names. Arguments as in
    LogStoreFactory."""

    open: Callable[[Path, Mapping[str, str], int], StateStore]
    open_reader: Callable[[Path], StateReader]

    def __post_init__(self) -> None:
        object.__setattr__(self, "open", opening(self.open, lambda found: _state(StateStore, found)))
        reader = opening(self.open_reader, lambda found: _state(StateReader, found))
        object.__setattr__(self, "open_reader", reader)


def _state(spi: Any, found: Any) -> Any:  # noqa: ANN401
    """`found`, or an adapter whose snapshots are adapted as well."""

    @contextmanager
    def snapshot() -> Iterator[StateReader]:
        with found.snapshot() as moment:
            yield _state(StateReader, moment)

    return adapted(spi, found, {"keeps_keys_on_disk": "scan_range"}, snapshot=snapshot)
