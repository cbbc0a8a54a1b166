"""The default log engine: a directory per log, a directory per segment, read through mappings. For
the files see segment.py.

    DIR/<topic id>-<partition>/<base offset>/...
    DIR/clean-shutdown                            only while the store is closed
                                                  (segment/recovery.py)

write() is one pwritev per log. It first reserves disk space for all logs of the call, so a full
disk makes the call fail with nothing to undo. If the file system breaks the reservation, the
written bytes are overwritten with zeros and synced before NoSpace is raised: a crash must not bring
them back. A lack of open files (NoFiles) is treated alike.

At most `max_open_files` files of logs are open; write() makes room by a sync (segment/write.py).

sync() is one fdatasync, or one syncfs if several files are dirty. It also seals full segments,
because its thread may take longer; until then recovery treats them like the active one. Now and
then it records synced batches in checkpoints, so that recovery need not read them.

The state of a log is a tuple of segments that is replaced as a whole, so readers in other threads
need no lock. A reader that finds a segment just removed repeats its look-up. This module must not
know what batches mean.
"""

from __future__ import annotations

import logging
import os
import resource
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from kbroker.errors import NoSpace, OperatorError, StoreFailed
from kbroker.storage.files import NO_FILES, Files, make_directory
from kbroker.storage.segment.checkpoint_budget import Checkpoints
from kbroker.storage.segment.creation import create_segment, remove_created
from kbroker.storage.segment.failures import Failures
from kbroker.storage.segment.lookup import find_in_segments, is_cached_in_segments, read_segments
from kbroker.storage.segment.reader import SegmentLogReader, log_name, parse_log_name
from kbroker.storage.segment.recovery import (
    DELETED,
    Recovery,
    forget_saved_indexes,
    recover_log,
    take_saved_indexes,
    try_to_save_indexes,
)
from kbroker.storage.segment.replacement import NewContents, SegmentReplacement
from kbroker.storage.segment.sealing import Sealing
from kbroker.storage.segment.segment import Crowded, OpenHandles, Segment, segment_path
from kbroker.storage.segment.spare import SpareFiles
from kbroker.storage.segment.truncation import cut_copy, replace_data
from kbroker.storage.segment.unsynced import Unsynced
from kbroker.storage.segment.write import PlannedWrite, Published, SegmentedLog
from kbroker.storage.spi import (
    LogBounds,
    LogId,
    LogSettings,
    LogStore,
    LogStoreFactory,
    Replacement,
    SegmentInfo,
    StampedBatch,
)

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")

_SEALS_PER_SYNC = 4
_CHECKPOINTS_PER_SYNC = 16  # 20-40 us each, 200 us for a segment's first; commits wait for them
_CHECKPOINT_BYTES = 64 << 20
_OTHER_FILES = 40
"""Of a broker: its sockets, pipes, directories and modules, and those of another engine."""
_MOST_MAPS = 30_000  # the kernel allows 65 530 per process, and a sealed segment has two

OPTIONS = frozenset({"sync", "max_maps", "max_open_files", "checkpoint_bytes"})
SYNC_METHODS = ("auto", "fdatasync", "syncfs")


class SegmentStoreStatistics(NamedTuple):
    """The numbers of a store that become metrics."""

    logs: int
    segments: int
    unsealed_segments: int
    """Full, but not sealed yet."""
    unrecorded_bytes: int
    """Synced, but in no checkpoint: a start after a crash rereads them."""
    bytes: int
    open_maps: int
    open_files: int
    dirty_files: int
    writes: int
    written_bytes: int
    refused_writes: int
    syncs: int
    failed: bool


