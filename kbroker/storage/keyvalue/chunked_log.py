"""The decisions that the key-value engines share: which segment a batch goes to, what a trim or a
truncation removes, and which metadata is stored.

Every function here takes the current state of a log, and returns the changes to store and the new
state. An engine stores the changes in one transaction, and only then adopts the new list of
segments. The engine's small ordered table `meta` holds:

    key                                           value
    "L" topic id (16) partition (4)               log number (4) segment_bytes (8) segment_ms (8)
    "S" log number (4) base offset (8)            segment number (8) end offset (8) bytes (8)
                                                  max timestamp (8)

Log numbers are unsigned. Log and segment numbers are never reused while the number is known.

The last segment of a log is the active one. Its totals in `meta` are not kept up to date, since
that would need a second write with every chunk: they are read from the head of its last chunk.

This module must not know an engine.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from kbroker.errors import StoreFailed
from kbroker.storage.keyvalue.chunks import (
    CHUNK_BYTES,
    ChunkedSegment,
    ChunkSource,
    count_before,
    cut_chunk,
    floor_chunk,
    has_old_heads,
)
from kbroker.storage.spi import Change, LogBounds, LogId, LogSettings, StampedBatch

END_OF_OFFSETS = (1 << 63) - 1

LOG_PREFIX = b"L"
SEGMENT_PREFIX = b"S"

_LOG_KEY = struct.Struct(">c16si")
_LOG_VALUE = struct.Struct(">Iqq")
_SEGMENT_KEY = struct.Struct(">cIq")
_SEGMENT_VALUE = struct.Struct(">qqqq")


@dataclass(slots=True)
class LogState:
    """The state of a log in memory. `segments` is replaced, never changed, so a reader in another
    thread may keep the list that it has."""

    log: LogId
    number: int
    settings: LogSettings
    segments: Sequence[ChunkedSegment] = ()

    @property
    def bounds(self) -> LogBounds:
        segments = self.segments
        return LogBounds(segments[0].base_offset, segments[-1].end_offset)


class Chunk(NamedTuple):
    segment: ChunkedSegment
    base_offset: int
    value: bytes


class LogChange(NamedTuple):
    """The changes to store for one log, and its `segments` after that. `dropped` segments are
    removed with all their chunks."""

    state: LogState
    segments: Sequence[ChunkedSegment]
    meta: Sequence[Change] = ()
    chunks: Sequence[Chunk] = ()
    dropped: Sequence[ChunkedSegment] = ()
    cut_segment: ChunkedSegment | None = None
    cut_offset: int = 0
    cut_end: int = END_OF_OFFSETS
    """Chunks of `cut_segment` that begin at or after `cut_offset`, and below `cut_end`, are removed
    before `chunks` are stored."""

    def apply(self) -> None:
        self.state.segments = self.segments


def removed_ranges(change: LogChange) -> Iterator[tuple[int, int]]:
    """Ranges of base offsets, without their ends, of the chunks to remove: for an engine that keeps
    a log's segments in one key range."""
    if change.cut_segment is not None:
        yield change.cut_offset, change.cut_end
    elif change.dropped:
        yield (
            change.dropped[0].base_offset,
            change.segments[0].base_offset if change.segments else END_OF_OFFSETS,
        )


# --- the meta table ---


def log_key(log: LogId) -> bytes:
    return _LOG_KEY.pack(LOG_PREFIX, log.topic_id.bytes, log.partition)


def log_entry(state: LogState) -> Change:
    settings = state.settings
    return log_key(state.log), _LOG_VALUE.pack(state.number, settings.segment_bytes, settings.segment_ms)


def segments_prefix(log_number: int) -> bytes:
    return SEGMENT_PREFIX + log_number.to_bytes(4, "big")


def segment_key(log_number: int, segment: ChunkedSegment) -> bytes:
    return _SEGMENT_KEY.pack(SEGMENT_PREFIX, log_number, segment.base_offset)


