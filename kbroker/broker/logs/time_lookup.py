"""Looks up records by time, for ListOffsets and share.auto.offset.reset=by_duration.

Both searches read and decompress batches anywhere in a log, so they run in a worker thread. Only
two run at once: look-ups over many partitions must not use up the threads that cold fetches need. A
cancelled search ends between two batches, and its thread is always waited for, since the store may
be closed next.

The segments know the greatest timestamp of their records, and a look-up by that timestamp usually
finds the record. It does not in three cases:

- the record is stored but not visible yet: the search waits for its commit
- the record lies below a log start inside a segment: the batch headers are read
- a producer put a greatest timestamp into the batch header that no record has: likewise

If a batch contradicts its header, only the records before the contradiction are used: a producer
must not be able to stop all consumers that look up a time. Such batches are logged, at most once a
minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import trio

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.stored_batches import iter_possible
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import BatchHeader, Record, stored_records
from kbroker.formats.compression import CorruptPayload
from kbroker.storage.spi import StampedBatch

OffsetAt: TypeAlias = tuple[int, int]
"""(offset, timestamp in milliseconds)"""

_CHUNK_BYTES = 1 << 20
_SEARCHES_AT_ONCE = 2
_threads: Final = trio.CapacityLimiter(_SEARCHES_AT_ONCE)


async def record_at_time(partition: Partition, timestamp_ms: int) -> OffsetAt | None:
    """The first visible record whose timestamp is at least `timestamp_ms`. Raises
    KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE for bytes that are no batch, and UNKNOWN_TOPIC_OR_PARTITION
    if the topic is deleted during the search."""
    return await _in_thread(partition, lambda: _search_by_time(partition, timestamp_ms))


async def record_with_max_timestamp(
    partition: Partition, commits: GroupCommit[StampedBatch]
) -> OffsetAt | None:
    """The first visible record with the greatest timestamp. Raises as record_at_time, and
    NoSpace."""
    if partition.log_start_offset >= partition.high_watermark:
        return None
    found = await _in_thread(partition, lambda: _search_newest(partition))
    if found is None and not partition.settled:
        await commits.commit([])
        found = await _in_thread(partition, lambda: _search_newest(partition))
    return found or await _in_thread(partition, lambda: _search_all(partition))


async def _in_thread(partition: Partition, search: Callable[[], OffsetAt | None]) -> OffsetAt | None:
    found = None
    try:
        found = await trio.to_thread.run_sync(search, limiter=_threads)
    except KeyError:  # The log has been dropped.
        if not partition.deleted:
            raise
    if partition.deleted:
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    return found


# -- in the thread
# --------------------------------------------------------------------------------------------------


def _search_by_time(partition: Partition, timestamp_ms: int) -> OffsetAt | None:
    base_offset = partition.find_by_timestamp(timestamp_ms)
    if base_offset is None:
        return None
    start = partition.log_start_offset
    # Usually the first batch has the record, so batches are read one by one.
    for batch, position, header in _batches(
        partition, max(base_offset, start), partition.high_watermark, max_bytes=1
    ):
        if header.max_timestamp_ms >= timestamp_ms:
            for record in _records(partition, batch, position, header):
                if record.timestamp_ms >= timestamp_ms and record.offset >= start:
                    return record.offset, record.timestamp_ms
    return None


def _search_newest(partition: Partition) -> OffsetAt | None:
    return _search_by_time(partition, max(segment.max_timestamp_ms for segment in partition.segments()))


def _search_all(partition: Partition) -> OffsetAt | None:
    start = partition.log_start_offset
    best: OffsetAt | None = None
    best_ms = -1
    for segment in sorted(partition.segments(), key=lambda segment: segment.max_timestamp_ms, reverse=True):
        if segment.max_timestamp_ms <= best_ms:
            break
        for batch, position, header in _batches(
            partition, max(start, segment.base_offset), segment.end_offset, max_bytes=_CHUNK_BYTES
        ):
            if header.max_timestamp_ms > best_ms:
                records = _records(partition, batch, position, header)
                visible = (
                    (record.timestamp_ms, -record.offset) for record in records if record.offset >= start
                )
                timestamp_ms, negative_offset = max(visible, default=(-1, 0))
                if timestamp_ms > best_ms:
                    best, best_ms = (-negative_offset, timestamp_ms), timestamp_ms
    return best


def _records(partition: Partition, batch: memoryview, position: int, header: BatchHeader) -> Iterator[Record]:
    try:
        yield from stored_records(batch, position)
    except CorruptPayload as error:
        partition.report_unreadable(header.base_offset, error)


def _batches(
    partition: Partition, offset: int, end_offset: int, *, max_bytes: int
) -> Iterator[tuple[memoryview, int, BatchHeader]]:
    while views := partition.read_now(offset, max_bytes=max_bytes, end_offset=end_offset):
        for view, position, header in iter_possible(views, end_offset):
            trio.from_thread.check_cancelled()
            yield view, position, header
            offset = header.last_offset + 1
