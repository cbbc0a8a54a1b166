"""A file that takes disk space while the broker runs, given up so that a topic can be deleted on a
full disk.

Deleting a topic needs a durable tombstone before the first byte of it goes (see topics.py), and a
full disk has no room even for that. Removing data first would need none, but a crash in between
would bring the topic back with records missing that no answer ever said were gone. So a little
space is set aside: it is given up in the store's thread in the same step that writes the tombstone,
before anybody else can take it, and taken anew when the deletion has made room.

It helps where a store can write again as soon as there is a little space. `segment` frees disk
space with every deletion. LMDB frees pages inside its file, which it takes again one commit later,
and that commit needs room as well: so the space is also given up for what follows the tombstone, if
the topic had any records. RocksDB wants tens of megabytes before it goes on (rocksdb/database.py).
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
"""Of a small disk no more than one part in so many is set aside."""


_PLENTY = 4
"""So many times the space must be free: where retention has freed little, the little is for those
that write."""
_LEAST_BYTES = 64 << 10


class SpaceReserve:
    """One directory's reserve. Nothing here raises for a disk's sake: without a reserve the broker
    works all the same."""

    def __init__(self, directory: Path, *, files: Files | None = None) -> None:
        self._path = directory / NAME
        self._files = files or Files()
        self.is_there = False

    def take(self, *, from_little: bool = False) -> None:
        """Set the space aside, unless that was done before. `from_little`: a quarter of what is
        free, where it is not plenty; without any of it the next deletion could not be noted. Not
        worth a log line on a full disk, which is reported elsewhere."""
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
        """Give the space up when there is no more than that left."""
        try:
            free_bytes, size_bytes = self._sizes()
        except OSError as error:
            logger.debug("the disk does not say what is free: %s", error)
            return
        if self.is_there and free_bytes < size_bytes:
            self.give_up()

    def _sizes(self) -> tuple[int, int]:
        """Bytes free on the disk, and how many to set aside."""
        disk = os.statvfs(self._path.parent)
        return disk.f_bavail * disk.f_frsize, min(SIZE_BYTES, disk.f_blocks * disk.f_frsize // _LARGEST_SHARE)

    def _remove(self) -> None:
        try:
            self._files.unlink(self._path)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("the space set aside in %s cannot be freed: %s", self._path, error)
