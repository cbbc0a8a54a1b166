"""A segment's checkpoint: lists the batches of an unsealed segment that are whole and on disk, so
that a start after a crash need not read them.

    <segment>/checkpoint:  b"kbroker checkpoint 1 little\\n"     version and byte order
                           pieces, each:
                               u32 batches (little-endian, as all numbers here)
                               u32 CRC-32C of the batches field and the rows, chained to the CRC of
                                   the piece before (the first piece: of the head)
                               int64 index rows of these batches: base offsets, last offsets,
                                   ends, newest timestamps

A piece is appended after the sync() that covers its batches, never before. So the checkpoint is
true of its data file, however old it is. The checkpoint itself is not synced, since that would slow
down commits: if a power cut tears or loses a piece, the chain of CRCs breaks there, and recovery
reads more batches. The checkpoint is removed before its data file is shortened or replaced, and
together with its segment.

checkpoint_budget.py decides when pieces are written. This module must not know about logs, nor how
batches are found without a checkpoint.
"""

from __future__ import annotations

import os
import struct
import sys
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kbroker.formats.crc import crc32c
from kbroker.storage.files import Files
from kbroker.storage.segment.index import INDEX_ROWS, SegmentIndex

CHECKPOINT = "checkpoint"

_HEAD = b"kbroker checkpoint 1 %s\n" % sys.byteorder.encode()
_HEAD_CHECKSUM = crc32c(_HEAD)
_U32 = struct.Struct("<I")
_PIECE = struct.Struct("<II")
_NUMBER_BYTES = 8


class Recorded(NamedTuple):
    """The extent of a checkpoint file: batches, bytes, and the CRC to which the next piece is
    chained."""

    batches: int = 0
    size_bytes: int = 0
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    index: SegmentIndex
    recorded: Recorded


def load_checkpoint(path: Path, files: Files) -> Checkpoint | None:
    """The whole pieces of a segment's checkpoint; None if there are none. Changes nothing."""
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
    """Cut off a torn piece: later pieces must follow a whole one."""
    fd = files.open(path / CHECKPOINT, os.O_RDWR)
    try:
        if files.size(fd) > recorded.size_bytes:
            files.ftruncate(fd, recorded.size_bytes)
    finally:
        files.close(fd)


def remove_checkpoint(path: Path, files: Files) -> bool:
    """True if there was one. The removal is durable after the next `fsync_dir` of the segment."""
    try:
        files.unlink(path / CHECKPOINT)
    except FileNotFoundError:
        return False
    return True


def extend_checkpoint(
    path: Path, before: Recorded, index: SegmentIndex, batches: int, files: Files
) -> Recorded:
    """Append those of the first `batches` entries of `index` that `before` lacks. Their batches
    must be on disk. May be repeated after an OSError."""
    rows = [row[before.batches : batches].tobytes() for row in index.rows()]
    count = _U32.pack(batches - before.batches)
    checksum = crc32c(count, before.checksum if before.batches else _HEAD_CHECKSUM)
    for row in rows:
        checksum = crc32c(row, checksum)
    parts = [count, _U32.pack(checksum), *rows]
    flags = os.O_WRONLY | os.O_CREAT
    if not before.batches:
        parts.insert(0, _HEAD)
        flags |= os.O_TRUNC
    fd = files.open(path / CHECKPOINT, flags)
    try:
        files.write_all(fd, parts, before.size_bytes)
    finally:
        files.close(fd)
    return Recorded(batches, before.size_bytes + sum(map(len, parts)), checksum)
