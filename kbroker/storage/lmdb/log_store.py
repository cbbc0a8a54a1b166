"""Topic data in LMDB. Each segment is a sub-database of chunks, so that retention drops it as a
whole.

    sub-database       key                                  value
    "meta"             chunked_log's "L" and "S" entries
                       "G" segment number (8)               empty: removed, not yet freed
    "s" number (hex)   base offset (8), unsigned            chunk

Each call is one transaction, synced at its commit, so sync() has nothing to do. A transaction
belongs to its thread, hence `write_in_thread`. A removal has two steps: first the segment is
removed from `meta`, which makes the removal durable, then its pages are freed, with a transaction
per segment. After a crash in between, the next open frees the rest.

Reads copy their bytes and end their transaction at once: while it is open, it pins every page that
is replaced.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kbroker.errors import NoSpace
from kbroker.formats.crc import crc32c
from kbroker.storage.keyvalue import chunked_log
from kbroker.storage.keyvalue.chunked_log import LogChange, LogState
from kbroker.storage.keyvalue.chunked_store import ChunkedLogReader, ChunkedLogStore, ChunkedStatistics
from kbroker.storage.keyvalue.chunks import ChunkedSegment, ChunkSource, join, read_chunks
from kbroker.storage.lmdb.environment import (
    LmdbEnvironment,
    LmdbStatistics,
    MissingHandle,
    Transaction,
    open_environment,
)
from kbroker.storage.spi import LogId

T = TypeVar("T")

META = b"meta"
MAP_BYTES = 1 << 44
MAX_HANDLES = 32_768
SMALLEST_TOUCHED_BYTES = 32 << 10
GARBAGE_PREFIX = b"G"
_OFFSET = struct.Struct(">Q")
_GARBAGE = struct.Struct(">cq")


def _segment_name(number: int) -> bytes:
    return b"s%x" % number


class _Chunks:
    """The ChunkSource of one transaction. `segments`: those of the log that is read, if several
    are."""

    def __init__(self, env: LmdbEnvironment, transaction: Transaction) -> None:
        self._env = env
        self._transaction = transaction
        self.segments: Sequence[ChunkedSegment] = ()

    def chunks(self, segment: ChunkedSegment, offset: int) -> Iterator[tuple[int, memoryview]]:
        try:
            cursor = self._transaction.cursor(self._env.handle(_segment_name(segment.number)))
        except MissingHandle:
            raise MissingHandle(self._names_from(segment)) from None
        if not cursor.set_range(_OFFSET.pack(max(0, offset))):
            if not cursor.last():
                return
        elif _OFFSET.unpack(cursor.key())[0] > offset and not cursor.prev():
            cursor.first()
        for key, chunk in cursor:
            yield _OFFSET.unpack(key)[0], chunk

    def _names_from(self, segment: ChunkedSegment) -> list[bytes]:
        """A read of many small segments would otherwise start over for each."""
        following = [each for each in self.segments if each.base_offset > segment.base_offset]
        return [_segment_name(each.number) for each in (segment, *following)]


class LmdbLogReader(ChunkedLogReader):
    """A LogReader that caches nothing, so that it follows a broker in another process."""

    def __init__(self, env: LmdbEnvironment) -> None:
        self._env = env
        self._closed = False

    def logs(self) -> Sequence[LogId]:
        def work(transaction: Transaction) -> list[LogId]:
            return [
                chunked_log.parse_log(key, value).log
                for key, value in self._meta(transaction, chunked_log.LOG_PREFIX)
            ]

        return self._env.read(work)

    def read(self, log: LogId, offset: int, *, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        def work(state: LogState, chunks: ChunkSource) -> list[memoryview]:
            pieces = read_chunks(chunks, state.segments, offset, max_bytes=max_bytes, end_offset=end_offset)
            for piece in pieces:
                if len(piece) >= SMALLEST_TOUCHED_BYTES:
                    # Load missing pages without the GIL: a checksum releases it, `join` would not.
                    crc32c(piece, 0, 1)
            return join(pieces)

        return self._read(log, work)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._env.close()

    def _read(self, log: LogId, work: Callable[[LogState, ChunkSource], T]) -> T:
        def look_up_and_work(transaction: Transaction) -> T:
            chunks = _Chunks(self._env, transaction)
            state = self._state(log, transaction, chunks)
            chunks.segments = state.segments
            return work(state, chunks)

        return self._env.read(look_up_and_work)

    def _state(self, log: LogId, transaction: Transaction, chunks: _Chunks) -> LogState:
        key = chunked_log.log_key(log)
        value = transaction.get(key, db=self._env.handle(META))
        if value is None:
            raise KeyError(log)
        state = chunked_log.parse_log(key, bytes(value))
        entries = self._meta(transaction, chunked_log.segments_prefix(state.number))
        state.segments = [chunked_log.parse_segment(key, value)[1] for key, value in entries]
        chunked_log.with_active(state, chunks)
        return state

    def _meta(self, transaction: Transaction, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor = transaction.cursor(self._env.handle(META))
        if cursor.set_range(prefix):
            for key, value in cursor:
                if key[: len(prefix)] != prefix:
                    return
                yield bytes(key), bytes(value)


@dataclass(frozen=True, slots=True)
class LmdbLogStatistics(ChunkedStatistics):
    environment: LmdbStatistics


class LmdbLogStore(ChunkedLogStore, LmdbLogReader):
    """The LogStore: transactions for what ChunkedLogStore decides."""

    write_in_thread = True
    replaces = True

    def __init__(self, env: LmdbEnvironment) -> None:
        LmdbLogReader.__init__(self, env)
        with env.write() as transaction:
            env.handle_in(transaction, META)
        logs, garbage = env.read(self._load)
        self._load_active(logs.values())
        ChunkedLogStore.__init__(self, logs, garbage)
        self._free(garbage)

    def _load(self, transaction: Transaction) -> tuple[dict[LogId, LogState], list[int]]:
        logs = chunked_log.parse_logs(
            self._meta(transaction, chunked_log.LOG_PREFIX),
            self._meta(transaction, chunked_log.SEGMENT_PREFIX),
        )
        return logs, [_GARBAGE.unpack(key)[1] for key, _ in self._meta(transaction, GARBAGE_PREFIX)]

    def _load_active(self, states: Collection[LogState]) -> None:
        """Opens all active segments in one transaction, since each opening waits for the writer."""
        with self._env.write() as transaction:
            for state in states:
                self._env.handle_in(transaction, _segment_name(state.segments[-1].number))

        def work(transaction: Transaction) -> None:
            for state in states:
                chunked_log.with_active(state, _Chunks(self._env, transaction))

        self._env.read(work)

    def sync(self) -> None:
        """Nothing to do: commits are synced."""
        self._check()

    def reusable_bytes(self) -> int:
        return self._env.reusable_bytes()

    def statistics(self) -> LmdbLogStatistics:
        return LmdbLogStatistics(*self._totals(), self._env.statistics())

    def _check(self) -> None:
        self._env.check()

    def _state(self, log: LogId, transaction: Transaction, chunks: _Chunks) -> LogState:
        return self._logs[log]

    def _store(self, changes: Sequence[LogChange], *, durable: bool = True) -> None:
        super()._store(changes, durable=durable)
        self._free([segment.number for change in changes for segment in change.dropped])

    def _commit(self, changes: Sequence[LogChange], *, durable: bool) -> None:
        with self._env.write() as transaction:
            for change in changes:
                self._put(transaction, change)

    def _put(self, transaction: Transaction, change: LogChange) -> None:
        meta = self._env.handle_in(transaction, META)
        for key, value in change.meta:
            if value is None:
                transaction.delete(key, db=meta)
            else:
                transaction.put(key, value, db=meta)
        for segment in change.dropped:
            transaction.put(_GARBAGE.pack(GARBAGE_PREFIX, segment.number), b"", db=meta)
        if change.cut_segment is not None:
            cursor = transaction.cursor(
                self._env.handle_in(transaction, _segment_name(change.cut_segment.number))
            )
            found, end = cursor.set_range(_OFFSET.pack(change.cut_offset)), _OFFSET.pack(change.cut_end)
            while found and b"" != bytes(cursor.key()) < end:
                found = cursor.delete()
        for segment in change.segments[-1:]:  # an empty segment is read too
            self._env.handle_in(transaction, _segment_name(segment.number))
        append = change.cut_end == chunked_log.END_OF_OFFSETS
        for segment, base_offset, value in change.chunks:
            handle = self._env.handle_in(transaction, _segment_name(segment.number))
            transaction.put(_OFFSET.pack(base_offset), value, append=append, db=handle)

    def _free(self, numbers: Sequence[int]) -> None:
        """Free the pages of removed segments. After a failure the next open frees the rest."""
        if not numbers:
            return
        self._env.forget(map(_segment_name, numbers))
        for number in numbers:
            try:
                with self._env.write() as transaction:
                    self._env.drop_in(transaction, _segment_name(number))
                    transaction.delete(
                        _GARBAGE.pack(GARBAGE_PREFIX, number), db=self._env.handle_in(transaction, META)
                    )
            except NoSpace:
                return


def open_store(directory: Path, options: Mapping[str, str], owner_epoch: int) -> LmdbLogStore:
    """Option `map_size`: the maximum size of the file in bytes (default 16 TiB; the file is only as
    large as its content)."""
    map_bytes = int(options.get("map_size", MAP_BYTES))
    return LmdbLogStore(
        open_environment(directory, read_only=False, map_bytes=map_bytes, max_handles=MAX_HANDLES)
    )


def open_reader(directory: Path) -> LmdbLogReader:
    return LmdbLogReader(
        open_environment(directory, read_only=True, map_bytes=MAP_BYTES, max_handles=MAX_HANDLES)
    )
