"""Chunks: how the key-value engines (LMDB, RocksDB, SQLite) keep record batches.

All batches of one log in one write() call become one value, the chunk, stored under its first base
offset: a value per batch costs three to five times as much to write and to read. A chunk's head
contains the running totals of its segment. So the last chunk alone shows where a log ends, and
opening a store scans nothing.

    offset  size  field
         0     8  end offset           last offset of the chunk + 1
         8     8  segment bytes        batch bytes of the segment, this chunk included
        16     8  max timestamp (ms)   of the segment, this chunk included; -1: none
        24     8  first timestamp (ms) max timestamp of the segment's first batch
        32     8  first write (ms)     the broker's clock when the segment got its first batch
        40     …  whole record batches, back to back

This module must not know where chunks are stored: an engine gives it a ChunkSource.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from kbroker.formats.batches import HEADER_SIZE, LENGTH_END
from kbroker.storage.spi import LogSettings, SegmentInfo, StampedBatch

Buffer: TypeAlias = bytes | memoryview

CHUNK_BYTES = 256 * 1024
"""A chunk is closed before it exceeds this size, because reads walk a chunk's headers from its
start. A larger batch becomes a chunk of its own."""

_HEAD = struct.Struct(">qqqqq")
HEAD_SIZE = _HEAD.size
_END_OFFSET = struct.Struct(">q")
# base offset, batch length, last offset delta, max timestamp of a batch header
_STEP = struct.Struct(">qi11xi8xq")


class ChunkedSegment(NamedTuple):
    """A segment's `number`, unique in its store, its base offset, and its totals as of its last
    chunk."""

    number: int
    base_offset: int
    end_offset: int
    size_bytes: int = 0
    max_timestamp_ms: int = -1
    first_timestamp_ms: int = -1
    first_write_ms: int = -1

    def info(self) -> SegmentInfo:
        return SegmentInfo(self.base_offset, self.end_offset, self.size_bytes, self.max_timestamp_ms)

    def must_roll(self, batch: StampedBatch, settings: LogSettings, now_ms: int) -> bool:
        """Kafka's rule: roll before a batch that would make the segment too large, or whose time is
        too far from that of the segment's first batch."""
        if not self.size_bytes:
            return False
        if self.size_bytes + len(batch.data) > settings.segment_bytes:
            return True
        if self.first_timestamp_ms >= 0:
            return batch.max_timestamp_ms - self.first_timestamp_ms > settings.segment_ms
        return now_ms - self.first_write_ms > settings.segment_ms

    def grown(self, size_bytes: int, end_offset: int, max_timestamp_ms: int, now_ms: int) -> ChunkedSegment:
        """The segment with one more batch."""
        is_first = not self.size_bytes
        return ChunkedSegment(
            self.number,
            self.base_offset,
            end_offset,
            self.size_bytes + size_bytes,
            max(self.max_timestamp_ms, max_timestamp_ms),
            max_timestamp_ms if is_first else self.first_timestamp_ms,
            now_ms if is_first else self.first_write_ms,
        )

    def head(self) -> bytes:
        """The head of the chunk that brings the segment to these totals."""
        return _HEAD.pack(
            self.end_offset,
            self.size_bytes,
            self.max_timestamp_ms,
            self.first_timestamp_ms,
            self.first_write_ms,
        )

    def emptied(self) -> ChunkedSegment:
        return ChunkedSegment(self.number, self.base_offset, self.base_offset)

    def after(self, chunk: Buffer | None) -> ChunkedSegment:
        """The segment if `chunk` is its last one; None: it has no chunks."""
        if chunk is None:
            return self.emptied()
        return ChunkedSegment(self.number, self.base_offset, *_HEAD.unpack_from(chunk))


class ChunkSource(Protocol):
    """An engine's chunks at one moment."""

    def chunks(self, segment: ChunkedSegment, offset: int) -> Iterator[tuple[int, Buffer]]:
        """(base offset, chunk) in offset order, from the last chunk that begins at or below
        `offset` on. If there is none, from the first chunk on."""


