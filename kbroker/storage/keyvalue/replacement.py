"""Replacing the contents of a sealed segment in a key-value engine: piece by piece, in place.

Each add() is one transaction of the engine. It removes the old chunks that begin in its range, and
stores new ones. The last old chunk may reach beyond the range: its other batches are stored again,
as a chunk that begins with the first of them. A crash leaves new chunks up to a batch boundary, and
old ones from there. The entry in `meta` always has the right size. The heads of chunks have the
totals of new contents before that boundary, and those of the old contents behind it.

This module must not know an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from kbroker.storage.keyvalue.chunked_log import Chunk, ChunkBuilder, LogChange, LogState, segment_entry
from kbroker.storage.keyvalue.chunks import (
    CHUNK_BYTES,
    HEAD_SIZE,
    ChunkedSegment,
    ChunkSource,
    rest_of_chunk,
)
from kbroker.storage.spi import AddedRange, LogId, Replacement, StampedBatch

T = TypeVar("T")


class ReplacingStore(Protocol):
    """What a ChunkedLogStore does for its replacements."""

    def logs(self) -> Sequence[LogId]: ...

    def log_state(self, log: LogId) -> LogState: ...

    def read_chunks(self, log: LogId, work: Callable[[LogState, ChunkSource], T]) -> T:
        """The result of `work` for a log and its chunks, both as of one moment."""

    def commit(self, change: LogChange) -> None:
        """Store the change; durable after the next sync()."""

    def sync(self) -> None: ...


@dataclass(slots=True)
class _Removed:
    """Old chunks that a piece removes: how many bytes of batches, and what must be stored again."""

    size_bytes: int = 0
    first_write_ms: int = -1
    rest: tuple[int, bytes] | None = None


class _Piece(NamedTuple):
    change: LogChange
    segment: ChunkedSegment
    totals: ChunkedSegment


class ChunkedReplacement(Replacement):
    add_beside_write = False

    def __init__(self, store: ReplacingStore, log: LogId, base_offset: int) -> None:
        """Raises as LogStore.replacing."""
        *sealed, _ = store.log_state(log).segments
        found = [segment for segment in sealed if segment.base_offset == base_offset]
        if not found:
            raise ValueError(f"{log} has no sealed segment at {base_offset}")
        self._store = store
        self._log = log
        self._segment = found[0]
        self._range = AddedRange(base_offset, self._segment.end_offset)
        self._totals = self._segment.emptied()

    def add(self, end: int, batches: Sequence[StampedBatch]) -> None:
        self._range.check(end, batches)
        if self._is_there() and end > self._range.position:
            piece = self._store.read_chunks(
                self._log, lambda state, chunks: self._piece(state, chunks, end, batches)
            )
            self._store.commit(piece.change)
            self._segment, self._totals = piece.segment, piece.totals
        self._range.position = end

    def pieces(
        self, end: int, batches: Sequence[StampedBatch]
    ) -> Sequence[tuple[int, Sequence[StampedBatch]]]:
        """Each ends where an old chunk does, so that no part of a chunk is stored again."""
        if not self._is_there():
            return [(end, batches)]
        segment, start = self._segment, self._range.position
        ends = self._store.read_chunks(
            self._log, lambda _, chunks: _ends_of_pieces(chunks, segment, start, end)
        )
        pieces: list[tuple[int, Sequence[StampedBatch]]] = []
        first = at = 0
        for piece_end in ends:
            while at < len(batches) and batches[at].base_offset < piece_end:
                at += 1
            if at == 0 or batches[at - 1].last_offset < piece_end:
                pieces.append((piece_end, batches[first:at]))
                first = at
        return [*pieces, (end, batches[first:])]

    def prepare(self) -> None:
        self._range.check_complete()

    def finish(self) -> None:
        self._range.check_complete()
        self._store.sync()

    def abandon(self) -> None:
        """Nothing to do: there is nothing beside the segment."""

    def _is_there(self) -> bool:
        """Whether the segment was neither removed nor cut: that would have made another object."""
        if self._log not in self._store.logs():
            return False
        return any(each is self._segment for each in self._store.log_state(self._log).segments[:-1])

    def _piece(
        self, state: LogState, source: ChunkSource, end: int, batches: Sequence[StampedBatch]
    ) -> _Piece:
        old, start = self._segment, self._range.position
        removed = _removed(source, old, start, end)
        totals, builder = self._totals, ChunkBuilder()
        for batch in batches:
            totals = builder.add(totals, batch, removed.first_write_ms)
        builder.close(totals)
        newest_ms = max(old.max_timestamp_ms, totals.max_timestamp_ms)
        segment = old._replace(
            size_bytes=old.size_bytes - removed.size_bytes + totals.size_bytes - self._totals.size_bytes,
            max_timestamp_ms=totals.max_timestamp_ms if end == old.end_offset else newest_ms,
        )
        chunks = builder.chunks
        if removed.rest is not None:
            chunks.append(Chunk(segment, *removed.rest))
        segments = [segment if each is old else each for each in state.segments]
        meta = [segment_entry(state.number, segment)]
        return _Piece(LogChange(state, segments, meta, chunks, (), old, start, end), segment, totals)


def _ends_of_pieces(source: ChunkSource, segment: ChunkedSegment, start: int, end: int) -> Sequence[int]:
    """Between `start` and `end`: where old chunks begin, about CHUNK_BYTES apart."""
    ends: list[int] = []
    size_bytes = 0
    for base_offset, chunk in source.chunks(segment, start):
        if base_offset >= end:
            break
        if base_offset > start and size_bytes + len(chunk) - HEAD_SIZE > CHUNK_BYTES:
            ends.append(base_offset)
            size_bytes = 0
        size_bytes += len(chunk) - HEAD_SIZE
    return ends


def _removed(source: ChunkSource, segment: ChunkedSegment, start: int, end: int) -> _Removed:
    removed = _Removed()
    for base_offset, chunk in source.chunks(segment, start):
        if base_offset >= end:
            break
        head = segment.after(chunk)
        if removed.first_write_ms < 0:
            removed.first_write_ms = head.first_write_ms
        if base_offset < start:
            continue
        removed.size_bytes += len(chunk) - HEAD_SIZE
        if head.end_offset > end:
            removed.rest = rest_of_chunk(chunk, end)
    if removed.rest is not None:
        removed.size_bytes -= len(removed.rest[1]) - HEAD_SIZE
    return removed