def segment_entry(log_number: int, segment: ChunkedSegment) -> Change:
    value = _SEGMENT_VALUE.pack(
        segment.number, segment.end_offset, segment.size_bytes, segment.max_timestamp_ms
    )
    return segment_key(log_number, segment), value


def parse_log(key: bytes, value: bytes) -> LogState:
    _, topic_id, partition = _LOG_KEY.unpack(key)
    number, segment_bytes, segment_ms = _LOG_VALUE.unpack(value)
    return LogState(LogId(UUID(bytes=topic_id), partition), number, LogSettings(segment_bytes, segment_ms))


def parse_segment(key: bytes, value: bytes) -> tuple[int, ChunkedSegment]:
    """Log number and segment."""
    _, log_number, base_offset = _SEGMENT_KEY.unpack(key)
    number, end_offset, size_bytes, newest_ms = _SEGMENT_VALUE.unpack(value)
    return log_number, ChunkedSegment(number, base_offset, end_offset, size_bytes, newest_ms)


def parse_logs(
    logs: Iterable[tuple[bytes, bytes]], segments: Iterable[tuple[bytes, bytes]]
) -> dict[LogId, LogState]:
    """All logs of a meta table. The caller must still read the active segments' totals from their
    last chunks.

    Raises StoreFailed if the table contradicts itself: an engine with damaged files may open with
    an old table.
    """
    states = [parse_log(key, value) for key, value in logs]
    by_number: dict[int, list[ChunkedSegment]] = {state.number: [] for state in states}
    for key, value in segments:
        log_number, segment = parse_segment(key, value)
        if log_number not in by_number:
            raise StoreFailed(
                f"the table of logs is damaged: it has a segment of log {log_number} and no such log"
            )
        by_number[log_number].append(segment)
    for state in states:
        state.segments = by_number[state.number]
        if not state.segments:
            raise StoreFailed(f"the table of logs is damaged: log {state.number} has no segment")
    return {state.log: state for state in states}


def with_active(state: LogState, source: ChunkSource) -> None:
    """Set the active segment's totals from its last chunk."""
    *sealed, active = state.segments
    active = active.emptied()  # its totals in `meta` date from when it became active
    last = floor_chunk(source, active, END_OF_OFFSETS)
    state.segments = [*sealed, active.after(None if last is None else last[1])]


# --- what changes ---


