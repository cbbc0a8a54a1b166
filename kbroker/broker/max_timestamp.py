"""The visible record with the greatest timestamp of a partition, for ListOffsets.

The segments know the greatest timestamp of what is stored; mostly a look-up by that timestamp is the answer. It is not where the
record is stored but not yet visible (then its commit is waited for), below a log start inside a segment, or where a producer
wrote a greatest timestamp into the batch header that no record has. For those two the batch headers are read, in a thread.
"""

from __future__ import annotations

from collections.abc import Iterator

import trio

from kbroker.broker.group_commit import GroupCommit
from kbroker.broker.partition import Partition
from kbroker.broker.share_loading import record_at_time
from kbroker.errors import ErrorCode, KafkaError
from kbroker.records import BatchHeader, iter_headers, iter_records
from kbroker.storage.spi import StampedBatch

_CHUNK_BYTES = 1 << 20


async def record_with_max_timestamp(partition: Partition, commits: GroupCommit[StampedBatch]) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record with the greatest timestamp. Raises NoSpace, StoreFailed, CorruptPayload, and
    UNKNOWN_TOPIC_OR_PARTITION when the topic is deleted meanwhile."""
    if partition.log_start_offset >= partition.high_watermark:
        return None
    newest_ms = max(segment.max_timestamp_ms for segment in partition.segments())
    found = record_at_time(partition, newest_ms)
    if found is None and not partition.settled:
        await commits.commit([])
        found = record_at_time(partition, newest_ms)
    if found is not None:
        return found
    try:
        return await trio.to_thread.run_sync(_search, partition)
    except KeyError:
        raise KafkaError(ErrorCode.unknown_topic_or_partition) from None


def _search(partition: Partition) -> tuple[int, int] | None:
    start = partition.log_start_offset
    best: tuple[int, int] | None = None
    best_ms = -1
    for segment in sorted(partition.segments(), key=lambda segment: segment.max_timestamp_ms, reverse=True):
        if segment.max_timestamp_ms <= best_ms:
            break
        for batch, position, header in _batches(partition, max(start, segment.base_offset), segment.end_offset):
            if header.max_timestamp_ms > best_ms:
                visible = ((record.timestamp_ms, -record.offset) for record in iter_records(batch, position) if record.offset >= start)
                timestamp_ms, negative_offset = max(visible, default=(-1, 0))
                if timestamp_ms > best_ms:
                    best, best_ms = (-negative_offset, timestamp_ms), timestamp_ms
    return best


def _batches(partition: Partition, offset: int, end_offset: int) -> Iterator[tuple[memoryview, int, BatchHeader]]:
    while views := partition.read_now(offset, max_bytes=_CHUNK_BYTES, end_offset=end_offset):
        for view in views:
            for position, header in iter_headers(view):
                yield view, position, header
                offset = header.last_offset + 1