def floor_chunk(source: ChunkSource, segment: ChunkedSegment, offset: int) -> tuple[int, Buffer] | None:
    """The last chunk of the segment that begins at or below `offset`."""
    found = next(source.chunks(segment, offset), None)
    return found if found is not None and found[0] <= offset else None


def read_chunks(
    source: ChunkSource, segments: Sequence[ChunkedSegment], offset: int, *, max_bytes: int, end_offset: int
) -> list[memoryview]:
    """LogReader.read: pieces of chunks, valid as long as the source's chunks are."""
    pieces: list[memoryview] = []
    left = max_bytes
    for base_offset, chunk in _chunks_from(source, segments, offset):
        (chunk_end,) = _END_OFFSET.unpack_from(chunk)
        if base_offset >= end_offset:
            break
        if chunk_end <= offset:
            continue
        batches = memoryview(chunk)[HEAD_SIZE:]
        if base_offset >= offset and chunk_end <= end_offset and len(batches) <= left:
            pieces.append(batches)
            left -= len(batches)
            continue
        start, stop = _cut(batches, chunk_end, offset, end_offset, left, must_take=not pieces)
        if stop > start:
            pieces.append(batches[start:stop])
            left -= stop - start
        if stop < len(batches):
            break
    return pieces


def _chunks_from(
    source: ChunkSource, segments: Sequence[ChunkedSegment], offset: int
) -> Iterator[tuple[int, Buffer]]:
    first = max(0, bisect_right(segments, offset, key=_base_offset) - 1)
    for segment in segments[first:]:
        yield from source.chunks(segment, offset)


def _base_offset(segment: ChunkedSegment) -> int:
    return segment.base_offset


def _cut(
    batches: memoryview, chunk_end: int, offset: int, end_offset: int, max_bytes: int, *, must_take: bool
) -> tuple[int, int]:
    """The byte range of the batches that a read needs of a chunk. `stop` is the chunk's length if
    the read may need the next chunk too.

    If the next header is impossible, either it or the length of the previous batch is damaged. A
    read that begins there gets the rest of the chunk, so that its caller finds the damage. Any
    other read ends before it.
    """
    start = position = least_offset = 0
    size = len(batches)
    while position < size:
        base_offset, length, delta, _ = _step(batches, position)
        has_length = HEADER_SIZE - LENGTH_END <= length <= size - position - LENGTH_END
        if not has_length or not least_offset <= base_offset <= base_offset + delta < chunk_end:
            return start, size if must_take else start
        least_offset = base_offset + delta + 1
        if base_offset >= end_offset:
            return start, position
        following = position + length + LENGTH_END
        if base_offset + delta < offset:
            start = following
        elif following - start > max_bytes and not (must_take and start == position):
            return start, position
        position = following
    return start, position


def _step(batches: memoryview, position: int) -> tuple[int, int, int, int]:
    """The header fields that engines need; impossible values if less than a header is left."""
    return (
        _STEP.unpack_from(batches, position) if position + HEADER_SIZE <= len(batches) else (-1, -1, -1, -1)
    )


def find_in_chunks(source: ChunkSource, segments: Sequence[ChunkedSegment], timestamp_ms: int) -> int | None:
    """LogReader.find_by_timestamp."""
    for segment in segments:
        if segment.size_bytes and segment.max_timestamp_ms >= timestamp_ms:
            found = _find_in_segment(source, segment, timestamp_ms)
            if found is not None:
                return found
    return None


