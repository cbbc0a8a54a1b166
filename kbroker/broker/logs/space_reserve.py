"""A file that reserves disk space while the broker runs. It is removed so that a topic can be
deleted on a full disk.

Deleting a topic needs a durable tombstone before its first byte is removed (topics.py), and a full
disk has no room even for that. Removing data first would need no room, but a crash in between would
bring the topic back without some of its records. So a little space is reserved. The store's thread
removes the file and writes the tombstone in one step, before another writer can use the space, and
reserves it again when the deletion has made room.

This helps stores that can write again once there is a little space. `segment` frees disk space with
every deletion. LMDB frees pages inside its file and reuses them one commit later. That commit needs
room as well, so the space is also given up for the steps after the tombstone if the topic has
records. RocksDB needs tens of megabytes before it can write again (rocksdb/database.py).
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from kbroker.storage.files import Files

logger = logging.getLogger(__name__)

NAME = "reserve"
SIZE_BYTES = 4 << 20
_LARGEST_SHARE = 64
"""On a small disk, at most 1/64 of it is reserved."""


_PLENTY = 4
"""The disk must have this many times the reserve free: if retention has freed only a little,
writers need it more."""
_LEAST_BYTES = 64 << 10


class SpaceReserve:
    """The reserve in one directory. Errors of the disk are not raised: the broker works without a
    reserve, too."""

    def __init__(self, directory: Path, *, files: Files | None = None) -> None:
        self._path = directory / NAME
        self._files = files or Files()
        self.is_there = False

    def take(self, *, from_little: bool = False) -> None:
        """Reserve the space, unless it is reserved already. `from_little`: if little is free,
        reserve a quarter of that, so that the next deletion can write its tombstone. A full disk is
        logged elsewhere."""
        if self.is_there:
            return
        try:
            free_bytes, size_bytes = self._sizes()
            if free_bytes < _PLENTY * size_bytes:
                size_bytes = min(size_bytes, free_bytes // 4)
                if not from_little or size_bytes < _LEAST_BYTES:
                    return
            fd = self._files.open(self._path, os.O_RDWR | os.O_CREAT)
            try:
                self._files.allocate(fd, 0, size_bytes)
            finally:
                self._files.close(fd)
            self.is_there = True
        except OSError as error:
            logger.debug("no space was set aside: %s", error)
            self._remove()

    def give_up(self) -> None:
        self.is_there = False
        self._remove()

    def give_up_if_short(self) -> None:
        """Give up the reserve if less than its size is free."""
        try:
            free_bytes, size_bytes = self._sizes()
        except OSError as error:
            logger.debug("the free disk space is unknown: %s", error)
            return
        if self.is_there and free_bytes < size_bytes:
            self.give_up()

    def _sizes(self) -> tuple[int, int]:
        """(free bytes, bytes to reserve)."""
        disk = os.statvfs(self._path.parent)
        return disk.f_bavail * disk.f_frsize, min(SIZE_BYTES, disk.f_blocks * disk.f_frsize // _LARGEST_SHARE)

    def _remove(self) -> None:
        try:
            self._files.unlink(self._path)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("the space set aside in %s cannot be freed: %s", self._path, error)
