"""A LogReader on the segment engine's directory, whether a broker runs on it or not. It takes no
locks and changes nothing.

Each call looks at the directory again. Sealed segments do not change, so the reader keeps what it
knows of them. In other segments it reads on from the last batch that it knows. It accepts a batch
only if its CRC is right, so it does not see an unfinished write. It never maps or touches bytes in
which it has found no batches. This module must not know the writer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar
from uuid import UUID

from kbroker.storage.files import Files
from kbroker.storage.segment.index import DATA, INDEX, SegmentIndex, identity_of, scan
from kbroker.storage.segment.lookup import find_in_segments, read_segments
from kbroker.storage.segment.recovery import read_follows
from kbroker.storage.segment.segment import OpenHandles, Segment, segment_path
from kbroker.storage.spi import LogBounds, LogId, LogReader, SegmentInfo

Answer = TypeVar("Answer")

_MOST_MAPS = 1000
_ATTEMPTS = 100
"""A look is repeated whenever a segment disappeared during it; the limit turns a bug into an error
instead of an endless loop."""


@dataclass(slots=True)
class _Known:
    """A segment as last seen. If its inode has changed, the log was truncated, and the file is a
    new one."""

    segment: Segment
    inode: int


@dataclass(slots=True)
class _KnownLog:
    segments: dict[int, _Known] = field(default_factory=dict)


class SegmentReaderStatistics(NamedTuple):
    logs: int
    segments: int
    maps: int


class SegmentLogReader(LogReader):
    """Not thread-safe."""

    def __init__(self, directory: Path, *, files: Files | None = None, max_maps: int = _MOST_MAPS) -> None:
        self._directory = directory
        self._files = files or Files()
        self._handles = OpenHandles(max_maps=max_maps, max_files=0)
        self._known: dict[LogId, _KnownLog] = {}

    def logs(self) -> Sequence[LogId]:
        try:
            names = self._files.listdir(self._directory)
        except FileNotFoundError:
            return ()
        return [log for log in map(parse_log_name, names) if log is not None and self._has_segments(log)]

    def bounds(self, log: LogId) -> LogBounds:
        return self._read_from(
            log, lambda segments: LogBounds(segments[0].base_offset, segments[-1].end_offset)
        )

    def segments(self, log: LogId) -> Sequence[SegmentInfo]:
        return self._read_from(log, lambda segments: [segment.info() for segment in segments])

    def read(self, log: LogId, offset: int, *, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        return self._read_from(log, lambda segments: read_segments(segments, offset, max_bytes, end_offset))

    def find_by_timestamp(self, log: LogId, timestamp_ms: int) -> int | None:
        return self._read_from(log, lambda segments: find_in_segments(segments, timestamp_ms))

    def _read_from(self, log: LogId, read: Callable[[Sequence[Segment]], Answer]) -> Answer:
        for _ in range(_ATTEMPTS):
            try:
                return read(self._refreshed(log))
            except FileNotFoundError:
                continue  # a segment was removed or replaced between the look and the mapping
        raise KeyError(log)

    def close(self) -> None:
        """Views in use stay valid."""
        self._known.clear()

    def statistics(self) -> SegmentReaderStatistics:
        return SegmentReaderStatistics(
            len(self._known), sum(len(log.segments) for log in self._known.values()), self._handles.maps
        )

    def _has_segments(self, log: LogId) -> bool:
        try:
            return any(name.isdigit() for name in self._files.listdir(self._directory / log_name(log)))
        except FileNotFoundError:
            return False

    def _refreshed(self, log: LogId) -> Sequence[Segment]:
        """The current segments. Raises KeyError if the log does not exist."""
        known = self._known.setdefault(log, _KnownLog())
        for _ in range(_ATTEMPTS):
            try:
                segments = self._look(self._directory / log_name(log), known)
            except FileNotFoundError:
                continue
            if segments is None:
                break
            return segments
        del self._known[log]
        raise KeyError(log)

    def _look(self, path: Path, known: _KnownLog) -> list[Segment] | None:
        """None if there is no such log. Raises FileNotFoundError if the log changed meanwhile."""
        try:
            offsets = sorted(int(name) for name in self._files.listdir(path) if name.isdigit())
        except FileNotFoundError:
            return None
        for gone in known.segments.keys() - set(offsets):
            self._handles.discard(known.segments.pop(gone).segment)
        segments: list[Segment] = []
        for base_offset in offsets:
            segment = self._open(segment_path(path, base_offset), known)
            if segment is None or not self._joins(segment, segments):
                break
            if segments and not segments[-1].sealed and not segments[-1].size_bytes:
                segments.pop()
            segments.append(segment)
        return segments or None

    def _open(self, path: Path, known: _KnownLog) -> Segment | None:
        """None if the segment has no data file, that is, is still being created."""
        base_offset = int(path.name)
        try:
            status = self._files.stat(path / DATA)
        except FileNotFoundError:
            self._files.stat(path)
            return None
        old = known.segments.get(base_offset)
        if old is not None and old.inode != status.st_ino:
            self._handles.discard(old.segment)
            old = None
        identity = identity_of(status)
        if old is not None and old.segment.sealed:
            if old.segment.identity == identity:
                return old.segment
            self._handles.discard(old.segment)  # its contents were replaced
            old = None
        sealed = self._is_sealed(path)
        if old is None or sealed:
            if old is not None:
                self._handles.discard(old.segment)
            index = None if sealed else SegmentIndex.empty()
            segment = Segment(
                path, self._files, self._handles, index=index, sealed=sealed, capacity=status.st_size,
                identity=identity if sealed else None,
            )  # fmt: skip
            known.segments[base_offset] = old = _Known(segment, status.st_ino)
        if not sealed:
            self._read_on(old.segment)
        return old.segment

    def _is_sealed(self, path: Path) -> bool:
        try:
            self._files.stat(path / INDEX)
        except FileNotFoundError:
            return False
        return True

    def _read_on(self, segment: Segment) -> None:
        fd = self._files.open(segment.path / DATA, os.O_RDONLY)
        try:
            scan(self._files, fd, segment.index, segment.base_offset)
            segment.capacity = self._files.size(fd)
        finally:
            self._files.close(fd)
        segment.hot_from = segment.index.size_bytes

    def _joins(self, segment: Segment, segments: Sequence[Segment]) -> bool:
        """Whether the previous segment is known up to its end. A new segment may exist before the
        last bytes of the previous one are written; it must not be visible before those bytes
        are."""
        if not segments or segments[-1].sealed:
            return True
        follows = read_follows(segment.path, self._files)
        if follows is None:  # not written yet, or lost in a power cut and not recovered yet
            follows = segment.base_offset
        if segments[-1].end_offset < follows:
            self._read_on(segments[-1])
        return segments[-1].end_offset >= follows


def log_name(log: LogId) -> str:
    return f"{log.topic_id}-{log.partition}"


def parse_log_name(name: str) -> LogId | None:
    """None if `name` is not that of a log's directory."""
    topic_id, _, partition = name.rpartition("-")
    try:
        log = LogId(UUID(topic_id), int(partition))
    except ValueError:
        return None
    return log if log_name(log) == name else None
