"""Tracks the segments whose bytes or names are not on disk yet, and syncs them.

A file with unsynced bytes stays open until they are synced. The kernel reports a failed write-back
once to each file that was open then; a file that is opened later may miss it. syncfs reports a
failed write-back of any file of the file system since its own file descriptor was opened: that of
the store's directory, which stays open. So it covers files that were closed before it as well.
Recovery relies on that for the files that it has read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from kbroker.storage.files import Files
from kbroker.storage.segment.failures import Failures
from kbroker.storage.segment.segment import FOLLOWS, OpenHandles, Segment


class Unsynced:
    """Sets of segments. The lock of the store's OpenHandles guards all but the last.

    - `dirty`: have unsynced bytes.
    - `created`: have an unsynced name as well.
    - `syncing`: a sync of them is under way.
    - `flushed`: write() has synced all their bytes; with the numbers of their batches.
    - `writing`: used by write() only.
    """

    def __init__(self, files: Files, failures: Failures, *, use_syncfs: bool) -> None:
        """`failures`: fails the store if a sync fails. The methods raise StoreFailed then."""
        self._files = files
        self._failures = failures
        self.use_syncfs = use_syncfs
        self.writing: set[Segment] = set()
        self.dirty: set[Segment] = set()
        self.created: set[Segment] = set()
        self.syncing: set[Segment] = set()
        self.flushed: dict[Segment, int] = {}

    def is_pinned(self, segment: Segment) -> bool:
        """Whether its file must stay open."""
        return segment in self.dirty or segment in self.syncing or segment in self.writing

    def sync(self, handles: OpenHandles, directory_fd: int) -> Sequence[tuple[Segment, int]]:
        """Sync everything written before the call. Returns the unsealed segments, each with the
        number of its batches that are on disk."""
        try:
            with handles.lock:
                dirty, created, flushed = self.dirty, self.created, self.flushed
                self.dirty, self.created, self.flushed = set(), set(), {}
                self.syncing = dirty
                files = [handles.file(segment) for segment in dirty if not segment.discarded]
                written = [
                    (segment, len(segment.index))
                    for segment in dirty
                    if not (segment.discarded or segment.sealed)
                ]
            if created and self.use_syncfs:
                self._files.syncfs(directory_fd)
            else:
                self._sync(directory_fd, files)
                self.sync_created(created)
        except OSError as error:
            self._failures.fail("sync", error)
        finally:
            self.syncing = set()
        if flushed:
            written += [each for each in flushed.items() if not (each[0].discarded or each[0].sealed)]
        return written

    def sync_slice(self, directory_fd: int, fds: Sequence[int]) -> None:
        """Sync the bytes of some files that are open for writing."""
        try:
            self._sync(directory_fd, fds)
        except OSError as error:
            self._failures.fail("sync", error)

    def _sync(self, directory_fd: int, fds: Sequence[int]) -> None:
        if self.use_syncfs and len(fds) > 1:
            self._files.syncfs(directory_fd)
        else:
            for fd in fds:
                self._files.fdatasync(fd)

    def sync_recovered(self, segments: Iterable[Segment], directory_fd: int) -> None:
        """Sync the segments that recovery has read; OSErrors pass through. Without syncfs their
        bytes were synced while their files were open (Recovery.sync_files)."""
        if self.use_syncfs:
            self._files.syncfs(directory_fd)
        else:
            self.sync_created(segments)

    def sync_created(self, created: Iterable[Segment]) -> None:
        """Sync the directory entries of new segments, and their `follows`. Also called before all
        older segments are removed, because a log must keep one segment through a power cut."""
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
