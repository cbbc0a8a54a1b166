"""Recovery of the segment engine, at every open: finish what a crash interrupted, cut torn tails,
load or rebuild the indexes.

Sealed segments are trusted: sealing is the last change of a segment, and everything is on disk by
then. In the others (the active one, and full ones not yet sealed) the batches are reread and
checked, beginning with the last one in the checkpoint. Rereading that one shows whether the file
was modified. After a clean shutdown nothing is reread: the store has saved the indexes in the file
`clean-shutdown`, which is removed before the first write.

    clean-shutdown:  b"kbroker segments 2 little\\n"   version and byte order, of all numbers
                     u32 length, JSON                   [[log directory, base offset, batches,
                                                        what its checkpoint holds: [batches, bytes,
                                                        CRC]], ...]
                     int64 index rows                   of each entry in turn: base offsets, last
                                                        offsets, ends, newest timestamps
                     u32 CRC-32C                        of everything before it

What crashes leave, and what recovery does about it:
    *.deleted, *.tmp            an unfinished removal or copy: removed
    segment without data.ninja  an unfinished creation: removed, together with its log if that has
                                no other segment
    bytes that are no batch     a torn write at the end of an unsealed segment: cut off, and kept in
                                a file if a whole batch comes after it (segment/cut.py)
    a torn checkpoint           its whole pieces are used; the rest is cut
    `follows` beyond the end,   the previous segment lost bytes in a power cut, so neither this one
    or `follows` lost           nor later ones were ever synced: removed, and their batches kept in
                                files. The log then holds a prefix of what was written
    empty segment, not last     a write was about to remove it: removed

This module must not know how batches are written.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from kbroker.errors import OperatorError
from kbroker.formats.crc import crc32c
from kbroker.storage.files import Files
from kbroker.storage.segment.checkpoint import (
    Recorded,
    load_checkpoint,
    remove_checkpoint,
    shorten_checkpoint,
)
from kbroker.storage.segment.creation import create_segment, write_sidecars
from kbroker.storage.segment.cut import CUT, TEMPORARY, holds_batch, keep_segment, keep_tail
from kbroker.storage.segment.index import DATA, INDEX, INDEX_ROWS, SegmentIndex, scan
from kbroker.storage.segment.segment import FOLLOWS, OpenHandles, Segment

logger = logging.getLogger(__name__)

CLEAN_SHUTDOWN = "clean-shutdown"
DELETED = ".deleted"

_HEAD = b"kbroker segments 2 %s\n" % sys.byteorder.encode()
_LENGTH = struct.Struct("<I")
_NUMBER_BYTES = 8
_PAGE_BYTES = 4096
_LOOK_BEHIND_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Known:
    """The known index of an unsealed segment, and how much of it is in its checkpoint."""

    index: SegmentIndex
    recorded: Recorded


SavedIndexes: TypeAlias = Mapping[tuple[str, int], Known]
"""By (name of the log's directory, base offset of the segment)."""


@dataclass(slots=True)
class Recovery:
    """What recovery found and did while a store was opened."""

    logs: int = 0
    segments_read_again: int = 0
    cut_bytes: int = 0
    removed_segments: int = 0
    to_seal: list[Segment] = field(default_factory=list)
    to_sync: list[Segment] = field(default_factory=list)
    """Segments whose batches may be in the page cache only: the process that wrote them died before
    it synced them."""
    sync_files: bool = True
    """Whether to sync each file that is read, before it is closed. Otherwise the caller syncs the
    file system at the end."""
    scratch: bytearray = field(default_factory=bytearray)

    def report(self, directory: Path, logs: int) -> None:
        """Log it, unless the store was shut down cleanly."""
        if self.segments_read_again or self.removed_segments:
            logger.info(
                "%s was not shut down cleanly: reread %d segments of %d logs, cut %d bytes, "
                "removed %d segments",
                directory, self.segments_read_again, logs, self.cut_bytes, self.removed_segments,
            )  # fmt: skip


def save_indexes(directory: Path, segments: Iterable[Segment], files: Files) -> None:
    """Save the indexes of unsealed segments for the next open. Durable on return."""
    entries: list[tuple[str, int, int, Recorded]] = []
    rows: list[bytes] = []
    for segment in segments:
        index = segment.index
        entries.append((segment.path.parent.name, segment.base_offset, len(index), segment.recorded))
        rows += [row.tobytes() for row in index.rows()]
    described = json.dumps(entries).encode()
    parts = [_HEAD, _LENGTH.pack(len(described)), described, *rows]
    checksum = 0
    for part in parts:
        checksum = crc32c(part, checksum)
    files.write_atomically(directory / CLEAN_SHUTDOWN, [*parts, _LENGTH.pack(checksum)])
    files.fsync_dir(directory)


def try_to_save_indexes(directory: Path, segments: Iterable[Segment], files: Files) -> None:
    """The same. Without them the next open reads the batches, so an error is only logged."""
    try:
        save_indexes(directory, segments, files)
    except OSError as error:
        logger.warning(
            "cannot save the indexes in %s; the next start reads the batches instead: %s", directory, error
        )


def take_saved_indexes(directory: Path, files: Files) -> SavedIndexes | None:
    """The indexes that the last close() saved; None if the store was not shut down cleanly. Changes
    nothing."""
    try:
        data = memoryview(files.read(directory / CLEAN_SHUTDOWN))
    except FileNotFoundError:
        return None
    end = len(data) - _LENGTH.size
    at = len(_HEAD) + _LENGTH.size
    if (
        end < at
        or bytes(data[: len(_HEAD)]) != _HEAD
        or _LENGTH.unpack_from(data, end)[0] != crc32c(data[:end])
    ):
        logger.warning("%s is not usable: reading the batches instead", directory / CLEAN_SHUTDOWN)
        return None
    (described_bytes,) = _LENGTH.unpack_from(data, len(_HEAD))
    entries = json.loads(bytes(data[at : at + described_bytes]))
    at += described_bytes
    saved: dict[tuple[str, int], Known] = {}
    for name, base_offset, count, recorded in entries:
        rows = [
            array("q", bytes(data[start : start + count * _NUMBER_BYTES])) for start in _row_starts(at, count)
        ]
        saved[name, base_offset] = Known(SegmentIndex(*rows), Recorded(*recorded))
        at += INDEX_ROWS * count * _NUMBER_BYTES
    return saved


def _row_starts(at: int, count: int) -> Sequence[int]:
    return [at + row * count * _NUMBER_BYTES for row in range(INDEX_ROWS)]


def forget_saved_indexes(directory: Path, files: Files) -> None:
    """Remove the saved indexes, durable on return. Call before the first write, which makes them
    outdated."""
    try:
        files.unlink(directory / CLEAN_SHUTDOWN)
    except FileNotFoundError:
        return
    files.fsync_dir(directory)


def recover_log(
    path: Path, saved: SavedIndexes | None, found: Recovery, *, files: Files, handles: OpenHandles
) -> tuple[Segment, ...]:
    """The segments of a log, the last one active. Empty if the log's creation was not finished: its
    directory is then removed."""
    segments: list[Segment] = []
    for base_offset in _segment_offsets(path, files):
        segment = _open_segment(path / f"{base_offset:020d}", saved, found, files, handles)
        if segment is None or (segments and _lost_bytes_before(segment, segments[-1])):
            _remove_from(path, base_offset, found, files)
            break
        if segments and not segments[-1].sealed and not segments[-1].index.size_bytes:
            _remove(segments.pop().path, "it is empty", found, files)
        segments.append(segment)
    if not segments:
        if any(name.endswith(CUT) for name in files.listdir(path)):
            raise OperatorError(
                f"{path} has lost its first segment; the batches after it are in its files *{CUT}: restore "
                "it from a backup"
            )
        files.remove_tree(path)
        return ()
    for segment in segments[:-1]:
        if not segment.sealed:
            found.to_seal.append(segment)
    last = segments[-1]
    if last.sealed:
        end_offset = last.end_offset
        segments.append(create_segment(path, end_offset, 0, end_offset, files=files, handles=handles))
        found.to_sync.append(segments[-1])
    return tuple(segments)


def _segment_offsets(path: Path, files: Files) -> list[int]:
    offsets = []
    for name in files.listdir(path):
        if name.isdigit():
            offsets.append(int(name))
        elif name.endswith((DELETED, TEMPORARY)):
            files.remove_tree(path / name) if (path / name).is_dir() else files.unlink(path / name)
    return sorted(offsets)


def _open_segment(
    path: Path, saved: SavedIndexes | None, found: Recovery, files: Files, handles: OpenHandles
) -> Segment | None:
    """None if there is no data file."""
    try:
        size = files.stat(path / DATA).st_size
    except FileNotFoundError:
        return None
    if _exists(path / INDEX, files):
        return Segment(path, files, handles, index=None, sealed=True, capacity=size)
    known = None if saved is None else saved.get((path.parent.name, int(path.name)))
    if known is not None and not _is_as_long(path, size, known.index.size_bytes):
        known = None
    must_read = known is None
    if known is None:
        known = _read_and_cut(path, found, files)
    segment = Segment(path, files, handles, index=known.index, sealed=False, capacity=size)
    segment.recorded = known.recorded
    segment.synced_batches = known.recorded.batches
    if must_read:
        found.segments_read_again += 1
        found.to_sync.append(segment)
    return segment


def _read_and_cut(path: Path, found: Recovery, files: Files) -> Known:
    """Read the batches, and cut off the bytes after the last one. If they stayed, a shorter new
    write could be followed by batches of an old one."""
    fd = files.open(path / DATA, os.O_RDWR)
    try:
        known = _read_from_checkpoint(path, fd, found, files)
        if known is None:
            known = Known(SegmentIndex.empty(), Recorded())
            scan(files, fd, known.index, int(path.name), found.scratch)
        size, end = files.size(fd), known.index.size_bytes
        torn = _garbage_bytes(fd, end, size, files)
        has_batches = bool(torn) and holds_batch(files, fd, end, known.index.next_offset or int(path.name))
        if has_batches:
            keep_tail(path, fd, end, files)
        if torn:
            files.ftruncate(fd, end)
            files.ftruncate(fd, size)
        if found.sync_files:
            files.fdatasync(fd)
    finally:
        files.close(fd)
    if torn:
        found.cut_bytes += torn
        if not has_batches:
            logger.warning(
                "cut an unfinished write, %d bytes or more, after byte %d of %s", torn, end, path / DATA
            )
    if size == 0:
        write_sidecars(path, size, files)
    return known


def _read_from_checkpoint(path: Path, fd: int, found: Recovery, files: Files) -> Known | None:
    """Read on from the last batch of the checkpoint. None if there is no checkpoint, or if the file
    is shorter than the checkpoint says.

    The batches of a checkpoint were on disk when it was written. So if the last one is not in its
    place, another program damaged the file. Batches of a checkpoint are never cut: a reader of the
    damaged ones gets an error, and the whole ones around them stay.
    """
    checkpoint = load_checkpoint(path, files)
    if checkpoint is not None and _is_as_long(path, files.size(fd), checkpoint.index.size_bytes):
        count = checkpoint.recorded.batches
        index = checkpoint.index.copy(count - 1)
        at = index.size_bytes
        scan(files, fd, index, int(path.name), found.scratch)
        if len(index) < count or index.last(count) != checkpoint.index.last(count):
            logger.error(
                "%s is damaged at byte %d, or was replaced: the batches in its checkpoint are left unchanged",
                path / DATA,
                at,
            )
            index = checkpoint.index
            scan(files, fd, index, int(path.name), found.scratch)
        shorten_checkpoint(path, checkpoint.recorded, files)
        return Known(index, checkpoint.recorded)
    if remove_checkpoint(path, files):
        files.fsync_dir(path)
    return None


def _is_as_long(path: Path, size: int, end: int) -> bool:
    """Whether the data file still has all bytes that were on disk."""
    if size < end:
        logger.error(
            "%s was cut from outside: it has %d bytes and held batches up to byte %d", path / DATA, size, end
        )
    return size >= end


def _garbage_bytes(fd: int, end: int, size: int, files: Files) -> int:
    """How many bytes after `end` are not just zeros: 0 if all are zeros, otherwise up to the last
    nonzero byte that was looked at. Does not read holes."""
    rest_of_page = min(-end % _PAGE_BYTES, size - end)
    more = files.has_data_behind(fd, end + rest_of_page)
    chunk = bytearray(min(_LOOK_BEHIND_BYTES, size - end) if more else rest_of_page)
    read = files.preadv(fd, chunk, end)
    return len(chunk[:read].rstrip(b"\0")) or more


def _lost_bytes_before(segment: Segment, previous: Segment) -> bool:
    """Whether a power cut took bytes of `previous`. Only possible between unsealed segments: all
    bytes of a sealed one were on disk, so missing ones are no reason to remove later segments."""
    if segment.sealed or previous.sealed:
        return False
    follows = read_follows(segment.path, segment.files)
    return (segment.base_offset if follows is None else follows) > previous.end_offset


def read_follows(path: Path, files: Files) -> int | None:
    """The end offset of the previous segment when this one was created; None if it is not
    recorded."""
    try:
        text = files.read(path / FOLLOWS)
    except FileNotFoundError:
        return None
    return int(text) if text.isdigit() else None


def _remove_from(path: Path, base_offset: int, found: Recovery, files: Files) -> None:
    for each in [offset for offset in _segment_offsets(path, files) if offset >= base_offset]:
        segment_path = path / f"{each:020d}"
        if _exists(segment_path / INDEX, files):
            raise OperatorError(
                f"{path / f'{base_offset:020d}'} is damaged, yet later segments are complete: restore it "
                "from a backup, "
                f"or move it and the later segments of {path} elsewhere to continue without their records"
            )
        keep_segment(segment_path, files)
        _remove(segment_path, "it was not synced, and bytes before it are lost", found, files)
    files.fsync_dir(path)


def _remove(path: Path, reason: str, found: Recovery, files: Files) -> None:
    logger.warning("removed %s: %s", path, reason)
    found.removed_segments += 1
    found.to_sync = [segment for segment in found.to_sync if segment.path != path]
    files.remove_tree(path)


def _exists(path: Path, files: Files) -> bool:
    try:
        files.stat(path)
    except FileNotFoundError:
        return False
    return True
