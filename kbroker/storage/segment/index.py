"""The index of a segment: the offsets and positions of its batches, its stored form, and the scan
that rebuilds it from the batches.

On disk it is a mmap-ninja int64 array of shape (4, batches), see segment.py; in memory it is four
arrays. Both are searched by bisection. This module must not know when an index is stored.
"""

from __future__ import annotations

import os
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

from kbroker.formats.batches import CRC_START, HEADER, HEADER_SIZE, LENGTH_END, MAGIC
from kbroker.formats.crc import crc32c
from kbroker.storage.files import Files

DATA = "data.ninja"
SHAPE = "shape.ninja"
INDEX = ".index"
INDEX_TEMPORARY = ".index.tmp"
INDEX_ROWS = 4

_INDEX_SIDECARS = {"dtype.ninja": b"int64", "order.ninja": b"C", "type.ninja": b"numpy"}
_INDEX_SHAPE = struct.Struct("<QQ")
_READ_BYTES = 1 << 20

Column: TypeAlias = "array[int] | memoryview[int]"


class FileIdentity(NamedTuple):
    """Differs between a data file and the one that replaces it, even if the inode is used again."""

    inode: int
    modified_ns: int
    size_bytes: int


def identity_of(status: os.stat_result) -> FileIdentity:
    return FileIdentity(status.st_ino, status.st_mtime_ns, status.st_size)


class BadIndex(Exception):
    """The stored index does not fit its segment: the batches must be reread."""


class SegmentIndex:
    """Where the batches of a segment are: four columns with an entry per batch, in memory or mapped
    from `.index`.

    Appending is safe while other threads read: `newest_ms` is filled last, and readers take its
    length as the number of batches.
    """

    __slots__ = ("base_offsets", "ends", "last_offsets", "newest_ms")

    def __init__(self, base_offsets: Column, last_offsets: Column, ends: Column, newest_ms: Column) -> None:
        self.base_offsets = base_offsets
        self.last_offsets = last_offsets
        self.ends = ends
        self.newest_ms = newest_ms

    @classmethod
    def empty(cls) -> SegmentIndex:
        return cls(array("q"), array("q"), array("q"), array("q"))

    @classmethod
    def from_bytes(cls, data: memoryview) -> SegmentIndex:
        """Wrap four consecutive rows, without copying."""
        values = data.cast("q")
        count = len(values) // INDEX_ROWS
        return cls(*(values[row * count : (row + 1) * count] for row in range(INDEX_ROWS)))

    def __len__(self) -> int:
        return len(self.newest_ms)

    @property
    def size_bytes(self) -> int:
        """Size of all batches, which is also the position of the next one."""
        count = len(self.newest_ms)
        return self.ends[count - 1] if count else 0

    def rows(self) -> tuple[Column, Column, Column, Column]:
        return self.base_offsets, self.last_offsets, self.ends, self.newest_ms

    def copy(self, count: int) -> SegmentIndex:
        """A copy of the first `count` entries, in memory, that can be appended to."""
        return SegmentIndex(*(array("q", row[:count]) for row in self.rows()))

    def last(self, count: int) -> tuple[int, ...]:
        """The entry of the last of the first `count` batches."""
        return tuple(row[count - 1] for row in self.rows())

    @property
    def next_offset(self) -> int | None:
        """The offset after the last batch; None if there is none."""
        count = len(self.newest_ms)
        return self.last_offsets[count - 1] + 1 if count else None

    @property
    def newest_so_far_ms(self) -> int:
        """-1 if there is no batch, or none with a timestamp."""
        count = len(self.newest_ms)
        return self.newest_ms[count - 1] if count else -1

    def appenders(self) -> tuple[Callable[[int], None], ...]:
        """The append method of each column, to be called in this order for each batch. A stored
        index has none, since it does not grow."""
        return tuple(row.append for row in self.rows())  # type: ignore[union-attr]

    def add(self, base_offset: int, last_offset: int, size_bytes: int, max_timestamp_ms: int) -> None:
        newest = self.newest_ms
        if newest:
            size_bytes += self.ends[-1]
            max_timestamp_ms = max(max_timestamp_ms, newest[-1])
        self.base_offsets.append(base_offset)  # type: ignore[union-attr]
        self.last_offsets.append(last_offset)  # type: ignore[union-attr]
        self.ends.append(size_bytes)  # type: ignore[union-attr]
        newest.append(max(max_timestamp_ms, -1))  # type: ignore[union-attr]

    def hold_place(self, end_offset: int) -> None:
        """Add an entry without bytes if the batches end before `end_offset`. So the segment ends
        there, and all look-ups step over the hole."""
        if end_offset > (self.next_offset or 0):
            self.add(end_offset - 1, end_offset - 1, 0, -1)

    def locate(
        self, offset: int, max_bytes: int, end_offset: int, *, first_in_any_case: bool
    ) -> tuple[int, int]:
        """(start, end) of the bytes that LogReader.read returns; an empty range if there are
        none."""
        count = len(self.newest_ms)
        first = bisect_left(self.last_offsets, offset, 0, count)
        start = self.ends[first - 1] if first else 0
        if first == count or self.base_offsets[first] >= end_offset:
            return start, start
        if self.base_offsets[count - 1] >= end_offset:
            count = bisect_left(self.base_offsets, end_offset, first, count)
        if self.ends[count - 1] - start > max_bytes:
            count = bisect_right(self.ends, start + max_bytes, first, count)
            if count == first and first_in_any_case:
                count += 1
        return start, self.ends[count - 1] if count > first else start


