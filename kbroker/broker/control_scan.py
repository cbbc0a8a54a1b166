"""Reading the broker's own control records out of a topic partition: one that is known, all of a range, or where they are.

Ranges are read in a worker thread, as look-ups by time are, and few at a time: what is looked for may be far back. Only headers are
looked at, apart from the control batches themselves. Damage in the way is an error: share state must not be older than it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import trio

from kbroker.broker.partition import Partition
from kbroker.broker.stored_batches import iter_possible
from kbroker.compression import CorruptPayload
from kbroker.control_records import ShareControl, read_controls
from kbroker.errors import ErrorCode, KafkaError
from kbroker.records import BatchHeader

T = TypeVar("T")

_CHUNK_BYTES: Final = 1 << 20
_SCANS_AT_ONCE: Final = 2
_threads: Final = trio.CapacityLimiter(_SCANS_AT_ONCE)


async def scan(partition: Partition, start: int, end: int) -> list[tuple[int, ShareControl]]:
    """(offset, record) of the share state in control batches of [start, end). Raises KafkaError for what cannot be read."""

    def search() -> list[tuple[int, ShareControl]]:
        return [found for view, position, header in _control_batches(partition, start, end) for found in _read(view, position, header)]

    return await _in_thread(partition, search)


async def scan_offsets(partition: Partition, start: int, end: int) -> list[tuple[int, int]]:
    """First and last offset of each control batch of [start, end). Raises as `scan`."""
    return await _in_thread(partition, lambda: offsets_now(partition, start, end))


def offsets_now(partition: Partition, start: int, end: int) -> list[tuple[int, int]]:
    """The same at once, for a range that is small."""
    return [(header.base_offset, header.last_offset) for _, _, header in _control_batches(partition, start, end)]


async def read_at(partition: Partition, offset: int) -> ShareControl | None:
    """The share state that a record at `offset` holds, None where there is no such record. Raises KafkaError."""
    return _at(await partition.read(offset, max_bytes=1, end_offset=offset + 1), offset)


def read_at_now(partition: Partition, offset: int) -> ShareControl | None:
    """The same without waiting. Raises StoreFailed as well."""
    return _at(partition.read_now(offset, max_bytes=1, end_offset=offset + 1), offset)


def _at(views: object, offset: int) -> ShareControl | None:
    for view, position, header in iter_possible(views, offset + 1):  # type: ignore[arg-type]
        if header.is_control and header.base_offset <= offset <= header.last_offset:
            return next((control for at, control in _read(view, position, header) if at == offset), None)
    return None


def _read(view: memoryview, position: int, header: BatchHeader) -> Iterator[tuple[int, ShareControl]]:
    try:
        yield from read_controls(view, position, header)
    except (ValueError, CorruptPayload) as error:
        raise KafkaError(ErrorCode.corrupt_message, f"share state in a control record cannot be read: {error}") from error


def _control_batches(partition: Partition, start: int, end: int) -> Iterator[tuple[memoryview, int, BatchHeader]]:
    offset = start
    while offset < end and (views := partition.read_now(offset, max_bytes=_CHUNK_BYTES, end_offset=end)):
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
