"""One segment of a log: its files, its index, and look-ups in it.

A segment is a directory named after its base offset. It is also a valid mmap-ninja array, so other
tools can map it:

    00000000000000000042/
        data.ninja                  record batches back to back, verbatim; the file of an active
                                    segment is sparse, as long as the segment may become, with zeros
                                    after the last batch
        dtype.ninja  order.ninja    "uint8", "C"
        type.ninja   shape.ninja    "numpy"; u64 little-endian: the length of data.ninja
        follows                     end offset of the segment before this one (decimal); none in the
                                    first segment of a log
        checkpoint                  only in an unsealed segment: batches that are certainly on disk
                                    (segment/checkpoint.py)
        .index/                     only in a sealed segment, a mmap-ninja int64 array of shape (4,
                                    batches), row after row, in the machine's byte order (little-
                                    endian on all that kbroker runs on); its shape.ninja has two u64
            row 0  base offset of each batch      row 2  its end position in data.ninja
            row 1  last offset                    row 3  highest max timestamp (ms) of the segment
                                                         up to and with it; -1: none so far

If the contents of a sealed segment were replaced (segment/replacement.py), the index may end with
an entry that takes no bytes: it holds the place of the last offsets, up to the end offset - 1.

Batches are appended with pwritev and read through a read-only mapping: both use the same page
cache. Nothing is ever written through the mapping, where a full disk would be a SIGBUS. No view
extends beyond the last indexed batch, so a reader never uses the pages that sealing cuts off. An
active segment's index lives in memory; recovery rereads the batches that are in no checkpoint.
`.index` is created by a rename, as the last step of sealing: the segment is then complete and on
disk.

This module must not know about logs, locks or permission to write.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import RLock

from kbroker.storage.files import NO_FILES, NO_SPACE, Files
from kbroker.storage.segment.checkpoint import Recorded, remove_checkpoint
from kbroker.storage.segment.index import (
    DATA,
    INDEX,
    INDEX_TEMPORARY,
    SHAPE,
    BadIndex,
    FileIdentity,
    SegmentIndex,
    identity_of,
    load_index,
    move_index,
    scan,
)
from kbroker.storage.spi import SegmentInfo, StampedBatch

logger = logging.getLogger(__name__)

FOLLOWS = "follows"
ANY_TIME_MS, NO_TIME_MS = 1 << 64, -1 << 64
"""Of Segment.latest_ms: it takes every batch, or none."""

_LENGTH = struct.Struct("<Q")
_LOAD_AHEAD_BYTES = 4 << 20
_LOAD_AHEAD_TIMES = 16
"""A read loads so many times its own size, up to _LOAD_AHEAD_BYTES."""
_CHECKED_BYTES = 64 << 10
"""A range is only checked up to this size, since the check copies it."""
_RESERVE_AT_LEAST_BYTES = 1 << 16
_RESERVE_AT_MOST_BYTES = 8 << 20


class Segment:
    """An open segment. The owner serialises all calls but `index`, `view`, `is_cached` and `info`,
    which any thread may call.

    `handles` has the owner's lock, and its limit of mappings and files; see OpenHandles.
    """

    __slots__ = (
        "_cached",
        "_index",
        "_info",
        "_loaded",
        "_mapping",
        "base_offset",
        "capacity",
        "discarded",
        "fd",
        "files",
        "first_write_ms",
        "handles",
        "hot_from",
        "identity",
        "path",
        "recorded",
        "reserved",
        "sealed",
        "synced_batches",
        "used",
    )  # fmt: skip

    def __init__(
        self,
        path: Path,
        files: Files,
        handles: OpenHandles,
        *,
        index: SegmentIndex | None,
        sealed: bool,
        capacity: int = 0,
        identity: FileIdentity | None = None,
    ) -> None:
        """`identity`: of the data file of a sealed segment. Another process may replace that file;
        what needs it then raises FileNotFoundError."""
        self.path = path
        self.identity = identity
        self.base_offset = int(path.name)
        self.files = files
        self.handles = handles
        self.sealed = sealed
        self.capacity = capacity
        """Length of data.ninja."""
        self.reserved = index.size_bytes if index is not None else 0
        """Position up to which disk space is reserved."""
        self.hot_from = self.reserved
        """In an unsealed segment, this process wrote the bytes from here on: probably in memory."""
        self.first_write_ms: int | None = None
        self.fd: int | None = None
        self.recorded = Recorded()
        self.synced_batches = 0
        """Both are maintained by Checkpoints."""
        self.used = False
        self.discarded = False
        self._index = index
        self._info: SegmentInfo | None = None
        self._mapping: memoryview | None = None
        self._loaded = (0, 0)
        self._cached = (0, 0)
        """The range that `is_cached` has just found in the page cache."""

    # For readers

    @property
    def index(self) -> SegmentIndex:
        """Raises FileNotFoundError if the segment was removed."""
        index = self._index
        return index if index is not None else self._load_index()

    @property
    def end_offset(self) -> int:
        if self._info is not None:
            return self._info.end_offset
        next_offset = self.index.next_offset
        return self.base_offset if next_offset is None else next_offset

    @property
    def size_bytes(self) -> int:
        """Size of the batches. Does not load the index of a sealed segment."""
        index = self._index
        return self.capacity if index is None else index.size_bytes

    def info(self) -> SegmentInfo:
        if self._info is not None:
            return self._info
        index = self.index
        count = len(index)
        if not count:
            return SegmentInfo(self.base_offset, self.base_offset, 0, -1)
        info = SegmentInfo(
            self.base_offset,
            index.last_offsets[count - 1] + 1,
            index.ends[count - 1],
            index.newest_ms[count - 1],
        )
        if self.sealed:
            self._info = info
        return info

    def view(self, start: int, end: int) -> memoryview:
        """Bytes of whole batches. Cold pages are read here and not when the view is used, so that
        the caller chooses the thread that waits for the disk. Raises FileNotFoundError if the
        segment was removed."""
        is_cached = self._cached == (start, end)
        is_loaded = is_cached or (self._loaded[0] <= start and end <= self._loaded[1])
        if start < self.hot_from and not is_loaded:
            ahead = min(_LOAD_AHEAD_TIMES * (end - start), _LOAD_AHEAD_BYTES)
            until = max(end, min(start + ahead, self.hot_from))
            self.files.load(self.path / DATA, start, until)
            self._loaded = (start, until)
        self.used = True
        mapping = self._mapping
        if mapping is None or end > len(mapping):
            if not is_cached:
                self._load_what_was_written(start)
            mapping = self._map(end)
        return mapping[start:end]

    def is_cached(self, start: int, end: int) -> bool:
        """Whether `view` of this range, called at once, will not wait for the disk; false where
        that is not certain."""
        self._cached = (0, 0)
        try:
            if end - start > _CHECKED_BYTES or not self.files.is_cached(self.path / DATA, start, end):
                return False
        except OSError:  # It was removed, or the disk fails: `view` reports that.
            return False
        self._cached = (start, end)
        return True

    def _load_what_was_written(self, start: int) -> None:
        """Load batches of this process that have left the page cache before they were read. On
        access through a mapping, the kernel would read megabytes around each missing page: in an
        active segment these are mostly zeros after the last batch."""
        if start >= self.hot_from and not self.sealed:
            self.files.load(self.path / DATA, start, min(self.size_bytes, start + _LOAD_AHEAD_BYTES))

    def _map(self, end: int) -> memoryview:
        with self.handles.lock:
            if self.discarded:
                raise FileNotFoundError(self.path)
            mapping = self._mapping
            if mapping is None or end > len(mapping):
                fd = self.files.open(self.path / DATA, os.O_RDONLY)
                try:
                    self._check_identity()
                    mapping = self._mapping = self.files.map(fd, self.files.size(fd))
                finally:
                    self.files.close(fd)
                self.handles.mapped(self)
            return mapping

    def _load_index(self) -> SegmentIndex:
        with self.handles.lock:
            if self.discarded:
                raise FileNotFoundError(self.path)
            index = self._index
            if index is None:
                self._check_identity()
                try:
                    index = load_index(self.path, self.files)
                    self.handles.mapped(self)
                except BadIndex as error:
                    index = self._read_batches_again(error)
                self._check_identity()
                self.reserved = self.hot_from = index.size_bytes
                self._index = index
            return index

    def _check_identity(self) -> None:
        if self.identity is not None and identity_of(self.files.stat(self.path / DATA)) != self.identity:
            raise FileNotFoundError(self.path / DATA)

    def _read_batches_again(self, reason: BadIndex) -> SegmentIndex:
        """Rebuild the index from the batches. Unreadable bytes stay in the file: they were on disk
        once, and an operator may want to inspect them."""
        index = SegmentIndex.empty()
        fd = self.files.open(self.path / DATA, os.O_RDONLY)
        try:
            scan(self.files, fd, index, self.base_offset)
            unread = self.files.size(fd) - index.size_bytes
        finally:
            self.files.close(fd)
        logger.warning(
            "%s: reread the batches of the segment, %d bytes at its end are not batches", reason, unread
        )
        if not unread:
            index.hold_place(stored_end(self.path, self.files))
            if len(index):
                self.handles.rebuilt(self)
        return index

    # For the owner

    def unmap(self) -> None:
        """Drop the mappings. Views in use keep theirs alive, and `info` still works."""
        self._mapping = None
        if self.sealed and self._index is not None:
            self.info()
            self._index = None

    def reserve(self, fd: int, end: int) -> None:
        """Reserve disk space up to `end` and some more, so that the next writes cannot fail for
        lack of space either. Little of a segment: the disk may need the rest for other logs."""
        if end <= self.reserved:
            return
        ahead = max(min(self.reserved, self.capacity // 16, _RESERVE_AT_MOST_BYTES), _RESERVE_AT_LEAST_BYTES)
        wanted = max(end, min(self.reserved + ahead, self.capacity))
        try:
            self.files.allocate(fd, self.reserved, wanted - self.reserved)
        except OSError as error:
            if error.errno not in NO_SPACE or wanted == end:
                raise
            wanted = end
            self.files.allocate(fd, self.reserved, wanted - self.reserved)
        self.reserved = wanted

    def grow(self, fd: int, capacity: int) -> None:
        """Make room for a batch that is larger than the rest of the segment."""
        self.files.ftruncate(fd, capacity)
        self.capacity = capacity

    def append(self, batches: Iterable[StampedBatch], now_ms: int) -> None:
        """Make batches visible whose bytes were written after the last one."""
        if self.first_write_ms is None:
            self.first_write_ms = now_ms
        add = self._index.add  # type: ignore[union-attr]
        for batch in batches:
            add(batch.base_offset, batch.last_offset, len(batch.data), batch.max_timestamp_ms)

    def latest_ms(self, first_ms: int, segment_ms: int, now_ms: int) -> int:
        """The greatest time of a batch that the segment still takes. As in Kafka, its age begins
        with `first_ms`, the time of its first batch. Without one (-1) it begins with the write or,
        after a restart, with the first call."""
        if first_ms >= 0:
            return first_ms + segment_ms
        if self.first_write_ms is None:
            self.first_write_ms = now_ms
        return NO_TIME_MS if now_ms - self.first_write_ms > segment_ms else ANY_TIME_MS

    def shorten(self, fd: int) -> None:
        """Sealing, first part: cut the file to its content. On disk on return."""
        size = self.index.size_bytes
        self.files.ftruncate(fd, size)
        self.files.fdatasync(fd)
        self.capacity = size

    def seal(self) -> None:
        """Sealing, second part: store the index. On disk on return. After an OSError it may be
        called again."""
        files = self.files
        files.remove_tree(self.path / INDEX_TEMPORARY)
        files.save_rows(self.path / INDEX_TEMPORARY, self.index.rows())  # type: ignore[arg-type]
        files.write_atomically(self.path / SHAPE, [length_of_data(self.capacity)])
        move_index(self.path / INDEX_TEMPORARY, self.path / INDEX, files)
        remove_checkpoint(self.path, files)
        files.fsync_dir(self.path)
        self.use_stored_index()

    def use_stored_index(self) -> None:
        """The index is on disk: the segment is sealed."""
        stored = load_index(self.path, self.files)
        with self.handles.lock:
            self.sealed = True
            self.hot_from = self.capacity  # From now on it leaves the page cache like any other.
            self._index = stored
            self.handles.mapped(self)


class Crowded(Exception):
    """All files that may be open at one time are pinned."""


class OpenHandles:
    """The lock of an engine's segments, and the limits of how many of them are mapped or have their
    file open.

    The kernel allows some 65 000 mappings per process, and RLIMIT_NOFILE open files. At the limit,
    the segment that has waited longest and was not used meanwhile gives up its handle. If the
    process has no more open files all the same, all segments close theirs.

    - `is_pinned`: whether a segment's file must stay open. True while it has unsynced bytes: only a
      file that stays open reliably reports a failed write-back.
    - `rebuilt`: called with each segment whose stored index was bad.
    """

    def __init__(
        self,
        *,
        max_maps: int,
        max_files: int,
        is_pinned: Callable[[Segment], bool] = lambda _: False,
        rebuilt: Callable[[Segment], None] = lambda _: None,
    ) -> None:
        self.lock = RLock()
        self.max_maps = max_maps
        self.max_files = max_files
        self._is_pinned = is_pinned
        self.rebuilt = rebuilt
        self._mapped: dict[Segment, None] = {}
        self._opened: dict[Segment, None] = {}

    @property
    def maps(self) -> int:
        return len(self._mapped)

    @property
    def open_files(self) -> int:
        return len(self._opened)

    def mapped(self, segment: Segment) -> None:
        """Called by a segment that has just mapped something, with the lock held."""
        self._mapped[segment] = None
        segment.used = True
        for _ in range(2 * len(self._mapped)):
            if len(self._mapped) <= self.max_maps:
                return
            oldest = next(iter(self._mapped))
            del self._mapped[oldest]
            if oldest.used:
                oldest.used = False
                self._mapped[oldest] = None
            else:
                oldest.unmap()

    def file(self, segment: Segment, *, in_any_case: bool = True) -> int:
        """The segment's file, open for writing. The segment must be pinned, and the lock held.

        Raises Crowded if it would be one file too many, unless `in_any_case`."""
        if segment.fd is None:
            segment.fd = self._open(segment)
            self.opened(segment)
            if not in_any_case and len(self._opened) > self.max_files:
                self._close(segment)
                raise Crowded
        return segment.fd

    def _open(self, segment: Segment) -> int:
        try:
            return segment.files.open(segment.path / DATA, os.O_RDWR)
        except OSError as error:
            if error.errno not in NO_FILES or not self.give_up():
                raise
        return segment.files.open(segment.path / DATA, os.O_RDWR)

    def opened(self, segment: Segment) -> None:
        self._opened[segment] = None
        if len(self._opened) > self.max_files:
            self.close_some(segment)

    def close_some(self, wanted: Segment | None = None) -> bool:
        """Close files until no more are open than may be, except pinned ones and that of `wanted`.
        False if that is not enough."""
        with self.lock:
            for oldest in [each for each in self._opened if each is not wanted and not self._is_pinned(each)]:
                if len(self._opened) <= self.max_files:
                    break
                self._close(oldest)
            return len(self._opened) <= self.max_files

    def give_up(self) -> bool:
        """Close all files that may be closed. False if none may be. Mappings hold no files."""
        with self.lock:
            closed = [each for each in self._opened if not self._is_pinned(each)]
            for segment in closed:
                self._close(segment)
        return bool(closed)

    def discard(self, segment: Segment) -> None:
        """The segment was removed: unmap and close it. Views in use stay valid."""
        with self.lock:
            segment.discarded = True
            segment.unmap()
            self._mapped.pop(segment, None)
            self._close(segment)

    def discard_all(self, segments: Iterable[Segment]) -> None:
        """These, and all that are open or mapped: some belong to no log yet."""
        with self.lock:
            for segment in [*segments, *self._opened, *self._mapped]:
                self.discard(segment)

    def close_file(self, segment: Segment) -> None:
        with self.lock:
            self._close(segment)

    def _close(self, segment: Segment) -> None:
        self._opened.pop(segment, None)
        if segment.fd is not None:
            fd, segment.fd = segment.fd, None
            segment.files.close(fd)


def stored_end(path: Path, files: Files) -> int:
    """The end offset of a sealed segment, as noted in the one behind it; 0 if there is none."""
    later = [
        int(name) for name in files.listdir(path.parent) if name.isdigit() and int(name) > int(path.name)
    ]
    if not later:
        return 0
    try:
        text = files.read(segment_path(path.parent, min(later)) / FOLLOWS)
    except FileNotFoundError:
        return 0
    return int(text) if text.isdigit() else 0


def length_of_data(size: int) -> bytes:
    """The contents of shape.ninja."""
    return _LENGTH.pack(size)


def segment_path(log_path: Path, base_offset: int) -> Path:
    return log_path / f"{base_offset:020d}"
