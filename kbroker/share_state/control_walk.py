"""A walk along a group's control records that reads no more than needed: it names the next read,
and takes the records found there. Pure.

Any reader of a log can drive it: the broker, which waits between reads, or a reader of the files.

    reading = walking(walk)              a generator: each value that it yields is a read to do
    wanted = next(reading, None)
    while wanted is not None:
        wanted = advanced(reading, ... the batches that were read ...)

This module must not know how a log is read.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import CONTROL, CRC_START, HEADER_SIZE, LENGTH_END, BatchHeader, read_header
from kbroker.formats.compression import CorruptPayload
from kbroker.formats.control_records import ShareControl, read_controls
from kbroker.share_state.control_chains import ChainWalk

_BACK_OFFSETS: Final = 200
_BACK_BYTES: Final = 32 << 10
_START: Final = struct.Struct(">qi")
_KIND: Final = struct.Struct(">hi")
"""Of a batch's header (formats/batches.py draws it): base offset and length; attributes and last
offset delta, behind the CRC."""


class Wanted(NamedTuple):
    """Batches from `offset` to `end`. `is_needed`: without them the walk ends."""

    offset: int
    end: int
    max_bytes: int
    is_needed: bool


_Place: TypeAlias = tuple[memoryview, int]
Walking: TypeAlias = Generator[Wanted, Sequence[memoryview], None]


def walking(walk: ChainWalk) -> Walking:
    """Yields the reads to do. Records of one group are often close together, so part of the log
    before a record is read along with it. Raises KafkaError for damage, and ValueError where the
    chain is broken."""
    places: dict[int, _Place] = {}
    while (offset := walk.offset) is not None:
        if offset not in places:
            views = yield Wanted(max(walk.checkpoint, offset - _BACK_OFFSETS), offset + 1, _BACK_BYTES, False)
            places = _places(views, offset + 1)
        if offset not in places:
            places |= _places((yield Wanted(offset, offset + 1, 1, True)), offset + 1)
        walk.take(_decoded(places, offset))


def advanced(reading: Walking, views: Sequence[memoryview]) -> Wanted | None:
    """Resume with the batches that were read; None at the end. Raises as `walking`."""
    try:
        return reading.send(views)
    except StopIteration:
        return None


def decoded_at(views: Sequence[memoryview], offset: int) -> ShareControl | None:
    """The share state in a record at `offset`, None if the batches have no such record. Raises
    KafkaError."""
    return _decoded(_places(views, offset + 1), offset)


def read_state(view: memoryview, position: int, header: BatchHeader) -> Iterator[tuple[int, ShareControl]]:
    """(offset, record) of the share state in the control batch at `position`. Raises KafkaError for
    one that cannot be read."""
    try:
        yield from read_controls(view, position, header)
    except (ValueError, CorruptPayload) as error:
        raise KafkaError(
            ErrorCode.corrupt_message, f"share state in a control record cannot be read: {error}"
        ) from error


def _places(views: Sequence[memoryview], end: int) -> dict[int, _Place]:
    """Where the control record of each offset lies in these batches. Most batches belong to others,
    so only their headers are read. Damage hides the batches behind it, and no more: a record that
    is found has a checksum."""
    places: dict[int, _Place] = {}
    for view in views:
        position, size = 0, len(view)
        while position + HEADER_SIZE <= size:
            base_offset, length = _START.unpack_from(view, position)
            attributes, last_offset_delta = _KIND.unpack_from(view, position + CRC_START)
            if attributes & CONTROL:
                for offset in range(
                    max(base_offset, end - _BACK_OFFSETS - 1), min(base_offset + last_offset_delta + 1, end)
                ):
                    places[offset] = view, position
            if length <= 0:
                break
            position += LENGTH_END + length
    return places


def _decoded(places: Mapping[int, _Place], offset: int) -> ShareControl | None:
    if offset not in places:
        return None
    view, position = places[offset]
    return next(
        (control for at, control in read_state(view, position, read_header(view, position)) if at == offset),
        None,
    )
