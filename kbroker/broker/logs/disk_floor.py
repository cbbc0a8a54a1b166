"""The disk space that producers must leave free, so that a full disk never blocks the consumers.

An acknowledgement, a dead letter and a record kept beside the log are writes, too. If producers
took the last byte of the disk, no job could be acknowledged, so no segment of a work queue could be
removed, and nothing would ever become free. Below the floor the broker refuses Produce with
KAFKA_STORAGE_ERROR, and the cleaner of compacted topics writes no more. Everything else continues.

The files of some engines do not shrink. The room that removed records have left in them counts as
well: below the floor, it is all that retention can make.

One task reads how much is free, so that a Produce request costs no call for it. It looks again
before a fast disk could fill what is left: every few milliseconds near the floor, every few seconds
far above it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import trio

from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed

logger = logging.getLogger(__name__)

_LARGEST_SHARE: Final = 16
"""Of a small disk, the floor is at most one part in so many."""
_FASTEST_BYTES_PER_S: Final = 1 << 30
_LEAST_S: Final = 0.02
_SHORT_S: Final = 0.1
_MOST_S: Final = 5.0


class DiskFloorStatistics(NamedTuple):
    """Whether producers are refused now, and how often that began."""

    is_short: bool
    shortages: int


class DiskFloor:
    """`least_bytes`: setting kbroker.disk.min.free.bytes; 0: producers may fill the disk.
    `reusable_bytes`: of the log engine (storage/spi.py).

    `is_short`: whether Produce is refused now."""

    def __init__(self, directory: Path, least_bytes: int, reusable_bytes: Callable[[], int]) -> None:
        self._directory = directory
        self._least_bytes = least_bytes
        self._reusable_bytes = reusable_bytes
        self.is_short = False
        self._shortages = 0

    def statistics(self) -> DiskFloorStatistics:
        return DiskFloorStatistics(self.is_short, self._shortages)

    def refusal(self) -> KafkaError:
        return KafkaError(
            ErrorCode.kafka_storage_error,
            "the broker's disk is nearly full (kbroker.disk.min.free.bytes): records are refused until "
            "there is more room",
        )

    def check_room(self) -> None:
        """Look. Raises NoSpace below the floor: for writes that can wait as producers do."""
        self.look()
        if self.is_short:
            raise NoSpace("the disk is nearly full (kbroker.disk.min.free.bytes)")

    def free_bytes(self) -> int:
        """The bytes that are free on the disk and in the engine's files; 0 if they cannot say."""
        try:
            disk = os.statvfs(self._directory)
            return disk.f_bavail * disk.f_frsize + self._reusable_bytes()
        except (OSError, StoreFailed):
            return 0

    async def run(self) -> None:
        while self._least_bytes:
            wait_s = self.look()
            await trio.sleep(wait_s)

    def look(self) -> float:
        """Read how much is free. Returns the seconds until the next look. A disk that cannot say is
        not short."""
        try:
            disk = os.statvfs(self._directory)
            floor = min(self._least_bytes, disk.f_blocks * disk.f_frsize // _LARGEST_SHARE)
            room = disk.f_bavail * disk.f_frsize - floor
            if room < 0:
                room = max(room, self._reusable_bytes() - floor)
        except (OSError, StoreFailed) as error:
            logger.debug("the disk does not say what is free: %s", error)
            self.is_short = False
            return _MOST_S
        if (room < 0) != self.is_short:
            self.is_short = room < 0
            self._shortages += self.is_short
            self._report(floor)
        if self.is_short:
            return _SHORT_S
        return min(max(room / _FASTEST_BYTES_PER_S / 2, _LEAST_S), _MOST_S)

    def _report(self, floor: int) -> None:
        if self.is_short:
            logger.warning(
                "less than %d MiB are free on the disk of %s: records of producers are refused until "
                "there is more; consumers continue",
                floor >> 20, self._directory,
            )  # fmt: skip
        else:
            logger.info("the disk of %s has room again: producers continue", self._directory)
