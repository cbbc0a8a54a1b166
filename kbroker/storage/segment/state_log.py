"""The log to which a state store writes its changes: its name, and how it is read. The format of
its records is in state_log_records.py."""

from __future__ import annotations

import struct
from uuid import UUID

from kbroker.errors import StoreFailed
from kbroker.formats.batches import crc_is_valid, iter_headers
from kbroker.formats.compression import CorruptPayload
from kbroker.storage.segment.log_store import SegmentLogStore
from kbroker.storage.segment.state_log_records import batch_changes
from kbroker.storage.spi import Change, LogBounds, LogId, LogReader

LOG = LogId(UUID("7f8f0d4b-6f2c-5a0e-9d3e-5f5f73686172"), 0)
LOAD_BYTES = 1 << 20


def bounds_of(log: LogReader) -> LogBounds:
    try:
        return log.bounds(LOG)
    except KeyError:
        return LogBounds(0, 0)  # a store that was never written


def reserved_bytes(log: LogReader) -> int:
    """Disk space that the log has taken behind its end, for its next records."""
    return log.reserved_bytes(LOG) if isinstance(log, SegmentLogStore) else 0


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