class SegmentLogStore(LogStore):
    """Options:

    - `sync`: auto, fdatasync or syncfs.
    - `max_maps`, `max_open_files`: the defaults fit the limits of the process.
    - `checkpoint_bytes` (64 MiB): about how much a start after a crash may have to read.
    """

    write_in_thread = False
    write_beside_sync = True
    trim_beside_write = True
    replaces = True

    def __init__(
        self,
        directory: Path,
        options: Mapping[str, str] | None = None,
        *,
        files: Files | None = None,
        foreign: str = "",
    ) -> None:
        """`foreign`: the name of a file or folder in the directory that is not this store's."""
        self._directory = directory
        self._foreign = foreign
        self._files = files or Files()
        limits = limits_of(options or {})
        use_syncfs = limits["sync"] != "fdatasync" and self._files.can_syncfs()
        self._spare = SpareFiles(directory, self._files)
        self._failures = Failures(directory, self._spare)
        self._unsynced = Unsynced(self._files, self._failures, use_syncfs=use_syncfs)
        self._handles = OpenHandles(
            max_maps=int(limits["max_maps"]),
            max_files=int(limits["max_open_files"]),
            is_pinned=self._unsynced.is_pinned,
            rebuilt=lambda segment: self._sealing.again(segment),
        )
        self._checkpoints = Checkpoints(int(limits["checkpoint_bytes"]), self._files)
        self._maintenance = threading.Lock()
        """Guards the sets of unsealed and checkpointed segments; held by sync() and by every
        removal."""
        self._logs: dict[LogId, SegmentedLog] = {}
        self._sealing = Sealing(self._handles, self._unsynced, self._checkpoints, self._failures)
        self._writes = self._written_bytes = self._refused_writes = self._syncs = 0
        try:
            make_directory(directory, self._files)
            self._directory_fd = self._files.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            self._spare.take()
        except OSError as error:
            raise OperatorError(f"cannot open {directory}: {error.strerror}") from error
        try:
            self._recover()
        except OSError as error:
            self._release()
            raise OperatorError(f"cannot recover {error.filename or directory}: {error.strerror}") from error
        except BaseException:
            self._release()
            raise

    def _recover(self) -> None:
        found = Recovery(sync_files=not self._unsynced.use_syncfs)
        saved = take_saved_indexes(self._directory, self._files)
        for name in self._files.listdir(self._directory):
            path = self._directory / name
            if name.endswith(DELETED):
                self._files.remove_tree(path)
            elif (log := parse_log_name(name)) is not None:
                segments = recover_log(path, saved, found, files=self._files, handles=self._handles)
                if segments:
                    self._logs[log] = SegmentedLog(log, path, LogSettings(), segments)
            elif not name.startswith("clean-shutdown") and name != self._foreign:
                logger.warning("%s is not a log: left alone", path)
        self._sealing.waiting.extend(found.to_seal)
        if found.to_sync:
            self._unsynced.sync_recovered(found.to_sync, self._directory_fd)
        forget_saved_indexes(self._directory, self._files)
        self._checkpoints.synced((segment, len(segment.index)) for segment in self._unsealed())
        self._checkpoints.write_due(len(self._logs) + len(self._sealing.waiting))
        found.report(self._directory, len(self._logs))

    def logs(self) -> Sequence[LogId]:
        return tuple(self._logs)

    def bounds(self, log: LogId) -> LogBounds:
        segments = self._logs[log].segments
        return LogBounds(segments[0].base_offset, segments[-1].end_offset)

    def segments(self, log: LogId) -> Sequence[SegmentInfo]:
        return self._read_from(log, lambda segments: [segment.info() for segment in segments])

    def tail_offset(self, log: LogId) -> int:
        return self._logs[log].segments[-1].base_offset

    def reserved_bytes(self, log: LogId) -> int:
        """Disk space that is reserved behind the log's end, for its next batches."""
        return max(0, (last := self._logs[log].segments[-1]).reserved - last.size_bytes)

    def read(self, log: LogId, offset: int, *, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        try:
            return read_segments(self._logs[log].segments, offset, max_bytes, end_offset)
        except OSError:
            return self._read_from(
                log, lambda segments: read_segments(segments, offset, max_bytes, end_offset)
            )

    def is_cached(self, log: LogId, offset: int, *, max_bytes: int, end_offset: int) -> bool:
        return is_cached_in_segments(self._logs[log].segments, offset, max_bytes, end_offset)

    def find_by_timestamp(self, log: LogId, timestamp_ms: int) -> int | None:
        return self._read_from(log, lambda segments: find_in_segments(segments, timestamp_ms))

    def _read_from(self, log: LogId, read: Callable[[Sequence[Segment]], Answer]) -> Answer:
        """Repeat the read if another thread removed or replaced a segment meanwhile."""
        while True:
            segments = self._logs[log].segments
            try:
                return read(segments)
            except FileNotFoundError as error:
                if log in self._logs and self._logs[log].segments is segments:
                    raise StoreFailed(
                        f"{error.filename} is gone: files of a running store were removed"
                    ) from error
            except OSError as error:
                if error.errno in NO_FILES and self._handles.give_up():
                    continue
                raise StoreFailed(f"cannot read {self._logs[log].path}: {error}") from error

    # Writing

    def write(self, batches: Sequence[StampedBatch], *, now_ms: int) -> None:
        self._failures.check()
        groups: dict[SegmentedLog, list[StampedBatch]] = {}
        last_log: LogId | None = None
        group: list[StampedBatch] = []
        for batch in batches:
            if batch.log is not last_log:  # Skip the hashing, which costs more than the rest.
                last_log = batch.log
                group = groups.setdefault(self._logs[last_log], [])
            group.append(batch)
        unsynced = self._unsynced
        plan = PlannedWrite(groups, now_ms, self._files, self._handles, unsynced.writing)
        try:
            try:
                plan.carry_out()
            except Crowded:
                unsynced.writing.clear()
                self._carry_out_in_slices(plan)
        except OSError as error:
            self._refused_writes += 1
            try:
                self._failures.refuse("write to", error, plan.undo)
            finally:
                unsynced.writing.clear()
        published = plan.publish()
        with self._handles.lock:
            unsynced.dirty.update(published.segments)
            unsynced.created.update(published.created)
            for segment in published.flushed:
                unsynced.flushed[segment] = len(segment.index)
            unsynced.writing.clear()
        self._sealing.waiting.extend(published.full)
        if published.replaced:
            self._remove_replaced(published)
        self._writes += 1
        self._written_bytes += published.size_bytes

    def _carry_out_in_slices(self, plan: PlannedWrite) -> None:
        """Wait for a sync() that is under way, and sync what earlier writes have left: then files
        may be closed. Raises StoreFailed if a sync fails."""
        with self._maintenance:
            self._sync_files()
            plan.carry_out_in_slices(partial(self._unsynced.sync_slice, self._directory_fd))

    def write_waits(self, batches: Sequence[StampedBatch]) -> bool:
        unsynced, most = self._unsynced, self._handles.max_files
        if len(batches) + len(unsynced.dirty) + len(unsynced.syncing) <= most:
            return False
        active = {self._logs[log].segments[-1] for log in {batch.log for batch in batches}}
        return len(active.union(unsynced.dirty, unsynced.syncing)) > most

    def _remove_replaced(self, published: Published) -> None:
        with self._maintenance, self._failures.removing("remove"):
            self._unsynced.sync_created(published.created)
            for segment in published.replaced:
                self._forget(segment)
                self._files.remove_tree(segment.path)

    def sync(self) -> None:
        self._failures.check()
        with self._maintenance:
            self._sync_files()
            for _ in range(_SEALS_PER_SYNC):
                if not self._sealing.next():
                    break
            try:
                self._checkpoints.write_due(_CHECKPOINTS_PER_SYNC)
            except OSError as error:
                self._failures.fail("write a checkpoint in", error)

    def _sync_files(self) -> None:
        self._checkpoints.synced(self._unsynced.sync(self._handles, self._directory_fd))
        self._syncs += 1

    # Logs and their segments

    def create(self, log: LogId, settings: LogSettings) -> None:
        self._failures.check()
        if log in self._logs:
            self._logs[log].settings = settings
            return
        path = self._directory / log_name(log)
        segment: Segment | None = None
        try:
            self._files.mkdir(path)
            segment = create_segment(
                path, 0, settings.segment_bytes, None, files=self._files, handles=self._handles
            )
            for directory in (segment.path, path, self._directory):
                self._files.fsync_dir(directory)
        except OSError as error:
            self._failures.refuse("create", error, partial(remove_created, segment, path, self._files))
        self._logs[log] = SegmentedLog(log, path, settings, (segment,))

    def drop(self, log: LogId) -> None:
        self._failures.check()
        if log not in self._logs:
            return
        with self._maintenance, self._failures.removing("drop"):
            with self._handles.lock:
                state = self._logs.pop(log)
                for segment in state.segments:
                    self._forget(segment)
            deleted = state.path.with_name(state.path.name + DELETED)
            self._files.rename(state.path, deleted)
            self._files.fsync_dir(self._directory)
            self._files.remove_tree(deleted)

    def trim(self, log: LogId, new_start: int) -> None:
        self._failures.check()
        state = self._logs[log]
        segments = state.segments
        count = next((i for i, each in enumerate(segments) if each.end_offset > new_start), len(segments))
        if count == len(segments) and not len(segments[-1].index):  # The last one is empty.
            count -= 1
        if count == 0:
            return
        kept = segments[count:]
        if not kept:
            kept = (self._create_empty(state, state.end_offset, "trim"),)
        with self._maintenance, self._failures.removing("trim"):
            if kept[0] in self._unsynced.created:
                self._unsynced.sync_created(kept[:1])
            self._remove_segments(state, kept, segments[:count], is_trim=count < len(segments))

    def truncate(self, log: LogId, new_end: int) -> None:
        self._failures.check()
        state = self._logs[log]
        if new_end >= state.end_offset:
            return
        segments = state.segments
        count = max(
            1, sum(each.base_offset < new_end and each.end_offset > each.base_offset for each in segments)
        )
        last = segments[count - 1]
        batches = bisect_left(last.index.base_offsets, new_end, 0, len(last.index))
        must_cut = batches < len(last.index)
        copy = contents = None
        try:
            if must_cut and not batches and last.base_offset < new_end:
                contents = NewContents(last, new_end)  # none, but the log keeps its start offset
                contents.prepare()
            elif must_cut:
                copy = cut_copy(last, batches, state.settings.segment_bytes)
        except OSError as error:
            self._failures.refuse("truncate", error, contents.remove if contents else lambda: None)
        with self._maintenance, self._failures.removing("truncate"):
            self._remove_segments(state, segments[:count], tuple(reversed(segments[count:])))
            if copy is not None:
                with self._handles.lock:
                    self._forget(last)
                    last = replace_data(last, copy)
                    state.segments = (*segments[: count - 1], last)
                    self._unsynced.flushed[last] = batches
        if contents is not None:
            self._put_in_place(state, contents)
            with self._failures.removing("truncate"):
                contents.remove()
            last = state.segments[-1]
        end_offset = last.end_offset
        if last.sealed or (len(last.index) and end_offset < new_end):
            self._append_empty(state, max(new_end, end_offset))

    def replacing(self, log: LogId, base_offset: int) -> Replacement:
        self._failures.check()
        state = self._logs[log]
        segment = next((each for each in state.segments[:-1] if each.base_offset == base_offset), None)
        if segment is None:
            raise ValueError(f"{log} has no full segment at {base_offset}")
        with self._maintenance:
            if not segment.sealed:
                self._seal_now(segment)
        try:
            return SegmentReplacement(
                segment, self._failures, lambda contents: self._put_in_place(state, contents)
            )
        except OSError as error:
            self._failures.refuse("replace", error, lambda: None)

    def _seal_now(self, segment: Segment) -> None:
        self._sync_files()
        if not self._sealing.seal(segment):
            raise NoSpace(f"cannot store the index of {segment.path}")

    def _put_in_place(self, state: SegmentedLog, contents: NewContents) -> None:
        """A write may add segments meanwhile, hence the lock."""
        old = contents.segment

        def publish(new: Segment) -> None:
            self._forget(old)
            state.segments = tuple(new if each is old else each for each in state.segments)

        self._failures.check()
        with self._maintenance, self._failures.removing("replace"):
            if not old.discarded:
                contents.move(publish)

    def _append_empty(self, state: SegmentedLog, base_offset: int) -> None:
        """Needed if the last segment takes no more batches, or ends before the log does."""
        last = state.segments[-1]
        with self._failures.removing("truncate"):
            empty = self._create_empty(state, base_offset, "truncate")
        state.segments = (*state.segments, empty)
        if not last.sealed:
            self._sealing.waiting.append(last)

    def _create_empty(self, state: SegmentedLog, base_offset: int, action: str) -> Segment:
        """Create an empty segment, durable on return, but not yet part of the log."""
        follows = state.segments[-1].end_offset
        capacity = state.settings.segment_bytes
        segment: Segment | None = None
        try:
            segment = create_segment(
                state.path, base_offset, capacity, follows, files=self._files, handles=self._handles
            )
            self._unsynced.sync_created({segment})
        except OSError as error:
            path = segment_path(state.path, base_offset)
            self._failures.refuse(action, error, partial(remove_created, segment, path, self._files))
        return segment

    def _remove_segments(
        self,
        state: SegmentedLog,
        kept: tuple[Segment, ...],
        removed: Sequence[Segment],
        *,
        is_trim: bool = False,
    ) -> None:
        """Remove segments in the given order: after a crash in between, only the first ones are
        gone. With `trim_beside_write` a write may add segments meanwhile."""
        with self._handles.lock:
            state.segments = state.segments[len(removed) :] if is_trim else kept
            for segment in removed:
                self._forget(segment)
        deleted = [segment.path.with_name(segment.path.name + DELETED) for segment in removed]
        for segment, path in zip(removed, deleted, strict=True):
            self._files.rename(segment.path, path)
        self._files.fsync_dir(state.path)
        for path in deleted:
            self._files.remove_tree(path)

    def _forget(self, segment: Segment) -> None:
        with self._handles.lock:
            self._handles.discard(segment)
            self._unsynced.dirty.discard(segment)
            self._unsynced.created.discard(segment)
            self._unsynced.flushed.pop(segment, None)
            self._checkpoints.forget(segment)

    def close(self) -> None:
        """Sync, and save the indexes of unsealed segments for the next open. Raises StoreFailed if
        the sync fails; the store is closed even then. Views in use stay valid."""
        if self._failures.closed:
            return
        try:
            if self._failures.reason is None:
                self.sync()
                try_to_save_indexes(self._directory, self._unsealed(), self._files)
        finally:
            self._failures.closed = True
            self._release()

    def _unsealed(self) -> list[Segment]:
        return [segment for log in self._logs.values() for segment in log.segments if not segment.sealed]

    def _release(self) -> None:
        self._handles.discard_all(segment for log in self._logs.values() for segment in log.segments)
        self._files.close(self._directory_fd)
        self._spare.close()

    def statistics(self) -> SegmentStoreStatistics:
        segments = [segment for log in tuple(self._logs.values()) for segment in log.segments]
        return SegmentStoreStatistics(
            logs=len(self._logs),
            segments=len(segments),
            unsealed_segments=len(self._sealing.waiting),
            unrecorded_bytes=self._checkpoints.waiting_bytes,
            bytes=sum(segment.size_bytes for segment in segments),
            open_maps=self._handles.maps,
            open_files=self._handles.open_files,
            dirty_files=len(self._unsynced.dirty),
            writes=self._writes,
            written_bytes=self._written_bytes,
            refused_writes=self._refused_writes,
            syncs=self._syncs,
            failed=self._failures.reason is not None,
        )


def limits_of(options: Mapping[str, str]) -> dict[str, str]:
    """All options, with defaults that fit the process's limits. Raises OperatorError."""
    unknown = sorted(options.keys() - OPTIONS)
    if unknown:
        raise OperatorError(
            f"the segment engine has no option {unknown[0]!r}; it has {', '.join(sorted(OPTIONS))}"
        )
    if options.get("sync", "auto") not in SYNC_METHODS:
        raise OperatorError(
            f"option sync of the segment engine must be one of {', '.join(SYNC_METHODS)}, "
            f"not {options['sync']!r}"
        )
    for name in ("max_maps", "max_open_files", "checkpoint_bytes"):
        if not options.get(name, "1").isdigit():
            raise OperatorError(
                f"option {name} of the segment engine must be a number, not {options[name]!r}"
            )
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        files = 8 * _MOST_MAPS
    # Connections have half of all files (server/connection_limits.py).
    share = max(8, (files - _OTHER_FILES) // 8)
    bounds = {"max_maps": str(_MOST_MAPS), "max_open_files": str(share)}
    return {"sync": "auto", "checkpoint_bytes": str(_CHECKPOINT_BYTES), **bounds, **options}


def _open(directory: Path, options: Mapping[str, str], owner_epoch: int) -> SegmentLogStore:
    """`owner_epoch` is not needed: the lock of the data directory excludes other owners."""
    return SegmentLogStore(directory, options)


LOG_STORE = LogStoreFactory(open=_open, open_reader=SegmentLogReader)
