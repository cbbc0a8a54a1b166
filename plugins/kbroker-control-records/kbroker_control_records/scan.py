"""Reads the broker's own control records from a topic partition: one, a chain, all of a range, or
only their offsets. The markers of transactions, which are control batches as well, are none.

Ranges are read in a worker thread, few at a time, because they may be far back. Only headers are
read, apart from the control batches themselves. Damage on the way is an error: share state must not
revert to an older one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import trio

from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.stored_batches import iter_possible
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import BatchHeader
from kbroker.formats.control_records import ShareControl, has_share_state
from kbroker.share_state.control_chains import ChainWalk
from kbroker.share_state.control_walk import advanced, decoded_at, read_state, walking

T = TypeVar("T")

_CHUNK_BYTES: Final = 1 << 20
_SCANS_AT_ONCE: Final = 2
_threads: Final = trio.CapacityLimiter(_SCANS_AT_ONCE)


async def scan(partition: Partition, start: int, end: int) -> list[tuple[int, ShareControl]]:
    """(offset, record) of the share state in control batches of [start, end). Raises KafkaError for
    a range that cannot be read."""

    def search() -> list[tuple[int, ShareControl]]:
        return [
            found
            for view, position, header in _control_batches(partition, start, end)
            for found in read_state(view, position, header)
        ]

    return await _in_thread(partition, search)


async def scan_offsets(partition: Partition, start: int, end: int) -> list[tuple[int, int]]:
    """First and last offset of each control batch of share state in [start, end). Raises as
    `scan`."""
    return await _in_thread(partition, lambda: offsets_now(partition, start, end))


def offsets_now(partition: Partition, start: int, end: int) -> list[tuple[int, int]]:
    """The same without a thread, for a small range."""
    return [
        (header.base_offset, header.last_offset)
        for view, position, header in _control_batches(partition, start, end)
        if has_share_state(view, position, header)
    ]


async def read_at(partition: Partition, offset: int) -> ShareControl | None:
    """The share state in the record at `offset`, None if there is no such record. Raises
    KafkaError."""
    views = await partition.read(offset, max_bytes=1, end_offset=offset + 1)
    return decoded_at(views, offset)


async def walk_back(partition: Partition, walk: ChainWalk) -> None:
    """Read the chain to its checkpoint. Raises KafkaError, and ValueError where the chain is
    broken."""
    reading = walking(walk)
    wanted = next(reading, None)
    while wanted is not None:
        try:
            views = await partition.read(wanted.offset, max_bytes=wanted.max_bytes, end_offset=wanted.end)
        except KafkaError:
            if wanted.is_needed:
                raise
            views = ()  # The damage does not matter.
        wanted = advanced(reading, views)


def walk_back_now(partition: Partition, walk: ChainWalk) -> None:
    """The same without waiting. Raises StoreFailed as well."""
    reading = walking(walk)
    wanted = next(reading, None)
    while wanted is not None:
        try:
            views = partition.read_now(wanted.offset, max_bytes=wanted.max_bytes, end_offset=wanted.end)
        except KafkaError:
            if wanted.is_needed:
                raise
            views = ()
        wanted = advanced(reading, views)


def _control_batches(
    partition: Partition, start: int, end: int
) -> Iterator[tuple[memoryview, int, BatchHeader]]:
    """All control batches, also those of transactions."""
    offset = start
    while offset < end and (views := partition.read_stored(offset, max_bytes=_CHUNK_BYTES, end_offset=end)):
        for view, position, header in iter_possible(views, end):
            if header.is_control:
                yield view, position, header
            offset = header.last_offset + 1


async def _in_thread(partition: Partition, search: Callable[[], T]) -> T:
    try:
        return await trio.to_thread.run_sync(search, limiter=_threads)
    except KeyError:  # The store knows no such log.
        if not partition.deleted:
            raise
        raise KafkaError(ErrorCode.unknown_topic_or_partition) from None
