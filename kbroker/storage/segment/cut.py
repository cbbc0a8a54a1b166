"""Keeps the bytes that recovery cuts off a log if they contain whole batches, in a file beside the
segments, so that an operator can inspect them.

    <log>/<base offset of the segment>.cut     the bytes as they lay in data.ninja; the next file of
                                               the segment is <base offset>.1.cut, and so on

A power cut leaves such bytes in unsynced parts of a file, since it may lose one page and keep the
next. But damage to synced bytes looks the same, and then the bytes hold confirmed records. kbroker
does not read the files; they are removed with their log. This module must not know when to cut.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from kbroker.errors import OperatorError
from kbroker.formats.batches import HEADER_SIZE, MAGIC, crc_is_valid, read_header
from kbroker.storage.files import NO_SPACE, Files
from kbroker.storage.segment.index import DATA

logger = logging.getLogger(__name__)

CUT = ".cut"
TEMPORARY = ".tmp"

_MAGIC = bytes([MAGIC])
_MAGIC_AT = 16
_READ_BYTES = 1 << 16
_MOST_WORK = 2  # bytes checked, as a multiple of the bytes searched


def holds_batch(files: Files, fd: int, start: int, least_offset: int) -> bool:
    """Whether a whole batch with a base offset of at least `least_offset` lies anywhere after
    `start`.

    Does not read holes at the end of the file. Returns True if so many bytes look like headers that
    checking CRCs takes too long: keeping bytes needlessly does no harm.
    """
    size = files.size(fd)
    work = _MOST_WORK * (size - start)
    chunk = bytearray(_READ_BYTES + HEADER_SIZE)
    for position in _written(files, fd, start):
        end = files.preadv(fd, chunk, position)
        at = chunk.find(_MAGIC, _MAGIC_AT, end)
        while 0 <= at - _MAGIC_AT < _READ_BYTES:
            header, begin = read_header(chunk, at - _MAGIC_AT), position + at - _MAGIC_AT
            work -= HEADER_SIZE
            if (
                header.base_offset >= least_offset
                and HEADER_SIZE <= header.size_bytes <= size - begin
                and header.record_count == header.last_offset_delta + 1 > 0
            ):
                work -= header.size_bytes
                batch = bytearray(header.size_bytes)
                if files.preadv(fd, batch, begin) == len(batch) and crc_is_valid(batch, 0, header):
                    return True
            if work < 0:
                return True
            at = chunk.find(_MAGIC, at + 1, end)
    return False


def keep_tail(path: Path, fd: int, start: int, files: Files) -> None:
    """Copy the bytes of a segment from `start` on. Durable on return. On a full disk raises
    OperatorError and changes nothing."""
    target = _free_name(path, files)
    temporary = target.with_name(target.name + TEMPORARY)
    size = 0
    try:
        copy = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            chunk = memoryview(bytearray(_READ_BYTES))
            for position in _written(files, fd, start):
                read = files.preadv(fd, chunk, position)
                files.write_all(copy, [chunk[:read]], position - start)
                size = position - start + read
            files.fdatasync(copy)
        finally:
            files.close(copy)
    except OSError as error:
        if temporary.exists():
            files.unlink(temporary)
        if error.errno not in NO_SPACE:
            raise
        raise OperatorError(
            f"{path / DATA} is damaged at byte {start}, and there is no space to keep the bytes after it: "
            "make room and start again"
        ) from error
    files.rename(temporary, target)
    files.fsync_dir(path.parent)
    _report(path, start, size, target)


def keep_segment(path: Path, files: Files) -> None:
    """Move the data file of a segment that will be removed, if it contains a whole batch. Durable
    on return."""
    try:
        fd = files.open(path / DATA, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        if not holds_batch(files, fd, 0, 0):
            return
        files.fdatasync(fd)
        size = files.size(fd)
    finally:
        files.close(fd)
    target = _free_name(path, files)
    files.rename(path / DATA, target)
    files.fsync_dir(path.parent)
    _report(path, 0, size, target)


def kept_files(directory: Path) -> list[Path]:
    """The kept files of all logs of a store."""
    return sorted(directory.glob(f"*/*{CUT}"))


def _report(path: Path, start: int, size: int, target: Path) -> None:
    logger.error(
        "cut %d bytes, from byte %d to the end of %s, whole batches among them, and kept them in %s: after "
        "a power cut, remove that file; otherwise synced records were damaged, and only a backup has "
        "them all",
        size, start, path / DATA, target,
    )  # fmt: skip


def _written(files: Files, fd: int, start: int) -> Iterator[int]:
    """The positions of the pieces to read, up to the last byte that was ever written."""
    for position in range(start, files.size(fd), _READ_BYTES):
        if not files.has_data_behind(fd, position):
            return
        yield position


def _free_name(path: Path, files: Files) -> Path:
    taken = set(files.listdir(path.parent))
    names = (path.name + (f".{number}" if number else "") + CUT for number in count())
    return path.with_name(next(name for name in names if name not in taken))