def load_index(path: Path, files: Files) -> SegmentIndex:
    """The stored index of a sealed segment, mapped. Raises BadIndex if it does not fit the data."""
    directory = path / INDEX
    try:
        sidecars = {name: files.read(directory / name) for name in _INDEX_SIDECARS}
        rows, count = _INDEX_SHAPE.unpack(files.read(directory / SHAPE))
        fd = files.open(directory / DATA, os.O_RDONLY)
        try:
            size = files.size(fd)
            if (
                sidecars != _INDEX_SIDECARS
                or rows != INDEX_ROWS
                or size != rows * count * 8
                or not count
                or sys.byteorder != "little"
            ):
                raise BadIndex(f"{directory} is not an index of {INDEX_ROWS} rows")
            index = SegmentIndex.from_bytes(files.map(fd, size))
        finally:
            files.close(fd)
    except (FileNotFoundError, struct.error) as error:
        files.stat(path)  # raises if the whole segment is gone, which is not a bad index
        raise BadIndex(f"{directory} is incomplete") from error
    if index.size_bytes != files.stat(path / DATA).st_size:
        raise BadIndex(f"{directory} does not end where {path / DATA} does")
    return index


def move_index(source: Path, target: Path, files: Files) -> None:
    """Move a stored index to its place. Durable after the next `fsync_dir` of the segment.

    The directory of an index in place is never removed, since a segment without one is not sealed.
    Its files are replaced one by one: a crash in between leaves a bad index, or a whole one.
    """
    if not target.exists():
        files.rename(source, target)
        return
    for name in (*_INDEX_SIDECARS, DATA, SHAPE):
        files.rename(source / name, target / name)
    files.fsync_dir(target)
    files.remove_tree(source)


def scan(
    files: Files, fd: int, index: SegmentIndex, base_offset: int, scratch: bytearray | None = None
) -> None:
    """Add the batches after the indexed ones to `index`, up to the first bytes that are not a valid
    batch.

    A valid batch lies whole in the file, continues the rising offsets (none is below
    `base_offset`), and has the right CRC. Reads with pread instead of a mapping: another process
    may be shortening the file, and a bad disk is then an OSError. Holes are not read beyond the
    length that a batch states, as reading them would fill the page cache with zeros. `scratch` is
    reused between calls, and grows to the largest batch.
    """
    scratch = bytearray() if scratch is None else scratch
    size = files.size(fd)
    position = index.size_bytes
    next_offset = index.next_offset or base_offset
    missing = HEADER_SIZE
    while position + missing <= size:
        wanted = max(missing, min(_READ_BYTES, files.data_end(fd, position) - position))
        if len(scratch) < wanted:
            scratch.extend(bytes(wanted - len(scratch)))
        with (
            memoryview(scratch) as whole,
            whole[:wanted] as target,
            whole[: files.preadv(fd, target, position)] as chunk,
        ):
            used, next_offset, missing = _scan_chunk(chunk, index, next_offset)
        position += used
        if not missing or (missing <= wanted and not used):
            return


def _scan_chunk(chunk: memoryview, index: SegmentIndex, next_offset: int) -> tuple[int, int, int]:
    """(bytes used, next offset, bytes needed to continue): the last is 0 if the next bytes are not
    a batch.

    Fills the columns directly, because a restart after a crash reads millions of batches.
    """
    at, end = 0, len(chunk)
    position, newest_ms = index.size_bytes, index.newest_so_far_ms
    base_offsets, last_offsets, ends, newest = index.appenders()
    unpack = HEADER.unpack_from
    while at + HEADER_SIZE <= end:
        base_offset, length, _, magic, crc, _, last_delta, _, max_timestamp_ms, _, _, _, _ = unpack(chunk, at)
        size = length + LENGTH_END
        if magic != MAGIC or size < HEADER_SIZE or base_offset < next_offset or last_delta < 0:
            return at, next_offset, 0
        if at + size > end:
            return at, next_offset, size
        if crc32c(chunk[at + CRC_START : at + size]) != crc:
            return at, next_offset, 0
        at += size
        if max_timestamp_ms > newest_ms:
            newest_ms = max_timestamp_ms
        base_offsets(base_offset)
        last_offsets(base_offset + last_delta)
        ends(position + at)
        newest(newest_ms)
        next_offset = base_offset + last_delta + 1
    return at, next_offset, HEADER_SIZE
