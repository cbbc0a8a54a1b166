"""The disk space that producers must leave free, so that a full disk never blocks the consumers.

An acknowledgement, a dead letter and a record kept beside the log are writes, too. If producers
took the last byte of the disk, no job could be acknowledged, so no segment of a work queue could be
removed, and nothing would ever become free. Below the floor the broker refuses Produce with
KAFKA_STORAGE_ERROR, creates no topics and partitions, and the cleaner of compacted topics writes no
more. Everything else continues.

    free bytes   ─────────────────── floor     producers, new topics, compaction stop here
                   dead letters                of all queues and topics
                 ─ ─ ─ ─ ─ ─ ─ ─ ─ ─
                   dead letters                of one queue at a time
                 ───────────────────
                   records kept beside logs
                 ───────────────────
                   acknowledgements, retention and what the stores need (least_free_bytes)

Dead letters are as large as their jobs. They are admitted by their bytes, before they are appended,
from one budget: half of the setting. So they never take what acknowledgements and retention need.
The segments of queues are at most a quarter of that budget: the dead letters of a whole segment
fit, and then the segment is removed. If many queues shared all of the budget, each could get too
little for a segment, and none would ever be removed. So one queue at a time gets the last half.

The files of some engines do not shrink. The room that removed records have left in them counts as
well: below the floor, it is all that retention can make. A large batch may not fit into the holes
there, so that such a file grows nevertheless. It must not grow into what the state store needs.

One task reads how much is free, so that a Produce request costs no call for it. It looks again
before a fast disk could fill what is left: every few milliseconds near the floor, every few seconds
far above it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import trio

from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.storage.spi import LogStore, StateStore

logger = logging.getLogger(__name__)

SETTING: Final = "kbroker.disk.min.free.bytes"
_LARGEST_SHARE: Final = 16
"""Of a small disk, the setting is at most one part in so many."""
_SEGMENTS: Final = 4
"""So many segments of queues fit into the budget of dead letters."""
_LEAST_KEPT_BYTES: Final = 256 << 10
"""Even the space that is set aside (space_reserve.py) has room for it."""
_LEAST_KEPT_BESIDE_BYTES: Final = 16 << 10
"""The same where it takes space beside a file that does not shrink."""
_FASTEST_BYTES_PER_S: Final = 1 << 30
_LEAST_S: Final = 0.02
_SHORT_S: Final = 0.1
_MOST_S: Final = 5.0
_PLENTY: Final = 1 << 62


class DiskFloorStatistics(NamedTuple):
    """`is_short`: whether producers are refused now; `shortages`: how often that began;
    `refused`: batches that producers were refused; `floor_bytes`: the floor at the last look."""

    is_short: bool
    shortages: int
    refused: int
    floor_bytes: int


class DiskFloor:
    """`least_bytes`: setting kbroker.disk.min.free.bytes; 0: producers may fill the disk.

    - `is_short`: whether Produce is refused now
    - `has_holes_only`: whether what the log engine writes should fit into holes of its files: the
      disk has little beside them"""

    def __init__(self, directory: Path, least_bytes: int, logs: LogStore, state: StateStore) -> None:
        self._directory = directory
        self._least_bytes = least_bytes
        self._logs = logs
        self._state = state
        self.is_short = False
        self.has_holes_only = False
        self.refused = 0
        """Counted by those that refuse."""
        self._shortages = 0
        self._floor_bytes = 0
        self._promised_bytes = 0
        self._letter_bytes = self._budget()
        self._letters_and_kept_bytes = self._letter_bytes + self._letter_bytes // _SEGMENTS

    def _budget(self) -> int:
        """The bytes of the budget of dead letters. It does not change while the broker runs."""
        try:
            disk = os.statvfs(self._directory)
        except OSError:
            return self._least_bytes // 2
        return min(self._least_bytes, disk.f_blocks * disk.f_frsize // _LARGEST_SHARE) // 2

    @property
    def segment_bytes(self) -> int | None:
        """The largest segments that queues may have; None: any."""
        return self._letter_bytes // _SEGMENTS if self._least_bytes else None

    def statistics(self) -> DiskFloorStatistics:
        return DiskFloorStatistics(self.is_short, self._shortages, self.refused, self._floor_bytes)

    def refusal(self, what: str = "records are") -> KafkaError:
        return KafkaError(
            ErrorCode.kafka_storage_error,
            f"the broker's disk is nearly full ({SETTING}): {what} refused until there is more room",
        )

    def check_room(self) -> None:
        """Look. Raises NoSpace below the floor: for writes that can wait as producers do."""
        self.look()
        if self.is_short:
            raise NoSpace(f"the disk is nearly full ({SETTING}): {NoSpace.remedy}")

    def free_bytes(self) -> int:
        """The bytes that are free on the disk and in the log engine's files; 0 if they cannot
        say."""
        try:
            return self._free_on_disk() + self._logs.reusable_bytes()
        except (OSError, StoreFailed):
            return 0

    def _free_on_disk(self) -> int:
        disk = os.statvfs(self._directory)
        return disk.f_bavail * disk.f_frsize

    # -- dead letters, and records that are kept

    def letter_room(self, *, last_half: bool) -> int:
        """How many bytes of dead letters may be appended now. `last_half`: also those that are left
        to one queue at a time."""
        return self._room(self._letter_bytes if last_half else self._letter_bytes // 2, with_holes=True)

    def kept_room(self) -> int:
        """How many bytes of records may be kept beside a log now, so that its segments are removed.
        That frees more than it takes, so it may go further than letters, and a little always. It
        cannot use holes, and should leave room for letters that do not fit into them."""
        room = self._room(self._letters_and_kept_bytes, with_holes=False)
        return max(room, _LEAST_KEPT_BESIDE_BYTES if self.has_holes_only else _LEAST_KEPT_BYTES)

    def _room(self, below_floor_bytes: int, *, with_holes: bool) -> int:
        if not self._least_bytes:
            return _PLENTY
        try:
            free_bytes = self.free_bytes() if with_holes else self._free_on_disk()
            room = min(free_bytes - (self._floor() - below_floor_bytes), self._beside_logs())
        except (OSError, StoreFailed):
            return 0
        return room - self._promised_bytes

    @contextmanager
    def promised(self, size_bytes: int) -> Iterator[None]:
        """So many bytes of the room are being written."""
        self._promised_bytes += size_bytes
        try:
            yield
        finally:
            self._promised_bytes -= size_bytes

    def _floor(self) -> int:
        """Below it are the budget of dead letters, a quarter of it for kept records, and what the
        stores need."""
        needed = self._logs.least_free_bytes() + self._state.least_free_bytes()
        return max(2 * self._letter_bytes, self._letters_and_kept_bytes + needed)

    # -- producers

    async def run(self) -> None:
        while self._least_bytes:
            wait_s = self.look()
            await trio.sleep(wait_s)

    def look(self) -> float:
        """Read how much is free. Returns the seconds until the next look. A disk that cannot say is
        not short."""
        try:
            floor = self._floor_bytes = self._floor() if self._least_bytes else 0
            room = self._free_on_disk() - floor
            holes = self._logs.reusable_bytes() if room < 0 else 0
            if holes:
                room = min(holes + room, self._beside_logs())
        except (OSError, StoreFailed) as error:
            logger.debug("the disk does not say what is free: %s", error)
            self.is_short = self.has_holes_only = False
            return _MOST_S
        self.has_holes_only = holes > 0
        if (room < 0) != self.is_short:
            self.is_short = room < 0
            self._shortages += self.is_short
            self._report(floor)
        if self.is_short:
            return _SHORT_S
        return min(max(room / _FASTEST_BYTES_PER_S / 2, _LEAST_S), _MOST_S)

    def _beside_logs(self) -> int:
        """The room outside of the log engine's files: the state cannot use theirs."""
        return self._free_on_disk() - self._state.least_free_bytes()

    def _report(self, floor: int) -> None:
        if self.is_short:
            logger.warning(
                "less than %d MiB are free on the disk of %s: records of producers are refused until "
                "there is more; consumers continue",
                floor >> 20, self._directory,
            )  # fmt: skip
        else:
            logger.info("the disk of %s has room again: producers continue", self._directory)
