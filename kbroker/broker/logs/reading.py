"""The reading half of a partition: which offsets are visible, and reads that do not block the loop.

A read may take milliseconds where the page cache lacks the data. Such a cold read runs in a thread.
It reads ahead if it continues an earlier one, as a consumer that catches up does. The range that it
has brought into the page cache is then read on the loop. Reads at random places, such as those of
parked records that are due, do not read ahead.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Final

import trio

from kbroker.broker.logs.stored_batches import checked, iter_possible
from kbroker.errors import ErrorCode, KafkaError, StoreFailed
from kbroker.storage.spi import LogId, LogStore, SegmentInfo

logger = logging.getLogger(__name__)

_REPORT_EVERY_S = 60.0
"""How often an unreadable partition is logged: clients repeat their reads."""

_READ_AHEAD_BYTES = 256 * 1024
"""The least that a cold read covers if it continues an earlier one, so that a client that fetches a
few records at a time waits for a thread only once per this much."""

_REMEMBERED_READS = 32
"""Cold reads whose ends are remembered: several consumers may catch up at once, beside random
reads."""


class ReadablePartition:
    """`high_watermark`: the end of what is visible; `log_start_offset`: its beginning. `deleted`:
    the topic is being deleted, and clients no longer read it."""

    def __init__(self, log: LogId, topic_name: str, store: LogStore, log_start_offset: int) -> None:
        self.log = log
        self.topic_name = topic_name
        self.deleted = False
        self._store = store
        self._tail_offset = store.tail_offset
        bounds = store.bounds(log)
        self.high_watermark = bounds.end_offset
        self.written_from: Final = bounds.end_offset
        """Batches below this offset were written by an earlier broker life, whose writes need not
        be in the page cache."""
        self.log_start_offset = min(max(bounds.start_offset, log_start_offset), bounds.end_offset)
        self._warm = range(0)
        """The offsets that the last cold read covered."""
        self._cold_ends: tuple[int, ...] = ()
        """The offsets at which recent cold reads ended, or those that continued them."""
        self._next_report_s = -math.inf
        self._knows_segments = not store.may_block

    async def read(self, offset: int, *, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        """Whole batches of [offset, end_offset) as LogReader.read returns them; a cold read runs in
        a thread.

        Nothing is returned once the partition is deleted, even during the read. Raises
        KAFKA_STORAGE_ERROR if the store cannot read, CORRUPT_MESSAGE if the bytes that it finds
        cannot be a batch.
        """
        found = self.read_if_warm(offset, max_bytes, end_offset)
        if found is not None:
            return found
        end_offset = min(end_offset, self.high_watermark)
        return await trio.to_thread.run_sync(lambda: self._read_cold(offset, max_bytes, end_offset))

    def read_if_warm(self, offset: int, max_bytes: int, end_offset: int) -> Sequence[memoryview] | None:
        """`read` without waiting; None if it may block."""
        if end_offset > self.high_watermark:
            end_offset = self.high_watermark
        if offset >= end_offset or self.deleted:
            return ()
        if self._store.may_block and (offset < self.written_from or offset < self._tail_offset(self.log)):
            warm_end = min(end_offset, self._warm.stop)
            # Compaction may have removed all batches up to there. The next one may be cold.
            if offset in self._warm and (
                (found := self._read(offset, max_bytes, warm_end)) or warm_end == end_offset
            ):
                return found
            if self._store.is_cached(self.log, offset, max_bytes=max_bytes, end_offset=end_offset):
                views = self._read(offset, max_bytes, end_offset)
                if offset in self._cold_ends:
                    self._note_end(end_of(views, offset, end_offset))
                return views
            return None
        return self._read(offset, max_bytes, end_offset)

    def _read_cold(self, offset: int, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        """Runs in a thread; the log may be dropped in the meantime."""
        visible = self.high_watermark
        ahead_bytes = max(max_bytes, _READ_AHEAD_BYTES) if offset in self._cold_ends else max_bytes
        ahead = self._read_unless_deleted(offset, ahead_bytes, visible)
        warm_until = end_of(ahead, offset, visible)
        self._warm = range(offset, warm_until)
        self._note_end(warm_until)
        return self._read_unless_deleted(offset, max_bytes, end_offset)

    def _note_end(self, offset: int) -> None:
        self._cold_ends = (*self._cold_ends[1 - _REMEMBERED_READS :], offset)

    def _read_unless_deleted(self, offset: int, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        try:
            return self._read(offset, max_bytes, end_offset)
        except KeyError:
            if not self.deleted:
                raise
            return ()

    async def read_batches(
        self, offsets: Sequence[int], max_bytes: int, is_last: Callable[[memoryview], bool]
    ) -> dict[int, Sequence[memoryview]]:
        """By offset, the batch that has it: for offsets anywhere in the log whose reads may block.
        One thread reads them all.

        - The first offset is always in the result; raises as `read` for it.
        - An offset is not in the result if its batch is there under another one.
        - The result ends where `max_bytes` are exceeded, after the first batch for which `is_last`
          is true, and before a batch that cannot be read.
        """
        end_offset = self.high_watermark
        try:
            return await trio.to_thread.run_sync(self._read_batches, offsets, max_bytes, is_last, end_offset)
        finally:
            # The engine may remember only the last place that it has loaded.
            self._warm = range(0)

    def _read_batches(
        self, offsets: Sequence[int], max_bytes: int, is_last: Callable[[memoryview], bool], end_offset: int
    ) -> dict[int, Sequence[memoryview]]:
        found: dict[int, Sequence[memoryview]] = {}
        covered: list[range] = []
        for offset in offsets:
            if any(offset in each for each in covered):
                continue
            try:
                views = self._read_unless_deleted(offset, 1, end_offset)
            except KafkaError:
                if found:
                    break  # The caller reads it next, and receives the error.
                raise
            found[offset] = views
            max_bytes -= sum(map(len, views))
            if max_bytes <= 0 or not views or is_last(views[0]):
                break
            covered += [
                range(each.base_offset, each.last_offset + 1)
                for _, _, each in iter_possible(views, end_offset)
            ]
        return found

    def _read(self, offset: int, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        try:
            return checked(
                self._store.read(self.log, offset, max_bytes=max_bytes, end_offset=end_offset),
                offset,
                end_offset,
            )
        except KafkaError as error:
            self.report_unreadable(offset, error)
            raise
        except StoreFailed as error:
            self.report_unreadable(offset, error)
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error

    def report_unreadable(self, offset: int, error: Exception) -> None:
        """Log that a read at `offset` failed, at most once a minute: clients repeat such reads."""
        now_s = time.monotonic()
        if now_s >= self._next_report_s:
            self._next_report_s = now_s + _REPORT_EVERY_S
            logger.error(
                "%s-%d cannot be read at offset %d: %s", self.topic_name, self.log.partition, offset, error
            )

    def is_in_older_segment(self, offset: int) -> bool:
        return offset < self._tail_offset(self.log)

    def read_now(self, offset: int, *, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        """`read` even if it may block: on the loop for small look-ups, or in a thread of the
        caller's. Same errors."""
        if self.deleted:
            return ()
        return self._read_unless_deleted(offset, max_bytes, min(end_offset, self.high_watermark))

    def read_stored(self, offset: int, *, max_bytes: int, end_offset: int) -> Sequence[memoryview]:
        """`read_now` that ignores `deleted`, for readers that keep what they find: on a full disk
        the deletion may still be refused. Raises KeyError if the log is gone."""
        return self._read(offset, max_bytes, min(end_offset, self.high_watermark))

    def segments(self) -> Sequence[SegmentInfo]:
        return self._store.segments(self.log)

    async def load_segments(self) -> Sequence[SegmentInfo]:
        """As `segments`. An engine may have to open a file for each segment of an earlier life, so
        the first call looks in a thread. Empty if the topic is deleted meanwhile."""
        if self._knows_segments:
            return self.segments()
        try:
            found = await trio.to_thread.run_sync(self.segments)
        except KeyError:
            if not self.deleted:
                raise
            return ()
        self._knows_segments = True
        return () if self.deleted else found

    def find_by_timestamp(self, timestamp_ms: int) -> int | None:
        return None if self.deleted else self._store.find_by_timestamp(self.log, timestamp_ms)

    def check_readable(self, offset: int) -> None:
        """Raises OFFSET_OUT_OF_RANGE below the log start and above the high watermark."""
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise KafkaError(ErrorCode.offset_out_of_range)


def end_of(views: Sequence[memoryview], offset: int, end_offset: int) -> int:
    """The offset after the last batch; `offset` if there is none."""
    for _, _, header in iter_possible(views, end_offset):
        offset = header.last_offset + 1
    return offset
