"""One write() of the segment engine, from the batches to the bytes: planned, prepared, written,
then published or undone.

    plan      decides which batches go to which segment, and where new segments begin; touches
              nothing
    prepare   opens files, creates new segments and reserves disk space, for all logs of the call
    write     one pwritev per segment, after the bytes that readers can see
    publish   indexes grow and new segments join their logs: only now do readers see anything

A call to more segments than may be open at one time is prepared and written in slices. The files of
a slice are synced before they are closed (segment/unsynced.py says why). Those of the last slice
stay open until the next sync(). A crash between two slices leaves whole batches of some logs, as a
crash between two pwritevs does: the call has not returned, so it may be carried out in part.

After an OSError before `publish` nothing is visible; `undo` then removes bytes and segments that a
restart could otherwise find, those of synced slices too. This module must not know how files are
synced, nor what an error means for the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kbroker.formats.batches import Buffer
from kbroker.storage.files import MAX_BUFFERS, Files, after
from kbroker.storage.segment.creation import create_segment
from kbroker.storage.segment.segment import (
    ANY_TIME_MS,
    Crowded,
    OpenHandles,
    Segment,
    segment_path,
)
from kbroker.storage.spi import LogId, LogSettings, StampedBatch

_ZEROS = memoryview(bytes(1 << 16))


@dataclass(slots=True, eq=False)
class SegmentedLog:
    """One log of a store. `segments` is replaced, never changed, so readers may keep it; the last
    one is active."""

    log: LogId
    path: Path
    settings: LogSettings
    segments: tuple[Segment, ...]

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset


class _Run:
    """Batches that will lie back to back in one segment. `segment` is None until a new one is
    created for them; `follows` is then the end offset of the previous one."""

    __slots__ = ("batches", "buffers", "follows", "log", "position", "segment", "size_bytes", "written_bytes")

    def __init__(
        self, log: SegmentedLog, segment: Segment | None, position: int, follows: int | None = None
    ) -> None:
        self.log = log
        self.segment = segment
        self.position = position
        self.follows = follows
        self.batches: list[StampedBatch] = []
        self.buffers: list[Buffer] = []
        self.size_bytes = 0
        self.written_bytes = 0


@dataclass(slots=True, eq=False)
class Published:
    """The changes that a write has made visible."""

    segments: list[Segment] = field(default_factory=list)
    """With bytes that are not synced yet."""
    flushed: list[Segment] = field(default_factory=list)
    """All of their bytes are synced."""
    created: list[Segment] = field(default_factory=list)
    full: list[Segment] = field(default_factory=list)
    replaced: list[Segment] = field(default_factory=list)
    """Empty segments whose base offset differs from that of the first batch. They are replaced,
    because a segment is named after its first offset."""
    size_bytes: int = 0


class PlannedWrite:
    """`pinned` collects the segments that are being written: their files must stay open."""

    def __init__(
        self,
        groups: Mapping[SegmentedLog, Sequence[StampedBatch]],
        now_ms: int,
        files: Files,
        handles: OpenHandles,
        pinned: set[Segment],
    ) -> None:
        self._now_ms = now_ms
        self._files = files
        self._handles = handles
        self._pinned = pinned
        self._runs: list[_Run] = []
        self._has_created = False
        self._flushed = 0
        """So many of the runs were written and synced."""
        for log, batches in groups.items():
            self._plan(log, batches)

    def _plan(self, log: SegmentedLog, batches: Sequence[StampedBatch]) -> None:
        active = log.segments[-1]
        index = active.index
        size = index.size_bytes
        end_offset = index.next_offset or active.base_offset
        segment_bytes, segment_ms = log.settings.segment_bytes, log.settings.segment_ms
        run = _Run(log, active, size)
        roll, latest_ms = False, ANY_TIME_MS
        if size:
            latest_ms = active.latest_ms(index.newest_ms[0], segment_ms, self._now_ms)
        else:
            roll = batches[0].base_offset != active.base_offset
        for batch in batches:
            length, time_ms = len(batch.data), batch.max_timestamp_ms
            assert batch.base_offset >= end_offset, "the offsets of a log must rise"
            if roll or (size and (size + length > segment_bytes or time_ms > latest_ms)):
                if run.batches:
                    self._runs.append(run)
                run = _Run(log, None, 0, end_offset)
                roll, size = False, 0
            if not size:
                latest_ms = time_ms + segment_ms if time_ms >= 0 else ANY_TIME_MS
            run.batches.append(batch)
            run.buffers.append(batch.data)
            run.size_bytes += length
            size += length
            end_offset = batch.last_offset + 1
        self._runs.append(run)

    def carry_out(self) -> None:
        """Prepare and write. Raises Crowded, with nothing written, if that needs more files than
        may be open."""
        for run, fd in zip(self._runs, self._prepare(self._runs), strict=True):
            self._write(run, fd)

    def carry_out_in_slices(self, sync: Callable[[Sequence[int]], None]) -> None:
        """The same for any number of files, if nothing else is pinned. `sync` syncs open files."""
        size = max(1, self._handles.max_files)
        slices = [self._runs[at : at + size] for at in range(0, len(self._runs), size)]
        for runs in slices:  # All of them first, so that a full disk leaves nothing to undo.
            self._prepare(runs)
            self._pinned.clear()
        for runs in slices:
            fds = self._prepare(runs)
            for run, fd in zip(runs, fds, strict=True):
                self._write(run, fd)
            if runs is not slices[-1]:
                sync(fds)
                self._flushed += len(runs)
                self._pinned.clear()

    def _prepare(self, runs: Sequence[_Run]) -> list[int]:
        """The open files of these runs, which are pinned then."""
        segments = [run.segment or self._create(run) for run in runs]
        with self._handles.lock:
            self._pinned.update(segments)
            fds = [segment.fd or self._handles.file(segment, in_any_case=False) for segment in segments]
            if self._has_created and not self._handles.close_some():
                raise Crowded
        for run, segment, fd in zip(runs, segments, fds, strict=True):
            end = run.position + run.size_bytes
            if end > segment.capacity:
                segment.grow(fd, max(end, run.log.settings.segment_bytes))
            if end > segment.reserved:
                segment.reserve(fd, end)
        return fds

    def _create(self, run: _Run) -> Segment:
        capacity = max(run.log.settings.segment_bytes, run.size_bytes)
        base_offset = run.batches[0].base_offset
        self._has_created = True
        run.segment = create_segment(
            run.log.path, base_offset, capacity, run.follows, files=self._files, handles=self._handles
        )
        return run.segment

    def _write(self, run: _Run, fd: int) -> None:
        rest: Sequence[Buffer] = run.buffers
        while True:
            written = self._files.pwritev(fd, rest[:MAX_BUFFERS], run.position + run.written_bytes)
            run.written_bytes += written
            if run.written_bytes == run.size_bytes:
                return
            rest = after([memoryview(buffer) for buffer in rest], written)

    def publish(self) -> Published:
        published = Published()
        for run in self._runs:
            segment, log = run.segment, run.log
            assert segment is not None
            segment.append(run.batches, self._now_ms)
            published.segments.append(segment)
            published.size_bytes += run.size_bytes
            if run.follows is None:
                continue
            published.created.append(segment)
            with self._handles.lock:  # a trim beside this write
                last = log.segments[-1]
                if len(last.index):
                    published.full.append(last)
                    log.segments = (*log.segments, segment)
                else:
                    published.replaced.append(last)
                    log.segments = (*log.segments[:-1], segment)
        if self._flushed:
            published.flushed = published.segments[: self._flushed]
            published.segments = published.segments[self._flushed :]
        return published

    def undo(self) -> None:
        """Undo the call after an error, so that not even a recovery after a power cut finds any of
        it."""
        wrote = any(run.written_bytes for run in self._runs)
        for run in self._runs:
            if run.follows is not None:
                if run.segment is not None:
                    self._handles.discard(run.segment)
                self._files.remove_tree(segment_path(run.log.path, run.batches[0].base_offset))
                if wrote:
                    self._files.fsync_dir(run.log.path)
            elif run.written_bytes:
                self._overwrite(run)

    def _overwrite(self, run: _Run) -> None:
        """Overwrite with zeros, in place. The space is allocated, and shortening the file would be
        a SIGBUS for readers in other processes."""
        segment = run.segment
        assert segment is not None
        with self._handles.lock:
            self._pinned.add(segment)
            fd = self._handles.file(segment)
        end = run.position + run.written_bytes
        for position in range(run.position, end, len(_ZEROS)):
            self._files.write_all(fd, [_ZEROS[: end - position]], position)
        self._files.fdatasync(fd)
        self._pinned.discard(segment)
