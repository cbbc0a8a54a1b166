"""Which segments have bytes, or names, that are not on disk yet; and the sync of these."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from kbroker.storage.files import Files
from kbroker.storage.segment.segment import FOLLOWS, OpenHandles, Segment


class Unsynced:
    """`dirty` have unsynced bytes, `created` an unsynced name as well, `syncing` are on their way
    to the disk: all under the lock of the store's OpenHandles. `writing` belongs to write()."""

    def __init__(self, files: Files, *, use_syncfs: bool) -> None:
        self._files = files
        self.use_syncfs = use_syncfs
        self.writing: set[Segment] = set()
        self.dirty: set[Segment] = set()
        self.created: set[Segment] = set()
        self.syncing: set[Segment] = set()

    def is_pinned(self, segment: Segment) -> bool:
        """Whether its file must stay open."""
        return segment in self.dirty or segment in self.syncing or segment in self.writing

    def sync(self, handles: OpenHandles, directory_fd: int) -> Sequence[tuple[Segment, int]]:
        """Sync everything written before the call. The unsealed segments, with the number of their
        batches that are on disk."""
        with handles.lock:
            dirty, created = self.dirty, self.created
            self.dirty, self.created = set(), set()
            self.syncing = dirty
            files = [handles.file(segment) for segment in dirty if not segment.discarded]
            written = [
                (segment, len(segment.index))
                for segment in dirty
                if not (segment.discarded or segment.sealed)
            ]
        try:
            if self.use_syncfs and (created or len(files) > 1):
                self._files.syncfs(directory_fd)
            else:
                for fd in files:
                    self._files.fdatasync(fd)
                self.sync_created(created)
        finally:
            self.syncing = set()
        return written

    def sync_created(self, created: Iterable[Segment]) -> None:
        """Sync the directory entries of new segments, and their `follows`. A log must keep one
        segment through a power cut, so this also comes before the removal of all older ones."""
        for segment in created:
            if segment.discarded:
                continue
            self._sync_follows(segment)
            self._files.fsync_dir(segment.path)
        for path in {segment.path.parent for segment in created if not segment.discarded}:
            self._files.fsync_dir(path)

    def _sync_follows(self, segment: Segment) -> None:
        try:
            fd = self._files.open(segment.path / FOLLOWS, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)
