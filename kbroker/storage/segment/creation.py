"""Creates the files of a segment. For their format see segment.py."""

from __future__ import annotations

import os
from pathlib import Path

from kbroker.storage.files import Files
from kbroker.storage.segment.index import DATA, SHAPE, SegmentIndex
from kbroker.storage.segment.segment import FOLLOWS, OpenHandles, Segment, length_of_data, segment_path

_SIDECARS = {"dtype.ninja": b"uint8", "order.ninja": b"C", "type.ninja": b"numpy"}


def create_segment(
    log_path: Path, base_offset: int, capacity: int, follows: int | None,
    *, files: Files, handles: OpenHandles,
) -> Segment:  # fmt: skip
    """Create an empty segment with an open file. Not durable. The data file is created last, so a
    segment that has one is complete."""
    path = segment_path(log_path, base_offset)
    files.mkdir(path)
    for name, content in _SIDECARS.items():
        files.write(path / name, content)
    files.write(path / SHAPE, length_of_data(capacity))
    if follows is not None:
        files.write(path / FOLLOWS, b"%d" % follows)
    segment = Segment(path, files, handles, index=SegmentIndex.empty(), sealed=False, capacity=capacity)
    fd = files.open(path / DATA, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        files.ftruncate(fd, capacity)
    except OSError:
        files.close(fd)
        raise
    with handles.lock:  # From here on another thread may close it, and open another file as `fd`.
        segment.fd = fd
        handles.opened(segment)
    return segment


def write_sidecars(path: Path, size: int, files: Files) -> None:
    """Replace mmap-ninja's description files, which may be missing or outdated. Not durable before
    fsync_dir."""
    for name, content in {**_SIDECARS, SHAPE: length_of_data(size)}.items():
        files.write_atomically(path / name, [content])


def remove_created(segment: Segment | None, path: Path, files: Files) -> None:
    """Remove a directory with a new segment, which is None if its creation failed."""
    if segment is not None:
        segment.handles.discard(segment)
    files.remove_tree(path)
