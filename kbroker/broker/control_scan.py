"""Reading the broker's own control records out of a topic partition: one, a chain, all of a range, or where they are.

Ranges are read in a worker thread, as look-ups by time are, and few at a time: what is looked for may be far back. Only headers are
looked at, apart from the control batches themselves. Damage in the way is an error: share state must not be older than it was.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

import trio

from kbroker.broker.partition import Partition
from kbroker.broker.stored_batches import iter_possible
from kbroker.compression import CorruptPayload
from kbroker.control_records import ShareControl, read_controls
from kbroker.coordinator.control_chains import ChainWalk
from kbroker.errors import ErrorCode, KafkaError
from kbroker.records import CONTROL, CRC_START, HEADER_SIZE, LENGTH_END, BatchHeader, read_header

T = TypeVar("T")

_CHUNK_BYTES: Final = 1 << 20
_BACK_OFFSETS: Final = 200
_BACK_BYTES: Final = 32 << 10
_SCANS_AT_ONCE: Final = 2
_START: Final = struct.Struct(">qi")
_KIND: Final = struct.Struct(">hi")
"""Of a batch's header (records.py draws it): base offset and length; attributes and last offset delta, behind the CRC."""
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
    views = await partition.read(offset, max_bytes=1, end_offset=offset + 1)
    return _decoded(_places(views, offset + 1), offset)


async def walk_back(partition: Partition, walk: ChainWalk) -> None:
    """Read the chain to its checkpoint. Raises KafkaError, and ValueError where the chain is broken."""
    reading = _walking(walk)
    wanted = next(reading, None)
    while wanted is not None:
        try:
            views = await partition.read(wanted.offset, max_bytes=wanted.max_bytes, end_offset=wanted.end)
        except KafkaError:
            if wanted.is_needed:
                raise
            views = ()  # Damage beside the way.
        wanted = _send(reading, views)


def walk_back_now(partition: Partition, walk: ChainWalk) -> None:
    """The same without waiting. Raises StoreFailed as well."""
    reading = _walking(walk)
    wanted = next(reading, None)
    while wanted is not None:
        try:
            views = partition.read_now(wanted.offset, max_bytes=wanted.max_bytes, end_offset=wanted.end)
        except KafkaError:
            if wanted.is_needed:
                raise
            views = ()
        wanted = _send(reading, views)


class _Wanted(NamedTuple):
    """Batches from `offset` to `end`. `is_needed`: without them the walk ends."""

    offset: int
    end: int
    max_bytes: int
    is_needed: bool


_Place: TypeAlias = tuple[memoryview, int]
_Walking: TypeAlias = Generator[_Wanted, Sequence[memoryview], None]


def _walking(walk: ChainWalk) -> _Walking:
    """What to read next. Records of one group often lie close together: some of the log before a record is read along with it."""
    places: dict[int, _Place] = {}
    while (offset := walk.offset) is not None:
        if offset not in places:
            views = yield _Wanted(max(walk.checkpoint, offset - _BACK_OFFSETS), offset + 1, _BACK_BYTES, False)
            places = _places(views, offset + 1)
        if offset not in places:
            places |= _places((yield _Wanted(offset, offset + 1, 1, True)), offset + 1)
        walk.take(_decoded(places, offset))


def _send(reading: _Walking, views: Sequence[memoryview]) -> _Wanted | None:
    try:
        return reading.send(views)
    except StopIteration:
        return None


def _places(views: Sequence[memoryview], end: int) -> dict[int, _Place]:
    """Where the control record at an offset lies in what was read. Mostly it is others' batches that are passed, so as little of them is
    looked at as will do. Damage makes this miss what is behind it, and no more: what is found has a checksum."""
    places: dict[int, _Place] = {}
    for view in views:
        position, size = 0, len(view)
        while position + HEADER_SIZE <= size:
            base_offset, length = _START.unpack_from(view, position)
            attributes, last_offset_delta = _KIND.unpack_from(view, position + CRC_START)
            if attributes & CONTROL:
                for offset in range(max(base_offset, end - _BACK_OFFSETS - 1), min(base_offset + last_offset_delta + 1, end)):
                    places[offset] = view, position
            if length <= 0:
                break
            position += LENGTH_END + length
    return places


def _decoded(places: Mapping[int, _Place], offset: int) -> ShareControl | None:
    if offset not in places:
        return None
    view, position = places[offset]
    return next((control for at, control in _read(view, position, read_header(view, position)) if at == offset), None)


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