def _find_in_segment(source: ChunkSource, segment: ChunkedSegment, timestamp_ms: int) -> int | None:
    """The max timestamps in the heads of chunks never fall, so the first chunk that may have the
    batch is found by bisection.

    None if no chunk has it: in a segment that is partly replaced, the batch with the max timestamp
    of the old heads may be gone.
    """
    first: int | None = None
    low, high = segment.base_offset, segment.end_offset
    while low < high:
        middle = (low + high) // 2
        at = floor_chunk(source, segment, middle)
        if at is None:
            low = middle + 1
            continue
        totals = segment.after(at[1])
        if totals.max_timestamp_ms >= timestamp_ms:
            first = high = at[0]
        else:
            low = max(totals.end_offset, middle + 1)
    if first is None:
        return None
    for base_offset, chunk in source.chunks(segment, first):
        batches, size = memoryview(chunk)[HEAD_SIZE:], 0
        for batch_offset, _, size_bytes, newest_ms in iter_batches(batches):
            if newest_ms >= timestamp_ms:
                return batch_offset
            size += size_bytes
        if size != len(batches):  # damaged: a read from its start finds that
            return base_offset
    return None


def iter_batches(batches: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """(base offset, end offset, bytes, max timestamp) of each batch: the header fields that engines
    need. Ends at an impossible length."""
    position = 0
    while position + HEADER_SIZE <= len(batches):
        base_offset, length, delta, newest_ms = _STEP.unpack_from(batches, position)
        if length < HEADER_SIZE - LENGTH_END:
            return
        yield base_offset, base_offset + delta + 1, length + LENGTH_END, newest_ms
        position += length + LENGTH_END


def cut_chunk(before: ChunkedSegment, chunk: Buffer, new_end: int) -> tuple[ChunkedSegment, bytes]:
    """`chunk` without the batches that begin at or after `new_end`. `before`: the segment's totals
    without this chunk."""
    batches = memoryview(chunk)[HEAD_SIZE:]
    first_write_ms = before.after(chunk).first_write_ms
    totals, size = before, 0
    for base_offset, end_offset, size_bytes, newest_ms in iter_batches(batches):
        if base_offset >= new_end:
            break
        totals = totals.grown(size_bytes, end_offset, newest_ms, first_write_ms)
        size += size_bytes
    return totals, b"".join((totals.head(), batches[:size]))


def has_old_heads(source: ChunkSource, segment: ChunkedSegment) -> bool:
    """Whether the heads of the last chunks have totals from before a part of the segment was
    replaced."""
    last = floor_chunk(source, segment, segment.end_offset)
    return last is not None and segment.after(last[1]).size_bytes != segment.size_bytes


def count_before(source: ChunkSource, segment: ChunkedSegment, offset: int) -> ChunkedSegment:
    """The segment's totals as of the chunks that begin below `offset`, as their batches say."""
    totals = segment.emptied()
    for base_offset, chunk in source.chunks(segment, segment.base_offset):
        if base_offset >= offset:
            break
        first_write_ms = segment.after(chunk).first_write_ms
        for _, end_offset, size_bytes, newest_ms in iter_batches(memoryview(chunk)[HEAD_SIZE:]):
            totals = totals.grown(size_bytes, end_offset, newest_ms, first_write_ms)
    return totals


def rest_of_chunk(chunk: Buffer, start: int) -> tuple[int, bytes] | None:
    """(base offset, chunk) with the batches that begin at or after `start`, and the head that they
    had; None if there are none. ValueError if that is in the middle of a batch."""
    batches, position = memoryview(chunk)[HEAD_SIZE:], 0
    for base_offset, end_offset, size_bytes, _ in iter_batches(batches):
        if base_offset >= start:
            return base_offset, b"".join((memoryview(chunk)[:HEAD_SIZE], batches[position:]))
        if end_offset > start:
            raise ValueError(f"{start} is in the batch at {base_offset}")
        position += size_bytes
    return None


def join(pieces: Iterable[memoryview]) -> list[memoryview]:
    """Copy the pieces into one read-only view; an empty list if there are none."""
    joined = b"".join(pieces)
    return [memoryview(joined)] if joined else []
