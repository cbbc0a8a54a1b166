"""Replaces the contents of a sealed segment: a new data file beside it takes the place of the old
one by rename.

    <log>/<base offset>.cleaned.tmp/     until then; recovery removes it
        data.ninja  shape.ninja  .index/     as in a segment, on disk before anything is renamed

What a crash leaves:

1. Before data.ninja is renamed: the old contents.
2. After that, until the files of `.index` are replaced: the new contents with an index that does
   not fit them. That shows in the size of data.ninja, so the batches are reread. If the sizes are
   equal, the old index is made incomplete first. The end offset is found in the `follows` of the
   next segment.
3. After that: the new contents.

The segment has `.index` all the time. So recovery never takes it for one that was being written,
whose short end would mean that bytes are lost. Views of the old data file keep it alive.

This module must not know how contents are chosen, nor the store's other segments.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Final

from kbroker.storage.files import Files
from kbroker.storage.segment.checkpoint import remove_checkpoint
from kbroker.storage.segment.failures import Failures
from kbroker.storage.segment.index import DATA, INDEX, SHAPE, SegmentIndex, move_index
from kbroker.storage.segment.segment import Segment, length_of_data
from kbroker.storage.spi import AddedRange, Replacement, StampedBatch

logger = logging.getLogger(__name__)

_SUFFIX = ".cleaned.tmp"
_SYNC_EVERY_BYTES = 1 << 20
"""So that a sync of the whole file system, for a commit, does not wait for much more."""
_FREED_AT_ONCE_BYTES: Final = 1 << 20


class NewContents:
    """New contents of a segment that end at `end_offset`, in files beside it. OSErrors pass
    through."""

    def __init__(self, segment: Segment, end_offset: int) -> None:
        self.segment = segment
        self._end_offset = end_offset
        self._files = segment.files
        self._path = segment.path.with_name(segment.path.name + _SUFFIX)
        self._index = SegmentIndex.empty()
        self._synced_bytes = 0
        self._files.remove_tree(self._path)
        self._files.mkdir(self._path)
        self._fd: int | None = self._files.open(self._path / DATA, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._old_fd: int | None = None

    def append(self, batches: Sequence[StampedBatch]) -> None:
        assert self._fd is not None
        self._files.write_all(self._fd, [batch.data for batch in batches], self._index.size_bytes)
        for batch in batches:
            self._index.add(batch.base_offset, batch.last_offset, len(batch.data), batch.max_timestamp_ms)
        if self._index.size_bytes - self._synced_bytes >= _SYNC_EVERY_BYTES:
            self._files.fdatasync(self._fd)
            self._synced_bytes = self._index.size_bytes

    def prepare(self) -> None:
        """All files are on disk on return."""
        assert self._fd is not None
        self._index.hold_place(self._end_offset)
        self._files.fdatasync(self._fd)
        self._close()
        self._files.write_atomically(self._path / SHAPE, [length_of_data(self._index.size_bytes)])
        self._files.save_rows(self._path / INDEX, self._index.rows())  # type: ignore[arg-type]
        self._files.fsync_dir(self._path)

    def move(self, publish: Callable[[Segment], None]) -> None:
        """Put the files into the place of the old ones, durable on return. `publish` gets the new
        segment, and must discard the old one; it is called with the lock of the handles, at once
        after the data file was renamed. The space of the old data file is not free before
        remove()."""
        old, files = self.segment, self._files
        size = self._index.size_bytes
        if not old.sealed:  # that is, in a truncation
            remove_checkpoint(old.path, files)
            move_index(self._path / INDEX, old.path / INDEX, files)
            files.fsync_dir(old.path)
        elif size == old.size_bytes:
            files.unlink(old.path / INDEX / SHAPE)
            files.fsync_dir(old.path / INDEX)
        # Freeing a large file takes time: not while the lock is held, nor while commits wait.
        self._old_fd = files.open(old.path / DATA, os.O_RDWR)
        with old.handles.lock:
            files.rename(self._path / DATA, old.path / DATA)
            new = Segment(
                old.path, files, old.handles, index=self._index, sealed=False, capacity=size
            )  # not sealed, since its index is not in place
            publish(new)
        files.rename(self._path / SHAPE, old.path / SHAPE)
        files.fsync_dir(old.path)
        if (self._path / INDEX).exists():
            move_index(self._path / INDEX, old.path / INDEX, files)
        new.use_stored_index()

    def remove(self) -> None:
        """Remove what is beside the segment, and free the old data file after move()."""
        self._close()
        if self._old_fd is not None:
            fd, self._old_fd = self._old_fd, None
            _free(self._files, fd)
        self._files.remove_tree(self._path)

    def _close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._files.close(fd)


class SegmentReplacement(Replacement):
    add_beside_write = True

    def __init__(
        self, segment: Segment, failures: Failures, put_in_place: Callable[[NewContents], None]
    ) -> None:
        self._segment = segment
        self._range = AddedRange(segment.base_offset, segment.end_offset)
        self._failures = failures
        self._put_in_place = put_in_place
        self._is_prepared = self._is_in_place = False
        self._contents: NewContents | None = NewContents(segment, segment.end_offset)

    def add(self, end: int, batches: Sequence[StampedBatch]) -> None:
        self._range.check(end, batches)
        self._attempt(lambda contents: contents.append(batches))
        self._range.position = end

    def prepare(self) -> None:
        self._range.check_complete()
        if not self._is_prepared:
            self._attempt(lambda contents: contents.prepare())
            self._is_prepared = True

    def finish(self) -> None:
        self.prepare()
        if self._contents is not None and not self._is_in_place:
            self._is_in_place = True
            if not self._segment.discarded:
                self._put_in_place(self._contents)

    def abandon(self) -> None:
        """A failure is none of the store's: the next start removes the files."""
        contents, self._contents = self._contents, None
        if contents is not None:
            try:
                contents.remove()
            except OSError as error:
                logger.warning("cannot remove files beside %s: %s", self._segment.path, error)

    def _attempt(self, step: Callable[[NewContents], None]) -> None:
        """Nothing, if the segment was removed or cut: its log's directory may be gone as well."""
        self._failures.check()
        if self._contents is None:
            raise ValueError("the replacement was abandoned")
        try:
            if not self._segment.discarded:
                step(self._contents)
        except OSError as error:
            if not self._segment.discarded:
                self._failures.refuse("replace", error, self.abandon)


def _free(files: Files, fd: int) -> None:
    """Close the file descriptor of a file without a name, after freeing its space step by step. A
    sync after each step keeps the file system from freeing several at once.

    A file system may make the syncs of other files wait for space that is being freed. On ext4 with
    online discard, a commit beside the removal of 64 MB took 45 ms, and 4 ms beside steps of 2 MB.

    Readers that still have the file open or mapped keep all of it: it is only closed then. OSErrors
    pass through."""
    try:
        size = files.size(fd)
        while size > _FREED_AT_ONCE_BYTES and files.is_ours_alone(fd):
            size -= _FREED_AT_ONCE_BYTES
            files.ftruncate(fd, size)
            files.fdatasync(fd)
    finally:
        files.close(fd)
