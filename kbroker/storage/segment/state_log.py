"""The log to which the state stores of the engines `segment` and `lmdb` write their changes: its
name, how it is written, and how it is read. The format of its records is in state_log_records.py.

One write is one record batch, so it is kept whole or not at all: a torn batch fails its CRC, and
the segment log cuts it off. This module must not know what keys mean, nor which changes its caller
keeps elsewhere.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import starmap
from threading import Lock
from uuid import UUID

from kbroker.errors import NoSpace, StoreFailed
from kbroker.formats.batches import NO_TIMESTAMP, build_timeless_batch, crc_is_valid, iter_headers
from kbroker.formats.compression import CorruptPayload
from kbroker.storage.segment.log_store import SegmentLogStore
from kbroker.storage.segment.state_log_records import batch_changes, to_record
from kbroker.storage.spi import Change, LogBounds, LogId, LogReader, LogSettings, LogStore, StampedBatch

LOG = LogId(UUID("7f8f0d4b-6f2c-5a0e-9d3e-5f5f73686172"), 0)
LOAD_BYTES = 1 << 20


def bounds_of(log: LogReader) -> LogBounds:
    try:
        return log.bounds(LOG)
    except KeyError:
        return LogBounds(0, 0)  # a store that was never written


def read_changes(log: LogReader, offset: int, end_offset: int) -> tuple[list[Change], int]:
    """Changes of some batches from `offset` on, and the offset at which the next call continues."""
    changes: list[Change] = []
    for view in log.read(LOG, offset, max_bytes=LOAD_BYTES, end_offset=end_offset):
        for position, header in iter_headers(view):
            # Zeros have a valid CRC, so check the offset as well.
            if header.last_offset < offset or not crc_is_valid(view, position, header):
                raise StoreFailed(f"state log: the batch at offset {offset} is damaged")
            try:
                changes += batch_changes(view, position, header)
            except (CorruptPayload, KeyError, struct.error) as error:
                raise StoreFailed(
                    f"state log: the batch at offset {header.base_offset} cannot be read: {error}"
                ) from error
            offset = header.last_offset + 1
    return changes, offset if changes else end_offset


class StateLog:
    """The log of the store that owns it.

    - `appending`: held by callers of `append` from before the call until their maps have the
      changes too. So a thread that holds it finds all changes below `end_offset` in the maps.
    - `end_offset`: where the next change goes. The store may raise it before its first write.
    """

    def __init__(self, log: LogStore, settings: LogSettings) -> None:
        log.create(LOG, settings)
        self.reader = log
        self._log = log
        self.appending = Lock()
        self.start_offset, self.end_offset = log.bounds(LOG)
        """The start is that of the moment of opening."""

    def append(self, changes: Sequence[Change]) -> int:
        """Write the changes as one batch, not yet synced, and return its size in bytes. NoSpace or
        StoreFailed: nothing of it is kept."""
        data = build_timeless_batch(starmap(to_record, changes), base_offset=self.end_offset)
        last_offset = self.end_offset + len(changes) - 1
        self._log.write([StampedBatch(LOG, self.end_offset, last_offset, NO_TIMESTAMP, data)], now_ms=0)
        self.end_offset = last_offset + 1
        return len(data)

    def sync(self) -> None:
        self._log.sync()

    def trim(self, offset: int) -> bool:
        """Remove what ends at or below `offset`; durable on return. False if a full disk postpones
        it. Call without `appending`: writes need not wait for the removal of files, unless the log
        cannot remove beside them, or would become empty."""
        try:
            if offset < self.end_offset and self._log.trim_beside_write:
                self._log.trim(LOG, offset)
            else:
                with self.appending:
                    self._log.trim(LOG, offset)
        except NoSpace:
            return False
        return True

    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._log.segments(LOG))

    def reserved_bytes(self) -> int:
        """Disk space that the log has taken behind its end, for its next records."""
        return self._log.reserved_bytes(LOG) if isinstance(self._log, SegmentLogStore) else 0

    def close(self) -> None:
        self._log.close()
