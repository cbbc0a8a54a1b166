"""Where the records of one uncompressed payload are, so that a slice is found without a walk from
the beginning.

The start of a record is known only from the previous record. So a walk notes each `STRIDE`-th
record that it passes, and the place where it stops. A later search starts from the nearest of
these.

Compaction removes records, and the batch keeps its range of offsets. Such a batch is sparse:

    header   base 100, last delta 9, 3 records
    records  101, 104, 105
    holes    100, 102..103, 106..109

This module knows the bytes of one batch, and no codecs.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, TypeAlias

from kio._kio_native import read_signed_varint
from kio.serial.errors import BufferUnderflow

from kbroker.formats.batches import BatchHeader

STRIDE: Final = 32
UNWALKABLE: Final = (ValueError, IndexError, BufferUnderflow)
"""Raised by a walk where there is no record, or one that is out of order."""
Runs: TypeAlias = Sequence[tuple[int, int]]
"""First and last offsets."""
_counts = struct.Struct(">23xi30xi").unpack_from
"""Last offset delta and record count of a batch header."""


class Places:
    """Each place is (offset delta, number, position). All records before it have a lower delta, and
    its own delta is at least as high."""

    __slots__ = ("_deltas", "_last", "_positions")

    def __init__(self) -> None:
        self._deltas = array("I", [0])
        self._positions = array("I", [0])
        self._last = (0, 0, 0)

    @property
    def size_bytes(self) -> int:
        return 2 * len(self._deltas) * self._deltas.itemsize

    def find(self, payload: bytes | memoryview, delta: int) -> tuple[int, int]:
        """Number and position of the first record whose delta is not below this one. If there is
        none, those after the last record.

        Raises one of UNWALKABLE."""
        k = bisect_right(self._deltas, delta) - 1
        at_least, number, position = self._deltas[k], k * STRIDE, self._positions[k]
        if number < self._last[1] and self._last[0] <= delta:
            at_least, number, position = self._last
        size = len(payload)
        while position < size:
            found, end = _delta_and_end(payload, position)
            if found < at_least or end > size:
                raise ValueError(f"record at byte {position} is not where it should be")
            if found >= delta:
                break
            at_least, number, position = found + 1, number + 1, end
            if number == len(self._deltas) * STRIDE:
                self._deltas.append(at_least)
                self._positions.append(position)
        self._last = at_least, number, position
        return number, position

    def walk_all(self, payload: bytes, record_count: int, last_delta: int) -> None:
        """Find all places. Raises one of UNWALKABLE if the payload is not exactly so many records
        up to this delta.

        Works like find(), but reads varints of one and two bytes in place, which halves the time
        for a large batch."""
        deltas, positions = array("I", [0]), array("I", [0])
        size, position, number, at_least = len(payload), 0, 0, 0
        while position < size:
            signs = byte = payload[position]
            if byte < 0x80:
                at = position + 1
                end = at + (byte >> 1)
            elif (second := payload[position + 1]) < 0x80:
                at = position + 2
                end = at + ((byte & 0x7F | second << 7) >> 1)
            else:
                length, length_size = read_signed_varint(payload, position)
                at = position + length_size
                end = at + length
            at += 1  # attributes
            while payload[at] >= 0x80:  # timestamp delta
                at += 1
            at += 1
            byte = payload[at]
            signs |= byte
            if byte < 0x80:
                delta = byte >> 1
            elif (second := payload[at + 1]) < 0x80:
                delta = (byte & 0x7F | second << 7) >> 1
            else:
                delta, _ = read_signed_varint(payload, at)
            if signs & 1 or at >= end or end > size or not at_least <= delta <= last_delta:
                raise ValueError(f"record at byte {position} is not where it should be")
            at_least, number, position = delta + 1, number + 1, end
            if not number % STRIDE:
                if number > record_count:  # Too many already: do not read the rest.
                    break
                deltas.append(at_least)
                positions.append(position)
        if number != record_count:
            raise ValueError(f"{number} records, not {record_count}")
        self._deltas, self._positions = deltas, positions


def is_sparse(view: memoryview, start: int = 0) -> bool:
    """Whether the batch has fewer records than offsets."""
    last_delta, record_count = _counts(view, start)
    return bool(record_count <= last_delta)


def runs_of_payload(payload: bytes | memoryview, header: BatchHeader) -> Runs | None:
    """The offsets of a batch that have records; `payload` is not compressed. None: it cannot be
    walked over."""
    found: list[tuple[int, int]] = []
    at_least, position = 0, 0
    try:
        for _ in range(header.record_count):
            delta, end = _delta_and_end(payload, position)
            if not at_least <= delta <= header.last_offset_delta or end > len(payload):
                return None
            offset = header.base_offset + delta
            if found and found[-1][1] + 1 == offset:
                found[-1] = found[-1][0], offset
            else:
                found.append((offset, offset))
            at_least, position = delta + 1, end
    except UNWALKABLE:
        return None
    return found


def _delta_and_end(payload: bytes | memoryview, position: int) -> tuple[int, int]:
    """Offset delta of the record at `position`, and the position of the next one."""
    length = payload[position]
    if length < 0x80:
        length, size = (length >> 1) ^ -(length & 1), 1
    else:
        length, size = read_signed_varint(payload, position)
    position += size
    end = position + length
    position += 1  # attributes
    while payload[position] >= 0x80:  # timestamp delta
        position += 1
    position += 1
    if position >= end:
        raise ValueError("a record that ends within its head")
    delta = payload[position]
    return ((delta >> 1) ^ -(delta & 1) if delta < 0x80 else read_signed_varint(payload, position)[0]), end