class ChunkBuilder:
    """Joins batches of one log into chunks."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self._parts: list[bytes | bytearray | memoryview] = []
        self._bytes = self._base_offset = 0

    def add(self, segment: ChunkedSegment, batch: StampedBatch, now_ms: int) -> ChunkedSegment:
        """The segment with the batch. A chunk that would become too large is closed before."""
        size = len(batch.data)
        if self._parts and self._bytes + size > CHUNK_BYTES:
            self.close(segment)
        if not self._parts:
            self._base_offset, self._bytes = batch.base_offset, 0
        self._parts.append(batch.data)
        self._bytes += size
        return segment.grown(size, batch.last_offset + 1, batch.max_timestamp_ms, now_ms)

    def close(self, segment: ChunkedSegment) -> None:
        """End the chunk, if there is one. It brings `segment` to its totals."""
        if self._parts:
            value = b"".join((segment.head(), *self._parts))
            self.chunks.append(Chunk(segment, self._base_offset, value))
            self._parts.clear()


def append(
    state: LogState, batches: Iterable[StampedBatch], now_ms: int, new_number: Callable[[], int]
) -> LogChange:
    """Append batches of one log, joined into chunks. A segment rolls before the batch that would
    overfill it."""
    *sealed, active = state.segments
    meta: list[Change] = []
    chunks = ChunkBuilder()
    for batch in batches:
        assert batch.base_offset >= active.end_offset, "the offsets of a log must rise"
        if active.must_roll(batch, state.settings, now_ms):
            chunks.close(active)
            sealed.append(active)
            meta.append(segment_entry(state.number, active))
            active = ChunkedSegment(new_number(), batch.base_offset, batch.base_offset)
            meta.append(segment_entry(state.number, active))
        elif not active.size_bytes and active.base_offset != batch.base_offset:
            meta.append((segment_key(state.number, active), None))
            active = active._replace(base_offset=batch.base_offset)
            meta.append(segment_entry(state.number, active))
        active = chunks.add(active, batch, now_ms)
    chunks.close(active)
    return LogChange(state, [*sealed, active], meta, chunks.chunks)


def append_all(
    logs: dict[LogId, LogState], batches: Sequence[StampedBatch], now_ms: int, new_number: Callable[[], int]
) -> list[LogChange]:
    """One change per log of a write() call. Raises KeyError for a log that does not exist."""
    by_log: dict[LogId, list[StampedBatch]] = {}
    for batch in batches:
        by_log.setdefault(batch.log, []).append(batch)
    return [append(logs[log], of_log, now_ms, new_number) for log, of_log in by_log.items()]


def create(log: LogId, settings: LogSettings, number: int, new_number: Callable[[], int]) -> LogChange:
    segment = ChunkedSegment(new_number(), 0, 0)
    state = LogState(log, number, settings, [segment])
    return LogChange(state, state.segments, [log_entry(state), segment_entry(number, segment)])


def drop(state: LogState) -> LogChange:
    keys = [log_key(state.log), *(segment_key(state.number, each) for each in state.segments)]
    return LogChange(state, (), [(key, None) for key in keys], dropped=state.segments)


def trim(state: LogState, new_start: int, new_number: Callable[[], int]) -> LogChange | None:
    """None if there is nothing to remove."""
    dropped = [each for each in state.segments if each.base_offset < each.end_offset <= new_start]
    if not dropped:
        return None
    kept = list(state.segments[len(dropped) :])
    meta: list[Change] = [(segment_key(state.number, each), None) for each in dropped]
    if not kept:
        end_offset = state.bounds.end_offset
        kept = [ChunkedSegment(new_number(), end_offset, end_offset)]
        meta.append(segment_entry(state.number, kept[0]))
    return LogChange(state, kept, meta, dropped=dropped)


def truncate(
    state: LogState, new_end: int, source: ChunkSource, new_number: Callable[[], int]
) -> LogChange | None:
    """None if the log ends at or below `new_end`. Otherwise the log then ends there, or at its
    start offset if that is higher."""
    if new_end >= state.bounds.end_offset:
        return None
    kept = [each for each in state.segments if each.base_offset < new_end] or [state.segments[0]]
    dropped = state.segments[len(kept) :]
    whole = kept.pop()
    active, cut_offset, chunks = _cut_segment(whole, new_end, source)
    meta: list[Change] = [(segment_key(state.number, each), None) for each in dropped]
    has_hole = active.end_offset < new_end  # before new_end; the log still ends at new_end
    if has_hole and not active.size_bytes:
        active = active._replace(end_offset=new_end)  # it holds the place of its offsets
    meta.append(segment_entry(state.number, active))
    kept.append(active)
    if has_hole:
        kept.append(ChunkedSegment(new_number(), new_end, new_end))
        meta.append(segment_entry(state.number, kept[-1]))
    return LogChange(state, kept, meta, chunks, dropped, whole, cut_offset)


def _cut_segment(
    segment: ChunkedSegment, new_end: int, source: ChunkSource
) -> tuple[ChunkedSegment, int, list[Chunk]]:
    """The segment without the batches that begin at or after `new_end`, the first chunk offset to
    remove, and the chunks that replace the removed ones."""
    at = floor_chunk(source, segment, new_end - 1)
    if at is None:
        return segment.emptied(), segment.base_offset, []
    base_offset, chunk = at
    if has_old_heads(source, segment):
        before = count_before(source, segment, base_offset)
    elif segment.after(chunk).end_offset <= new_end:
        return segment.after(chunk), new_end, []
    else:
        previous = floor_chunk(source, segment, base_offset - 1)
        before = segment.after(None if previous is None else previous[1])
    totals, value = cut_chunk(before, chunk, new_end)
    return totals, base_offset, [Chunk(totals, base_offset, value)]
