"""The records of a ShareFetch answer, as bytes: whole batches as they lie in the store, or cut down to what was taken.

    stored   | header: 8000 records, last delta 7999 | 0 | 1 | ... | 4711 | 4712 | ... | 7999 |
    sent     | header:    2 records, last delta 4712 | 4711 | 4712 |

In record_limit mode (KIP-1206) a client takes few records, perhaps one, of a batch that may have thousands. It would parse all of
them at every poll, so it is sent only those that it takes. A slice is a batch such as compaction leaves behind: base offset, both
timestamps, producer and attributes are the stored ones, so that the deltas inside the records stay true and LogAppendTime counts;
length, last offset delta, record count and CRC are its own. Records that others hold, or that are done, part a batch into several.

Where a record lies is known only to who walks there from record to record. So that this is not done from the batch's beginning at
every poll, `TakenRecords` remembers of the batches cut last each `_STRIDE`-th record that was come by, and the place behind the
last slice: where the next poll goes on as a rule. A record that is delivered again is at most `_STRIDE` records from a known place.

Whole, as in Kafka, go: batches that are taken whole; compressed ones (a slice would mean to decompress all of it for each poll, or to
keep it in memory in plain); those whose CRC is not right, since a new CRC would hide the damage from the client; and those whose
records cannot be walked over. It knows bytes and offsets, and neither locks nor clients.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from kio._kio_native import read_signed_varint
from kio.serial.errors import BufferUnderflow

from kbroker.compression import Codec
from kbroker.records import (
    CONTROL,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    BatchHeader,
    Buffer,
    crc_is_valid,
    read_header,
    sliced_header,
)
from kbroker.share.effects import AcquiredRange

_STRIDE = 32
_BATCHES_REMEMBERED = 4
_COPY_BELOW_BYTES = 4 << 10
"""A slice of less is copied behind its header: one buffer to send instead of two."""


class StoredBatch(NamedTuple):
    """Where a record batch lies in what was read. Control batches are not handed out (KIP-98, and the broker's own)."""

    base_offset: int
    last_offset: int
    is_control: bool
    view: memoryview
    start: int
    end: int


_unpack_batch = struct.Struct(">qi4xb4xhi").unpack_from
"""Of the header what is looked at here: base offset, length, magic, attributes, last offset delta."""
_LEAST_LENGTH = HEADER_SIZE - LENGTH_END
_base_offset, _last_offset = itemgetter(0), itemgetter(1)

Walked: TypeAlias = tuple[int, int, bool, memoryview, int, int]
"""What a StoredBatch holds. There may be hundreds in an answer of which nobody asks more than the offsets: naming each would cost half as
much again as finding it."""


def walk(views: Sequence[memoryview], fetch_offset: int, wanted: int, end_offset: int) -> list[Walked]:
    """The batches of `views` from the front, as many as hold `wanted` offsets: those that iter_possible() of stored_batches.py gives, with
    two calls for each."""
    batches: list[Walked] = []
    least_offset, beyond = 0, fetch_offset + wanted
    for view in views:
        last, at, size = 0, 0, len(view)
        while at + HEADER_SIZE <= size:
            base_offset, length, magic, attributes, last_delta = _unpack_batch(view, at)
            end = at + length + LENGTH_END
            if magic != MAGIC or length < _LEAST_LENGTH or end > size or not least_offset <= base_offset < end_offset or last_delta < 0:
                break
            if base_offset >= beyond:
                return batches
            least_offset = base_offset + last_delta + 1
            batches.append((base_offset, least_offset - 1, attributes & CONTROL != 0, view, at, end))
            last, at = at, end
        if at < size:  # What lies here is no batch, or else the one before does not say how long it is.
            if at and not crc_is_valid(view, last, read_header(view, last)):
                batches.pop()
            return batches
    return batches


def whole_batches(batches: Sequence[Walked], ranges: Sequence[AcquiredRange], *, has_control: bool = True) -> list[memoryview]:
    """From the batch of the first acquired offset to that of the last, in as few views as the reading gave. `has_control`: there may be
    control batches among them."""
    first, last = ranges[0].first_offset, ranges[-1].last_offset
    i = bisect_left(batches, first, key=_last_offset)
    j = bisect_right(batches, last, lo=i, key=_base_offset)
    if not has_control and i < j:
        _, _, _, view, start, _ = batches[i]
        _, _, _, last_view, _, end = batches[j - 1]
        if view is last_view:
            return [view[start:end]]
    return _views([batch for batch in map(StoredBatch._make, batches[i:j]) if not batch.is_control])


def _views(batches: Sequence[StoredBatch]) -> list[memoryview]:
    """Neighbours in one view are one view."""
    if not batches:
        return []
    views: list[memoryview] = []
    first, end = batches[0], batches[0].start
    for batch in batches:
        if batch.view is not first.view or end != batch.start:
            views.append(first.view[first.start : end])
            first = batch
        end = batch.end
    views.append(first.view[first.start : end])
    return views


class TakenRecords:
    """What record_limit sends of one share-partition. Memory: for `_BATCHES_REMEMBERED` batches, 8 bytes for each `_STRIDE` records."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], _Places | None] = {}

    def of(self, batches: Sequence[Walked], ranges: Sequence[AcquiredRange]) -> list[Buffer]:
        """Exactly the records of `ranges`, which are in offset order; see above for what goes whole. Holes in a batch have none, but a
        batch of which nothing but holes was taken goes whole too: clients look for the ranges in records, not in an empty answer."""
        buffers: list[Buffer] = []
        unsent: list[StoredBatch] = []
        for batch in map(StoredBatch._make, batches):
            runs = [] if batch.is_control else _runs_within(batch, ranges)
            if not runs:
                continue
            slices = None if runs[0] == (batch.base_offset, batch.last_offset) else self._slices(batch, runs)
            if slices:
                buffers += _views(unsent)
                buffers += slices
                unsent = []
            else:
                unsent.append(batch)
        buffers += _views(unsent)
        return buffers

    def _slices(self, batch: StoredBatch, runs: Sequence[tuple[int, int]]) -> list[Buffer] | None:
        """None: whole."""
        header = read_header(batch.view, batch.start)
        if header.codec_id != Codec.NONE:
            return None
        key = header.base_offset, header.crc
        try:
            places = self._places.pop(key)
        except KeyError:
            places = _Places() if crc_is_valid(batch.view, batch.start, header) else None
            while len(self._places) >= _BATCHES_REMEMBERED:
                del self._places[next(iter(self._places))]
        slices = None
        if places is not None:
            try:
                slices = list(_cut(batch, header, places, runs))
            except (ValueError, IndexError, BufferUnderflow):
                places = None
        self._places[key] = places
        return slices


def _runs_within(batch: StoredBatch, ranges: Sequence[AcquiredRange]) -> list[tuple[int, int]]:
    """What of the batch was taken: runs of offsets, those that differ only in the delivery count joined."""
    runs: list[tuple[int, int]] = []
    for first, last, _ in ranges:
        if first > batch.last_offset:
            break
        if last >= batch.base_offset:
            first, last = max(first, batch.base_offset), min(last, batch.last_offset)
            if runs and runs[-1][1] + 1 == first:
                first = runs.pop()[0]
            runs.append((first, last))
    return runs


def _cut(batch: StoredBatch, header: BatchHeader, places: _Places, runs: Sequence[tuple[int, int]]) -> Iterator[Buffer]:
    payload = batch.view[batch.start + HEADER_SIZE : batch.end]
    for first, last in runs:
        number, begin = places.find(payload, first - batch.base_offset)
        end_number, end = places.find(payload, last + 1 - batch.base_offset)
        if begin == end:
            continue
        records = payload[begin:end]
        head = sliced_header(batch.view, batch.start, records, last_offset_delta=last - batch.base_offset, record_count=end_number - number)
        if len(records) < _COPY_BELOW_BYTES:
            yield b"".join((head, records))
        else:
            yield head
            yield records


class _Places:
    """Where records of one uncompressed batch lie, as far as somebody walked. Each is (offset delta, number, position): all records
    before it have a lower delta, and its own is as high at least."""

    __slots__ = ("_deltas", "_last", "_positions")

    def __init__(self) -> None:
        self._deltas = array("I", [0])
        self._positions = array("I", [0])
        self._last = (0, 0, 0)

    def find(self, payload: memoryview, delta: int) -> tuple[int, int]:
        """Number and position of the first record whose delta is not below this one, or what they would be behind the last record.

        Raises ValueError, IndexError or BufferUnderflow where there is no record, or one that is out of order."""
        k = bisect_right(self._deltas, delta) - 1
        at_least, number, position = self._deltas[k], k * _STRIDE, self._positions[k]
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
            if number == len(self._deltas) * _STRIDE:
                self._deltas.append(at_least)
                self._positions.append(position)
        self._last = at_least, number, position
        return number, position


def _delta_and_end(payload: memoryview, position: int) -> tuple[int, int]:
    """Offset delta of the record at `position`, and where the next one begins."""
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
        raise ValueError("a record that ends before it says what it is")
    delta = payload[position]
    return ((delta >> 1) ^ -(delta & 1) if delta < 0x80 else read_signed_varint(payload, position)[0]), end
