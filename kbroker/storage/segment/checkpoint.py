"""Which batches of an unsealed segment are known to be whole and on disk, so that a start after a
crash need not read them.

    <segment>/checkpoint:  b"kbroker checkpoint 1 little\\n"     version and byte order
                           pieces, each:
                               u32 batches
                               u32 CRC-32C of the batches field and the rows, chained to the CRC of
                                   the piece before (the first piece: of the head)
                               int64 index rows of these batches: base offsets, last offsets,
                                   ends, newest timestamps

A piece is appended after a sync() that covered its batches, never before, so whatever the file says
is true of the data file beside it, however old it is. It is not synced itself: that would cost a
commit more than it is worth, and a piece that a power cut tore or took breaks the chain of CRCs,
which only means that more is read. What shortens a data file or puts another in its place removes
the checkpoint first, and what removes a segment takes it along, hence one per segment and not one
for the store.

Pieces are not written for every sync but when the batches that no checkpoint knows outgrow a
budget, counted over the whole store: that is what a start after a crash has to read. It must not
know logs, nor how batches are found without a checkpoint.
"""

from __future__ import annotations

import logging
import os
import struct
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from kbroker.storage.files import NO_SPACE, Files
from kbroker.storage.segment.index import INDEX_ROWS, SegmentIndex

if TYPE_CHECKING:
    from kbroker.storage.segment.segment import Segment

logger = logging.getLogger(__name__)

CHECKPOINT = "checkpoint"

_HEAD = b"kbroker checkpoint 1 %s\n" % sys.byteorder.encode()
_HEAD_CHECKSUM = crc32c(_HEAD)
_U32 = struct.Struct("<I")
_PIECE = struct.Struct("<II")
_NUMBER_BYTES = 8


class Recorded(NamedTuple):
    """What a checkpoint file holds: so many batches, in so many bytes, with the CRC that the next
    piece goes on from."""

    batches: int = 0
    size_bytes: int = 0
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    index: SegmentIndex
    recorded: Recorded


def load_checkpoint(path: Path, files: Files) -> Checkpoint | None:
    """What is whole of a segment's checkpoint; None when there is nothing. Changes nothing."""
    try:
        data = memoryview(files.read(path / CHECKPOINT))
    except FileNotFoundError:
        return None
    if bytes(data[: len(_HEAD)]) != _HEAD:
        return None
    rows = [array("q") for _ in range(INDEX_ROWS)]
    at, checksum = len(_HEAD), _HEAD_CHECKSUM
    while at + _PIECE.size <= len(data):
        count, expected = _PIECE.unpack_from(data, at)
        start = at + _PIECE.size
        row_bytes = count * _NUMBER_BYTES
        end = start + INDEX_ROWS * row_bytes
        if not count or end > len(data):
            break
        found = crc32c(data[start:end], crc32c(data[at : at + _U32.size], checksum))
        if found != expected:
            break
        for number, row in enumerate(rows):
            row.frombytes(data[start + number * row_bytes : start + (number + 1) * row_bytes])
        at, checksum = end, found
    if not rows[0]:
        return None
    return Checkpoint(SegmentIndex(*rows), Recorded(len(rows[0]), at, checksum))


def shorten_checkpoint(path: Path, recorded: Recorded, files: Files) -> None:
    """Cut what is not whole: it must not follow pieces that are written from now on."""
    fd = files.open(path / CHECKPOINT, os.O_RDWR)
    try:
        if files.size(fd) > recorded.size_bytes:
            files.ftruncate(fd, recorded.size_bytes)
    finally:
        files.close(fd)


def remove_checkpoint(path: Path, files: Files) -> bool:
    """True if there was one: it is gone for good after the next `fsync_dir` of the segment."""
    try:
        files.unlink(path / CHECKPOINT)
    except FileNotFoundError:
        return False
    return True


class Checkpoints:
    """The checkpoints of a store's segments. Its owner serialises all calls."""

    def __init__(self, budget_bytes: int, files: Files) -> None:
        self._budget_bytes = budget_bytes
        self._files = files
        self._waiting: dict[Segment, int] = {}
        """Synced bytes that the checkpoint of a segment does not know; who waits longest comes
        first."""
        self.waiting_bytes = 0

    def synced(self, segments: Iterable[tuple[Segment, int]]) -> None:
        """The first so many batches of each segment are on disk."""
        for segment, batches in segments:
            if segment.sealed or segment.discarded or batches <= segment.synced_batches:
                continue
            ends = segment.index.ends
            known_end = ends[segment.synced_batches - 1] if segment.synced_batches else 0
            added = ends[batches - 1] - known_end
            segment.synced_batches = batches
            self._waiting[segment] = self._waiting.get(segment, 0) + added
            self.waiting_bytes += added

    def forget(self, segment: Segment) -> None:
        """It was sealed or removed."""
        self.waiting_bytes -= self._waiting.pop(segment, 0)

    def write_due(self, at_most: int) -> None:
        """Add to as many checkpoints as bring the rest below the budget, but to no more than
        `at_most`. A full disk is no error: it is tried again after the next sync."""
        for _ in range(at_most):
            if self.waiting_bytes <= self._budget_bytes:
                return
            segment = next(iter(self._waiting))
            try:
                segment.recorded = _append(segment, self._files)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                return
            self.forget(segment)


def _append(segment: Segment, files: Files) -> Recorded:
    """Add the batches that are synced and not recorded. After an OSError it may be called again."""
    before = segment.recorded
    rows = [row[before.batches : segment.synced_batches].tobytes() for row in segment.index.rows()]
    count = _U32.pack(segment.synced_batches - before.batches)
    checksum = crc32c(count, before.checksum if before.batches else _HEAD_CHECKSUM)
    for row in rows:
        checksum = crc32c(row, checksum)
    parts = [count, _U32.pack(checksum), *rows]
    flags = os.O_WRONLY | os.O_CREAT
    if not before.batches:
        parts.insert(0, _HEAD)
        flags |= os.O_TRUNC
    fd = files.open(segment.path / CHECKPOINT, flags)
    try:
        files.write_all(fd, parts, before.size_bytes)
    finally:
        files.close(fd)
    return Recorded(segment.synced_batches, before.size_bytes + sum(map(len, parts)), checksum)
