"""Cuts batches off a segment without changing the file that readers have mapped.

The remaining batches are copied to a new file, which replaces the old one by rename; views of the
old file keep it alive. A crash leaves the old file or the new one. It never leaves an index or a
checkpoint beside the wrong file, because these are moved away first. This module must not know
about logs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kbroker.storage.segment.checkpoint import remove_checkpoint
from kbroker.storage.segment.creation import write_sidecars
from kbroker.storage.segment.index import DATA, INDEX, INDEX_TEMPORARY, SegmentIndex
from kbroker.storage.segment.segment import Segment

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class CutCopy:
    """A file beside the segment with its first batches, on disk."""

    path: Path
    index: SegmentIndex
    capacity: int


def cut_copy(segment: Segment, batches: int, capacity: int) -> CutCopy:
    """Copy the first `batches` batches. An OSError leaves everything unchanged, and no partial
    copy."""
    files = segment.files
    index = segment.index.copy(batches)
    capacity = max(capacity, index.size_bytes)
    path = segment.path.with_name(segment.path.name + ".data.tmp")
    try:
        write_sidecars(segment.path, capacity, files)
        fd = files.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            for start in range(0, index.size_bytes, _CHUNK_BYTES):
                end = min(start + _CHUNK_BYTES, index.size_bytes)
                files.write_all(fd, [segment.view(start, end)], start)
            files.ftruncate(fd, capacity)
            files.fdatasync(fd)
        finally:
            files.close(fd)
    except OSError:
        if path.exists():
            files.unlink(path)
        raise
    return CutCopy(path, index, capacity)


def replace_data(segment: Segment, copy: CutCopy) -> Segment:
    """Replace the segment by the copy, durable on return. The old object must not be used after
    that."""
    files, path = segment.files, segment.path
    has_index = (path / INDEX).exists()
    if has_index:
        files.remove_tree(path / INDEX_TEMPORARY)
        files.rename(path / INDEX, path / INDEX_TEMPORARY)
    if remove_checkpoint(path, files) or has_index:
        files.fsync_dir(path)
    files.rename(copy.path, path / DATA)
    files.fsync_dir(path)
    files.fsync_dir(path.parent)
    return Segment(path, files, segment.handles, index=copy.index, sealed=False, capacity=copy.capacity)
